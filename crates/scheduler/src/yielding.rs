//! Room that somebody asks a running stage to make for a more urgent one.

use std::cmp::Reverse;

use het_core::{LeaseId, Reason, StageKey, StopCost};
use het_policy::{Decision, View, Want, preemption};

/// Waiting stages that are looked at.
const LOOKS_MAX: usize = 256;

/// What stopping a running stage would come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Yielding {
    pub lease: LeaseId,
    pub beneficiary: StageKey,
    pub cost: StopCost,
}

impl Yielding {
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
    let unserved = state.waiting().filter(|key| !state.claims().contains_key(key));
    let mut above: Vec<StageKey> =
        unserved.filter(|key| state.stage(*key).0.priority() > victim).collect();
    above.sort_by_key(|key| {
        let job = state.stage(*key).0;
        (Reverse(job.priority()), job.waiting_since(key.stage), *key)
    });
    above.into_iter().take(LOOKS_MAX).find_map(|beneficiary| {
        let (_, order) = preemption(view, lease, beneficiary)?;
        Some(Yielding { lease, beneficiary, cost: order.cost })
    })
}

/// Adds to a decision what was asked for, where it still makes room.
pub(crate) fn heed(view: &View<'_>, decision: &mut Decision) {
    for (lease, beneficiary) in view.state.yielding() {
        let stops = decision.stops.iter().any(|order| order.lease == lease);
        let Some((placement, order)) = preemption(view, lease, beneficiary).filter(|_| !stops)
        else {
            continue;
        };
        let runs = |(key, want): &(StageKey, Want)| {
            *key == beneficiary && matches!(want, Want::Run { .. })
        };
        let served = view.state.claims().contains_key(&beneficiary);
        if served || decision.wants.iter().any(runs) {
            continue;
        }
        decision.wants.retain(|(key, _)| *key != beneficiary);
        let reasons = vec![Reason::ClaimPending];
        decision.wants.push((beneficiary, Want::Run { placement, reasons }));
        decision.stops.push(order);
    }
}
