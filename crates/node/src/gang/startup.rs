//! The time between the request for a gang and the beginning of its programs.

use het_core::{Failure, Millis, Time};

/// Whether the programs have begun is checked after this time, and then at growing intervals.
const FIRST_CHECK: Millis = Millis(1);
/// After this time they count as begun if there is a shim: their files load slowly. If there is
/// none, the launcher does not do what it is asked.
const PATIENCE: Millis = Millis(5_000);

#[derive(Debug)]
pub(super) enum Startup {
    /// Not every program has begun.
    Pending {
        since: Time,
        check_at: Time,
    },
    Over,
    /// Not every rank could be started.
    Failed(Failure),
}

/// Whether a gang may still be starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    Left,
    Over,
}

impl Startup {
    pub(super) fn pending(now: Time) -> Self {
        Self::Pending { since: now, check_at: now + FIRST_CHECK }
    }

    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Self::Pending { .. })
    }

    pub(super) fn has_begun(&self) -> bool {
        matches!(self, Self::Over)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Self::Pending { check_at, .. } => Some(*check_at),
            Self::Over | Self::Failed(_) => None,
        }
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    /// Not every program has begun yet: looks again later.
    pub(super) fn look_again(&mut self, now: Time) -> Patience {
        let Self::Pending { since, check_at } = self else { return Patience::Over };
        let elapsed = now.since(*since);
        *check_at = now + FIRST_CHECK.max(elapsed);
        if elapsed < PATIENCE { Patience::Left } else { Patience::Over }
    }

    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        match std::mem::replace(self, Self::Over) {
            Self::Failed(failure) => Some(failure),
            Self::Pending { .. } | Self::Over => None,
        }
    }
}
