//! The line of a job in a list.

use het_core::{Job, JobId, JobState, Reason, StageState, State};
use het_wire::api::JobRow;
use het_wire::text::{self, Lang};

use super::{devices, exit_code, stamp, waiting};

/// The line of a job of this state.
pub fn row(state: &State, id: JobId, job: &Job) -> JobRow {
    let job_state = job.state(state.leases());
    let ended = job.end.map(|(at, _)| at);
    let current = job.spec.stage_indices().zip(&job.stages).find(|(_, stage)| {
        let is_next = matches!(stage.state, StageState::Queued { .. } | StageState::Stopped { .. });
        is_next || matches!(stage.state, StageState::Active { .. })
    });
    let active = job.stages.iter().filter(|stage| matches!(stage.state, StageState::Active { .. }));
    let held = active.filter_map(|stage| stage.placement.as_ref());
    let started = job.stages.iter().filter_map(|stage| stage.first_started).min();
    let waits = matches!(
        job_state,
        JobState::Queued | JobState::Suspended | JobState::Preempted | JobState::Restarting
    );
    // An alternative that never comes about is not what it waits for, unless all are so.
    let may_come =
        |reason: &&Reason| !matches!(reason, Reason::NeverFits { .. } | Reason::NoDriver { .. });
    let reason = current.filter(|_| waits).and_then(|(_, stage)| {
        stage.wait_reasons.iter().find(may_come).or(stage.wait_reasons.first())
    });
    JobRow {
        id: id.0,
        name: job.spec.name.to_string(),
        tenant: job.spec.tenant.to_string(),
        priority: job.spec.priority.to_string(),
        state: job_state.word().to_owned(),
        stage: current.map(|(index, _)| job.spec.stage(index).name.to_string()),
        devices: held.flat_map(|placement| devices(state.topology(), placement)).collect(),
        step: current.and_then(|(_, stage)| stage.progress.step),
        total: current.and_then(|(_, stage)| stage.progress.total),
        submitted_at: stamp(job.submitted),
        started_at: started.map(stamp),
        ended_at: ended.map(stamp),
        exit_code: ended.and_then(|_| exit_code(job, job_state)),
        preemptions: job.stages.iter().map(|stage| stage.preemptions).sum(),
        array: job.spec.start.array.map(|member| member.array.0),
        array_index: job.spec.start.array.map(|member| member.index),
        reason: waiting::reasons(Lang::En, state, id, job)
            .into_iter()
            .next()
            .or_else(|| reason.map(|reason| text::reason(Lang::En, reason))),
        key: job.spec.key.as_ref().map(ToString::to_string),
    }
}
