//! What there is to choose from: the values of each dimension that make sense, and bounds on what
//! they can lead to.

use het_perf::training::{
    Machine, Offload, ParallelConfig, Precision, Recompute, Zero, head_time_s, layer_time,
};

use crate::outline::{Block, Kind, Recipe, Tricks, is_worthwhile, precision_on};
use crate::request::{Batch, Request};

/// A recipe with how its replicas treat a layer.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub recipe: Recipe,
    pub context: u32,
    pub expert: u32,
    pub recompute: Recompute,
    /// For each pool, a tile for each size of tensor group.
    pub tiles: Vec<Vec<Tile>>,
}

/// A group of devices that a stage stands on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile {
    pub tensor: u32,
    /// Groups that the pool has room for.
    pub groups: u32,
    /// Seconds of a layer of one microbatch; what crowding adds is left out.
    pub layer_s: f64,
    pub head_s: f64,
}

/// Shortest part of a sequence that context parallelism cuts to: below it there is no need.
const CONTEXT_TOKENS_MIN: u32 = 2_048;

/// Replica counts that are tried for each pipeline, largest first.
const COUNTS_MAX: usize = 8;

impl Setting {
    /// All of them, in order.
    pub fn all(request: &Request) -> Vec<Self> {
        let mut settings = Vec::new();
        for recipe in recipes(request) {
            for context in contexts(request) {
                for expert in experts(request) {
                    for recompute in recomputes(request) {
                        let bare = Self { recipe, context, expert, recompute, tiles: Vec::new() };
                        let pools = 0..request.pools.len();
                        let tiles: Vec<Vec<Tile>> =
                            pools.map(|pool| bare.tiles_of(request, pool)).collect();
                        if tiles.iter().any(|tiles| !tiles.is_empty()) {
                            settings.push(Self { tiles, ..bare });
                        }
                    }
                }
            }
        }
        settings
    }

    /// Tricks to begin with: no states shared out, none taken away.
    pub fn tricks(&self, virtual_stages: u32) -> Tricks {
        Tricks {
            context: self.context,
            expert: self.expert,
            virtual_stages,
            recompute: self.recompute,
            zero: Zero::None,
            offload: Offload::None,
        }
    }

    fn tiles_of(&self, request: &Request, pool: usize) -> Vec<Tile> {
        let machine = &request.pools[pool].machine;
        tensors(request, machine)
            .into_iter()
            .filter_map(|tensor| {
                let groups = request.pools[pool].groups(tensor, self.context);
                let block = Block { pool, tensor, stages: 1 };
                let kind = Kind { count: 1, blocks: vec![block], tricks: self.tricks(1) };
                let config = kind.config(request, &self.recipe, &block, [NODE_FULL, 1]);
                let (layer_s, head_s) = times(request, &config, machine)?;
                (groups > 0).then_some(Tile { tensor, groups, layer_s, head_s })
            })
            .collect()
    }
}

/// Replicas enough to fill any node: exchange is bounded by what full ones have.
const NODE_FULL: u32 = 4_096;

fn times(request: &Request, config: &ParallelConfig, machine: &Machine) -> Option<(f64, f64)> {
    let layer = layer_time(&request.model, config, machine).ok()?;
    let head = head_time_s(&request.model, config, machine).ok()?;
    Some((layer.total_s(), head))
}

fn recipes(request: &Request) -> Vec<Recipe> {
    let choices = &request.choices;
    let mut recipes = Vec::new();
    for &precision in precisions(request).iter() {
        for &tuning in &choices.tunings {
            for &optimizer in &choices.optimizers {
                for microbatch in microbatches(request) {
                    recipes.push(Recipe { precision, tuning, optimizer, microbatch });
                }
            }
        }
    }
    recipes
}

/// Those that some device has a figure for: 8 bits where none has them are 16 bits under another
/// name.
fn precisions(request: &Request) -> Vec<Precision> {
    let wanted = request.choices.precisions.iter().copied();
    let has = |precision: &Precision| {
        let pools = 0..request.pools.len();
        pools.into_iter().any(|pool| precision_on(request, pool, *precision) == *precision)
    };
    wanted.filter(has).collect()
}

/// Powers of two, and where the batch is given whatever divides it.
fn microbatches(request: &Request) -> Vec<u32> {
    let most = request.choices.microbatch_max.min(request.batch.largest);
    let batch = request.batch;
    let fixed = batch.smallest == batch.largest;
    let divides = |size: &u32| {
        if fixed { batch.largest.is_multiple_of(*size) } else { size.is_power_of_two() }
    };
    pinned(request.pins.microbatch, (1..=most).filter(divides))
}

/// Sizes that divide the heads and stand inside an island.
fn tensors(request: &Request, machine: &Machine) -> Vec<u32> {
    let heads = request.model.heads;
    let node = machine.island.devices_per_node.max(1);
    let sizes = (1..=node.min(heads)).filter(|size| heads.is_multiple_of(*size));
    let even = sizes.filter(|size| size.is_power_of_two() || node.is_multiple_of(*size));
    pinned(request.pins.tensor, even)
        .into_iter()
        .filter(|size| *size <= node && heads.is_multiple_of(*size))
        .collect()
}

fn contexts(request: &Request) -> Vec<u32> {
    let sequence = request.model.sequence;
    let powers = (0..).map(|power| 1_u32 << power);
    let sizes = powers.take_while(|size| *size <= request.choices.context_max.clamp(1, 1 << 16));
    let long = sizes.filter(|size| {
        *size == 1 || (sequence / size >= CONTEXT_TOKENS_MIN && sequence.is_multiple_of(2 * size))
    });
    pinned(request.pins.context, long)
}

