//! What is wrong with a question, and the nearest one that has an answer.

use std::fmt;

use het_core::Bytes;
use het_perf::training::{
    ConfigProblem, Offload, Optimizer, ParallelConfig, Precision, Recompute, Transformer, Tuning,
    Zero,
};

use crate::rejection::Rejections;
use crate::request::{Choices, Pins, Request};
use crate::search::finds;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Problem {
    #[error("there is no device to train on; hint: a pool with one device or more")]
    NoDevice,
    #[error("nothing to choose from for `{0}`; hint: one value or more")]
    NothingToTry(&'static str),
    #[error("the model's `{name}` is zero; hint: {nearest}")]
    ZeroInModel { name: &'static str, nearest: u32 },
    #[error("{0}")]
    Config(#[source] ConfigProblem),
    #[error("a batch between {smallest} and {largest} samples is none; hint: 1 or more, in order")]
    EmptyBatch { smallest: u32, largest: u32 },
    #[error("{heads} heads cannot be cut into {tensor} equal parts; hint: {}", list(.nearest))]
    TensorNotDividing { heads: u32, tensor: u32, nearest: Vec<u32> },
    #[error("no island has {tensor} devices for a tensor group; hint: {most} or fewer")]
    TensorOverIsland { tensor: u32, most: u32 },
    #[error(
        "no batch between {smallest} and {largest} is a multiple of {unit} samples, as the given \
         replicas and microbatches need; hint: {}", list(.nearest)
    )]
    BatchNotDivisible { smallest: u32, largest: u32, unit: u32, nearest: Vec<u32> },
    #[error("{pipeline} stages cannot share {layers} layers; hint: {layers} or fewer")]
    StagesOverLayers { pipeline: u32, layers: u32 },
    #[error("the given counts need {needed} devices and there are {devices}; hint: {needed}")]
    TooFewDevices { needed: u32, devices: u32 },
    #[error("no device has a figure for {0:?}; hint: Bf16")]
    NoPeak(Precision),
    #[error("{0}")]
    FitsNowhere(Box<Shortfall>),
    #[error("nothing comes out even with the given counts; hint: leave one of them open")]
    NothingEven,
}

/// A model that fits nowhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Shortfall {
    /// The device class that came nearest, what it lacked, and how the job was cut.
    pub class: String,
    pub lacks: Bytes,
    pub config: ParallelConfig,
    /// Each by itself is enough, the smallest change first.
    pub remedies: Vec<Remedy>,
}

/// A change after which the model fits.
#[derive(Debug, Clone, PartialEq)]
pub enum Remedy {
    /// Recomputation, sharing of states and offloading, where they were not allowed.
    MemorySavers,
    /// States of 8 bits.
    Optimizer(Optimizer),
    /// Samples of so many tokens.
    Sequence(u32),
    /// Adapters instead of all weights.
    Tuning(Tuning),
    /// So many devices of this class.
    Devices { class: String, count: u32 },
}

/// Rank of the adapters that a remedy proposes.
const RANK: u32 = 16;

/// Shortest samples that a remedy proposes.
const SEQUENCE_MIN: u32 = 256;

/// Largest cluster that a remedy proposes.
const DEVICES_MAX: u32 = 1 << 16;

/// Refuses what makes no sense.
pub(crate) fn checked(request: &Request) -> Result<(), Problem> {
    if request.devices() == 0 {
        return Err(Problem::NoDevice);
    }
    model(&request.model)?;
    choices(&request.choices)?;
    let (smallest, largest) = (request.batch.smallest, request.batch.largest);
    if smallest == 0 || smallest > largest {
        return Err(Problem::EmptyBatch { smallest, largest });
    }
    let peak = |precision: &Precision| {
        let mut pools = request.pools.iter();
        pools.any(|pool| pool.machine.device.peak_flops(*precision).is_some())
    };
    if !request.choices.precisions.iter().any(peak) {
        return Err(Problem::NoPeak(request.choices.precisions[0]));
    }
    pins(request)
}

