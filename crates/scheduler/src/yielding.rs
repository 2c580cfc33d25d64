//! Room that somebody asks a running stage to make for a more urgent one.

use std::collections::BTreeSet;

use het_core::{LeaseId, Reason, StageKey, StopCause, StopCost};
use het_policy::{Decision, Pool, Remainder, View, Want, preemption};

/// What stopping a running stage would come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Yielding {
    pub lease: LeaseId,
    pub preemptor: StageKey,
    pub cost: StopCost,
}

impl Yielding {
    pub fn cause(&self) -> StopCause {
        StopCause::Priority { preemptor: self.preemptor }
    }

    /// Whether a policy would do it by itself.
    pub fn pays(&self) -> bool {
        self.cost.gain > self.cost.cost
    }
}

/// For whom a running stage could make room: the first by priority and by the time waited among
/// those above it that could run then. Those for whom room is being made already need no more.
pub fn yielding(view: &View<'_>, lease: LeaseId) -> Option<Yielding> {
    let state = view.state;
    let victim = state.stage(state.leases().get(&lease)?.stage).0.priority();
    let remainder = Remainder::of(Pool::of(state), &Decision::default());
    let above = remainder.waiting(|key| state.stage(key).0.priority() > victim);
    above.into_iter().find_map(|preemptor| {
        let (_, order) = preemption(view, &remainder.pool, lease, preemptor)?;
        Some(Yielding { lease, preemptor, cost: order.cost })
    })
}

/// Adds to a decision what was asked for, where it still makes room beside all that was decided.
pub(crate) fn heed(view: &View<'_>, decision: &mut Decision) {
    let state = view.state;
    if state.yielding().next().is_none() {
        return;
    }
    let mut remainder = Remainder::of(Pool::of(state), decision);
    let mut stopped: BTreeSet<LeaseId> = decision.stops.iter().map(|order| order.lease).collect();
    for (lease, preemptor) in state.yielding() {
        if remainder.serves(preemptor) || stopped.contains(&lease) {
            continue;
        }
        let found = preemption(view, &remainder.pool, lease, preemptor);
        let Some((placement, order)) = found else { continue };
        remainder.give(preemptor, &placement);
        stopped.insert(lease);
        decision.wants.retain(|(key, _)| *key != preemptor);
        let reasons = vec![Reason::ClaimPending];
        decision.wants.push((preemptor, Want::Run { placement, reasons }));
        decision.stops.push(order);
    }
}
