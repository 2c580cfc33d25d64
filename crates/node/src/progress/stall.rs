//! Whether a program that took steps has stopped taking them. No I/O.

use het_core::{Millis, StallRule, Time};

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

/// Reports of steps after which a program is known to report them; one is enough where its
/// submitter says how long it may be silent.
const REPORTS_MIN: u32 = 3;
/// A silence is a hang after this many times the longest before, and no sooner than this.
const SILENCE_FACTOR: u64 = 10;
const SILENCE_MIN: Millis = Millis(600_000);

/// For how long a program that reports steps has given no sign of life.
#[derive(Debug)]
pub(crate) struct SilenceDetector {
    rule: StallRule,
    reports: u32,
    /// Its start at first: what it loads and downloads is a silence as well.
    heard: Time,
    longest: Millis,
}

impl SilenceDetector {
    pub(crate) fn new(rule: StallRule, now: Time) -> Self {
        Self { rule, reports: 0, heard: now, longest: Millis::ZERO }
    }

    /// It reported a step.
    pub(crate) fn reported(&mut self, at: Time) {
        self.reports = self.reports.saturating_add(1);
        self.gave_sign(at);
    }

    /// It saved, or said something.
    pub(crate) fn gave_sign(&mut self, at: Time) {
        self.longest = self.longest.max(at.since(self.heard));
        self.heard = self.heard.max(at);
    }

    /// When it counts as hung, unless it gives a sign before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let (limit, reports) = match self.rule {
            StallRule::Never => return None,
            StallRule::After(span) => (span, 1),
            StallRule::Measured => {
                let limit = Millis(self.longest.0.saturating_mul(SILENCE_FACTOR));
                (limit.max(SILENCE_MIN), REPORTS_MIN)
            }
        };
        (self.reports >= reports).then(|| self.heard + limit)
    }

    /// How long it has been silent, where that is too long. What its log was last written at
    /// counts as a sign, unless its submitter said how long it may be silent.
    pub(crate) fn hung_for(
        &mut self,
        now: Time,
        logged: impl FnOnce() -> Option<Time>,
    ) -> Option<Millis> {
        self.deadline().filter(|at| *at <= now)?;
        if self.rule == StallRule::Measured
            && let Some(at) = logged().filter(|at| *at > self.heard)
        {
            self.gave_sign(at.min(now));
        }
        self.deadline().filter(|at| *at <= now).map(|_| now.since(self.heard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same numbers for the same seed.
    fn draws(seed: u64) -> impl FnMut(u64, u64) -> u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move |least, most| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            least + state % (most - least + 1)
        }
    }

    /// Reports of a program that loads, steps, validates and saves; none of its silences is longer
    /// than ten minutes, or than nine times one that it had before.
    fn healthy(seed: u64) -> Vec<Time> {
        let mut draw = draws(seed);
        let mut at = Time::ZERO + Millis(draw(0, 7_200_000));
        let mut longest = at.0;
        let mut reports = vec![at];
        let step = draw(50, 60_000);
        for _ in 0..draw(10, 400) {
            let gap = match draw(0, 19) {
                0 => draw(0, (longest * 9).clamp(590_000, 86_400_000)),
                1..=3 => draw(0, 590_000),
                _ => draw(step / 2, step * 2),
            };
            longest = longest.max(gap);
            at = at + Millis(gap);
            reports.push(at);
        }
        reports
    }

    #[test]
    fn programs_that_are_silent_for_long_are_left_alone() {
        for seed in 1..=200 {
            let mut detector = SilenceDetector::new(StallRule::Measured, Time::ZERO);
            for at in healthy(seed) {
                assert_eq!(detector.hung_for(at, || None), None, "seed {seed} at {at:?}");
                detector.reported(at);
            }
        }
    }

    #[test]
    fn who_never_reported_is_never_hung() {
        let mut detector = SilenceDetector::new(StallRule::Measured, Time::ZERO);
        assert_eq!(detector.deadline(), None);
        detector.reported(Time(5));
        detector.gave_sign(Time(10));
        assert_eq!(detector.hung_for(Time(u64::MAX / 2), || None), None);
    }

    #[test]
    fn silence_after_reports_is_a_hang_once_it_is_long_enough() {
        let mut detector = SilenceDetector::new(StallRule::Measured, Time::ZERO);
        (1..=3).for_each(|step| detector.reported(Time(step * 1_000)));
        assert_eq!(detector.deadline(), Some(Time(3_000) + SILENCE_MIN));
        let logged = || Some(Time(4_000));
        assert_eq!(detector.hung_for(Time(603_000), logged), None, "its log went on");
        assert_eq!(detector.hung_for(Time(604_000), logged), Some(SILENCE_MIN));
        detector.reported(Time(700_000));
        let longest = Millis(696_000 * SILENCE_FACTOR);
        assert_eq!(detector.deadline(), Some(Time(700_000) + longest));
    }

    #[test]
    fn a_submitter_says_how_long_silence_may_be() {
        let mut detector = SilenceDetector::new(StallRule::After(Millis(500)), Time::ZERO);
        assert_eq!(detector.deadline(), None, "it has not reported yet");
        detector.reported(Time(3_000));
        let logged = || Some(Time(3_400));
        assert_eq!(detector.hung_for(Time(3_500), logged), Some(Millis(500)));
        assert_eq!(SilenceDetector::new(StallRule::Never, Time::ZERO).deadline(), None);
    }

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
