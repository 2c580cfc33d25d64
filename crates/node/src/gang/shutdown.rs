//! How far the shutdown of a gang has escalated, and when it escalates further. No I/O.

use het_core::{Millis, Time};

/// From SIGTERM to SIGKILL, unless a longer time was granted.
pub(super) const TERM_TO_KILL: Millis = Millis(2_000);

/// How far the shutdown of a gang has escalated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Shutdown {
    #[default]
    Running,
    /// It has until the deadline to save and exit.
    Saving {
        deadline: Time,
        next: Escalation,
    },
    /// SIGTERM was sent.
    Terminated {
        kill_at: Time,
    },
    Killed,
}

/// The next step: a signal to every process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escalation {
    Terminate,
    Kill,
}

impl Shutdown {
    /// Grants time to save; a second grant can only bring the deadline forward. `next` follows at
    /// the deadline: not SIGTERM if that was the notice.
    pub(super) fn allow_save(&mut self, now: Time, grace: Millis, next: Escalation) {
        let deadline = now + grace;
        match self {
            Self::Running => *self = Self::Saving { deadline, next },
            Self::Saving { deadline: old, next: escalation } => {
                *old = deadline.min(*old);
                *escalation = next;
            }
            Self::Terminated { .. } | Self::Killed => {}
        }
    }

    /// The gang failed: its other ranks get no time to save, unless they already have it.
    pub(super) fn fail(&mut self, now: Time) -> Option<Escalation> {
        match self {
            Self::Running => {
                *self = Self::Terminated { kill_at: now + TERM_TO_KILL };
                Some(Escalation::Terminate)
            }
            _ => None,
        }
    }

    pub(super) fn kill(&mut self) {
        *self = Self::Killed;
    }

    /// When [`Self::due`] gives a step.
    pub(super) fn deadline(&self) -> Option<Time> {
        match *self {
            Self::Saving { deadline, .. } => Some(deadline),
            Self::Terminated { kill_at } => Some(kill_at),
            Self::Running | Self::Killed => None,
        }
    }

    /// The step that is due, once.
    pub(super) fn due(&mut self, now: Time) -> Option<Escalation> {
        let escalation = match *self {
            Self::Saving { deadline, next } if now >= deadline => next,
            Self::Terminated { kill_at } if now >= kill_at => Escalation::Kill,
            _ => return None,
        };
        *self = match escalation {
            Escalation::Terminate => Self::Terminated { kill_at: now + TERM_TO_KILL },
            Escalation::Kill => Self::Killed,
        };
        Some(escalation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saving(next: Escalation) -> Shutdown {
        let mut shutdown = Shutdown::default();
        shutdown.allow_save(Time(100), Millis(50), next);
        shutdown
    }

    #[test]
    fn a_notice_by_sigterm_is_followed_by_the_kill() {
        let mut shutdown = saving(Escalation::Kill);
        assert_eq!(shutdown.due(Time(149)), None);
        assert_eq!(shutdown.due(Time(150)), Some(Escalation::Kill));
        assert_eq!(shutdown.due(Time(9_999)), None);
    }

    #[test]
    fn another_notice_is_followed_by_sigterm_and_then_the_kill() {
        let mut shutdown = saving(Escalation::Terminate);
        assert_eq!(shutdown.due(Time(150)), Some(Escalation::Terminate));
        assert_eq!(shutdown.deadline(), Some(Time(150) + TERM_TO_KILL));
        assert_eq!(shutdown.due(Time(150) + TERM_TO_KILL), Some(Escalation::Kill));
    }

    #[test]
    fn a_second_notice_only_brings_the_deadline_forward() {
        let mut shutdown = saving(Escalation::Kill);
        shutdown.allow_save(Time(110), Millis(500), Escalation::Kill);
        assert_eq!(shutdown.deadline(), Some(Time(150)));
        shutdown.allow_save(Time(110), Millis(0), Escalation::Kill);
        assert_eq!(shutdown.due(Time(110)), Some(Escalation::Kill));
    }

    #[test]
    fn a_failure_while_saving_takes_no_time_away() {
        let mut shutdown = saving(Escalation::Kill);
        assert_eq!(shutdown.fail(Time(110)), None);
        assert_eq!(shutdown.deadline(), Some(Time(150)));
        assert_eq!(Shutdown::default().fail(Time(110)), Some(Escalation::Terminate));
    }
}
