//! How a batch is cut among replicas of unlike speed.

use crate::batch::Batch;
use std::ops::Range;

/// What of a new speed counts: the rest is of the steps before.
const WEIGHT: f64 = 0.5;

/// Halvings of the range that a step's time is looked for in.
const HALVINGS: usize = 50;

/// The speed of each replica in tokens a second, as measured over the last steps.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shares {
    /// `None` before its first batch.
    speeds: Vec<Option<f64>>,
}

impl Shares {
    pub fn new(replicas: usize) -> Self {
        Self { speeds: vec![None; replicas] }
    }

    /// A replica computed so many tokens within so many seconds of its own time.
    pub fn measured(&mut self, replica: usize, tokens: usize, seconds: f64) {
        if tokens > 0 && seconds > 0.0 {
            let speed = tokens as f64 / seconds;
            let own = &mut self.speeds[replica];
            *own = Some(own.map_or(speed, |before| before + WEIGHT * (speed - before)));
        }
    }

    /// The replica is gone.
    pub fn remove(&mut self, replica: usize) {
        self.speeds.remove(replica);
    }

    /// The sequences of a batch for each replica, one behind the other, such that the last one is
    /// done as early as can be. One that was never measured is taken for as fast as the others are
    /// in the mean.
    pub fn cut(&self, batch: &Batch) -> Vec<Range<usize>> {
        let known = self.speeds.iter().flatten();
        let (sum, count) = known.fold((0.0, 0), |(sum, count), speed| (sum + speed, count + 1));
        let mean = if count > 0 { sum / f64::from(count) } else { 1.0 };
        let speeds: Vec<f64> = self.speeds.iter().map(|speed| speed.unwrap_or(mean)).collect();
        let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let (mut short, mut long) = (0.0, batch.tokens.len() as f64 / slowest);
        for _ in 0..HALVINGS {
            let middle = (short + long) / 2.0;
            match within(&speeds, batch, middle).is_some() {
                true => long = middle,
                false => short = middle,
            }
        }
        within(&speeds, batch, long).unwrap_or_else(|| {
            let all = 0..batch.sequences();
            let none = all.end..all.end;
            let others = std::iter::repeat_n(none, speeds.len() - 1);
            [all].into_iter().chain(others).collect()
        })
    }
}

/// The sequences of each replica where each takes what it can within so many seconds; `None` where
/// some are left.
fn within(speeds: &[f64], batch: &Batch, seconds: f64) -> Option<Vec<Range<usize>>> {
    let count = batch.sequences();
    let mut start = 0;
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
        Shares { speeds: speeds.iter().map(|speed| Some(*speed)).collect() }
    }

    #[test]
    fn shares_follow_speeds() {
        let even = batch(&[10; 16]);
        assert_eq!(Shares::new(2).cut(&even), [0..8, 8..16]);
        assert_eq!(shares(&[3.0, 1.0]).cut(&even), [0..12, 12..16]);
        assert_eq!(shares(&[1.0, 3.0]).cut(&even), [0..4, 4..16]);
        // Nobody waits for one that would take longer with a single sequence.
        assert_eq!(shares(&[100.0, 1.0]).cut(&even), [0..16, 16..16]);
    }

    #[test]
    fn a_replica_that_slows_down_gets_less_within_a_few_steps() {
        let mut shares = shares(&[1.0, 1.0]);
        for _ in 0..4 {
            shares.measured(1, 10, 40.0);
        }
        let cut = shares.cut(&batch(&[10; 20]));
        assert!(cut[0].len() >= 15, "{cut:?}");
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
            let cut = shares(&speeds).cut(&batch);
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
