//! Jobs that a log begins with.

use std::sync::Arc;

use het_core::{AdoptedJobs, Job, Phase, Stage, StageState};

use super::{Hold, Oracle, Shadow, ShadowStage, Status};

impl Oracle {
    pub(super) fn adopted(&mut self, adopted: &AdoptedJobs) {
        if !self.jobs.is_empty() {
            self.blame(3, "jobs were adopted beside others");
        }
        for (&id, job) in &adopted.jobs {
            self.jobs.insert(id, Shadow::of(job));
            self.follow_course(id);
        }
        for (&id, lease) in &adopted.leases {
            let stopping = match lease.phase {
                Phase::Stopping { cause } => Some(cause),
                Phase::Starting | Phase::Running { .. } => None,
            };
            let (stage, placement) = (lease.stage, Arc::clone(&lease.placement));
            self.leases_seen = self.leases_seen.max(id.0);
            self.holds.insert(id, Hold { stage, placement, since: lease.since, stopping });
        }
    }
}

impl Shadow {
    fn of(job: &Job) -> Self {
        Self {
            spec: Arc::clone(&job.spec),
            held: job.held,
            eligible: job.eligible.is_some(),
            ending: job.ending.is_some() || job.end.is_some(),
            stages: job.stages.iter().map(ShadowStage::of).collect(),
        }
    }
}

impl ShadowStage {
    fn of(stage: &Stage) -> Self {
        let mut shadow = Self {
            status: match stage.state {
                StageState::Queued { .. } | StageState::Stopped { .. } => Status::Idle,
                StageState::Active { lease } => Status::Active(lease),
                StageState::Succeeded => Status::Succeeded,
                StageState::Failed(_) => Status::Failed,
                StageState::Cancelled => Status::Cancelled,
            },
            attempts: stage.attempts,
            preemptions: stage.preemptions,
            failures: stage.failures,
            refusals: stage.refusals,
            published: stage.published,
            charged: stage.charged.0,
            ..Self::default()
        };
        let older = stage.other_checkpoints.older.iter().map(|(checkpoint, _)| checkpoint);
        older.chain(&stage.checkpoint).for_each(|checkpoint| shadow.trail.completed(checkpoint));
        shadow
    }
}
