//! Whether a program that took steps has stopped taking them. No I/O.

use het_core::{Millis, Time};

/// Steps after which the time of a step is known.
const STEPS_MIN: u64 = 3;
/// A pause is a stall after this many times the mean time of a step, and no sooner than this.
const FACTOR: u64 = 20;
const STALL_MIN: Millis = Millis(60_000);

/// When the first and last steps of a program came.
#[derive(Debug, Default)]
pub(crate) struct StallDetector {
    first: Option<(Time, u64)>,
    last: Option<(Time, u64)>,
    reported: bool,
}

impl StallDetector {
    /// Records a step; gives a message if it ends a stall. A program that counts from the start
    /// again is timed anew.
    pub(crate) fn step(&mut self, at: Time, step: u64) -> Option<String> {
        match self.last {
            Some((_, last)) if step == last => return None,
            Some((_, last)) if step < last => self.first = None,
            _ => {}
        }
        self.first.get_or_insert((at, step));
        self.last = Some((at, step));
        std::mem::take(&mut self.reported).then(|| format!("steps go on, at step {step}"))
    }

    /// When [`Self::due`] gives a message, if no step comes before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.reported {
            return None;
        }
        let ((first_at, first), (last_at, last)) = (self.first?, self.last?);
        let steps = last - first;
        if steps < STEPS_MIN {
            return None;
        }
        let mean = last_at.since(first_at).0 / steps;
        Some(last_at + Millis(mean.saturating_mul(FACTOR)).max(STALL_MIN))
    }

    /// A message that the program has stalled, once for each stall.
    pub(crate) fn due(&mut self, now: Time) -> Option<String> {
        if self.deadline().is_none_or(|at| now < at) {
            return None;
        }
        self.reported = true;
        let (at, step) = self.last?;
        let seconds = now.since(at).0 / 1_000;
        Some(format!(
            "no step for {seconds} s after step {step}, hint: look at its log, or at what a \
             collective waits for"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_many_steps_is_a_stall_and_is_reported_once() {
        let mut detector = StallDetector::default();
        assert!((0..=10).all(|step| detector.step(Time(step * 10_000), step).is_none()));
        assert_eq!(detector.deadline(), Some(Time(100_000 + 200_000)));
        assert_eq!(detector.due(Time(299_999)), None);
        assert!(
            detector.due(Time(300_000)).is_some_and(|text| text.starts_with("no step for 200 s"))
        );
        assert_eq!((detector.due(Time(900_000)), detector.deadline()), (None, None));
        assert_eq!(detector.step(Time(900_000), 11).as_deref(), Some("steps go on, at step 11"));
        assert!(detector.deadline().is_some(), "the next pause is another stall");
    }

    #[test]
    fn fast_steps_may_pause_for_a_minute_and_few_steps_say_nothing() {
        let mut detector = StallDetector::default();
        (0..3).for_each(|step| drop(detector.step(Time(step * 10), step)));
        assert_eq!(detector.deadline(), None);
        detector.step(Time(30), 3);
        assert_eq!(detector.deadline(), Some(Time(30) + STALL_MIN));
        detector.step(Time(9_000), 3);
        assert_eq!(detector.deadline(), Some(Time(30) + STALL_MIN), "the same step is no step");
        detector.step(Time(9_000), 0);
        assert_eq!(detector.deadline(), None, "an epoch that counts anew has no mean yet");
    }
}
