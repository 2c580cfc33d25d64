//! Accepting a job.

use std::sync::Arc;

use het_core::{Event, JobId, JobSpec};
use het_wire::api::Begin;

use crate::job_table::Room;
use crate::{CallError, Change, Code, Handle};

/// Jobs that have not ended; further submissions are refused.
pub const LIVE_JOBS_MAX: usize = 200_000;

/// Jobs of one tenant that have not ended, where nobody says otherwise.
pub const LIVE_JOBS_OF_A_TENANT: usize = 100_000;

/// # Errors
/// When as many jobs as there may be, of all or of the tenant, wait or run, or the store cannot be
/// written.
pub fn room(handle: &Handle, tenant: &str, of_a_tenant: usize) -> Result<Room, CallError> {
    handle.check_storage()?;
    let text = match handle.jobs().room(tenant, of_a_tenant) {
        _ if handle.jobs().live_count() >= LIVE_JOBS_MAX => {
            format!("{LIVE_JOBS_MAX} jobs wait or run already")
        }
        Some(room) => return Ok(room),
        None => format!("{of_a_tenant} jobs of `{tenant}` wait, run or are held already"),
    };
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
