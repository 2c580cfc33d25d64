//! Who is looked at first.

use std::cmp::Reverse;

use het_core::{Match, Millis, Priority, StageKey, Time};

use crate::View;

/// A waiting stage rises by one priority each time it has waited this long (law 10).
pub(crate) const AGEING_STEP: Millis = Millis::seconds(3_600);

/// How waiting stages are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Strictly by submission.
    Submission,
    /// By priority, then submission.
    Priority,
    /// By priority raised by waiting time, then submission.
    AgedPriority,
    /// By raised priority, then least expected device time while the cluster is short of devices.
    AgedShortestWhenShort,
}

/// The waiting stages in the order of the rule, and when ageing next changes it.
pub(crate) fn sorted(view: &View<'_>, order: Order) -> (Vec<StageKey>, Option<Time>) {
    let shortest = order == Order::AgedShortestWhenShort && is_short(view);
    let mut wake_at: Option<Time> = None;
    let mut rows: Vec<_> = view
        .state
        .waiting()
        .map(|key| {
            let (job, spec, _) = view.state.stage(key);
            let since = job.waiting_since(key.stage);
            let level = match order {
                Order::Submission => Priority::Normal as u64,
                Order::Priority => job.priority() as u64,
                Order::AgedPriority | Order::AgedShortestWhenShort => {
                    let steps = view.now.since(since).0 / AGEING_STEP.0;
                    let level = job.priority() as u64 + steps;
                    if level < Priority::Urgent as u64 {
                        let rise = since + Millis((steps + 1) * AGEING_STEP.0);
                        wake_at = Some(wake_at.map_or(rise, |wake| wake.min(rise)));
                    }
                    level.min(Priority::Urgent as u64)
                }
            };
            let work = if shortest { expected_work(view, key) } else { u64::MAX };
            (Reverse(level), work, job.submitted, spec.kind.urgency(), key)
        })
        .collect();
    rows.sort_unstable();
    (rows.into_iter().map(|(.., key)| key).collect(), wake_at)
}

/// More accelerators are asked for than are free.
fn is_short(view: &View<'_>) -> bool {
    let state = view.state;
    let topology = state.topology();
    let free: u64 = topology
        .device_ids()
        .filter(|&id| topology.class_of(id).kind != "cpu" && state.is_up(id))
        .map(|id| {
            let capacity = topology.device(id).capacity;
            u64::from(capacity.saturating_sub(state.held(id)).whole_units())
        })
        .sum();
    let first_choices = state.waiting().map(|key| &state.stage(key).1.alternatives[0]);
    let on_cores = |matches: &Match| matches!(matches, Match::Kind(kind) if *kind == "cpu");
    let wanted: u64 = first_choices
        .filter(|alternative| !on_cores(&alternative.selector.matches))
        .map(|alternative| u64::from(alternative.count))
        .sum();
    wanted > free
}

/// Expected device-milliseconds on the first alternative with a known rate.
fn expected_work(view: &View<'_>, key: StageKey) -> u64 {
    let (_, spec, _) = view.state.stage(key);
    let spans = spec.alternatives.iter().enumerate().filter_map(|(index, alternative)| {
        let span = crate::greedy::expected_span(view, key, index)?;
        Some(span.0.saturating_mul(u64::from(alternative.count)))
    });
    spans.min().unwrap_or(u64::MAX)
}
