//! Where those who wait next are likely to start: what runs is taken to end in the order of its
//! expected ends, and each of them gets what it would be given then.

use het_core::{LeaseId, Millis, Placement, StageKey, Time};

use crate::speed::{rate_on, steps_made};
use crate::{Remainder, View, place};

/// Ends that are looked at, so that it stays short however much runs.
const ENDS_MAX: usize = 128;

/// In the order in which they are likely to start, as far as that can be told.
pub fn upcoming(
    view: &View<'_>,
    mut remainder: Remainder<'_>,
    mut waiting: Vec<StageKey>,
) -> Vec<(StageKey, Placement)> {
    let mut found = Vec::new();
    let ends = ends(view);
    // What is free now is there for those whom something else holds up.
    let mut next = ends.iter().map(Some).chain([None]);
    loop {
        waiting.retain(|&key| {
            let spec = view.state.stage(key).1;
            let mut alternatives = 0..spec.alternatives.len();
            let placed =
                alternatives.find_map(|index| place(&mut remainder.pool, spec, index).ok());
            let Some(placement) = placed else { return true };
            remainder.give(key, &placement);
            found.push((key, placement));
            false
        });
        match next.next().flatten().filter(|_| !waiting.is_empty()) {
            Some(lease) => remainder.pool.give_back(&view.state.leases()[lease].placement),
            None => return found,
        }
    }
}

/// The leases that are likely to end first; of those of which nobody can tell the oldest.
fn ends(view: &View<'_>) -> Vec<LeaseId> {
    let leases = view.state.leases().iter();
    let mut ends: Vec<(Option<Millis>, Time, LeaseId)> = leases
        .map(|(&id, lease)| {
            let (_, spec, stage) = view.state.stage(lease.stage);
            let total = spec.steps.or(stage.progress.total);
            let left =
                rate_on(view, spec, &lease.placement).zip(total).map(|((rate, _), total)| {
                    let left = (total as f64 - steps_made(view, stage, lease, rate)).max(0.0);
                    Millis((left / rate * 1e3) as u64)
                });
            let left = if lease.phase.is_stopping() { Some(Millis::ZERO) } else { left };
            (left, lease.since, id)
        })
        .collect();
    ends.sort_unstable_by_key(|&(left, since, id)| (left.is_none(), left, since, id));
    ends.truncate(ENDS_MAX);
    ends.into_iter().map(|(.., id)| id).collect()
}
