//! What is asked: a model, a batch, the devices there are, and what may be tried.

use het_core::{Bytes, Millis};
use het_perf::fabric::Route;
use het_perf::training::{
    Attention, GradientWidth, Machine, Offload, Optimizer, Overlap, Precision, RESERVED, Recompute,
    Transformer, Tuning, Zero,
};

/// A question to [`search`](crate::search): how to cut this job over these devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub model: Transformer,
    /// Devices that are there, one pool for each class and kind of node.
    pub pools: Vec<Pool>,
    pub batch: Batch,
    /// To train on: what makes days, energy and price.
    pub tokens: Option<u64>,
    /// What is read meanwhile; `None` counts no reading.
    pub dataset: Option<Dataset>,
    pub choices: Choices,
    pub pins: Pins,
    pub gradients: GradientWidth,
    pub overlap: Overlap,
    /// Of every device, for what no formula counts.
    pub reserve: Bytes,
    /// GB/s a device between pools, one direction, where it is less than either's network.
    pub between_gbps: Option<f64>,
    /// From a failure until training goes on.
    pub restart: Millis,
    /// Candidates in the answer.
    pub keep: usize,
}

/// What is read from storage, and how it comes. Rates in GB/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dataset {
    /// Of one pass.
    pub bytes: Bytes,
    pub passes: f64,
    /// Of the storage system, for everybody who reads.
    pub storage_gbps: f64,
    /// Of a node's cards on the storage network; unknown is taken as enough.
    pub cards_gbps: Option<f64>,
    pub route: Route,
    /// On a node's local NVMe.
    pub cache: Bytes,
}

/// Devices of one class in nodes of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Of the catalogue.
    pub class: String,
    pub machine: Machine,
    pub devices: u32,
    /// Of the host's memory, a device's part; unknown is taken as enough.
    pub host_memory: Option<Bytes>,
    /// Drawn by a device.
    pub power_w: Option<f64>,
    /// Of a device, in any currency.
    pub price_an_hour: Option<f64>,
    pub attention: Attention,
    pub collectives: Collectives,
}

/// The library that a class exchanges through; ranks of one job must have one in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Collectives {
    /// NVIDIA's.
    Nccl,
    /// AMD's.
    Rccl,
    /// Huawei's.
    Hccl,
    /// Anything over the host: Gloo, MPI.
    Host,
}

/// Samples of a step, over all replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    pub smallest: u32,
    pub largest: u32,
    /// Samples above which more of them in a step help ever less: at a batch of B the job needs
    /// 1 + B/critical times the fewest samples (McCandlish et al. 2018, arXiv
    /// 1812.06162).
    pub critical: Option<u32>,
}

/// What may be tried in each dimension that is no count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choices {
    pub precisions: Vec<Precision>,
    pub tunings: Vec<Tuning>,
    pub optimizers: Vec<Optimizer>,
    pub recomputes: Vec<Recompute>,
    pub zeros: Vec<Zero>,
    pub offloads: Vec<Offload>,
    pub microbatch_max: u32,
    pub context_max: u32,
    pub virtual_stages_max: u32,
}

/// Counts that are given; `None` is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pins {
    pub data: Option<u32>,
    pub tensor: Option<u32>,
    pub pipeline: Option<u32>,
    pub context: Option<u32>,
    pub expert: Option<u32>,
    pub microbatch: Option<u32>,
    pub virtual_stages: Option<u32>,
}

impl Request {
    /// Full training in bf16 with Adam; everything else is searched.
    pub fn new(model: Transformer, pools: Vec<Pool>, batch: Batch) -> Self {
        Self {
            model,
            pools,
            batch,
            tokens: None,
            dataset: None,
            choices: Choices::default(),
            pins: Pins::default(),
            gradients: GradientWidth::Single,
            overlap: Overlap::Split,
            reserve: RESERVED,
            between_gbps: None,
            restart: Millis::seconds(300),
            keep: 20,
        }
    }

    /// The same question about other devices.
    pub fn on(&self, pools: Vec<Pool>) -> Self {
        Self { pools, ..self.clone() }
    }

    /// What a device of the pool may hold.
    pub fn capacity(&self, pool: usize) -> Bytes {
        let memory = self.pools[pool].machine.device.memory.0;
        Bytes(memory.saturating_sub(self.reserve.0))
    }

    /// Devices of all pools.
    pub fn devices(&self) -> u32 {
        self.pools.iter().map(|pool| pool.devices).sum()
    }
}

impl Pool {
    /// Nothing known but what is needed; FlashAttention-2 and NVIDIA's library.
    pub fn new(class: &str, machine: Machine, devices: u32) -> Self {
        Self {
            class: class.to_owned(),
            machine,
            devices,
            host_memory: None,
            power_w: None,
            price_an_hour: None,
            attention: Attention::Flash2,
            collectives: Collectives::Nccl,
        }
    }

    /// Groups of so many devices that stand together: within a node, or over whole nodes where one
    /// is too small and tensor groups divide it.
    pub fn groups(&self, tensor: u32, context: u32) -> u32 {
        let node = self.machine.island.devices_per_node.max(1);
        let group = (tensor * context).max(1);
        let rest = self.devices % node;
        match (group <= node, tensor <= node && node.is_multiple_of(tensor.max(1))) {
            (true, _) => self.devices / node * (node / group) + rest / group,
            (false, true) => self.devices / group,
            (false, false) => 0,
        }
    }
}

impl Batch {
    /// This batch and no other.
    pub fn exactly(samples: u32) -> Self {
        Self { smallest: samples, largest: samples, critical: None }
    }

    /// Any batch between these.
    pub fn between(smallest: u32, largest: u32) -> Self {
        Self { smallest, largest, critical: None }
    }

    /// Samples needed at this batch for each needed at the smallest allowed one.
    pub fn samples_for_one(&self, samples: u32) -> f64 {
        self.critical.map_or(1.0, |critical| {
            let needed = |batch: u32| 1.0 + f64::from(batch) / f64::from(critical.max(1));
            needed(samples) / needed(self.smallest)
        })
    }
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            precisions: vec![Precision::Bf16],
            tunings: vec![Tuning::Full],
            optimizers: vec![Optimizer::Adam],
            recomputes: vec![Recompute::None, Recompute::Selective, Recompute::Full],
            zeros: vec![Zero::None, Zero::One, Zero::Two, Zero::Three],
            offloads: vec![Offload::None, Offload::Cpu, Offload::Nvme],
            microbatch_max: 16,
            context_max: 16,
            virtual_stages_max: 12,
        }
    }
}
