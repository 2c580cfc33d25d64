//! Words about stops: who stopped a stage, and what that cost.

use super::{Lang, report::chinese_cause};
use crate::report::StopReport;

/// Why, when and for whom a stage was stopped, what that was expected to cost and what was lost.
pub fn stop(lang: Lang, stop: &StopReport) -> String {
    let StopReport { cause, at, .. } = stop;
    let begun = match lang {
        Lang::En => format!("stopped at {at} ({cause}){}", preemptor(lang, stop)),
        Lang::Zh => format!("{at} 被停止（{}）{}", chinese_cause(cause), preemptor(lang, stop)),
    };
    let parts = [Some(begun), lost(lang, stop), expected(lang, stop)];
    let between = if lang == Lang::En { "; " } else { "；" };
    parts.into_iter().flatten().collect::<Vec<_>>().join(between)
}

fn preemptor(lang: Lang, stop: &StopReport) -> String {
    let is_for_another = matches!(stop.cause.as_str(), "priority" | "reclaim");
    match (stop.preemptor, &stop.preemptor_name) {
        (Some(id), Some(name)) => {
            lang.pick(format!(" for job {id} `{name}`"), format!("，让给作业 {id} `{name}`"))
        }
        (Some(id), None) => lang.pick(format!(" for job {id}"), format!("，让给作业 {id}")),
        (None, _) if is_for_another => lang.pick(
            " for a job that you may not look at".to_owned(),
            "，让给一个你无权查看的作业".to_owned(),
        ),
        (None, _) => String::new(),
    }
}

fn lost(lang: Lang, stop: &StopReport) -> Option<String> {
    let Some(loss) = &stop.lost else {
        return Some(lang.pick("still saving".to_owned(), "仍在保存".to_owned()));
    };
    let time = span(lang, loss.unsaved_s);
    let device_s = loss.device_s;
    let steps = match (loss.step, loss.steps, loss.checkpoint_step) {
        (Some(step), Some(steps), Some(kept)) => lang.pick(
            format!("{steps} steps (at step {step}, goes on from {kept}) and "),
            format!("{steps} 步（停在第 {step} 步，从第 {kept} 步继续）和 "),
        ),
        (Some(step), Some(_), None) => lang.pick(
            format!("all {step} steps, as nothing was saved, and "),
            format!("全部 {step} 步（没有保存过）和 "),
        ),
        _ => String::new(),
    };
    Some(lang.pick(
        format!("lost {steps}{time} of work, {device_s:.0} device-seconds"),
        format!("损失 {steps}{time}的工作，{device_s:.0} 设备秒"),
    ))
}

fn expected(lang: Lang, stop: &StopReport) -> Option<String> {
    let told = stop.expected?;
    let [save, load, lost] = [told.save_s, told.load_s, told.lost_s].map(|s| span(lang, s));
    Some(lang.pick(
        format!(
            "expected: save {save}, load {load}, lose {lost}, {:.0} device-seconds",
            told.device_s
        ),
        format!("预计：保存 {save}，加载 {load}，损失 {lost}，{:.0} 设备秒", told.device_s),
    ))
}

/// That a program runs for so long and never saved.
pub fn never_saved(lang: Lang, seconds: f64) -> String {
    let time = span(lang, seconds);
    lang.pick(
        format!(
            "has run {time} and saved nothing: what it loses at a stop is all of it, hint: let it \
             save and name the directory in `checkpoint:`, or say `preemptible: false`"
        ),
        format!(
            "已运行 {time}，没有保存任何内容：一旦停止将全部丢失，提示：让程序保存并在 \
             `checkpoint:` 中写明目录，或设 `preemptible: false`"
        ),
    )
}

/// That nobody may stop a running stage for others.
pub fn not_preemptible(lang: Lang) -> String {
    lang.pick(
        "nobody may stop it for others now: its file says `preemptible: false`, or that it runs \
         for its `min_runtime` first"
            .to_owned(),
        "现在不允许为其他作业停止它：作业文件写明 `preemptible: false`，或须先运行满 \
         `min_runtime`"
            .to_owned(),
    )
}

/// That a job is held, beside what would be once it is not.
pub fn held(lang: Lang) -> String {
    lang.pick(
        "its job is held until `het release`; then:".to_owned(),
        "作业已暂停，`het release` 之后：".to_owned(),
    )
}

/// That other stages of its job come first.
pub fn pending(lang: Lang) -> String {
    lang.pick(
        "other stages of its job come first".to_owned(),
        "须先完成同一作业的其他阶段".to_owned(),
    )
}

/// A time for people, to about a hundredth.
fn span(lang: Lang, seconds: f64) -> String {
    let (value, english, chinese) = match seconds {
        s if s < 120.0 => (s, "s", "秒"),
        s if s < 7_200.0 => (s / 60.0, "min", "分钟"),
        s => (s / 3_600.0, "h", "小时"),
    };
    lang.pick(format!("{value:.1} {english}"), format!("{value:.1} {chinese}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{StopEstimate, StopLoss};

    fn report() -> StopReport {
        StopReport {
            cause: "priority".to_owned(),
            at: "T".to_owned(),
            preemptor: Some(7),
            preemptor_name: Some("urgent".to_owned()),
            expected: Some(StopEstimate {
                save_s: 10.0,
                load_s: 23.0,
                lost_s: 600.0,
                device_s: 633.0,
            }),
            lost: Some(StopLoss {
                at: "U".to_owned(),
                step: Some(64),
                checkpoint_step: Some(50),
                steps: Some(14),
                unsaved_s: 590.0,
                device_s: 590.0,
            }),
        }
    }

    #[test]
    fn a_stop_is_told_with_what_it_cost() {
        assert_eq!(
            stop(Lang::En, &report()),
            "stopped at T (priority) for job 7 `urgent`; lost 14 steps (at step 64, goes on from \
             50) and 9.8 min of work, 590 device-seconds; expected: save 10.0 s, load 23.0 s, lose \
             10.0 min, 633 device-seconds"
        );
        assert_ne!(stop(Lang::Zh, &report()), stop(Lang::En, &report()));
    }

    #[test]
    fn whoever_may_not_look_at_the_other_job_is_not_told_which() {
        let hidden = StopReport { preemptor: None, preemptor_name: None, ..report() };
        assert!(stop(Lang::En, &hidden).contains("for a job that you may not look at"));
    }

    #[test]
    fn what_is_still_saving_has_lost_nothing_yet() {
        let saving = StopReport { lost: None, ..report() };
        assert!(stop(Lang::En, &saving).contains("still saving"));
    }
}
