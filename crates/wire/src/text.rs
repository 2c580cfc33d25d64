//! The message catalogue: what people read, in English and Chinese.
//!
//! Values go in; one sentence without a full stop comes out. A language is a function argument, so
//! that nothing here depends on the environment.

mod causes;
mod drivers;
mod eligibility;
mod faults;
mod preparations;
mod report;
mod requests;
mod stops;

use het_core::{
    Bytes, Degradation, DegradationCause, JobEnd, JobState, Micro, Name, Reason, StageState,
};

use crate::report::StopTimesReport;
use drivers::no_driver;

pub use causes::with_causes;
pub use drivers::passed_over;
pub use eligibility::{either, not_eligible, on_hold};
pub use faults::{given_up, refused, rejected, resting};
pub use preparations::{reads_inputs, starts_cold, starts_warm};
pub use report::{ReportWords, fill, report_words, stop_cause};
pub use requests::request;
pub use stops::{held, never_saved, not_preemptible, pending, stop};

/// A language of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lang {
    #[default]
    En,
    Zh,
}

impl Lang {
    /// From `HET_LANG`, `LC_ALL`, `LC_MESSAGES` or `LANG`, whichever the lookup finds first.
    pub fn find(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let names = ["HET_LANG", "LC_ALL", "LC_MESSAGES", "LANG"];
        let set = names.iter().find_map(|name| lookup(name).filter(|value| !value.is_empty()));
        if set.is_some_and(|value| value.starts_with("zh")) { Self::Zh } else { Self::En }
    }

    /// As the API takes it.
    pub fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh",
        }
    }

    fn pick(self, english: String, chinese: String) -> String {
        match self {
            Self::En => english,
            Self::Zh => chinese,
        }
    }
}

/// Why a stage starts, waits or stops.
pub fn reason(lang: Lang, reason: &Reason) -> String {
    match reason {
        Reason::OnlyAlternative { word } => {
            lang.pick(format!("`{word}` is what it asks for"), format!("它只要求 `{word}`"))
        }
        Reason::FastestFinish { word } => lang.pick(
            format!("`{word}` should finish first of its alternatives"),
            format!("在各备选中 `{word}` 预计最先完成"),
        ),
        Reason::BestUse { word } => lang.pick(
            format!("`{word}` does most with its devices, and devices are short"),
            format!("设备紧缺，`{word}` 对设备的利用最充分"),
        ),
        Reason::FreeNow { word } => lang.pick(
            format!("`{word}` is free now, a preferred alternative is not"),
            format!("`{word}` 现在空闲，而更优先的备选没有空闲"),
        ),
        Reason::FirstPossible { word } => lang.pick(
            format!("`{word}` is the first of its alternatives that fits here at all"),
            format!("在各备选中 `{word}` 是此处第一个放得下的"),
        ),
        Reason::FixedAtSubmission { word } => lang.pick(
            format!("the policy fixed `{word}` at submission"),
            format!("策略在提交时已固定为 `{word}`"),
        ),
        Reason::Backfilled => lang.pick(
            "stages ahead of it do not fit what it uses".to_owned(),
            "排在前面的阶段用不上它所用的设备".to_owned(),
        ),
        Reason::ClaimReady => lang.pick(
            "devices claimed for it became free".to_owned(),
            "为它预留的设备已空闲".to_owned(),
        ),
        Reason::ItsTurn { word } => lang.pick(
            format!("it is its turn on `{word}` in this round"),
            format!("本轮轮到它使用 `{word}`"),
        ),
        Reason::OnSuspected { word } => lang.pick(
            format!("programs hung on this `{word}`, nothing else is free, and it can afford it"),
            format!("曾有程序在此 `{word}` 上停滞，但别无空闲设备，而它承受得起"),
        ),
        Reason::Resumed { step } => lang.pick(
            format!("continues from the checkpoint of step {step}"),
            format!("从第 {step} 步的检查点继续"),
        ),
        Reason::Aged { seconds } => lang.pick(
            format!("waited {seconds} s, so its priority rose"),
            format!("已等待 {seconds} 秒，优先级随之提高"),
        ),
        Reason::SpreadOver { count, domain, slower_pct } => lang.pick(
            format!("over {count} {domain}s: {slower_pct} % slower"),
            format!("跨 {count} 个 {domain}：慢 {slower_pct} %"),
        ),
        other => wait_reason(lang, other),
    }
}

