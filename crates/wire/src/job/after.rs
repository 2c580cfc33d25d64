//! What a job waits for from others: `41:ok,prepare:any`, `41:ok?42:ok`.

use het_core::{DependencyCondition, DependencyRule, Millis};
use thiserror::Error;

use crate::quantity;

/// Dependencies as people write them; which jobs they name is for whoever knows the jobs to say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct After {
    pub rule: DependencyRule,
    pub on: Vec<AfterJob>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfterJob {
    pub jobs: AfterSelector,
    pub condition: DependencyCondition,
    /// From when the condition is met until the job may start.
    pub delay: Millis,
}

/// Jobs that another waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterSelector {
    /// An id, `last`, or a name: the newest job or array of that name.
    One(String),
    /// `ID[]`: the array that a job is of, or the job alone where it is of none.
    Array(String),
    /// `ID[7]`: one job of an array.
    Member(String, u32),
    /// `ID[=]`: for each job of an array the one of the same index in another array.
    SameIndex(String),
    /// All jobs of the same name and tenant that have not ended.
    Singleton,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not what a job can wait for: {what}")]
pub struct AfterError {
    text: String,
    what: &'static str,
}

impl AfterError {
    pub const HINT: &'static str =
        "write `41:ok`, `prepare:any`, `41:fail` or `41:start+10m`, with `,` or `?` between";
}

/// Jobs that one job may wait for.
const JOBS_MAX: usize = 1_000;

/// # Errors
/// What cannot be meant.
pub fn parse(text: &str) -> Result<After, AfterError> {
    let wrong = |text: &str, what| AfterError { text: text.trim().to_owned(), what };
    let (rule, separator) = match (text.contains(','), text.contains('?')) {
        (true, true) => return Err(wrong(text, "it has both `,` and `?`")),
        (_, true) => (DependencyRule::Any, '?'),
        (_, false) => (DependencyRule::All, ','),
    };
    let on: Vec<AfterJob> = text
        .split(separator)
        .map(|part| item(part.trim()).map_err(|what| wrong(part, what)))
        .collect::<Result<_, _>>()?;
    if on.len() > JOBS_MAX {
        return Err(wrong("…", "there are more than 1,000 jobs"));
    }
    Ok(After { rule, on })
}

fn item(text: &str) -> Result<AfterJob, &'static str> {
    if text == "singleton" {
        let (condition, delay) = (DependencyCondition::Ended, Millis(0));
        return Ok(AfterJob { jobs: AfterSelector::Singleton, condition, delay });
    }
    let (text, delay) = match text.split_once('+') {
        Some((text, delay)) => (text, quantity::duration(delay).ok_or("its delay is no duration")?),
        None => (text, Millis(0)),
    };
    let (jobs, word) = text.split_once(':').unwrap_or((text, "ok"));
    let mut conditions = DependencyCondition::ALL.into_iter();
    let condition = conditions
        .find(|condition| condition.word() == word)
        .ok_or("its condition is none of `ok`, `fail`, `any` and `start`")?;
    Ok(AfterJob { jobs: selector(jobs)?, condition, delay })
}

fn selector(text: &str) -> Result<AfterSelector, &'static str> {
    let (job, inside) = match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        Some((job, inside)) => (job, Some(inside)),
        None => (text, None),
    };
    let named = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if job.is_empty() || !job.chars().all(named) {
        return Err("that is neither an id nor a name of a job");
    }
    let job = job.to_owned();
    Ok(match inside {
        None => AfterSelector::One(job),
        Some("") => AfterSelector::Array(job),
        Some("=") => AfterSelector::SameIndex(job),
        Some(index) => {
            let index = index.parse().map_err(|_| "its index is no number")?;
            AfterSelector::Member(job, index)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> (DependencyRule, Vec<String>) {
        let after = parse(text).unwrap_or_else(|error| panic!("{error}"));
        let word = |on: &AfterJob| {
            let delay = on.delay.0;
            format!("{:?} {} {delay}", on.jobs, on.condition.word())
        };
        (after.rule, after.on.iter().map(word).collect())
    }

    #[test]
    fn jobs_are_named_by_id_name_or_array() {
        let (rule, on) = check("41, prepare:any,7[]:fail, 7[3]:start+90s");
        assert_eq!(rule, DependencyRule::All);
        let expected = [
            r#"One("41") ok 0"#,
            r#"One("prepare") any 0"#,
            r#"Array("7") fail 0"#,
            r#"Member("7", 3) start 90000"#,
        ];
        assert_eq!(on, expected);
        let (rule, on) = check("41:ok?sweep[=]");
        assert_eq!(rule, DependencyRule::Any);
        assert_eq!(on, [r#"One("41") ok 0"#, r#"SameIndex("sweep") ok 0"#]);
        assert_eq!(check("singleton").1, ["Singleton any 0"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in ["", "41:done", "41,42?43", "41:ok+soon", "a b", "41[x]", ":ok", "41,,42"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
