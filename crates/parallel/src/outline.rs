//! A cut before it is priced: which devices in which order, and which tricks, but no layers yet.

use het_perf::training::{
    Attention, Machine, Offload, Optimizer, ParallelConfig, Precision, Recompute, SequenceParallel,
    Tuning, Zero,
};

use crate::request::Request;

/// A whole job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outline {
    pub batch: u32,
    pub recipe: Recipe,
    pub kinds: Vec<Kind>,
}

/// What all replicas have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Recipe {
    pub precision: Precision,
    pub tuning: Tuning,
    pub optimizer: Optimizer,
    pub microbatch: u32,
}

/// Replicas that are cut alike.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Kind {
    pub count: u32,
    /// In the order of the pipeline.
    pub blocks: Vec<Block>,
    pub tricks: Tricks,
}

/// Stages of one pool that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub pool: usize,
    pub tensor: u32,
    pub stages: u32,
}

/// What a replica does about memory and bubbles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tricks {
    pub context: u32,
    pub expert: u32,
    pub virtual_stages: u32,
    pub recompute: Recompute,
    pub zero: Zero,
    pub offload: Offload,
}

impl Outline {
    /// Replicas of all kinds.
    pub fn replicas(&self) -> u32 {
        self.kinds.iter().map(|kind| kind.count).sum()
    }

    /// Microbatches of a step, over all replicas.
    pub fn microbatches(&self) -> u32 {
        self.batch / self.recipe.microbatch.max(1)
    }

    /// Devices of a pool that take part.
    pub fn devices_of(&self, pool: usize) -> u32 {
        let of = |kind: &Kind| {
            let own = kind.blocks.iter().filter(|block| block.pool == pool);
            let each: u32 = own.map(|block| block.stages * block.tensor).sum();
            kind.count * kind.tricks.context * each
        };
        self.kinds.iter().map(of).sum()
    }

    /// Whether devices of several pools take part.
    pub fn is_mixed(&self) -> bool {
        let mut pools = self.kinds.iter().flat_map(|kind| &kind.blocks).map(|block| block.pool);
        let first = pools.next();
        pools.any(|pool| Some(pool) != first)
    }

    /// Ranks among which a kind's states are shared out. Kinds of single stages of the same size
    /// share them with each other; others, whose parts are not the same, among themselves.
    pub fn sharing(&self, kind: &Kind) -> u32 {
        let width = |kind: &Kind| match kind.blocks[..] {
            [Block { tensor, stages: 1, .. }] => Some((tensor, kind.tricks)),
            _ => None,
        };
        let alike = self.kinds.iter().all(|other| width(other) == width(kind));
        if width(kind).is_some() && alike { self.replicas() } else { kind.count }
    }

    /// The pool's devices as this job sees them: on unlike ones the slowest network sets the pace
    /// of what goes between nodes, and devices that take no part are no way round it.
    pub fn machine(&self, request: &Request, pool: usize) -> Machine {
        let machine = request.pools[pool].machine;
        if !self.is_mixed() {
            return machine;
        }
        let blocks = self.kinds.iter().flat_map(|kind| &kind.blocks);
        let networks = blocks.map(|block| request.pools[block.pool].machine.island.network_gbps);
        let network_gbps = networks.chain(request.between_gbps).fold(f64::INFINITY, f64::min);
        let node = machine.island.devices_per_node.min(self.devices_of(pool)).max(1);
        let mut island = machine.island;
        island.network_gbps = network_gbps;
        island.devices_per_node = node;
        Machine { island, ..machine }
    }
}

impl Kind {
    pub fn stages(&self) -> u32 {
        self.blocks.iter().map(|block| block.stages).sum()
    }

    /// Microbatches that are handed out at a time.
    pub fn granule(&self) -> u32 {
        if self.tricks.virtual_stages > 1 { self.stages() } else { 1 }
    }

    /// The configuration as devices of a block see it, with so many ranks of data and so many
    /// microbatches each.
    pub fn config(
        &self,
        request: &Request,
        recipe: &Recipe,
        block: &Block,
        [data, microbatches]: [u32; 2],
    ) -> ParallelConfig {
        let tricks = &self.tricks;
        let pool = &request.pools[block.pool];
        let parallel = if block.tensor > 1 { SequenceParallel::On } else { SequenceParallel::Off };
        ParallelConfig {
            data,
            tensor: block.tensor,
            pipeline: self.stages(),
            context: tricks.context,
            expert: tricks.expert,
            virtual_stages: tricks.virtual_stages,
            microbatch: recipe.microbatch,
            global_batch: data * recipe.microbatch * microbatches,
            precision: precision_on(request, block.pool, recipe.precision),
            gradients: request.gradients,
            recompute: tricks.recompute,
            sequence_parallel: parallel,
            zero: tricks.zero,
            offload: tricks.offload,
            optimizer: recipe.optimizer,
            tuning: recipe.tuning,
            attention: pool.attention,
            overlap: request.overlap,
        }
    }
}

/// What a pool multiplies in: a class without 8 bits takes part with 16.
pub(crate) fn precision_on(request: &Request, pool: usize, wanted: Precision) -> Precision {
    let has = |precision| request.pools[pool].machine.device.peak_flops(precision).is_some();
    match wanted {
        Precision::Fp8 if !has(Precision::Fp8) => Precision::Bf16,
        Precision::Fp32 | Precision::Fp16 | Precision::Bf16 | Precision::Fp8 => wanted,
    }
}

/// Whether selective recomputation is worth a try: flash attention does that by itself.
pub(crate) fn is_worthwhile(recompute: Recompute, attention: Attention) -> bool {
    match (recompute, attention) {
        (Recompute::None | Recompute::Full, _) | (Recompute::Selective, Attention::Plain) => true,
        (Recompute::Selective, Attention::Flash1 | Attention::Flash2 | Attention::Flash3) => false,
    }
}
