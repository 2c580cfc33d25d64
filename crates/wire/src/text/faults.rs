//! What failed, what is tried next, and when.

use het_core::{Failure, FailureCause, JobId, Time};

use super::Lang;
use super::eligibility::stamp;

/// Why a stage rests before it starts again, as restart `restart` of `allowed`.
pub fn resting(
    lang: Lang,
    failure: &Failure,
    (restart, allowed): (u32, u32),
    at: Option<Time>,
) -> String {
    let at = at.map(stamp);
    let (why, why_zh) = (cause(Lang::En, failure.cause), cause(Lang::Zh, failure.cause));
    let message = &failure.message;
    match at {
        Some(at) => lang.pick(
            format!("{why} ({message}), restart {restart} of {allowed} is due at {at}"),
            format!(
                "{why_zh}（{message}），第 {restart} 次重启（至多 {allowed} 次）将于 {at} 进行"
            ),
        ),
        None => lang.pick(
            format!("{why} ({message}), it waits for devices to start again"),
            format!("{why_zh}（{message}），等待设备以重新启动"),
        ),
    }
}

/// Why a stage rests that the machine could not begin.
pub fn refused(lang: Lang, failure: &Failure, at: Option<Time>) -> String {
    let why = cause(lang, FailureCause::Refused);
    let message = &failure.message;
    match at.map(stamp) {
        Some(at) => lang.pick(
            format!("{why} ({message}), the next try is due at {at}"),
            format!("{why}（{message}），将于 {at} 再次尝试"),
        ),
        None => lang.pick(
            format!("{why} ({message}), it waits for devices to be tried again"),
            format!("{why}（{message}），等待设备以再次尝试"),
        ),
    }
}

/// Why a job is held that nobody holds.
pub fn given_up(lang: Lang, id: JobId, failure: &Failure, count: u32) -> String {
    let message = &failure.message;
    if failure.cause == FailureCause::Quarantined {
        return quarantined(lang, id, message);
    }
    lang.pick(
        format!(
            "it ended {count} times in a row without new progress, at last because {} ({message}), \
             hint: `het release {id}` lets it go on",
            cause(Lang::En, failure.cause)
        ),
        format!(
            "它连续 {count} 次在没有新进展时结束，最近一次：{}（{message}），提示：`het release {id}` 可使其继续",
            cause(Lang::Zh, failure.cause)
        ),
    )
}

fn quarantined(lang: Lang, id: JobId, message: &str) -> String {
    lang.pick(
        format!(
            "it is quarantined ({message}), hint: look at its directory and what is mounted below \
             it, then `het release {id}` lets it go on"
        ),
        format!(
            "它已被隔离（{message}），提示：检查其目录及其下的挂载，然后用 `het release {id}` 使其继续"
        ),
    )
}

/// That a checkpoint is not used any more.
pub fn rejected(lang: Lang, step: u64) -> String {
    lang.pick(
        format!(
            "the checkpoint of step {step} was rejected: an attempt from it failed before its \
             first progress"
        ),
        format!("第 {step} 步的检查点已弃用：从它恢复的一次尝试在取得任何进展前就失败了"),
    )
}

/// What the evidence says, as a part of a sentence.
fn cause(lang: Lang, cause: FailureCause) -> String {
    let (english, chinese) = match cause {
        FailureCause::Untold => ("it failed", "它失败了"),
        FailureCause::Program => ("its program failed", "其程序自身失败"),
        FailureCause::CannotRun => ("its program could not be run", "其程序无法运行"),
        FailureCause::Refused => ("the machine could not begin it", "机器未能启动它"),
        FailureCause::MemoryLimit => ("it used up its memory", "它用尽了自己的内存"),
        FailureCause::ScratchLimit => {
            ("its files took up more space than it may have", "其文件占用的空间超出允许值")
        }
        FailureCause::MachineMemory => ("the machine ran out of memory", "机器内存耗尽"),
        FailureCause::Killed => ("somebody outside killed it", "它被外部终止"),
        FailureCause::Device => ("its device or node failed", "其设备或节点出现故障"),
        FailureCause::Unseen => ("nobody saw how it ended", "无人看到它如何结束"),
        FailureCause::Stalled => ("it hung", "它停滞不前"),
        FailureCause::Quarantined => {
            ("the server stood still at its files", "服务器在其文件上停滞")
        }
    };
    lang.pick(english.to_owned(), chinese.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sentence_has_two_languages() {
        for cause in FailureCause::ALL {
            let failure = Failure { message: "it is so".to_owned(), cause, ..Failure::default() };
            let tell = |lang| {
                [
                    resting(lang, &failure, (2, 5), Some(Time(1_795_600_000_500))),
                    resting(lang, &failure, (1, 5), None),
                    refused(lang, &failure, None),
                    given_up(lang, JobId(7), &failure, 6),
                    rejected(lang, 40),
                ]
            };
            for (english, chinese) in tell(Lang::En).into_iter().zip(tell(Lang::Zh)) {
                assert!(!english.ends_with('.') && !chinese.ends_with('。'), "{english} {chinese}");
                assert_ne!(english, chinese);
            }
        }
    }
}
