//! The candidates that are told of.
//!
//! Many cuts differ in little: whether the last dimension is data or context, how many pieces a
//! stage has, what is offloaded that would have fitted, a replica left out. Of those with the same
//! tensor groups in the same pipeline only the fastest is told of, and slower ones that take much
//! less memory or many fewer devices.

use het_perf::training::{Offload, Recompute, Zero};

use crate::candidate::Candidate;
use crate::layout::{Replicas, Stage};

/// A slower cut into the same groups is told of too where it takes no more than this part of the
/// memory or of the devices.
const WORTH_IT: f64 = 0.9;

/// The best so far, in order.
#[derive(Debug)]
pub(super) struct Shortlist {
    size: usize,
    /// Twice as many as are told of: a good one may come late and take the place of several.
    kept: Vec<Candidate>,
}

impl Shortlist {
    pub fn of(size: usize) -> Self {
        Self { size: size.max(1), kept: Vec::new() }
    }

    pub fn best(&self) -> Option<&Candidate> {
        self.kept.first()
    }

    /// Seconds a sample above which nothing will be told of.
    pub fn threshold(&self) -> f64 {
        self.kept.get(self.size - 1).map_or(f64::INFINITY, |last| last.sample_s)
    }

    /// Puts a candidate where it belongs, if it is good: by time, then the fewer devices and the
    /// simpler cut, then whoever came first.
    pub fn keep(&mut self, candidate: &Candidate) {
        let before = |other: &Candidate| {
            let time = other.sample_s.total_cmp(&candidate.sample_s);
            let size = other.devices.cmp(&candidate.devices);
            let tricks = tricks(other).cmp(&tricks(candidate));
            time.then(size).then(tricks).is_le()
        };
        let at = self.kept.partition_point(before);
        if self.kept[..at].iter().any(|better| covers(better, candidate)) {
            return;
        }
        self.kept.insert(at, candidate.clone());
        let mut index = 0;
        self.kept.retain(|other| {
            index += 1;
            index <= at + 1 || !covers(candidate, other)
        });
        self.kept.truncate(2 * self.size);
    }

    pub fn into_candidates(mut self) -> Vec<Candidate> {
        self.kept.truncate(self.size);
        self.kept
    }
}

/// Whether the second, which is no faster, has nothing that the first has not.
fn covers(better: &Candidate, other: &Candidate) -> bool {
    let groups = |stage: &Stage| (stage.pool, stage.tensor);
    let (one, two) = (&better.layout.replicas, &other.layout.replicas);
    let same = |(a, b): (&Replicas, &Replicas)| {
        a.stages.iter().map(groups).eq(b.stages.iter().map(groups))
    };
    let alike = one.len() == two.len() && one.iter().zip(two).all(same);
    let less = |other: f64, better: f64| other <= WORTH_IT * better;
    alike
        && !less(other.memory.0 as f64, better.memory.0 as f64)
        && !less(other.devices.into(), better.devices.into())
}

/// How much there is to a cut beside its groups.
fn tricks(candidate: &Candidate) -> usize {
    let of = |kind: &Replicas| {
        let config = &kind.config;
        let used = [
            config.context > 1,
            config.expert > 1,
            config.virtual_stages > 1,
            config.zero > Zero::One,
            config.recompute != Recompute::None,
            config.offload != Offload::None,
        ];
        1 + used.iter().filter(|used| **used).count()
    };
    candidate.layout.replicas.iter().map(of).sum()
}
