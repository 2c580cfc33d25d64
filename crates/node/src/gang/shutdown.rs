//! How hard a gang is being pushed to end, and when it is pushed harder: a value, without I/O.

use het_core::{Millis, Time};

/// From SIGTERM to SIGKILL where nobody granted a longer time.
pub(crate) const TERM_TO_KILL: Millis = Millis(2_000);

/// How far the engine has gone to end a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ending {
    #[default]
    Running,
    /// It has until the deadline to save and exit.
    Saving {
        deadline: Time,
        next: Push,
    },
    /// It was sent SIGTERM.
    Terminated {
        kill_at: Time,
    },
    Killed,
}

/// What is sent to every process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Push {
    Terminate,
    Kill,
}

impl Ending {
    /// Grants time to save; a second grant can only bring the deadline forward. `next` is what
    /// comes at the deadline: no SIGTERM when that was the notice.
    pub(crate) fn let_save(&mut self, now: Time, grace: Millis, next: Push) {
        let deadline = now + grace;
        match self {
            Self::Running => *self = Self::Saving { deadline, next },
            Self::Saving { deadline: old, next: push } => {
                *old = deadline.min(*old);
                *push = next;
            }
            Self::Terminated { .. } | Self::Killed => {}
        }
    }

    /// The gang failed: what is left of it gets no time to save.
    pub(crate) fn fail(&mut self, now: Time) -> Option<Push> {
        match self {
            Self::Running => {
                *self = Self::Terminated { kill_at: now + TERM_TO_KILL };
                Some(Push::Terminate)
            }
            _ => None,
        }
    }

    pub(crate) fn kill(&mut self) {
        *self = Self::Killed;
    }

    /// When [`Self::due`] has something to say.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match *self {
            Self::Saving { deadline, .. } => Some(deadline),
            Self::Terminated { kill_at } => Some(kill_at),
            Self::Running | Self::Killed => None,
        }
    }

    /// The push that is due, once.
    pub(crate) fn due(&mut self, now: Time) -> Option<Push> {
        let push = match *self {
            Self::Saving { deadline, next } if now >= deadline => next,
            Self::Terminated { kill_at } if now >= kill_at => Push::Kill,
            _ => return None,
        };
        *self = match push {
            Push::Terminate => Self::Terminated { kill_at: now + TERM_TO_KILL },
            Push::Kill => Self::Killed,
        };
        Some(push)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saving(next: Push) -> Ending {
        let mut ending = Ending::default();
        ending.let_save(Time(100), Millis(50), next);
        ending
    }

    #[test]
    fn a_notice_by_sigterm_is_followed_by_the_kill() {
        let mut ending = saving(Push::Kill);
        assert_eq!(ending.due(Time(149)), None);
        assert_eq!(ending.due(Time(150)), Some(Push::Kill));
        assert_eq!(ending.due(Time(9_999)), None);
    }

    #[test]
    fn another_notice_is_followed_by_sigterm_and_then_the_kill() {
        let mut ending = saving(Push::Terminate);
        assert_eq!(ending.due(Time(150)), Some(Push::Terminate));
        assert_eq!(ending.deadline(), Some(Time(150) + TERM_TO_KILL));
        assert_eq!(ending.due(Time(150) + TERM_TO_KILL), Some(Push::Kill));
    }

    #[test]
    fn a_second_notice_only_brings_the_deadline_forward() {
        let mut ending = saving(Push::Kill);
        ending.let_save(Time(110), Millis(500), Push::Kill);
        assert_eq!(ending.deadline(), Some(Time(150)));
        ending.let_save(Time(110), Millis(0), Push::Kill);
        assert_eq!(ending.due(Time(110)), Some(Push::Kill));
    }

    #[test]
    fn a_failure_while_saving_takes_no_time_away() {
        let mut ending = saving(Push::Kill);
        assert_eq!(ending.fail(Time(110)), None);
        assert_eq!(ending.deadline(), Some(Time(150)));
        assert_eq!(Ending::default().fail(Time(110)), Some(Push::Terminate));
    }
}