fn wait_reason(lang: Lang, reason: &Reason) -> String {
    match reason {
        Reason::NotEnough { word, need } => lang.pick(
            format!("fewer than {need} of `{word}` are free now"),
            format!("`{word}` 目前空闲不足 {need} 个"),
        ),
        Reason::TooSpread { word, need, domain } => lang.pick(
            format!("{need} of `{word}` are free, but not inside one {domain}"),
            format!("有 {need} 个 `{word}` 空闲，但不在同一个 {domain} 内"),
        ),
        Reason::NoCompanions { word } => lang.pick(
            format!("cores, memory or disk are missing beside `{word}`"),
            format!("`{word}` 旁缺少所需的核、内存或磁盘"),
        ),
        Reason::NeverFits { word, need, largest } => lang.pick(
            format!("`{word}:{need}` can never fit here, at most {largest}"),
            format!("此处永远放不下 `{word}:{need}`，最多 {largest} 个"),
        ),
        Reason::NoDriver { word, drivers } => no_driver(lang, word, drivers),
        Reason::HeadOfLine { blocker } => lang.pick(
            format!("stage {blocker} is ahead and nobody may pass it"),
            format!("阶段 {blocker} 排在前面，不允许越过"),
        ),
        Reason::NotItsTurn => lang
            .pick("others have their turn in this round".to_owned(), "本轮轮到其他作业".to_owned()),
        Reason::ClaimPending => lang.pick(
            "its devices are claimed and being freed".to_owned(),
            "它的设备已预留，正在释放".to_owned(),
        ),
        Reason::BetterToWait { word } => lang.pick(
            format!("waiting for `{word}` should finish sooner than starting elsewhere now"),
            format!("等待 `{word}` 预计比现在在别处开始更早完成"),
        ),
        Reason::PreemptionTooDear => lang.pick(
            "stopping others would cost more than it brings".to_owned(),
            "停止其他作业的代价大于收益".to_owned(),
        ),
        Reason::WouldDelay { blocker } => lang.pick(
            format!("would hold up stage {blocker}, which has waited long for more devices"),
            format!("会拖延阶段 {blocker}，它已为更多设备等待很久"),
        ),
        Reason::MakesRoom { preemptor } => lang.pick(
            format!("makes room for stage {preemptor} of higher priority"),
            format!("为更高优先级的阶段 {preemptor} 让出设备"),
        ),
        Reason::OverLimit { .. } | Reason::KeptForOthers { .. } | Reason::MayNotBorrow { .. } => {
            quota_reason(lang, reason)
        }
        Reason::Aged { .. }
        | Reason::Backfilled
        | Reason::BestUse { .. }
        | Reason::ClaimReady
        | Reason::FastestFinish { .. }
        | Reason::FirstPossible { .. }
        | Reason::FixedAtSubmission { .. }
        | Reason::FreeNow { .. }
        | Reason::ItsTurn { .. }
        | Reason::OnlyAlternative { .. }
        | Reason::OnSuspected { .. }
        | Reason::Resumed { .. }
        | Reason::SpreadOver { .. } => {
            unreachable!("start reasons are told by `reason`")
        }
    }
}

/// Why a tenant may not have what is free.
fn quota_reason(lang: Lang, reason: &Reason) -> String {
    match reason {
        Reason::OverLimit { tenant, class, limit } => lang.pick(
            format!("`{tenant}` may hold no more than {limit} of `{class}`"),
            format!("`{tenant}` 最多只能持有 {limit} 个 `{class}`"),
        ),
        Reason::KeptForOthers { class } => lang.pick(
            format!("free `{class}` is kept for tenants who are entitled to it"),
            format!("空闲的 `{class}` 留给有权使用的租户"),
        ),
        Reason::MayNotBorrow { tenant, class } => lang.pick(
            format!(
                "it is not preemptible and `{tenant}` would have to borrow `{class}` for it, \
                 which could not be given back"
            ),
            format!("它不可抢占，而 `{tenant}` 要为它借用 `{class}`，借用的必须能归还"),
        ),
        _ => unreachable!("all other reasons are told by `wait_reason`"),
    }
}

/// That a model does not fit on a gang, however it is cut.
pub fn lacks(lang: Lang, class: &Name, units: u32, bytes: Bytes) -> String {
    let gibibytes = bytes.0 as f64 / Bytes::gib(1).0 as f64;
    lang.pick(
        format!(
            "the planner finds no room for it on {units} of `{class}`: each lacks \
             {gibibytes:.1} GiB"
        ),
        format!("规划器认为 {units} 个 `{class}` 放不下：每个缺 {gibibytes:.1} GiB"),
    )
}

/// What stopping a stage and starting it again takes.
pub fn stop_times(lang: Lang, times: &StopTimesReport) -> String {
    let known = |is_measured: bool| match is_measured {
        true => lang.pick("measured".to_owned(), "实测".to_owned()),
        false => lang.pick("assumed".to_owned(), "假定".to_owned()),
    };
    let StopTimesReport { save_s, save_measured, load_s, load_measured } = times;
    let (save, load) = (known(*save_measured), known(*load_measured));
    lang.pick(
        format!("a stop takes {save_s:.1} s to save ({save}) and {load_s:.1} s to load ({load})"),
        format!("停止一次需 {save_s:.1} 秒保存（{save}），{load_s:.1} 秒加载（{load}）"),
    )
}

