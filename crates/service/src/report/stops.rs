//! Who stopped a stage, and what was lost.

use het_core::{Loss, Millis, Phase, Stage, StageState, State, Stop, StopCost, Time};
use het_wire::report::{StopEstimate, StopLoss, StopReport};

use super::stamp;

/// After so long without a checkpoint a program is told what it risks. Chosen, not measured.
const NEVER_SAVED_AFTER: Millis = Millis::seconds(600);

/// The stops of a stage that are kept.
pub(super) fn stops(state: &State, stage: &Stage) -> Vec<StopReport> {
    stage.stops.iter().map(|row| stop(state, row)).collect()
}

fn stop(state: &State, stop: &Stop) -> StopReport {
    let preemptor = stop.cause.preemptor().map(|key| (key.job, state.job(key.job)));
    StopReport {
        cause: stop.cause.word().to_owned(),
        at: stamp(stop.at),
        preemptor: preemptor.map(|(id, _)| id.0),
        preemptor_name: preemptor.and_then(|(_, job)| Some(job?.spec.name.to_string())),
        expected: stop.expected.map(estimate),
        lost: stop.loss.map(loss),
    }
}

fn estimate(cost: StopCost) -> StopEstimate {
    StopEstimate {
        save_s: cost.save.as_seconds(),
        load_s: cost.load.as_seconds(),
        lost_s: cost.lost.as_seconds(),
        device_s: cost.cost.device_seconds(),
    }
}

fn loss(loss: Loss) -> StopLoss {
    StopLoss {
        at: stamp(loss.at),
        step: loss.step,
        checkpoint_step: loss.checkpoint_step,
        steps: loss.steps(),
        unsaved_s: loss.unsaved.as_seconds(),
        device_s: loss.cost.device_seconds(),
    }
}

/// How long a stage has run that never saved anything, where that is long.
pub(super) fn never_saved(state: &State, stage: &Stage, now: Time) -> Option<Millis> {
    let StageState::Active { lease } = stage.state else { return None };
    let Phase::Running { since } = state.leases().get(&lease)?.phase else { return None };
    let ran = now.since(since);
    (stage.checkpoint.is_none() && ran >= NEVER_SAVED_AFTER).then_some(ran)
}
