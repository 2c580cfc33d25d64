//! Why a job may not ask for devices yet.

use het_core::{DependencyCondition, NotEligible, Time};
use jiff::{Timestamp, Unit};

use super::Lang;

/// One sentence.
pub fn not_eligible(lang: Lang, reason: &NotEligible) -> String {
    match *reason {
        NotEligible::DependsOn { job, condition } => lang.pick(
            format!("waits until job {job} {}", until(condition)),
            format!("等待作业 {job} {}", until_zh(condition)),
        ),
        NotEligible::DependencyFailed { job, condition } => lang.pick(
            format!("job {job} will never be where it was waited for: it {}", never(condition)),
            format!("作业 {job} 不会再满足依赖：{}", never_zh(condition)),
        ),
        NotEligible::NotBefore { at } => {
            let at = stamp(at);
            lang.pick(format!("begins at {at}"), format!("将于 {at} 开始"))
        }
        NotEligible::ArrayFull { parallel_max } => lang.pick(
            format!("as many of its array run as may, {parallel_max}"),
            format!("其作业数组同时运行的数目已达上限 {parallel_max}"),
        ),
    }
}

/// Why a held job waits.
pub fn on_hold(lang: Lang) -> String {
    lang.pick(
        "somebody holds it until `het release`".to_owned(),
        "有人将其暂停，直到 `het release`".to_owned(),
    )
}

/// Several of which one is enough.
pub fn either(lang: Lang, sentences: &[String]) -> String {
    lang.pick(sentences.join(", or "), sentences.join("，或"))
}

fn until(condition: DependencyCondition) -> &'static str {
    match condition {
        DependencyCondition::Started => "has started",
        DependencyCondition::Succeeded => "has succeeded",
        DependencyCondition::Failed => "has failed",
        DependencyCondition::Ended => "has ended",
    }
}

fn until_zh(condition: DependencyCondition) -> &'static str {
    match condition {
        DependencyCondition::Started => "开始",
        DependencyCondition::Succeeded => "成功",
        DependencyCondition::Failed => "失败",
        DependencyCondition::Ended => "结束",
    }
}

fn never(condition: DependencyCondition) -> &'static str {
    match condition {
        DependencyCondition::Succeeded => "did not succeed",
        DependencyCondition::Failed => "did not fail",
        DependencyCondition::Started | DependencyCondition::Ended => "is not known any more",
    }
}

fn never_zh(condition: DependencyCondition) -> &'static str {
    match condition {
        DependencyCondition::Succeeded => "它没有成功",
        DependencyCondition::Failed => "它没有失败",
        DependencyCondition::Started | DependencyCondition::Ended => "已无其记录",
    }
}

/// To the second, UTC.
pub(super) fn stamp(at: Time) -> String {
    let stamp = Timestamp::from_millisecond(at.0 as i64).ok();
    let stamp = stamp.and_then(|stamp| stamp.round(Unit::Second).ok());
    stamp.map_or_else(|| format!("{} ms", at.0), |stamp| stamp.to_string())
}

#[cfg(test)]
mod tests {
    use het_core::JobId;

    use super::*;

    #[test]
    fn every_sentence_has_two_languages() {
        let job = JobId(41);
        let conditions = DependencyCondition::ALL.into_iter().flat_map(|condition| {
            [
                NotEligible::DependsOn { job, condition },
                NotEligible::DependencyFailed { job, condition },
            ]
        });
        let others = [
            NotEligible::NotBefore { at: Time(1_795_600_000_500) },
            NotEligible::ArrayFull { parallel_max: 4 },
        ];
        for reason in conditions.chain(others) {
            let (english, chinese) =
                (not_eligible(Lang::En, &reason), not_eligible(Lang::Zh, &reason));
            assert!(!english.ends_with('.') && !chinese.ends_with('。'), "{english} {chinese}");
            assert_ne!(english, chinese);
        }
        let at = NotEligible::NotBefore { at: Time(1_795_600_000_500) };
        assert_eq!(not_eligible(Lang::En, &at), "begins at 2026-11-25T09:46:41Z");
    }
}
