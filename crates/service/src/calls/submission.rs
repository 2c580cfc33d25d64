//! Accepting a job.

use std::sync::Arc;

use het_core::{Event, JobId, JobSpec};
use het_wire::api::Begin;

use crate::{CallError, Change, Code, Handle};

/// Jobs that have not ended; further submissions are refused.
pub const LIVE_JOBS_MAX: usize = 200_000;

/// # Errors
/// When as many jobs as there may be wait or run, or the store cannot be written.
pub fn check_room(handle: &Handle) -> Result<(), CallError> {
    handle.check_storage()?;
    if handle.jobs().live_count() < LIVE_JOBS_MAX {
        return Ok(());
    }
    let text = format!("{LIVE_JOBS_MAX} jobs wait or run already");
    Err(CallError::new(Code::TooMany, text).hint("wait for some of them to end"))
}

/// Queues a job under an id of [`Handle::new_job_id`]; durable when it returns.
///
/// # Errors
/// When the loop cannot be reached.
pub async fn submit(
    handle: &Handle,
    job: JobId,
    spec: Arc<JobSpec>,
    begin: Begin,
) -> Result<(), CallError> {
    let submitted =
        Event::JobSubmitted { job, spec, succeeded: Vec::new(), checkpoints: Vec::new() };
    let held = (begin == Begin::Held).then_some(Event::JobHeld { job });
    let events = std::iter::once(submitted).chain(held).collect();
    Ok(handle.change(move |_| Change { events, answer: () }).await?)
}
