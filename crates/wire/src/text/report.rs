//! Words of the report of a comparison.

use het_core::StopCause;

use super::Lang;

/// Every word of the page, in one language. `{}` stands for a value.
#[derive(Debug)]
pub struct ReportWords {
    /// The language's tag.
    pub tag: &'static str,
    /// Trace, cluster.
    pub title: &'static str,
    pub intro: &'static str,
    pub policy: &'static str,
    pub tenant: &'static str,
    pub job: &'static str,
    pub all: &'static str,
    pub mean_completion: &'static str,
    pub p99: &'static str,
    pub makespan: &'static str,
    pub allocated: &'static str,
    pub busy: &'static str,
    pub useful: &'static str,
    pub worst_fairness: &'static str,
    pub energy: &'static str,
    pub price: &'static str,
    pub stops: &'static str,
    pub jobs_done: &'static str,
    pub completion_and_waiting: &'static str,
    pub part_completed: &'static str,
    pub part_started: &'static str,
    pub seconds_to_the_end: &'static str,
    pub seconds_of_waiting: &'static str,
    pub part_of_jobs: &'static str,
    pub queue: &'static str,
    pub seconds: &'static str,
    pub waiting_stages: &'static str,
    pub utilisation: &'static str,
    pub three_levels: &'static str,
    pub who_ran_where: &'static str,
    pub a_row_a_device: &'static str,
    pub not_everything: &'static str,
    pub tenants: &'static str,
    pub part_of_device_time: &'static str,
    pub decisions: &'static str,
    /// Devices, how many, reasons.
    pub starts: &'static str,
    /// Cause, device-seconds.
    pub stops_at_a_cost: &'static str,
    pub stops_because: &'static str,
    pub waits: &'static str,
}

static EN: ReportWords = ReportWords {
    tag: "en",
    title: "{} on {}",
    intro: "Means over {} seed(s) with 95 % confidence intervals; drawings show the first seed.",
    policy: "policy",
    tenant: "tenant",
    job: "job",
    all: "all",
    mean_completion: "mean completion, s",
    p99: "p99, s",
    makespan: "makespan, s",
    allocated: "allocated",
    busy: "busy",
    useful: "useful",
    worst_fairness: "worst finish-time fairness",
    energy: "energy, kWh",
    price: "price",
    stops: "stops",
    jobs_done: "jobs done",
    completion_and_waiting: "Completion and waiting",
    part_completed: "Part of the jobs that took at most so long from submit to end.",
    part_started: "And from submit to their first start.",
    seconds_to_the_end: "seconds to the end",
    seconds_of_waiting: "seconds of waiting",
    part_of_jobs: "part of the jobs",
    queue: "Queue",
    seconds: "seconds",
    waiting_stages: "stages that wait",
    utilisation: "Utilisation",
    three_levels: "Devices held, working, and working for something that counts; dark is all of \
                   them.",
    who_ran_where: "Who ran where",
    a_row_a_device: "A row a device, a colour a job; point at a bar.",
    not_everything: "Not everything fits: see {}.",
    tenants: "Tenants",
    part_of_device_time: "Part of the device time that each had.",
    decisions: "Decisions",
    starts: "starts on {} ({}): {}",
    stops_at_a_cost: "stops ({}), which costs {} device-seconds",
    stops_because: "stops ({})",
    waits: "waits: {}",
};

static ZH: ReportWords = ReportWords {
    tag: "zh-CN",
    title: "{}，集群 {}",
    intro: "{} 个随机种子的均值与 95 % 置信区间；图中为第一个种子。",
    policy: "策略",
    tenant: "租户",
    job: "作业",
    all: "全部",
    mean_completion: "平均完成时间（秒）",
    p99: "p99（秒）",
    makespan: "总完工时间（秒）",
    allocated: "已分配",
    busy: "忙碌",
    useful: "有效",
    worst_fairness: "最差完成时间公平性",
    energy: "能耗（kWh）",
    price: "费用",
    stops: "停止次数",
    jobs_done: "完成作业数",
    completion_and_waiting: "完成与等待",
    part_completed: "从提交到结束不超过该时长的作业比例。",
    part_started: "从提交到首次启动不超过该时长的作业比例。",
    seconds_to_the_end: "完成时间（秒）",
    seconds_of_waiting: "等待时间（秒）",
    part_of_jobs: "作业比例",
    queue: "队列",
    seconds: "秒",
    waiting_stages: "等待的阶段数",
    utilisation: "利用率",
    three_levels: "被占用、在工作、在做有效工作的设备；颜色最深为全部设备。",
    who_ran_where: "谁在哪里运行",
    a_row_a_device: "每行一个设备，每种颜色一个作业；将鼠标移到色条上查看。",
    not_everything: "此处放不下全部内容：见 {}。",
    tenants: "租户",
    part_of_device_time: "各租户所占的设备时间比例。",
    decisions: "决策",
    starts: "在 {} 上启动（{}）：{}",
    stops_at_a_cost: "停止（{}），代价为 {} 设备秒",
    stops_because: "停止（{}）",
    waits: "等待：{}",
};

/// The words of a language.
pub fn report_words(lang: Lang) -> &'static ReportWords {
    match lang {
        Lang::En => &EN,
        Lang::Zh => &ZH,
    }
}

/// A sentence with its values in place of `{}`, in order.
pub fn fill(sentence: &str, values: &[&str]) -> String {
    let mut values = values.iter();
    let mut parts = sentence.split("{}");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += values.next().copied().unwrap_or_default();
        text += part;
    }
    text
}

/// Why a stage was stopped, in a word.
pub fn stop_cause(lang: Lang, cause: StopCause) -> &'static str {
    match lang {
        Lang::En => cause.word(),
        Lang::Zh => chinese_cause(cause.word()),
    }
}

/// The same for the word of a cause; one of a later version stays as it is.
pub(super) fn chinese_cause(word: &str) -> &str {
    match word {
        "priority" => "优先级抢占",
        "reclaim" => "收回借用",
        "shrink" => "缩减",
        "quantum" => "轮转",
        "migration" => "迁移",
        "drain" => "节点排空",
        "slow" => "设备变慢",
        "fault" => "故障",
        "user" => "用户",
        "time_limit" => "超过时限",
        "job_failed" => "作业失败",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_languages_take_the_same_values() {
        let holes = |sentence: &str| sentence.matches("{}").count();
        let sentences = |words: &ReportWords| {
            [
                words.title,
                words.intro,
                words.starts,
                words.stops_at_a_cost,
                words.stops_because,
                words.waits,
            ]
            .map(holes)
        };
        assert_eq!(sentences(&EN), sentences(&ZH));
        assert_eq!(fill("{} of {}", &["2", "3"]), "2 of 3");
    }
}
