//! Where those who wait next are likely to start: what runs is taken to end in the order of its
//! expected ends, and each of them gets what it would be given then.

use std::collections::VecDeque;

use het_core::{Millis, Placement, StageKey};

use crate::speed::{rate_on, steps_made};
use crate::{Decision, Remainder, View, Want, place};

/// Ends that are looked at, so that it stays short however much runs.
const ENDS_MAX: usize = 128;

/// In the order in which they are likely to start, as far as that can be told, after a decision
/// that leaves them waiting.
pub fn upcoming(
    view: &View<'_>,
    decision: &Decision,
    mut remainder: Remainder<'_>,
    mut waiting: Vec<StageKey>,
) -> Vec<(StageKey, Placement)> {
    let mut found = Vec::new();
    let mut ends: VecDeque<Placement> = ends(view, decision).into_iter().cloned().collect();
    loop {
        // At first for those whom something else holds up than a lack of devices.
        waiting.retain(|&key| {
            let spec = view.state.stage(key).1;
            let mut alternatives = 0..spec.alternatives.len();
            let placed =
                alternatives.find_map(|index| place(&mut remainder.pool, spec, index).ok());
            let Some(placement) = placed else { return true };
            remainder.give(key, &placement);
            // Who starts ends after those who run.
            ends.push_back(placement.clone());
            found.push((key, placement));
            false
        });
        match ends.pop_front().filter(|_| !waiting.is_empty()) {
            Some(placement) => remainder.pool.give_back(&placement),
            None => return found,
        }
    }
}

/// What is likely to be free first: the oldest, where nobody can tell, and what has only been given
/// last.
fn ends<'a>(view: &View<'a>, decision: &'a Decision) -> Vec<&'a Placement> {
    let leases = view.state.leases().iter();
    let mut ends: Vec<_> = leases
        .map(|(&id, lease)| {
            let (_, spec, stage) = view.state.stage(lease.stage);
            let total = spec.steps.or(stage.progress.total);
            let left =
                rate_on(view, spec, &lease.placement).zip(total).map(|((rate, _), total)| {
                    let left = (total as f64 - steps_made(view, stage, lease, rate)).max(0.0);
                    Millis((left / rate * 1e3) as u64)
                });
            let left = if lease.phase.is_stopping() { Some(Millis::ZERO) } else { left };
            (left, lease.since, id, &*lease.placement)
        })
        .collect();
    ends.sort_unstable_by_key(|&(left, since, id, _)| (left.is_none(), left, since, id));
    let given = decision.wants.iter().filter_map(|(_, want)| match want {
        Want::Run { placement, .. } => Some(placement),
        Want::Wait { .. } => None,
    });
    let ends = ends.into_iter().map(|(.., placement)| placement);
    ends.chain(given).take(ENDS_MAX).collect()
}
