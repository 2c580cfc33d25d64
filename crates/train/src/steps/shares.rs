//! How a batch is cut among replicas of unlike speed.

use crate::batch::Batch;
use std::ops::Range;

/// What of a new speed counts: the rest is of the steps before.
const WEIGHT: f64 = 0.5;

/// A replica without a part is tried again with one sequence once that would take no more than one
/// part in so many of the time that it did nothing: it may be faster by now.
const TRIED: f64 = 50.0;

/// Sequences for each replica that a batch has to have to begin with a trial.
const TRIAL_PARTS: usize = 3;

/// Halvings of the range that a step's time is looked for in.
const HALVINGS: usize = 50;

/// How fast each replica is, as measured over the last steps.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shares {
    replicas: Vec<Measured>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Measured {
    /// Tokens a second; `None` before its first batch.
    speed: Option<f64>,
    /// Seconds of steps without a part for it.
    unused: f64,
}

impl Shares {
    pub fn new(replicas: usize) -> Self {
        Self { replicas: vec![Measured::default(); replicas] }
    }

    /// What each replica computed in a step: tokens, and seconds of its own time.
    pub fn measured(&mut self, step: &[(usize, f64)]) {
        let length = step.iter().fold(0.0, |longest: f64, (_, seconds)| longest.max(*seconds));
        for (own, (tokens, seconds)) in self.replicas.iter_mut().zip(step) {
            if *tokens == 0 {
                own.unused += length;
            } else if *seconds > 0.0 {
                let speed = *tokens as f64 / seconds;
                let mean = |before| before + WEIGHT * (speed - before);
                *own = Measured { speed: Some(own.speed.map_or(speed, mean)), unused: 0.0 };
            }
        }
    }

    /// Another replica, behind the others.
    pub fn add(&mut self) {
        self.replicas.push(Measured::default());
    }

    /// The replica that is worth least.
    pub fn slowest(&self) -> usize {
        let speed = |row: &usize| self.replicas[*row].speed.unwrap_or(0.0);
        let rows = 0..self.replicas.len();
        // Of equals the last: the first one has more to do.
        rows.rev().min_by(|a, b| speed(a).total_cmp(&speed(b))).unwrap_or(0)
    }

    /// The replica is gone.
    pub fn remove(&mut self, replica: usize) {
        self.replicas.remove(replica);
    }

    /// One sequence of a batch for each replica, to measure them by, where none was measured and
    /// that leaves most of the batch.
    pub fn trial(&self, batch: &Batch) -> Option<Vec<Range<usize>>> {
        let count = self.replicas.len();
        let is_new = self.replicas.iter().all(|own| own.speed.is_none());
        (is_new && batch.sequences() >= TRIAL_PARTS * count)
            .then(|| (0..count).map(|row| row..row + 1).collect())
    }

    /// The sequences of a batch from this one on for each replica, one behind the other, such that
    /// the last one is done as early as can be. Where none was measured all are taken for alike;
    /// one that was never measured beside others that were gets one sequence.
    pub fn cut(&self, batch: &Batch, mut from: usize) -> Vec<Range<usize>> {
        let is_measured = self.replicas.iter().any(|own| own.speed.is_some());
        let unknown = if is_measured { 0.0 } else { 1.0 };
        let mut speeds: Vec<f64> =
            self.replicas.iter().map(|own| own.speed.unwrap_or(unknown)).collect();
        let tried = self.tried(batch).filter(|_| from < batch.sequences());
        let first = from..from + 1;
        if let Some(replica) = tried {
            speeds[replica] = 0.0;
            from += 1;
        }
        let moving = speeds.iter().copied().filter(|speed| *speed > 0.0);
        let slowest = moving.fold(f64::INFINITY, f64::min);
        let (mut short, mut long) = (0.0, batch.tokens.len() as f64 / slowest);
        for _ in 0..HALVINGS {
            let middle = (short + long) / 2.0;
            match within(&speeds, (batch, from), middle).is_some() {
                true => long = middle,
                false => short = middle,
            }
        }
        let mut ranges = within(&speeds, (batch, from), long).unwrap_or_else(|| {
            let all = from..batch.sequences();
            let none = all.end..all.end;
            let others = std::iter::repeat_n(none, speeds.len() - 1);
            [all].into_iter().chain(others).collect()
        });
        if let Some(replica) = tried {
            ranges[replica] = first;
        }
        ranges
    }

    /// The replica that gets the first sequence, whatever comes of it.
    fn tried(&self, batch: &Batch) -> Option<usize> {
        let tokens = *batch.bounds.get(1)? as f64;
        let is_measured = self.replicas.iter().any(|own| own.speed.is_some());
        self.replicas.iter().position(|Measured { speed, unused }| {
            speed.map_or(is_measured, |speed| *unused >= TRIED * tokens / speed)
        })
    }
}