fn model(model: &Transformer) -> Result<(), Problem> {
    let width = if model.head_width == 0 { 128 } else { model.head_width };
    let heads = (model.hidden / width).max(1);
    let counts = [
        ("heads", model.heads, heads),
        ("key_value_heads", model.key_value_heads, model.heads),
        ("head_width", model.head_width, model.hidden / model.heads.max(1)),
        ("layers", model.layers, 1),
        ("hidden", model.hidden, model.heads * width),
        ("sequence", model.sequence, 1),
        ("attention_span", model.attention_span, model.sequence),
        ("vocabulary", model.vocabulary, 1),
    ];
    match counts.into_iter().find(|(_, count, _)| *count == 0) {
        Some((name, _, nearest)) => Err(Problem::ZeroInModel { name, nearest: nearest.max(1) }),
        None => ParallelConfig::single(1, 1).check(model).map_err(Problem::Config),
    }
}

fn choices(choices: &Choices) -> Result<(), Problem> {
    let empty = [
        ("precisions", choices.precisions.is_empty()),
        ("tunings", choices.tunings.is_empty()),
        ("optimizers", choices.optimizers.is_empty()),
        ("recomputes", choices.recomputes.is_empty()),
        ("zeros", choices.zeros.is_empty()),
        ("offloads", choices.offloads.is_empty()),
        ("microbatch_max", choices.microbatch_max == 0),
    ];
    match empty.into_iter().find(|(_, empty)| *empty) {
        Some((name, _)) => Err(Problem::NothingToTry(name)),
        None => Ok(()),
    }
}

fn pins(request: &Request) -> Result<(), Problem> {
    let Pins { data, tensor, pipeline, context, expert, microbatch, virtual_stages } = request.pins;
    let named = [
        ("data", data),
        ("tensor", tensor),
        ("pipeline", pipeline),
        ("context", context),
        ("expert", expert),
        ("microbatch", microbatch),
        ("virtual_stages", virtual_stages),
    ];
    if let Some((name, _)) = named.into_iter().find(|(_, count)| *count == Some(0)) {
        return Err(Problem::NothingToTry(name));
    }
    if let Some(tensor) = tensor {
        tensor_divides(request, tensor)?;
    }
    let layers = request.model.layers;
    if let Some(pipeline) = pipeline.filter(|pipeline| *pipeline > layers) {
        return Err(Problem::StagesOverLayers { pipeline, layers });
    }
    let needed = [data, tensor, pipeline, context].into_iter().flatten();
    let needed = needed.fold(1_u32, u32::saturating_mul);
    let devices = request.devices();
    if needed > devices {
        return Err(Problem::TooFewDevices { needed, devices });
    }
    batch_divides(request, data.unwrap_or(1).saturating_mul(microbatch.unwrap_or(1)))
}

fn tensor_divides(request: &Request, tensor: u32) -> Result<(), Problem> {
    let heads = request.model.heads;
    let nodes = request.pools.iter().map(|pool| pool.machine.island.devices_per_node);
    let most = nodes.max().unwrap_or(1);
    if !heads.is_multiple_of(tensor) {
        let divides = |size: &u32| heads.is_multiple_of(*size);
        let below = (1..tensor).rev().find(divides);
        let above = (tensor + 1..=heads).find(divides);
        let nearest = below.into_iter().chain(above).collect();
        return Err(Problem::TensorNotDividing { heads, tensor, nearest });
    }
    if tensor > most {
        return Err(Problem::TensorOverIsland { tensor, most });
    }
    Ok(())
}

fn batch_divides(request: &Request, unit: u32) -> Result<(), Problem> {
    let (smallest, largest) = (request.batch.smallest, request.batch.largest);
    let below = largest / unit * unit;
    if below >= smallest {
        return Ok(());
    }
    let above = below + unit;
    let nearest = [below, above].into_iter().filter(|batch| *batch > 0).collect();
    Err(Problem::BatchNotDivisible { smallest, largest, unit, nearest })
}

