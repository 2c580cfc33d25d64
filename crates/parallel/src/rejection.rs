//! Why candidates were rejected.

use std::collections::BTreeMap;
use std::fmt;

use het_core::Bytes;
use het_perf::training::{Limit, ParallelConfig};

use crate::candidate::Candidate;
use crate::price::saveable;

/// Configurations that are no answer for the same reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejection {
    pub why: RejectionReason,
    pub count: u64,
    /// The one that came nearest; in a mixed one, as its first stage's devices see it.
    pub example: Option<ParallelConfig>,
}

/// A reason, with the figures of whoever came nearest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RejectionReason {
    /// A device of the pool would hold so much more than it can.
    OutOfMemory { pool: usize, over: Bytes },
    /// The host's memory a device has room for so much less than offloading brings.
    OutOfHostMemory { pool: usize, over: Bytes },
    /// A fraction slower than the best, mostly because of this.
    Slower { by: f64, because: Limit },
    /// Not looked at further: no overlap would make it faster than this fraction behind the best.
    CannotBeFaster { by: f64 },
    /// What already fits needs no further way to save memory, each of which costs time.
    SavesMoreThanNeeded,
    /// Microbatches or layers do not come out even.
    NotDivisible,
}

/// Reasons while they are collected.
#[derive(Debug, Default)]
pub(crate) struct Rejections {
    memory: BTreeMap<usize, Nearest>,
    host: BTreeMap<usize, Nearest>,
    slower: BTreeMap<u8, Slower>,
    bounded: u64,
    bound_s: Option<f64>,
    needless: u64,
    indivisible: u64,
}

#[derive(Debug)]
struct Nearest {
    over: Bytes,
    count: u64,
    example: ParallelConfig,
}

#[derive(Debug)]
struct Slower {
    count: u64,
    best: Candidate,
    /// Second best: the one to report in the group of the winner.
    second: Option<Candidate>,
}

impl Rejections {
    pub fn memory(&mut self, pool: usize, over: Bytes, example: ParallelConfig) {
        nearer(&mut self.memory, pool, over, example);
    }

    pub fn host_memory(&mut self, pool: usize, over: Bytes, example: ParallelConfig) {
        nearer(&mut self.host, pool, over, example);
    }

    /// A candidate that has a time; whether it is the best shows at the end.
    pub fn priced(&mut self, candidate: &Candidate) {
        let key = order(candidate.limit);
        match self.slower.get_mut(&key) {
            Some(slower) => slower.take(candidate),
            None => {
                let best = candidate.clone();
                self.slower.insert(key, Slower { count: 1, best, second: None });
            }
        }
    }

    /// So many that take `at_least_s` a sample or more.
    pub fn bounded(&mut self, count: u64, at_least_s: f64) {
        if count > 0 {
            self.bounded += count;
            let least = self.bound_s.map_or(at_least_s, |bound| bound.min(at_least_s));
            self.bound_s = Some(least);
        }
    }

    pub fn needless(&mut self, count: u64) {
        self.needless += count;
    }

    pub fn indivisible(&mut self) {
        self.indivisible += 1;
    }

    /// The device that came nearest to holding it: pool, what it lacks, how it was cut.
    pub fn nearest(&self) -> Option<(usize, Bytes, ParallelConfig)> {
        let entries = self.memory.iter().min_by_key(|(_, nearest)| nearest.over);
        entries.map(|(pool, nearest)| (*pool, nearest.over, nearest.example))
    }

    /// The least that a host lacked.
    pub fn nearest_host(&self) -> Option<Bytes> {
        self.host.values().map(|nearest| nearest.over).min()
    }

    /// All that was looked at.
    pub fn count(&self) -> u64 {
        let memory = self.memory.values().chain(self.host.values()).map(|nearest| nearest.count);
        let slower = self.slower.values().map(|slower| slower.count);
        memory.chain(slower).sum::<u64>() + self.bounded + self.needless + self.indivisible
    }

