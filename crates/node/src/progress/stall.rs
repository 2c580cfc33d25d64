//! Whether a program that took steps has stopped taking them: a value, without I/O.

use het_core::{Millis, Time};

/// Steps after which a pace is known.
const STEPS_MIN: u64 = 3;
/// A rest is a stall after this many times the usual time of a step, and no sooner than this.
const FACTOR: u64 = 20;
const STALL_MIN: Millis = Millis(60_000);

/// When steps came.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    first: Option<(Time, u64)>,
    last: Option<(Time, u64)>,
    told: bool,
}

impl Pace {
    /// The program reports a step; what there is to say if that ends a stall. One that counts anew
    /// has a new pace.
    pub(crate) fn step(&mut self, at: Time, step: u64) -> Option<String> {
        match self.last {
            Some((_, last)) if step == last => return None,
            Some((_, last)) if step < last => self.first = None,
            _ => {}
        }
        self.first.get_or_insert((at, step));
        self.last = Some((at, step));
        std::mem::take(&mut self.told).then(|| format!("steps go on, at step {step}"))
    }

    /// When [`Self::due`] has something to say, if no step comes before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.told {
            return None;
        }
        let ((first_at, first), (last_at, last)) = (self.first?, self.last?);
        let steps = last - first;
        if steps < STEPS_MIN {
            return None;
        }
        let usual = last_at.since(first_at).0 / steps;
        Some(last_at + Millis(usual.saturating_mul(FACTOR)).max(STALL_MIN))
    }

    /// That it has stalled, once for each stall.
    pub(crate) fn due(&mut self, now: Time) -> Option<String> {
        if self.deadline().is_none_or(|at| now < at) {
            return None;
        }
        self.told = true;
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
    fn a_rest_of_many_steps_is_a_stall_and_is_told_once() {
        let mut pace = Pace::default();
        assert!((0..=10).all(|step| pace.step(Time(step * 10_000), step).is_none()));
        assert_eq!(pace.deadline(), Some(Time(100_000 + 200_000)));
        assert_eq!(pace.due(Time(299_999)), None);
        assert!(pace.due(Time(300_000)).is_some_and(|text| text.starts_with("no step for 200 s")));
        assert_eq!((pace.due(Time(900_000)), pace.deadline()), (None, None));
        assert_eq!(pace.step(Time(900_000), 11).as_deref(), Some("steps go on, at step 11"));
        assert!(pace.deadline().is_some(), "the next rest is another stall");
    }

    #[test]
    fn fast_steps_may_rest_for_a_minute_and_few_steps_are_no_pace() {
        let mut pace = Pace::default();
        (0..3).for_each(|step| drop(pace.step(Time(step * 10), step)));
        assert_eq!(pace.deadline(), None);
        pace.step(Time(30), 3);
        assert_eq!(pace.deadline(), Some(Time(30) + STALL_MIN));
        pace.step(Time(9_000), 3);
        assert_eq!(pace.deadline(), Some(Time(30) + STALL_MIN), "the same step is no step");
        pace.step(Time(9_000), 0);
        assert_eq!(pace.deadline(), None, "an epoch that counts anew has no pace yet");
    }
}