/// What to say where no candidate was found.
pub(crate) fn fits_nowhere(request: &Request, rejections: &Rejections) -> Problem {
    let Some((pool, lacks, config)) = rejections.nearest() else { return Problem::NothingEven };
    let class = request.pools[pool].class.clone();
    let remedies = remedies(request);
    Problem::FitsNowhere(Box::new(Shortfall { class, lacks, config, remedies }))
}

fn remedies(request: &Request) -> Vec<Remedy> {
    let with = |change: &dyn Fn(&mut Request)| {
        let mut changed = request.clone();
        change(&mut changed);
        finds(&changed)
    };
    let mut remedies = Vec::new();
    if with(&|changed| allow_savers(&mut changed.choices)) {
        remedies.push(Remedy::MemorySavers);
    }
    let optimizer = Optimizer::AdamW8bit;
    if with(&|changed| changed.choices.optimizers = vec![optimizer]) {
        remedies.push(Remedy::Optimizer(optimizer));
    }
    let halves = (1..u32::BITS).map(|halvings| request.model.sequence >> halvings);
    let mut shorter = halves.take_while(|sequence| *sequence >= SEQUENCE_MIN);
    let fits =
        |sequence: &u32| with(&|changed| changed.model = shortened(&changed.model, *sequence));
    remedies.extend(shorter.find(fits).map(Remedy::Sequence));
    for tuning in [Tuning::Lora { rank: RANK }, Tuning::Qlora { rank: RANK }] {
        if with(&|changed| changed.choices.tunings = vec![tuning]) {
            remedies.push(Remedy::Tuning(tuning));
        }
    }
    remedies.extend((0..request.pools.len()).filter_map(|pool| more_devices(request, pool)));
    remedies
}

fn allow_savers(choices: &mut Choices) {
    choices.recomputes = vec![Recompute::None, Recompute::Selective, Recompute::Full];
    choices.zeros = vec![Zero::None, Zero::One, Zero::Two, Zero::Three];
    choices.offloads = vec![Offload::None, Offload::Cpu, Offload::Nvme];
}

/// The model on shorter samples.
fn shortened(model: &Transformer, sequence: u32) -> Transformer {
    Transformer { sequence, attention_span: model.attention_span.min(sequence), ..*model }
}

/// The fewest devices of a pool on which the job fits: doubling, then halving the difference, whole
/// nodes at a time from the first full one.
fn more_devices(request: &Request, pool: usize) -> Option<Remedy> {
    let class = request.pools[pool].class.clone();
    let fits = |count: u32| {
        let mut changed = request.clone();
        changed.pools[pool].devices = count;
        finds(&changed)
    };
    let node = request.pools[pool].machine.island.devices_per_node.max(1);
    let mut fails = request.pools[pool].devices;
    let mut works = fails.max(1) * 2;
    while !fits(works) {
        fails = works;
        works *= 2;
        if works > DEVICES_MAX {
            return None;
        }
    }
    let step = if works > node { node } else { 1 };
    while works - fails > step {
        let middle = (fails + (works - fails) / 2).next_multiple_of(step);
        if middle >= works {
            break;
        }
        if fits(middle) {
            works = middle;
        } else {
            fails = middle;
        }
    }
    Some(Remedy::Devices { class, count: works })
}

fn list(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().map(u32::to_string).collect();
    words.join(" or ")
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = self.lacks.0 as f64 / f64::from(1_u32 << 30);
        let class = &self.class;
        write!(f, "the model fits nowhere: `{class}` lacks {gib:.1} GiB at the least")?;
        match self.remedies.first() {
            Some(remedy) => write!(f, "; hint: {remedy}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemorySavers => f.write_str("allow recomputation, shared states and offloading"),
            Self::Optimizer(_) => f.write_str("an optimizer with states of 8 bits"),
            Self::Sequence(tokens) => write!(f, "samples of {tokens} tokens"),
            Self::Tuning(Tuning::Full) => f.write_str("train all weights"),
            Self::Tuning(Tuning::Lora { rank }) => write!(f, "LoRA of rank {rank}"),
            Self::Tuning(Tuning::Qlora { rank }) => write!(f, "QLoRA of rank {rank}"),
            Self::Devices { class, count } => write!(f, "{count} devices of `{class}`"),
        }
    }
}