    /// The reasons beside the best candidate, those that cost least first.
    pub fn summary(&self, best: &Candidate) -> Vec<Rejection> {
        let mut rejected: Vec<Rejection> = Vec::new();
        for slower in self.slower.values() {
            let won = slower.best.layout == best.layout;
            let nearest = if won { slower.second.as_ref() } else { Some(&slower.best) };
            let Some(nearest) = nearest else { continue };
            let by = nearest.sample_s / best.sample_s - 1.0;
            let why = RejectionReason::Slower { by, because: because(nearest, best) };
            let example = Some(*nearest.layout.config());
            rejected.push(Rejection { why, count: slower.count - u64::from(won), example });
        }
        rejected.sort_by(|a, b| by(a).total_cmp(&by(b)));
        let row = |why, nearest: &Nearest| Rejection {
            why,
            count: nearest.count,
            example: Some(nearest.example),
        };
        rejected.extend(self.memory.iter().map(|(pool, nearest)| {
            row(RejectionReason::OutOfMemory { pool: *pool, over: nearest.over }, nearest)
        }));
        rejected.extend(self.host.iter().map(|(pool, nearest)| {
            row(RejectionReason::OutOfHostMemory { pool: *pool, over: nearest.over }, nearest)
        }));
        let bound = self.bound_s.map(|bound| (bound / best.sample_s - 1.0).max(0.0));
        let bare = |why, count| Rejection { why, count, example: None };
        rejected.extend(bound.map(|by| bare(RejectionReason::CannotBeFaster { by }, self.bounded)));
        let rest = [
            (RejectionReason::SavesMoreThanNeeded, self.needless),
            (RejectionReason::NotDivisible, self.indivisible),
        ];
        rejected
            .extend(rest.into_iter().filter(|row| row.1 > 0).map(|(why, count)| bare(why, count)));
        rejected
    }
}

impl Slower {
    fn take(&mut self, candidate: &Candidate) {
        self.count += 1;
        if candidate.sample_s < self.best.sample_s {
            self.second = Some(std::mem::replace(&mut self.best, candidate.clone()));
        } else if self.second.as_ref().is_none_or(|one| candidate.sample_s < one.sample_s) {
            self.second = Some(candidate.clone());
        }
    }
}

fn by(rejected: &Rejection) -> f64 {
    match rejected.why {
        RejectionReason::Slower { by, .. } | RejectionReason::CannotBeFaster { by } => by,
        _ => 0.0,
    }
}

fn nearer(of: &mut BTreeMap<usize, Nearest>, pool: usize, over: Bytes, example: ParallelConfig) {
    let nearest = of.entry(pool).or_insert(Nearest { over, count: 0, example });
    nearest.count += 1;
    if over < nearest.over {
        *nearest = Nearest { over, example, ..*nearest };
    }
}

/// The part of the step that a loser spends most more on for each sample than the best.
fn because(loser: &Candidate, best: &Candidate) -> Limit {
    let parts = |candidate: &Candidate| {
        let samples = f64::from(candidate.layout.batch);
        let all = saveable(&candidate.step);
        let saved: f64 = all.iter().map(|(_, seconds)| seconds).sum();
        let compute = (Limit::Compute, candidate.step.total_s - saved);
        [&all[..], &[compute]].concat().into_iter().map(move |(limit, s)| (limit, s / samples))
    };
    let more = parts(loser).zip(parts(best)).map(|(own, other)| (own.0, own.1 - other.1));
    more.max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Limit::Compute, |(limit, _)| limit)
}

fn order(limit: Limit) -> u8 {
    match limit {
        Limit::Compute => 0,
        Limit::MemoryBandwidth => 1,
        Limit::Launch => 2,
        Limit::Recompute => 3,
        Limit::TensorCommunication => 4,
        Limit::Bubble => 5,
        Limit::PipelineCommunication => 6,
        Limit::DataCommunication => 7,
        Limit::Optimizer => 8,
        Limit::Offload => 9,
    }
}

impl fmt::Display for RejectionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { over, .. } => {
                write!(f, "runs out of device memory by {over} at least")
            }
            Self::OutOfHostMemory { over, .. } => {
                write!(f, "runs out of host memory by {over} a device at least")
            }
            Self::Slower { by, .. } if *by < 5e-4 => {
                f.write_str("as fast within a tenth of a percent, and no simpler")
            }
            Self::Slower { by, because } => {
                write!(f, "slower by {:.1} % at least: {}", by * 100.0, limit_name(*because))
            }
            Self::CannotBeFaster { by } => {
                write!(f, "by its lower bound slower by {:.1} % at least", by * 100.0)
            }
            Self::SavesMoreThanNeeded => {
                f.write_str("saves memory at a cost where there is enough already")
            }
            Self::NotDivisible => f.write_str("batch or layers do not come out even"),
        }
    }
}

/// The name of what a step spends its time on.
pub fn limit_name(limit: Limit) -> &'static str {
    match limit {
        Limit::Compute => "matrix products",
        Limit::MemoryBandwidth => "bandwidth of device memory",
        Limit::Launch => "the host starts kernels more slowly than they run",
        Limit::Recompute => "recomputation",
        Limit::TensorCommunication => "exchange of tensor groups",
        Limit::Bubble => "the pipeline's bubble",
        Limit::PipelineCommunication => "hand-over between stages",
        Limit::DataCommunication => "exchange of gradients and weights",
        Limit::Optimizer => "the update",
        Limit::Offload => "offloading",
    }
}