fn experts(request: &Request) -> Vec<u32> {
    let count = request.model.feed_forward.experts.map_or(1, |experts| experts.count);
    let divides = |size: &u32| count.is_multiple_of(*size) && size.is_power_of_two();
    pinned(request.pins.expert, (1..=count).filter(divides))
}

fn recomputes(request: &Request) -> Vec<Recompute> {
    let attentions = request.pools.iter().map(|pool| pool.attention);
    let attentions: Vec<_> = attentions.collect();
    let chosen = request.choices.recomputes.iter().copied();
    let only = request.choices.recomputes.len() == 1;
    chosen
        .filter(|recompute| only || attentions.iter().any(|one| is_worthwhile(*recompute, *one)))
        .collect()
}

fn pinned(pin: Option<u32>, values: impl Iterator<Item = u32>) -> Vec<u32> {
    pin.map_or_else(|| values.collect(), |value| vec![value])
}

/// Pieces that the stages can be cut into: for more than two stages, and each as many layers as the
/// others (Megatron-LM's interleaved schedule).
pub(crate) fn virtual_stages(request: &Request, stages: u32) -> Vec<u32> {
    let layers = request.model.layers;
    let fits = |pieces: &u32| {
        *pieces == 1 || (stages > 2 && layers.is_multiple_of(*pieces) && stages * pieces <= layers)
    };
    let most = request.choices.virtual_stages_max.max(1);
    pinned(request.pins.virtual_stages, 1..=most).into_iter().filter(fits).collect()
}

/// Replica counts up to a most, largest first, whose microbatches come out even, as the experts do.
pub(crate) fn counts(request: &Request, setting: &Setting, most: u32) -> Vec<u32> {
    let largest = request.batch.largest / setting.recipe.microbatch.max(1);
    let fixed = request.batch.smallest == request.batch.largest;
    let shared = |count: u32| (count * setting.context).is_multiple_of(setting.expert);
    if let Some(pin) = request.pins.data {
        return if pin <= most && shared(pin) { vec![pin] } else { Vec::new() };
    }
    let most = most.min(largest);
    if fixed {
        let even = |count: &u32| largest.is_multiple_of(*count) && shared(*count);
        return (1..=most).rev().filter(even).take(COUNTS_MAX).collect();
    }
    let divisor = (1..=most).rev().find(|count| largest.is_multiple_of(*count));
    let powers = (0..u32::BITS - most.leading_zeros()).rev().map(|power| 1_u32 << power);
    let mut counts: Vec<u32> = [most, most.saturating_sub(1)]
        .into_iter()
        .chain(divisor)
        .chain(powers)
        .map(|count| whole(count, setting))
        .filter(|count| *count > 0)
        .collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts.dedup();
    counts.truncate(COUNTS_MAX);
    counts
}

/// The most replicas up to `count` whose ranks share the experts evenly.
fn whole(count: u32, setting: &Setting) -> u32 {
    let step = (setting.expert / setting.context.min(setting.expert)).max(1);
    count / step * step
}

/// Batches to try that are whole multiples of a unit, largest first: with a critical batch also
/// smaller ones, halving.
pub(crate) fn batches(batch: &Batch, unit: u32) -> Vec<u32> {
    let unit = unit.max(1);
    let largest = batch.largest / unit * unit;
    if largest < batch.smallest.max(1) {
        return Vec::new();
    }
    if batch.critical.is_none() {
        return vec![largest];
    }
    let halved = (0..BATCHES_MAX).map(|halvings| (batch.largest >> halvings) / unit * unit);
    let mut batches: Vec<u32> = halved.filter(|size| *size >= batch.smallest.max(1)).collect();
    batches.dedup();
    batches
}

/// Halvings of the largest batch that are looked at.
const BATCHES_MAX: u32 = 16;

/// Ways to hold less, those that cost least first. Sharing optimizer states costs no more than
/// sharing nothing, so nothing is not tried where there is somebody to share with.
pub(crate) fn memory_savers(request: &Request, ranks: u32) -> Vec<(Offload, Zero)> {
    let choices = &request.choices;
    let shares = |zero: &Zero| match zero {
        Zero::None => ranks == 1 || !choices.zeros.contains(&Zero::One),
        Zero::One | Zero::Two | Zero::Three => ranks > 1 || !choices.zeros.contains(&Zero::None),
    };
    let zeros: Vec<Zero> = choices.zeros.iter().copied().filter(shares).collect();
    let offloads = choices.offloads.iter();
    offloads.flat_map(|offload| zeros.iter().map(|zero| (*offload, *zero))).collect()
}

/// Seconds that a pipeline takes at least: `blocks` are stages with the seconds of a layer, its
/// layers are shared out as if they were sand.
pub(crate) fn at_least_s(
    layers: u32,
    blocks: &[(u32, f64)],
    head_s: f64,
    microbatches: u32,
    virtual_stages: u32,
) -> f64 {
    let rate: f64 = blocks.iter().map(|(stages, layer_s)| f64::from(*stages) / layer_s).sum();
    let pieces = f64::from(virtual_stages);
    let fastest = blocks.iter().map(|block| block.1).fold(f64::INFINITY, f64::min);
    let slowest = blocks.iter().map(|block| block.1).fold(0.0, f64::max);
    let stages: u32 = blocks.iter().map(|block| block.0).sum();
    let even = match blocks {
        // Equal stages hold whole layers.
        [(_, layer_s)] => {
            let units = (layers / virtual_stages.max(1)).div_ceil(stages.max(1));
            f64::from(units * virtual_stages) * layer_s
        }
        _ => f64::from(layers) / rate,
    };
    let stage_s = even.max(slowest * pieces);
    let all_s = f64::from(layers) * fastest + head_s;
    f64::from(microbatches) * stage_s + (all_s - stage_s).max(0.0) / pieces
}
