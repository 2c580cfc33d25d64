//! Who is looked at first.

use std::cmp::{Ordering, Reverse};

use het_core::{Millis, Priority, StageKey, Time};

use super::levels::{self, Level};
use crate::View;
use crate::rules::Order;
use crate::tenants::FairShareRank;

/// A waiting stage rises by one priority each time it has waited this long (law 10); where the
/// shortest go first, not before it has waited [`RISES_AFTER`] times as long as it takes.
pub(crate) const AGEING_STEP: Millis = Millis::seconds(3_600);
const RISES_AFTER: u64 = 10;

/// Where the shortest go first, a stage lets others of its priority pass that come until it has
/// waited for so many times as long as it takes. This and [`RISES_AFTER`] were chosen with
/// [`crate::placement::OpportunityCost`].
const PASSED_FOR: u64 = 30;

/// Sorts before the rank of whoever is looked at later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    level: Reverse<u64>,
    /// Shorter ones that come before then may pass.
    passed_until: Time,
    /// Where nobody knows how long it takes.
    feedback: Level,
    submitted: Time,
    /// Inside the job.
    urgency: u8,
    pub key: StageKey,
    /// When it began to wait.
    pub since: Time,
}

/// Sorts before the precedence of those who are looked at later: what stands above ranks where
/// tenants have quotas, and is the same for everybody of a level where they have none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Precedence {
    /// Its tenant would have to borrow for it.
    borrows: bool,
    level: Reverse<u64>,
    fair_share: FairShareRank,
    /// What a device brings to it, where there is a market.
    density: Reverse<Density>,
}

/// A finite number that can be sorted.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Density(f64);

impl Eq for Density {}

impl PartialOrd for Density {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Density {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Precedence {
    pub fn of(rank: &Rank, density: f64) -> Self {
        Self {
            borrows: false,
            level: rank.level,
            fair_share: FairShareRank::default(),
            density: Reverse(Density(density)),
        }
    }

    /// Of one that draws on the quota of its tenant, or lends from others beside `fair_share`.
    pub fn among_tenants(
        rank: &Rank,
        quota: Quota,
        fair_share: FairShareRank,
        density: f64,
    ) -> Self {
        Self { borrows: quota == Quota::Borrowed, fair_share, ..Self::of(rank, density) }
    }
}

/// Whose devices a stage would run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quota {
    Own,
    Borrowed,
}

impl Rank {
    /// Priority, raised by waiting where the policy lets it rise.
    pub fn level(&self) -> u64 {
        self.level.0
    }
}

/// The rank of a waiting stage that is expected to take `device_time`, and when the clock alone
/// changes it next.
pub(crate) fn rank(
    view: &View<'_>,
    order: Order,
    key: StageKey,
    device_time: Millis,
) -> (Rank, Option<Time>) {
    let (job, spec, _) = view.state.stage(key);
    let since = job.waiting_since(key.stage);
    let times = |factor: u64| Millis(device_time.0.saturating_mul(factor).min(FOREVER.0));
    let own = job.priority();
    let (level, rises) = match order {
        Order::Submission => (Priority::Normal as u64, None),
        Order::Priority => (own as u64, None),
        Order::AgedShortest => aged(own, since, times(RISES_AFTER).max(AGEING_STEP), view.now),
        Order::Feedback => aged(own, since, AGEING_STEP, view.now),
    };
    let (passed_until, feedback) = match order {
        Order::AgedShortest if device_time < FOREVER => (since + times(PASSED_FOR), 0),
        Order::AgedShortest | Order::Feedback => (Time::ZERO + FOREVER, levels::level(view, key)),
        Order::Submission | Order::Priority => (Time::ZERO, 0),
    };
    let urgency = spec.kind.urgency();
    let submitted = job.eligible_since();
    (Rank { level: Reverse(level), passed_until, feedback, submitted, urgency, key, since }, rises)
}

/// Longer than anybody waits.
const FOREVER: Millis = Millis::seconds(1_000_000_000);

/// A priority raised once every `step`, and when it rises next.
fn aged(own: Priority, since: Time, step: Millis, now: Time) -> (u64, Option<Time>) {
    let steps = now.since(since).0 / step.0;
    let top = Priority::Urgent as u64;
    let level = own as u64 + steps;
    (level.min(top), (level < top).then_some(since + Millis((steps + 1) * step.0)))
}