/// The sequences of each replica, from this one on, where each takes what it can within so many
/// seconds; `None` where some are left.
fn within(
    speeds: &[f64],
    (batch, from): (&Batch, usize),
    seconds: f64,
) -> Option<Vec<Range<usize>>> {
    let count = batch.sequences();
    let mut start = from;
    let ranges = speeds.iter().map(|speed| {
        let first = start;
        while start < count
            && (batch.bounds[start + 1] - batch.bounds[first]) as f64 <= speed * seconds
        {
            start += 1;
        }
        first..start
    });
    let ranges: Vec<_> = ranges.collect();
    (start == count).then_some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Sequence;
    use proptest::prelude::*;

    fn batch(lengths: &[usize]) -> Batch {
        let sequences: Vec<Sequence> = lengths
            .iter()
            .map(|length| Sequence { tokens: vec![1; *length], scored: vec![true; *length] })
            .collect();
        Batch::pack(&sequences, 1_000)
    }

    fn shares(speeds: &[f64]) -> Shares {
        let measured = |speed: &f64| Measured { speed: Some(*speed), unused: 0.0 };
        Shares { replicas: speeds.iter().map(measured).collect() }
    }

    #[test]
    fn shares_follow_speeds() {
        let even = batch(&[10; 16]);
        assert_eq!(Shares::new(2).cut(&even, 0), [0..8, 8..16]);
        assert_eq!(shares(&[3.0, 1.0]).cut(&even, 0), [0..12, 12..16]);
        assert_eq!(shares(&[1.0, 3.0]).cut(&even, 0), [0..4, 4..16]);
        // Nobody waits for one that would take longer with a single sequence.
        assert_eq!(shares(&[100.0, 1.0]).cut(&even, 0), [0..16, 16..16]);
    }

    #[test]
    fn replicas_that_nobody_knows_are_measured_first() {
        let even = batch(&[10; 16]);
        let mut shares = Shares::new(2);
        assert_eq!(shares.trial(&even), Some(vec![0..1, 1..2]));
        assert_eq!(shares.trial(&batch(&[10; 5])), None, "a trial would be much of it");
        shares.measured(&[(10, 1.0), (10, 6.0)]);
        assert_eq!(shares.trial(&even), None);
        assert_eq!(shares.cut(&even, 2), [2..14, 14..16]);
        // One that came later has one sequence, until it is measured.
        shares.add();
        assert_eq!(shares.cut(&even, 0)[2], 0..1);
        shares.measured(&[(70, 7.0), (10, 6.0), (10, 1.0)]);
        assert!(shares.cut(&even, 0)[2].len() > 5);
    }

    #[test]
    fn a_replica_that_slows_down_gets_less_within_a_few_steps() {
        let mut shares = shares(&[1.0, 1.0]);
        for _ in 0..4 {
            shares.measured(&[(10, 10.0), (10, 40.0)]);
        }
        let cut = shares.cut(&batch(&[10; 20]), 0);
        assert!(cut[0].len() >= 15, "{cut:?}");
    }

    #[test]
    fn a_replica_without_a_part_is_tried_now_and_then() {
        let mut shares = shares(&[100.0, 1.0]);
        let even = batch(&[10; 16]);
        let mut steps = 0;
        // A step takes 1.6 s, and a sequence on the slow one 10 s.
        while shares.cut(&even, 0) == [0..16, 16..16] {
            shares.measured(&[(160, 1.6), (0, 0.0)]);
            steps += 1;
        }
        assert_eq!(steps, 313, "a fiftieth of 313 steps are 10 s");
        assert_eq!(shares.cut(&even, 0), [1..16, 0..1]);
        shares.measured(&[(150, 1.5), (10, 0.1)]);
        let cut = shares.cut(&even, 0);
        assert!(cut[1].len() >= 4, "it is faster than it was: {cut:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        /// Every sequence has one replica, and no other cut at one place is done earlier.
        #[test]
        fn no_other_cut_is_done_earlier(
            lengths in prop::collection::vec(1_usize..50, 1..12),
            speeds in prop::collection::vec(0.1_f64..10.0, 2),
        ) {
            let batch = batch(&lengths);
            let cut = shares(&speeds).cut(&batch, 0);
            prop_assert_eq!(cut[0].end, cut[1].start);
            prop_assert_eq!((cut[0].start, cut[1].end), (0, lengths.len()));
            let time = |at: usize| {
                let first: usize = lengths[..at].iter().sum();
                let second: usize = lengths[at..].iter().sum();
                (first as f64 / speeds[0]).max(second as f64 / speeds[1])
            };
            let best = (0..=lengths.len()).map(time).fold(f64::INFINITY, f64::min);
            prop_assert!(time(cut[0].end) <= best * (1.0 + 1e-9));
        }
    }
}
