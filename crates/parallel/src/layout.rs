//! A job that is cut: replicas, stages, layers, and which rank stands where.

use het_core::Bytes;
use het_perf::training::ParallelConfig;

use crate::Pool;

/// How every device takes part.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Replicas that are cut alike, from one kind to the next. With one kind the job is what
    /// Megatron and its kin can be told; with more, each kind is.
    pub replicas: Vec<Replicas>,
    /// Samples of a step, over all replicas.
    pub batch: u32,
    pub microbatch: u32,
}

/// Replicas of the model that are cut alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Replicas {
    pub count: u32,
    /// Microbatches that each of them takes in a step.
    pub microbatches: u32,
    /// So many of them take a granule more.
    pub more: u32,
    /// Microbatches that are handed out at a time: with an interleaved schedule one for each stage,
    /// and as many to others that share the step.
    pub granule: u32,
    /// As the first stage's devices see it: `data` counts the replicas of all kinds,
    /// `global_batch` what the step would be if all took as much as these.
    pub config: ParallelConfig,
    /// In the order of the pipeline.
    pub stages: Vec<Stage>,
}

/// A part of the pipeline: one group of devices in each replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// Index into the request's pools.
    pub pool: usize,
    pub tensor: u32,
    pub layers: u32,
    /// Held by a device, without the reserve.
    pub memory: Bytes,
    /// Seconds of one microbatch, there and back.
    pub seconds: f64,
}

/// Where a rank stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankPlace {
    pub rank: u32,
    /// Over all kinds.
    pub replica: u32,
    pub stage: u32,
    pub context: u32,
    pub tensor: u32,
    pub pool: usize,
    /// Within the pool.
    pub node: u32,
    pub device: u32,
}

impl Layout {
    /// The configuration of the first kind.
    pub fn config(&self) -> &ParallelConfig {
        &self.replicas[0].config
    }

    /// Devices of each pool that take part.
    pub fn devices_of(&self, pool: usize) -> u32 {
        let of = |kind: &Replicas| {
            let stages = kind.stages.iter().filter(|stage| stage.pool == pool);
            kind.count * kind.config.context * stages.map(|stage| stage.tensor).sum::<u32>()
        };
        self.replicas.iter().map(of).sum()
    }

    /// Pools that take part, ascending.
    pub fn pools(&self) -> Vec<usize> {
        let mut pools: Vec<usize> =
            self.replicas.iter().flat_map(|kind| &kind.stages).map(|stage| stage.pool).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    /// Layers and samples of a pool: what it does of the step's work, a fraction.
    pub fn work_of(&self, pool: usize) -> f64 {
        let layers = |kind: &Replicas, only: Option<usize>| -> u32 {
            let stages = kind.stages.iter();
            stages
                .filter(|stage| only.is_none_or(|only| stage.pool == only))
                .map(|s| s.layers)
                .sum()
        };
        let work = |only: Option<usize>| -> f64 {
            let of = |kind: &Replicas| f64::from(layers(kind, only)) * f64::from(kind.samples());
            self.replicas.iter().map(of).sum()
        };
        work(Some(pool)) / work(None)
    }

    /// Every rank's place, in rank order. Tensor groups stand inside an island, context groups
    /// beside them; equal stages of the replicas fill a node before the next stage begins, so that
    /// the pipeline crosses nodes and each data-parallel group keeps to one rail: the same device
    /// of every node.
    pub fn ranks(&self, pools: &[Pool]) -> Vec<RankPlace> {
        let mut taken: Vec<Filling> = vec![Filling::default(); pools.len()];
        let mut places = Vec::new();
        let mut first = 0;
        for kind in &self.replicas {
            for (stage, at) in kind.stages.iter().enumerate() {
                for replica in first..first + kind.count {
                    let context = kind.config.context;
                    let node = pools[at.pool].machine.island.devices_per_node;
                    let devices = taken[at.pool].group(at.tensor * context, node);
                    places.extend(devices.enumerate().map(|(index, (node, device))| RankPlace {
                        rank: 0,
                        replica,
                        stage: stage as u32,
                        context: index as u32 / at.tensor,
                        tensor: index as u32 % at.tensor,
                        pool: at.pool,
                        node,
                        device,
                    }));
                }
            }
            first += kind.count;
        }
        for (rank, place) in places.iter_mut().enumerate() {
            place.rank = rank as u32;
        }
        places
    }
}

impl Replicas {
    /// Samples that all of them take in a step.
    pub fn samples(&self) -> u32 {
        let microbatches = self.count * self.microbatches + self.more * self.granule;
        microbatches * self.config.microbatch
    }

    /// Microbatches that the busiest of them takes.
    pub fn microbatches_most(&self) -> u32 {
        self.microbatches + if self.more > 0 { self.granule } else { 0 }
    }
}

/// How far the devices of a pool are given out, in order.
#[derive(Debug, Clone, Copy, Default)]
struct Filling {
    next: u32,
}

impl Filling {
    /// The next devices that stand together, as node and device in it.
    fn group(&mut self, size: u32, per_node: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let per_node = per_node.max(1);
        let left = per_node - self.next % per_node;
        if size > left && left < per_node {
            self.next += left;
        }
        let first = self.next;
        self.next += size;
        (first..first + size).map(move |index| (index / per_node, index % per_node))
    }
}
