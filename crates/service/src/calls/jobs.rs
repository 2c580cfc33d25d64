//! One job: finding, explaining and changing it.

use std::sync::Arc;

use het_core::{Event, Job, JobChange, JobId, State};
use het_wire::api::JobRow;
use het_wire::report::{ExplanationReport, RunReport};
use het_wire::text::Lang;

use crate::report::{Detail, explanation, report};
use crate::{CallError, Caller, Change, Code, Handle, Verb};

/// What can be done to a job that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Cancel,
    Hold,
    Release,
}

impl Operation {
    /// The fact that it brings, unless it is one already.
    fn event(self, job: &Job, id: JobId) -> Option<Event> {
        match self {
            Self::Cancel => Some(Event::JobCancelled { job: id }),
            Self::Hold => (!job.held).then_some(Event::JobHeld { job: id }),
            Self::Release => job.held.then_some(Event::JobReleased { job: id }),
        }
    }
}

/// The row of the job that a selector names: an id, `last`, or a name (its newest job).
///
/// # Errors
/// When there is none that the caller may see.
pub fn find(handle: &Handle, caller: &Caller, selector: &str) -> Result<Arc<JobRow>, CallError> {
    let jobs = handle.jobs();
    let may_see = |row: &JobRow| caller.may(Verb::ReadJobs, &row.tenant);
    let row = match selector.parse::<u64>() {
        Ok(id) => jobs.row(JobId(id)).filter(|row| may_see(row)),
        Err(_) if selector == "last" => jobs.newest(may_see),
        Err(_) => jobs.named(selector, may_see),
    };
    // A job that the caller may not see is not there, rather than forbidden: its id says nothing.
    row.ok_or_else(|| CallError::no_job(selector))
}

/// The rows of the jobs that a selector names: one job as [`find`] has it, the newest array of a
/// name, all of a job's array (`42[]`), or one job of it by its index (`42[3]`, `42_3`).
///
/// # Errors
/// When there is none that the caller may see.
pub fn select(
    handle: &Handle,
    caller: &Caller,
    selector: &str,
) -> Result<Vec<Arc<JobRow>>, CallError> {
    let inside = selector.strip_suffix(']').and_then(|text| text.split_once('['));
    let by_index = selector.split_once('_').filter(|(id, _)| id.parse::<u64>().is_ok());
    let (job, index) = match inside.or(by_index) {
        Some((job, "")) => (job, None),
        Some((job, index)) => {
            (job, Some(index.parse::<u32>().map_err(|_| CallError::no_job(selector))?))
        }
        None => match newest_of_array(handle, caller, selector) {
            Some(newest) => return Ok(array_of(handle, &newest)),
            None => return Ok(vec![find(handle, caller, selector)?]),
        },
    };
    let named = match newest_of_array(handle, caller, job) {
        Some(newest) => newest,
        None => find(handle, caller, job)?,
    };
    let found: Vec<_> = match (index, named.array) {
        (None, _) => array_of(handle, &named),
        (Some(index), Some(array)) => {
            handle.jobs().of_index(JobId(array), index).into_iter().collect()
        }
        (Some(_), None) => Vec::new(),
    };
    if found.is_empty() { Err(CallError::no_job(selector)) } else { Ok(found) }
}

/// All jobs of a job's array; the job alone where it is of none.
pub fn array_of(handle: &Handle, row: &JobRow) -> Vec<Arc<JobRow>> {
    match row.array {
        Some(array) => handle.jobs().of_array(JobId(array)),
        None => handle.jobs().row(JobId(row.id)).into_iter().collect(),
    }
}

/// The newest job of the newest array of a name, where no single job of that name is newer.
fn newest_of_array(handle: &Handle, caller: &Caller, name: &str) -> Option<Arc<JobRow>> {
    if name == "last" || name.parse::<u64>().is_ok() {
        return None;
    }
    let may_see = |row: &JobRow| caller.may(Verb::ReadJobs, &row.tenant);
    let bears = |row: &JobRow| row.name == name || array_name(row) == Some(name);
    let newest = handle.jobs().newest(|row| bears(row) && may_see(row))?;
    (newest.name != name).then_some(newest)
}

/// The name of a job's array: its own without its index.
fn array_name(row: &JobRow) -> Option<&str> {
    row.name.strip_suffix(&row.array_index?.to_string())?.strip_suffix('-')
}

/// The report of a job of the state; `None` once it has left it.
///
/// # Errors
/// When the replica cannot be reached.
pub async fn live_report(handle: &Handle, id: JobId) -> Result<Option<RunReport>, CallError> {
    let live = handle
        .query(move |replica| report(replica.state(), id, replica.policy().name(), replica.now()));
    Ok(live.await?)
}

/// Why the stages of a job stand where they stand or wait.
///
/// # Errors
/// When it has left the state, or the replica cannot be reached.
pub async fn explain(
    handle: &Handle,
    id: JobId,
    how: (Lang, Detail),
) -> Result<ExplanationReport, CallError> {
    let told = handle.query(move |replica| explanation(&replica.situation(), id, how));
    let found = told.await?;
    found.ok_or_else(|| {
        CallError::new(Code::NotFound, format!("job {id} ended long ago"))
            .hint(format!("`het describe {id}` has its report"))
    })
}

/// # Errors
/// When the job has ended, or the loop cannot be reached.
pub async fn operate(handle: &Handle, id: JobId, operation: Operation) -> Result<(), CallError> {
    change_live(handle, id, move |job| operation.event(job, id)).await
}

/// # Errors
/// When the job has ended, or the loop cannot be reached.
pub async fn change_job(handle: &Handle, id: JobId, change: JobChange) -> Result<(), CallError> {
    change_live(handle, id, move |_| Some(Event::JobChanged { job: id, change })).await
}

async fn change_live(
    handle: &Handle,
    id: JobId,
    event: impl FnOnce(&Job) -> Option<Event> + Send + 'static,
) -> Result<(), CallError> {
    let change = move |state: &State| match state.job(id).filter(|job| job.end.is_none()) {
        Some(job) => Change { events: event(job).into_iter().collect(), answer: Ok(()) },
        None => {
            let text = format!("job {id} has ended");
            let refused = CallError::new(Code::Conflict, text).hint("submit it again");
            Change { events: Vec::new(), answer: Err(refused) }
        }
    };
    handle.change(change).await?
}
