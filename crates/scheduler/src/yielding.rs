//! Room that somebody asks a running stage to make for a more urgent one.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use het_core::{LeaseId, Reason, StageKey, StopCause, StopCost};
use het_policy::{Decision, Pool, View, Want, preemption};

/// Waiting stages that are looked at.
const LOOKS_MAX: usize = 256;

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
    let unserved = state.waiting().filter(|key| !state.claims().contains_key(key));
    let mut above: Vec<StageKey> =
        unserved.filter(|key| state.stage(*key).0.priority() > victim).collect();
    above.sort_by_key(|key| {
        let job = state.stage(*key).0;
        (Reverse(job.priority()), job.waiting_since(key.stage), *key)
    });
    let pool = Pool::of(state);
    above.into_iter().take(LOOKS_MAX).find_map(|preemptor| {
        let (_, order) = preemption(view, &pool, lease, preemptor)?;
        Some(Yielding { lease, preemptor, cost: order.cost })
    })
}

/// Adds to a decision what was asked for, where it still makes room beside all that was decided.
pub(crate) fn heed(view: &View<'_>, decision: &mut Decision) {
    let state = view.state;
    if state.yielding().next().is_none() {
        return;
    }
    let mut pool = Pool::of(state);
    let mut served: BTreeSet<StageKey> = state.claims().keys().copied().collect();
    for (key, want) in &decision.wants {
        if let Want::Run { placement, .. } = want
            && served.insert(*key)
        {
            pool.take(placement);
        }
    }
    let mut stopped: BTreeSet<LeaseId> = decision.stops.iter().map(|order| order.lease).collect();
    for (lease, preemptor) in state.yielding() {
        if served.contains(&preemptor) || stopped.contains(&lease) {
            continue;
        }
        let Some((placement, order)) = preemption(view, &pool, lease, preemptor) else {
            continue;
        };
        pool.take(&placement);
        served.insert(preemptor);
        stopped.insert(lease);
        decision.wants.retain(|(key, _)| *key != preemptor);
        let reasons = vec![Reason::ClaimPending];
        decision.wants.push((preemptor, Want::Run { placement, reasons }));
        decision.stops.push(order);
    }
}
