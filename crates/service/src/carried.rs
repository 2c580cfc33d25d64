//! What an ended job leaves to the job that continues it.

use het_core::{Checkpoint, Job, StageIndex, StageState};

/// Stages that succeeded, and the newest checkpoints of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Carried {
    pub succeeded: Vec<StageIndex>,
    pub checkpoints: Vec<(StageIndex, Checkpoint)>,
}

/// `newest` finds the newest complete checkpoint of a stage, wherever the engine keeps them.
pub fn carried(job: &Job, newest: impl Fn(&Job, StageIndex) -> Option<Checkpoint>) -> Carried {
    let mut carried = Carried::default();
    for index in job.spec.stage_indices() {
        if job.stages[index.index()].state == StageState::Succeeded {
            carried.succeeded.push(index);
        } else if let Some(checkpoint) = newest(job, index) {
            carried.checkpoints.push((index, checkpoint));
        }
    }
    carried
}
