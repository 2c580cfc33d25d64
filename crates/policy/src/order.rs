//! Who is looked at first.

use std::cmp::Reverse;

use het_core::{Millis, Priority, StageKey, Time};

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
    /// By raised priority, then least expected device time.
    AgedShortest,
}

/// Sorts before the rank of whoever is looked at later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    level: Reverse<u64>,
    /// Expected, in device-milliseconds.
    device_time: u64,
    submitted: Time,
    /// Inside the job.
    urgency: u8,
    pub key: StageKey,
}

/// The rank of a waiting stage that is expected to take `device_time`, and when the clock alone
/// changes it next.
pub(crate) fn rank(
    view: &View<'_>,
    order: Order,
    key: StageKey,
    device_time: u64,
) -> (Rank, Option<Time>) {
    let (job, spec, _) = view.state.stage(key);
    let (level, rises) = match order {
        Order::Submission => (Priority::Normal as u64, None),
        Order::Priority => (job.priority() as u64, None),
        Order::AgedPriority | Order::AgedShortest => {
            let since = job.waiting_since(key.stage);
            let steps = view.now.since(since).0 / AGEING_STEP.0;
            let level = job.priority() as u64 + steps;
            let top = Priority::Urgent as u64;
            let rise = since + Millis((steps + 1) * AGEING_STEP.0);
            (level.min(top), (level < top).then_some(rise))
        }
    };
    let device_time = if order == Order::AgedShortest { device_time } else { 0 };
    let urgency = spec.kind.urgency();
    let submitted = job.submitted;
    (Rank { level: Reverse(level), device_time, submitted, urgency, key }, rises)
}
