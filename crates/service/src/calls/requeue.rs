//! A new job that goes on where an ended one left off.

use std::sync::Arc;

use het_core::{ArrayMember, Event, Job, JobEnd, JobId, JobSpec, Name, StartConditions, State};

use crate::{CallError, Carried, Change, Code, Handle};

/// The ended job as the state has it: what is to be carried over is read off it beside the loop,
/// since finding checkpoints may mean looking at a disk.
///
/// # Errors
/// When it cannot go on.
pub async fn requeue_source(handle: &Handle, old: JobId) -> Result<Job, CallError> {
    handle.query(move |replica| continuable(replica.state(), old).cloned()).await?
}

/// Queues it again as `new`; durable when it returns.
///
/// # Errors
/// When it cannot go on, for example because another job took over its directory meanwhile.
pub async fn requeue(
    handle: &Handle,
    old: JobId,
    new: JobId,
    carried: Carried,
) -> Result<Arc<JobSpec>, CallError> {
    let change = move |state: &State| match continuable(state, old) {
        Ok(job) => {
            // What it waited for has come, or does not matter to whoever queues it again.
            let array = job.spec.start.array.map(|it| ArrayMember { parallel_max: None, ..it });
            let start = StartConditions { array, ..StartConditions::default() };
            let spec = Arc::new(JobSpec { key: None, start, ..job.spec.as_ref().clone() });
            let Carried { succeeded, checkpoints } = carried;
            let event =
                Event::JobSubmitted { job: new, spec: Arc::clone(&spec), succeeded, checkpoints };
            Change { events: vec![event], answer: Ok(spec) }
        }
        Err(refused) => Change { events: Vec::new(), answer: Err(refused) },
    };
    handle.change(change).await?
}

/// As whom a job runs. Another user's, who can name any directory, does not work in it.
fn user_of(spec: &JobSpec) -> Option<&Name> {
    spec.stages.first()?.alternatives.first()?.launch.user.as_ref()
}

fn continuable(state: &State, id: JobId) -> Result<&Job, CallError> {
    let Some(job) = state.job(id) else {
        let text = format!("job {id} ended too long ago to go on");
        return Err(CallError::new(Code::NotFound, text).hint("submit it again"));
    };
    let refused = match job.end {
        Some((_, JobEnd::Failed | JobEnd::Cancelled)) => None,
        Some((_, JobEnd::Succeeded)) => Some(("has succeeded", "submit it again".to_owned())),
        None => {
            let hint = format!("`het hold {id}` and `het release {id}` start it again");
            Some(("has not ended", hint))
        }
    };
    if let Some((why, hint)) = refused {
        return Err(CallError::new(Code::Conflict, format!("job {id} {why}")).hint(hint));
    }
    let same = |(_, other): &(&JobId, &Arc<Job>)| {
        let same_place = other.spec.workdir == job.spec.workdir;
        other.end.is_none() && same_place && user_of(&other.spec) == user_of(&job.spec)
    };
    if let Some((other, _)) = state.jobs().iter().find(same) {
        let text = format!("job {other} works in the directory of job {id} already");
        return Err(CallError::new(Code::Conflict, text).hint("wait for its end or cancel it"));
    }
    Ok(job)
}
