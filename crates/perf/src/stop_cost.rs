//! What stopping a running stage costs.

use het_core::{Lease, Millis, Share, ShareMillis, Stage, StageSpec, StopCost, Time};

use crate::{Rates, StopTimes};

/// Work that a stop at `now` is expected to lose of a stage that has had its devices `since` then.
/// A stage that can save is taken to do so at the notice until a stop has shown otherwise; of any
/// other, all that is not saved.
pub fn expected_loss(saves: bool, stage: &Stage, since: Time, now: Time) -> Millis {
    match saves && stage.saved_at_notice() != Some(false) {
        true => Millis::ZERO,
        false => stage.unsaved(since, now),
    }
}

/// What a running stage holds, as far as it matters for a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldResources {
    /// It can be suspended.
    pub saves: bool,
    /// Of all its devices together.
    pub share: Share,
}

impl HeldResources {
    pub fn of(spec: &StageSpec, lease: &Lease) -> Self {
        let share = lease.placement.grants().map(|grant| grant.share).sum();
        Self { saves: spec.saves(lease.placement.alternative), share }
    }
}

/// The cost side of a stop at `now`: save + load + work since the newest complete checkpoint, over
/// the share held. A stage without checkpoints loses everything and saves nothing. `gain` is left
/// at zero for the policy.
pub fn stop_cost(
    rates: &Rates,
    spec: &StageSpec,
    stage: &Stage,
    lease: &Lease,
    now: Time,
) -> StopCost {
    let times = rates.stop_times(spec, lease.placement.units());
    stop_cost_of(times, HeldResources::of(spec, lease), stage, lease.since, now)
}

/// The same for a stage that holds so much `since` a time.
pub fn stop_cost_of(
    times: StopTimes,
    held: HeldResources,
    stage: &Stage,
    since: Time,
    now: Time,
) -> StopCost {
    let HeldResources { saves, share } = held;
    let StopTimes { save, load } = times;
    let save = if saves { save } else { Millis::ZERO };
    let lost = stage.unsaved(since, now);
    let cost = share.over(save + load + lost);
    StopCost { save, load, lost, cost, gain: ShareMillis::ZERO }
}