/// That a device which a stage runs on works slower than it did.
pub fn slow_device(lang: Lang, device: &str, part: Micro) -> String {
    let percent = part.as_f64() * 100.0;
    lang.pick(
        format!("`{device}` works at {percent:.0} % of its usual pace"),
        format!("`{device}` 目前只有平常速度的 {percent:.0} %"),
    )
}

/// That something beside jobs takes a part of the speed of a device which a stage runs on.
pub fn degraded_device(lang: Lang, device: &str, degradation: &Degradation) -> String {
    let percent = degradation.left.as_f64() * 100.0;
    let (english, chinese) = match degradation.cause {
        DegradationCause::Contention { .. } => {
            ("processes of no job work there", "有不属于任何任务的进程在其上运行")
        }
        DegradationCause::Throttling => {
            ("heat or a lack of power holds its clock down", "因过热或供电不足而降频")
        }
        DegradationCause::MemoryPressure => {
            ("programs of its node wait for memory", "所在节点的程序在等待内存")
        }
    };
    lang.pick(
        format!("`{device}` has {percent:.0} % of its speed left: {english}"),
        format!("`{device}` 只剩 {percent:.0} % 的速度：{chinese}"),
    )
}

/// That programs hung on a device which a stage runs on.
pub fn suspected_device(lang: Lang, device: &str) -> String {
    lang.pick(
        format!("`{device}` is suspected: programs hung on it more than once"),
        format!("`{device}` 可疑：曾有程序多次在其上停滞"),
    )
}

/// The word for a stage's state.
pub fn stage_state(state: &StageState) -> &'static str {
    match state {
        StageState::Queued { .. } => "queued",
        StageState::Active { .. } => "running",
        StageState::Stopped { cause, .. } => match cause {
            het_core::StopCause::Priority { .. } | het_core::StopCause::Reclaim { .. } => {
                "preempted"
            }
            cause if cause.moves() => "migrating",
            het_core::StopCause::Fault => "restarting",
            _ => "suspended",
        },
        StageState::Succeeded => "succeeded",
        StageState::Failed(_) => "failed",
        StageState::Cancelled => "cancelled",
    }
}

/// The word for a job's state, for people.
pub fn job_state(lang: Lang, state: JobState) -> &'static str {
    if lang == Lang::En {
        return state.word();
    }
    match state {
        JobState::Queued => "排队",
        JobState::Admitted => "已接纳",
        JobState::Running => "运行中",
        JobState::Checkpointing => "保存检查点",
        JobState::Suspended => "已挂起",
        JobState::Preempted => "被抢占",
        JobState::Migrating => "迁移中",
        JobState::Restarting => "重启中",
        JobState::Held => "已暂停",
        JobState::Ended(JobEnd::Succeeded) => "成功",
        JobState::Ended(JobEnd::Failed) => "失败",
        JobState::Ended(JobEnd::Cancelled) => "已取消",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sentence_keeps_the_style() {
        let word = || "gpu".into();
        let key = het_core::StageKey { job: het_core::JobId(1), stage: het_core::StageIndex(0) };
        let all = [
            Reason::OnlyAlternative { word: word() },
            Reason::FastestFinish { word: word() },
            Reason::BestUse { word: word() },
            Reason::FreeNow { word: word() },
            Reason::FirstPossible { word: word() },
            Reason::FixedAtSubmission { word: word() },
            Reason::Backfilled,
            Reason::ClaimReady,
            Reason::ItsTurn { word: word() },
            Reason::OnSuspected { word: word() },
            Reason::Resumed { step: 3 },
            Reason::Aged { seconds: 9 },
            Reason::SpreadOver { count: 2, domain: "rack".into(), slower_pct: 12 },
            Reason::NotEnough { word: word(), need: 2 },
            Reason::TooSpread { word: word(), need: 2, domain: "node".into() },
            Reason::NoCompanions { word: word() },
            Reason::NeverFits { word: word(), need: 8, largest: 1 },
            Reason::HeadOfLine { blocker: key },
            Reason::NotItsTurn,
            Reason::ClaimPending,
            Reason::BetterToWait { word: word() },
            Reason::PreemptionTooDear,
            Reason::WouldDelay { blocker: key },
            Reason::OverLimit { tenant: "lab".into(), class: word(), limit: 4 },
            Reason::KeptForOthers { class: word() },
            Reason::MayNotBorrow { tenant: "lab".into(), class: word() },
            Reason::MakesRoom { preemptor: key },
        ];
        for item in &all {
            let (english, chinese) = (reason(Lang::En, item), reason(Lang::Zh, item));
            assert!(!english.ends_with('.') && !chinese.ends_with('。'), "{english} {chinese}");
            assert_ne!(english, chinese);
        }
    }
}
