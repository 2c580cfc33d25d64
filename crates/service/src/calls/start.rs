//! What a submitted job waits for: names of jobs become ids, and what is so already is settled.

use std::sync::Arc;

use het_core::{Dependencies, Dependency, DependencyCondition, DependencyRule, JobId, Time};
use het_wire::api::JobRow;
use het_wire::job::{After, AfterJob, AfterSelector};
use jiff::Timestamp;

use super::jobs::select;
use crate::{CallError, Caller, Code, Handle, Selection};

/// What a job has to wait for yet, and until when at least.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waits {
    pub dependencies: Dependencies,
    pub not_before: Option<Time>,
}

/// The submission that is to wait.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    pub name: &'a str,
    pub tenant: &'a str,
    /// Its index, in an array.
    pub index: Option<u32>,
}

/// # Errors
/// When a job that is waited for is not there, or what is waited for cannot come any more.
pub fn waits(
    handle: &Handle,
    caller: &Caller,
    after: &After,
    waiting: Waiting<'_>,
) -> Result<Waits, CallError> {
    let mut waits = Waits::default();
    let mut failed = None;
    let found = after.on.iter().map(|on| Ok((on, rows(handle, caller, on, waiting)?)));
    let found: Vec<(&AfterJob, Vec<Arc<JobRow>>)> = found.collect::<Result<_, CallError>>()?;
    let rule = rule_of(after, &found)?;
    waits.dependencies.rule = rule;
    for (on, rows) in found {
        for row in rows {
            match standing(&row, on) {
                Standing::Open => waits.dependencies.on.push(Dependency {
                    job: JobId(row.id),
                    condition: on.condition,
                    delay: on.delay,
                }),
                // One is enough, and it has come.
                Standing::Met(at) if rule == DependencyRule::Any => {
                    return Ok(Waits { not_before: Some(at), ..Waits::default() });
                }
                Standing::Met(at) => waits.not_before = waits.not_before.max(Some(at)),
                Standing::Impossible => failed = Some((row, on.condition)),
            }
        }
    }
    let hopeless = match rule {
        DependencyRule::All => true,
        DependencyRule::Any => waits.dependencies.on.is_empty(),
    };
    match failed {
        Some((row, condition)) if hopeless => Err(never(&row, condition)),
        _ => Ok(waits),
    }
}

/// The failure of an array is that of any of its jobs.
fn rule_of(
    after: &After,
    found: &[(&AfterJob, Vec<Arc<JobRow>>)],
) -> Result<DependencyRule, CallError> {
    let is_of_array = |(on, rows): &(&AfterJob, Vec<Arc<JobRow>>)| {
        on.condition == DependencyCondition::Failed && rows.len() > 1
    };
    if after.rule == DependencyRule::Any || !found.iter().any(is_of_array) {
        return Ok(after.rule);
    }
    if found.len() == 1 {
        return Ok(DependencyRule::Any);
    }
    let text = "the failure of an array is waited for together with others";
    Err(CallError::new(Code::BadRequest, text)
        .hint("wait for it alone, or name one of its jobs, such as `41[3]:fail`"))
}

fn never(row: &JobRow, condition: DependencyCondition) -> CallError {
    let wanted = match condition {
        DependencyCondition::Succeeded => "its success",
        _ => "its failure",
    };
    let text = format!("job {} {} already, and this is to wait for {wanted}", row.id, row.state);
    let hint = format!("`:any` waits for its end, however it ends; `het requeue {}`", row.id);
    CallError::new(Code::Conflict, text).hint(hint)
}

enum Standing {
    Open,
    Met(Time),
    Impossible,
}

/// How far a job is, by its row.
fn standing(row: &JobRow, on: &AfterJob) -> Standing {
    let at = |stamp: &Option<String>| {
        let instant = stamp.as_deref().and_then(|stamp| stamp.parse::<Timestamp>().ok());
        let at = instant.map_or(0, |instant| instant.as_millisecond().max(0) as u64);
        Standing::Met(Time(at) + on.delay)
    };
    let has_ended = row.ended_at.is_some();
    match on.condition {
        DependencyCondition::Started if row.started_at.is_some() => at(&row.started_at),
        _ if !has_ended => Standing::Open,
        DependencyCondition::Started | DependencyCondition::Ended => at(&row.ended_at),
        DependencyCondition::Succeeded if row.state == "succeeded" => at(&row.ended_at),
        DependencyCondition::Failed if row.state != "succeeded" => at(&row.ended_at),
        DependencyCondition::Succeeded | DependencyCondition::Failed => Standing::Impossible,
    }
}

fn rows(
    handle: &Handle,
    caller: &Caller,
    on: &AfterJob,
    waiting: Waiting<'_>,
) -> Result<Vec<Arc<JobRow>>, CallError> {
    match &on.jobs {
        AfterSelector::One(job) => select(handle, caller, job),
        AfterSelector::Array(job) => select(handle, caller, &format!("{job}[]")),
        AfterSelector::Member(job, index) => select(handle, caller, &format!("{job}[{index}]")),
        AfterSelector::SameIndex(job) => match waiting.index {
            Some(index) => select(handle, caller, &format!("{job}[{index}]")),
            None => {
                let text = format!("`{job}[=]` is for the jobs of an array, and this is of none");
                Err(CallError::new(Code::BadRequest, text)
                    .hint("say which index it waits for, such as `41[3]`"))
            }
        },
        AfterSelector::Singleton => {
            let same = |row: &JobRow| row.name == waiting.name && row.tenant == waiting.tenant;
            let all = Selection { limit: usize::MAX, ..Selection::default() };
            Ok(handle.jobs().list(&all, same))
        }
    }
}
