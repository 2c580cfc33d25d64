//! What it costs a stage to come back after faults: the time to repair, by its parts.

use crate::{Millis, Time};

/// Time of recoveries by what it went into. What passes between a fault and the end of the gang is
/// not in it: an engine hears of an exit at once, and nobody knows when a hang began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recoveries {
    /// Gangs that ended by a fault and were to begin again.
    pub count: u32,
    /// From that end until devices were found for the next.
    pub reassign: Millis,
    /// From then to its first step: loading the program, the model, the checkpoint.
    pub restore: Millis,
    /// From its first step until it was where the one before had failed: work done again.
    pub recompute: Millis,
    pub under_way: Option<Recovery>,
}

/// One that is not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// The step that is to be reached again.
    pub step: Option<u64>,
    pub phase: RecoveryPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryPhase {
    Waits { since: Time },
    Loads { since: Time },
    Repeats { since: Time },
}

impl Recoveries {
    /// A gang ended by a fault after it had reported `step`.
    pub(super) fn failed(&mut self, now: Time, step: Option<u64>) {
        self.count += 1;
        // A gang that fails again on its way still has to come as far as the first.
        let before = self.close(now);
        let step = before.and_then(|before| before.step).max(step);
        self.under_way = Some(Recovery { step, phase: RecoveryPhase::Waits { since: now } });
    }

    pub(super) fn began(&mut self, now: Time) {
        if let Some(under_way) = self.close(now) {
            self.under_way =
                Some(Recovery { phase: RecoveryPhase::Loads { since: now }, ..under_way });
        }
    }

    /// The program reported a step.
    pub(super) fn stepped(&mut self, now: Time, step: u64) {
        let Some(under_way) = self.under_way else { return };
        match under_way.phase {
            RecoveryPhase::Waits { .. } => return,
            RecoveryPhase::Loads { .. } => {
                self.close(now);
                self.under_way =
                    Some(Recovery { phase: RecoveryPhase::Repeats { since: now }, ..under_way });
            }
            RecoveryPhase::Repeats { .. } => {}
        }
        if under_way.step.is_none_or(|lost| step >= lost) {
            self.close(now);
        }
    }

    /// The gang ended otherwise: what it had still to do again is not counted any more.
    pub(super) fn left(&mut self, now: Time) {
        self.close(now);
    }

    /// Books the phase that is under way, and ends it.
    fn close(&mut self, now: Time) -> Option<Recovery> {
        let under_way = self.under_way.take()?;
        let (into, since) = match under_way.phase {
            RecoveryPhase::Waits { since } => (&mut self.reassign, since),
            RecoveryPhase::Loads { since } => (&mut self.restore, since),
            RecoveryPhase::Repeats { since } => (&mut self.recompute, since),
        };
        *into += now.since(since);
        Some(under_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(told: &Recoveries) -> (u32, u64, u64, u64) {
        (told.count, told.reassign.0, told.restore.0, told.recompute.0)
    }

    #[test]
    fn time_goes_to_waiting_loading_and_what_is_done_again() {
        let mut told = Recoveries::default();
        told.began(Time(0));
        told.stepped(Time(50), 1);
        assert_eq!(parts(&told), (0, 0, 0, 0), "nothing has failed yet");
        told.failed(Time(100), Some(40));
        told.began(Time(130));
        told.stepped(Time(230), 30);
        told.stepped(Time(300), 39);
        told.stepped(Time(310), 40);
        told.stepped(Time(400), 41);
        assert_eq!(parts(&told), (1, 30, 100, 80));
    }

    #[test]
    fn one_that_fails_on_its_way_still_has_to_come_as_far() {
        let mut told = Recoveries::default();
        told.failed(Time(0), Some(40));
        told.began(Time(10));
        told.stepped(Time(20), 5);
        told.failed(Time(50), Some(6));
        told.began(Time(60));
        told.stepped(Time(80), 6);
        told.stepped(Time(180), 40);
        assert_eq!(parts(&told), (2, 20, 30, 130));
    }
}
