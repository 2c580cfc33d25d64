//! How a batch is cut among replicas of unlike speed.

use crate::batch::Batch;
use std::ops::Range;

/// What of a new speed counts: the rest is of the steps before.
const WEIGHT: f64 = 0.5;

/// A replica without a part is tried again with one sequence once that would take no more than one
/// part in so many of the time that it did nothing: it may be faster by now.
const TRIED: f64 = 50.0;

/// Sequences for each replica that a batch needs to begin with a trial, which takes two.
const TRIAL_PARTS: usize = 6;

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

    /// The replicas and their speeds in tokens a second, the one that is worth least first.
    pub fn by_speed(&self) -> Vec<(usize, f64)> {
        let speeds = self.replicas.iter().map(|own| own.speed.unwrap_or(0.0)).enumerate();
        let mut rows: Vec<(usize, f64)> = speeds.collect();
        // Of equals the last comes first: the first one has more to do.
        rows.sort_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        rows
    }

    /// The replica is gone.
    pub fn remove(&mut self, replica: usize) {
        self.replicas.remove(replica);
    }

    /// Whether a batch begins with a trial: none was measured, and that leaves most of the batch.
    pub fn tries(&self, batch: &Batch) -> bool {
        let is_new = self.replicas.iter().all(|own| own.speed.is_none());
        is_new && batch.sequences() >= TRIAL_PARTS * self.replicas.len()
    }

    /// The sequences of a batch from this one on for each replica, one behind the other, such that
    /// the last one is done as early as can be. Where none was measured all are taken for alike;
    /// beside others each that was never measured, or long ago, gets one sequence.
    pub fn cut(&self, batch: &Batch, mut from: usize) -> Vec<Range<usize>> {
        let count = batch.sequences();
        let tried = self.tried(batch);
        let speed = |(row, own): (usize, &Measured)| match tried.contains(&row) {
            true => 0.0,
            false => own.speed.unwrap_or(1.0),
        };
        let speeds: Vec<f64> = self.replicas.iter().enumerate().map(speed).collect();
        let mut first = vec![from..from; speeds.len()];
        for row in tried.iter().copied().take(count - from) {
            first[row] = from..from + 1;
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
        let ranges = within(&speeds, (batch, from), long).unwrap_or_else(|| {
            // A time that rounding made too short: one that is measured has all.
            let fastest = (0..speeds.len()).max_by(|a, b| speeds[*a].total_cmp(&speeds[*b]));
            let all = |row| if Some(row) == fastest { from..count } else { count..count };
            (0..speeds.len()).map(all).collect()
        });
        let both = ranges.into_iter().zip(first);
        both.map(|(range, first)| if first.is_empty() { range } else { first }).collect()
    }

    /// The replicas that get one sequence, whatever comes of it: never all of them.
    fn tried(&self, batch: &Batch) -> Vec<usize> {
        let Some(tokens) = batch.bounds.get(1).map(|tokens| *tokens as f64) else {
            return Vec::new();
        };
        let rows_where = |is_meant: &dyn Fn(&Measured) -> bool| -> Vec<usize> {
            let rows = self.replicas.iter().enumerate().filter(|(_, own)| is_meant(own));
            rows.map(|(row, _)| row).collect()
        };
        let is_due =
            |own: &Measured| own.speed.is_none_or(|speed| own.unused >= TRIED * tokens / speed);
        let all = self.replicas.len();
        let choices = [rows_where(&is_due), rows_where(&|own| own.speed.is_none())];
        choices.into_iter().find(|rows| rows.len() < all).unwrap_or_default()
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
    fn replicas_that_nobody_knows_are_tried() {
        let even = batch(&[10; 16]);
        let mut shares = Shares::new(2);
        assert!(shares.tries(&even));
        assert!(!shares.tries(&batch(&[10; 11])), "a trial would be much of it");
        shares.measured(&[(10, 1.0), (10, 6.0)]);
        assert!(!shares.tries(&even));
        assert_eq!(shares.cut(&even, 2), [2..14, 14..16]);
        // Those that came later have one sequence each, until they are measured.
        shares.add();
        shares.add();
        assert_eq!(shares.cut(&even, 0)[2..], [0..1, 1..2]);
        shares.measured(&[(70, 7.0), (10, 6.0), (10, 1.0), (10, 1.0)]);
        assert!(shares.cut(&even, 0)[2].len() > 3);
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
        /// Whatever is known of whom, every sequence has one replica.
        #[test]
        fn every_sequence_is_somebodys(
            lengths in prop::collection::vec(1_usize..50, 1..12),
            replicas in prop::collection::vec(
                (prop::option::of(0.01_f64..100.0), prop_oneof![Just(0.0), 0.0_f64..1e6]), 1..6),
            from in 0_usize..12,
        ) {
            let measured = |(speed, unused)| Measured { speed, unused };
            let shares = Shares { replicas: replicas.into_iter().map(measured).collect() };
            let from = from.min(lengths.len());
            let mut all: Vec<usize> =
                shares.cut(&batch(&lengths), from).into_iter().flatten().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (from..lengths.len()).collect::<Vec<_>>());
        }
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
