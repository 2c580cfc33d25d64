//! How a job stands, as its resource says it.

use std::collections::BTreeMap;

use het_core::{Job, JobEnd, JobId, Stage, StageSpec, StageState, State};
use het_wire::record::JobHandover;
use het_wire::resource::{Condition, StageStatus, TrainingJobStatus};
use het_wire::text;

use super::{row, stamp};

/// The status of a job of this state.
pub fn resource_status(state: &State, id: JobId, job: &Job) -> TrainingJobStatus {
    let row = row(state, id, job);
    let stages = job.spec.stages.iter().zip(&job.stages);
    let failure = job.stages.iter().find_map(|stage| match &stage.state {
        StageState::Failed(failure) => Some(failure.message.clone()),
        _ => None,
    });
    let progress = match (row.step, row.total) {
        (Some(step), Some(total)) => format!("{step}/{total}"),
        (Some(step), None) => step.to_string(),
        (None, _) => String::new(),
    };
    let reason = failure.or(row.reason).unwrap_or_default();
    TrainingJobStatus {
        id: Some(id.0),
        state: row.state,
        devices: devices(state, job),
        progress,
        stages: stages.map(|(spec, stage)| stage_status(state, spec, stage)).collect(),
        conditions: conditions(job, &reason),
        reason,
        handover: JobHandover::of(state, id).map(|it| it.to_json()).unwrap_or_default(),
        written: None,
    }
}

/// What all its running stages have, by class: `8 × h100-sxm5-80, 4 × cpu-amd64`.
fn devices(state: &State, job: &Job) -> String {
    let topology = state.topology();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let active = job.stages.iter().filter(|stage| is_active(stage));
    for grant in active.filter_map(|stage| stage.placement.as_ref()).flat_map(|it| it.devices()) {
        let class = topology.class_of(grant.device).id.as_str();
        *counts.entry(class).or_default() += grant.share.whole_units();
    }
    let counts = counts.iter().map(|(class, count)| format!("{count} × {class}"));
    counts.collect::<Vec<_>>().join(", ")
}

fn is_active(stage: &Stage) -> bool {
    matches!(stage.state, StageState::Active { .. })
}

fn stage_status(state: &State, spec: &StageSpec, stage: &Stage) -> StageStatus {
    let lease = match stage.state {
        StageState::Active { lease } => Some(lease.0),
        _ => None,
    };
    let placement = stage.placement.as_ref().filter(|_| lease.is_some());
    let ranks = placement.into_iter().flat_map(|placement| &placement.ranks);
    let nodes = ranks.map(|rank| state.topology().node(rank.node).name.to_string());
    StageStatus {
        name: spec.name.to_string(),
        state: text::stage_state(&stage.state).to_owned(),
        attempts: stage.attempts,
        lease,
        nodes: nodes.collect(),
        checkpoint: stage.checkpoint.as_ref().map(|checkpoint| checkpoint.path.clone()),
    }
}

fn conditions(job: &Job, reason: &str) -> Vec<Condition> {
    let condition = |kind: &str, reason: &str, message: &str, at| Condition {
        r#type: kind.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: stamp(at),
    };
    let accepted = condition("Accepted", "Valid", "the scheduler has taken it", job.submitted);
    let ended = job.end.map(|(at, end)| match end {
        JobEnd::Succeeded => condition("Complete", "Succeeded", "all stages have succeeded", at),
        JobEnd::Failed => condition("Failed", "StageFailed", reason, at),
        JobEnd::Cancelled => condition("Failed", "Cancelled", "somebody cancelled it", at),
    });
    [accepted].into_iter().chain(ended).collect()
}
