//! The time between the start of a gang's processes and that of their programs.

use het_core::{Event, Failure, LeaseId, Millis, Time};

use super::processes::Processes;
use crate::context::Context;

/// Whether the programs have begun is checked after this time, and then at growing intervals.
const FIRST_CHECK: Millis = Millis(1);
/// After this time they count as begun: their files load slowly, or the kernel does not report it.
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

impl Startup {
    pub(super) fn pending(now: Time) -> Self {
        Self::Pending { since: now, check_at: now + FIRST_CHECK }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Self::Pending { check_at, .. } => Some(*check_at),
            Self::Over | Self::Failed(_) => None,
        }
    }

    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        match std::mem::replace(self, Self::Over) {
            Self::Failed(failure) => Some(failure),
            Self::Pending { .. } | Self::Over => None,
        }
    }

    /// Emits the start of the lease once all programs have begun.
    pub(super) fn check(
        &mut self,
        now: Time,
        processes: &Processes,
        lease: LeaseId,
        context: &mut Context,
    ) {
        let Self::Pending { since, check_at } = self else { return };
        let is_over = processes.iter().all(|process| process.exec.is_known());
        let elapsed = now.since(*since);
        if !is_over && elapsed < PATIENCE {
            *check_at = now + FIRST_CHECK.max(elapsed);
            return;
        }
        *self = Self::Over;
        if processes.iter().all(|process| process.exec.error().is_none()) {
            context.emit(Event::StageStarted { lease });
        }
    }
}
