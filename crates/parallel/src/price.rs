//! What an outline costs: layers and microbatches shared out at their best, memory held against the
//! devices, and the step's time put together from `het_perf`'s parts.
//!
//! A stage is timed as if all of its pipeline were like it. On equal devices with equal stages the
//! result is `het_perf::training::step_time`'s to the last digit.

use het_core::Bytes;
use het_perf::training::{
    Limit, Machine, Offload, ParallelConfig, StagePlace, StepError, StepTime, Transformer,
    head_time_s, stage_memory, step_time,
};

use crate::Finish;
use crate::candidate::{Candidate, Launch};
use crate::layer_split::{Slot, split};
use crate::layout::{Layout, Replicas, Stage};
use crate::microbatch_shares::{Runner, Share, share};
use crate::outline::{Block, Kind, Outline};
use crate::request::Request;

/// Why an outline is no candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Refusal {
    /// A device of the pool would have to hold so much more than it can.
    OutOfMemory {
        pool: usize,
        over: Bytes,
    },
    /// Its part of the host's memory would have to.
    OutOfHostMemory {
        pool: usize,
        over: Bytes,
    },
    /// The microbatches cannot be handed out to these replicas.
    Batch,
    /// The layers cannot be cut so.
    Layers,
    Step(StepError),
}

/// What one layer and one hand-over cost on a block's devices.
#[derive(Debug, Clone, Copy)]
struct Pace {
    machine: Machine,
    layer_s: f64,
    head_s: f64,
    /// Seconds of handing on, there and back, for each turn of the pipeline.
    turn_s: f64,
}

/// A kind of replicas with its layers shared out.
struct Draft<'a> {
    kind: &'a Kind,
    paces: Vec<Pace>,
    stages: Vec<Stage>,
    /// Block of each stage.
    blocks: Vec<usize>,
    slowest: usize,
    fill_s: f64,
    runner: Runner,
}

/// Seconds after the last microbatch.
#[derive(Debug, Clone, Copy, Default)]
struct After {
    data_s: f64,
    optimizer_s: f64,
    offload_s: f64,
}

/// The best that comes of an outline.
pub(crate) fn price(request: &Request, outline: &Outline) -> Result<Candidate, Refusal> {
    let total = outline.microbatches();
    let replicas = outline.replicas();
    let alike = outline.kinds.len() == 1;
    if total < replicas || (alike && !total.is_multiple_of(replicas)) {
        return Err(Refusal::Batch);
    }
    let paces: Vec<Vec<Pace>> = outline
        .kinds
        .iter()
        .map(|kind| kind.blocks.iter().map(|block| pace(request, outline, kind, block)).collect())
        .collect::<Result<_, _>>()?;
    let guesses = guesses(outline, &paces);
    let kinds = outline.kinds.iter().zip(paces).zip(guesses);
    let drafts: Vec<Draft<'_>> = kinds
        .map(|((kind, paces), guess)| draft(request, outline, kind, paces, guess))
        .collect::<Result<_, _>>()?;
    let runners: Vec<Runner> = drafts.iter().map(|draft| draft.runner).collect();
    let granule = outline.kinds.iter().map(Kind::granule).fold(1, common);
    let shares = share(total, granule, &runners).ok_or(Refusal::Batch)?;
    let kinds = drafts.iter().zip(&shares);
    let replicas: Vec<Replicas> = kinds
        .map(|(draft, share)| replicas_of(request, outline, draft, (share, granule)))
        .collect::<Result<_, _>>()?;
    let step = step(request, outline, &drafts, &replicas)?;
    let layout = Layout { replicas, batch: outline.batch, microbatch: outline.recipe.microbatch };
    Ok(candidate(request, layout, step))
}

/// Whether a kind's devices have room for all layers together.
pub(crate) fn fits(request: &Request, outline: &Outline, kind: &Kind, microbatches: u32) -> bool {
    let pieces = kind.tricks.virtual_stages.max(1);
    let mut stage = 0;
    let mut sum = 0;
    for block in &kind.blocks {
        let config = memory_config(request, outline, kind, block, microbatches);
        for _ in 0..block.stages {
            let most = layers_max(request, &config, stage, block.pool) / pieces;
            if most == 0 {
                return false;
            }
            sum += most;
            stage += 1;
        }
    }
    sum * pieces >= request.model.layers
}

/// Layers that a device of a stage can hold.
fn layers_max(request: &Request, config: &ParallelConfig, stage: u32, pool: usize) -> u32 {
    let one = stage_memory(&request.model, config, StagePlace { stage, layers: 1 });
    let room = request.capacity(pool).0.saturating_sub(one.embeddings.0 + one.working.0);
    let most = room / (one.layers.0 + one.activations.0).max(1);
    most.min(u64::from(request.model.layers)) as u32
}

/// The least that any device of an outline would have to hold beyond what it can, with layers
/// shared out evenly: what a refusal for memory says.
fn over(request: &Request, outline: &Outline, kind: &Kind, microbatches: u32) -> Refusal {
    let layers = request.model.layers.div_ceil(kind.stages());
    let mut worst = (0, Bytes(0));
    let mut stage = 0;
    for block in &kind.blocks {
        let config = memory_config(request, outline, kind, block, microbatches);
        let held = stage_memory(&request.model, &config, StagePlace { stage, layers }).total();
        let over = held.0.saturating_sub(request.capacity(block.pool).0);
        if over >= worst.1.0 {
            worst = (block.pool, Bytes(over));
        }
        stage += block.stages;
    }
    Refusal::OutOfMemory { pool: worst.0, over: worst.1 }
}

fn pace(request: &Request, outline: &Outline, kind: &Kind, block: &Block) -> Result<Pace, Refusal> {
    let machine = outline.machine(request, block.pool);
    // Turns, the paces of layers and of hand-overs do not depend on how many there are.
    let microbatches = kind.granule();
    let pieces = kind.tricks.virtual_stages;
    let data = [outline.replicas(), microbatches];
    let config = kind.config(request, &outline.recipe, block, data);
    let time = timed(request, &config, &machine, pieces)?;
    let head_s = head_time_s(&request.model, &config, &machine).map_err(Refusal::Step)?;
    let each =
        (time.compute_s + time.recompute_s + time.tensor_communication_s) / f64::from(microbatches);
    let turns = f64::from(microbatches * pieces + kind.stages() - 1);
    let pipeline_s = if kind.blocks.len() > 1 {
        // From one pool to the next there is only the network.
        let mut apart = machine;
        apart.island.devices_per_node = 1;
        timed(request, &config, &apart, pieces)?.pipeline_communication_s
    } else {
        time.pipeline_communication_s
    };
    let layer_s = (each - head_s) / f64::from(pieces);
    Ok(Pace { machine, layer_s, head_s, turn_s: pipeline_s / turns })
}

/// The step of a pipeline whose stages all have so many layers.
fn timed(
    request: &Request,
    config: &ParallelConfig,
    machine: &Machine,
    layers: u32,
) -> Result<StepTime, Refusal> {
    let model = Transformer { layers: layers * config.pipeline, ..request.model };
    step_time(&model, config, machine).map_err(Refusal::Step)
}

/// Microbatches that a replica of each kind will take, near enough to say how many are under way.
fn guesses(outline: &Outline, paces: &[Vec<Pace>]) -> Vec<u32> {
    let rate = |(kind, paces): (&Kind, &Vec<Pace>)| -> f64 {
        let stages = kind.blocks.iter().zip(paces);
        stages.map(|(block, pace)| f64::from(block.stages) / pace.layer_s).sum()
    };
    let rates: Vec<f64> = outline.kinds.iter().zip(paces).map(rate).collect();
    let kinds = outline.kinds.iter().zip(&rates);
    let all: f64 = kinds.map(|(kind, rate)| f64::from(kind.count) * rate).sum();
    let total = f64::from(outline.microbatches());
    rates.iter().map(|rate| (total * rate / all - SLACK).ceil().max(1.0) as u32).collect()
}

/// Room for rounding where a share comes out whole.
const SLACK: f64 = 1e-6;

fn draft<'a>(
    request: &Request,
    outline: &Outline,
    kind: &'a Kind,
    paces: Vec<Pace>,
    microbatches: u32,
) -> Result<Draft<'a>, Refusal> {
    let model = &request.model;
    let last = kind.stages() - 1;
    let mut slots = Vec::with_capacity(kind.stages() as usize);
    let mut blocks = Vec::with_capacity(kind.stages() as usize);
    for (at, (block, pace)) in kind.blocks.iter().zip(&paces).enumerate() {
        let config = memory_config(request, outline, kind, block, microbatches);
        for _ in 0..block.stages {
            let stage = slots.len() as u32;
            let fixed_s = if stage == last { pace.head_s } else { 0.0 };
            let layers_max = layers_max(request, &config, stage, block.pool);
            slots.push(Slot { layer_s: pace.layer_s, fixed_s, layers_max });
            blocks.push(at);
        }
    }
    let pieces = kind.tricks.virtual_stages;
    let Some(layers) = split(model.layers, &slots, microbatches, pieces) else {
        let fits = model.layers.is_multiple_of(pieces) && model.layers / pieces > last;
        return Err(if fits {
            over(request, outline, kind, microbatches)
        } else {
            Refusal::Layers
        });
    };
    let stages: Vec<Stage> = (0..slots.len())
        .map(|at| Stage {
            pool: kind.blocks[blocks[at]].pool,
            tensor: kind.blocks[blocks[at]].tensor,
            layers: layers[at],
            memory: Bytes(0),
            seconds: slots[at].layer_s * f64::from(layers[at]) + slots[at].fixed_s,
        })
        .collect();
    Ok(paced(kind, paces, stages, blocks))
}

/// How a kind with its stages goes.
fn paced(kind: &Kind, paces: Vec<Pace>, stages: Vec<Stage>, blocks: Vec<usize>) -> Draft<'_> {
    let ends = |at: &usize| stages[*at].seconds;
    let slowest = (0..stages.len()).max_by(|a, b| ends(a).total_cmp(&ends(b))).unwrap_or(0);
    let all: f64 = stages.iter().map(|stage| stage.seconds).sum();
    let pieces = f64::from(kind.tricks.virtual_stages);
    let fill_s = (all - stages[slowest].seconds) / pieces;
    let turn_s = paces.iter().map(|pace| pace.turn_s).fold(0.0, f64::max);
    let runner = Runner {
        replicas: kind.count,
        microbatch_s: stages[slowest].seconds + turn_s * pieces,
        fill_s: fill_s + turn_s * f64::from(kind.stages() - 1),
    };
    Draft { kind, paces, stages, blocks, slowest, fill_s, runner }
}

/// What a device has to hold depends on with how many others it shares states.
fn memory_config(
    request: &Request,
    outline: &Outline,
    kind: &Kind,
    block: &Block,
    microbatches: u32,
) -> ParallelConfig {
    let ranks = [outline.sharing(kind), microbatches];
    kind.config(request, &outline.recipe, block, ranks)
}

/// A kind as it is in the layout, its memory held against the devices.
fn replicas_of(
    request: &Request,
    outline: &Outline,
    draft: &Draft<'_>,
    (share, granule): (&Share, u32),
) -> Result<Replicas, Refusal> {
    let kind = draft.kind;
    let extra = if share.more > 0 { granule } else { 0 };
    let most = share.microbatches + extra;
    let mut stages = draft.stages.clone();
    for (at, stage) in stages.iter_mut().enumerate() {
        let block = &kind.blocks[draft.blocks[at]];
        let config = memory_config(request, outline, kind, block, most);
        let place = StagePlace { stage: at as u32, layers: stage.layers };
        stage.memory = stage_memory(&request.model, &config, place).total();
        let over = stage.memory.0.saturating_sub(request.capacity(stage.pool).0);
        if over > 0 {
            return Err(Refusal::OutOfMemory { pool: stage.pool, over: Bytes(over) });
        }
        host_holds(request, &config, place, stage.pool)?;
    }
    let ranks = [outline.replicas(), share.microbatches];
    Ok(Replicas {
        count: kind.count,
        microbatches: share.microbatches,
        more: share.more,
        granule,
        config: kind.config(request, &outline.recipe, &kind.blocks[0], ranks),
        stages,
    })
}

/// Whether the host has room for what offloading brings it.
fn host_holds(
    request: &Request,
    config: &ParallelConfig,
    place: StagePlace,
    pool: usize,
) -> Result<(), Refusal> {
    let (Offload::Cpu, Some(host)) = (config.offload, request.pools[pool].host_memory) else {
        return Ok(());
    };
    let weights = |offload| {
        let held = stage_memory(&request.model, &ParallelConfig { offload, ..*config }, place);
        held.layers.0 + held.embeddings.0
    };
    let moved = weights(Offload::None) - weights(Offload::Cpu);
    match moved.saturating_sub(host.0) {
        0 => Ok(()),
        over => Err(Refusal::OutOfHostMemory { pool, over: Bytes(over) }),
    }
}

/// The step of all kinds together: it ends when the last has, then all exchange and update.
fn step(
    request: &Request,
    outline: &Outline,
    drafts: &[Draft<'_>],
    replicas: &[Replicas],
) -> Result<StepTime, Refusal> {
    let most = |at: usize| replicas[at].microbatches_most();
    let ends =
        |at: usize| drafts[at].runner.fill_s + f64::from(most(at)) * drafts[at].runner.microbatch_s;
    let last = (0..drafts.len()).max_by(|a, b| ends(*a).total_cmp(&ends(*b))).unwrap_or(0);
    let mut after = After::default();
    let mut busy = None;
    for (at, draft) in drafts.iter().enumerate() {
        for block in 0..draft.paces.len() {
            let (own, time) = after_block(request, outline, draft, block, most(at))?;
            after = after.later(own);
            if at == last && draft.blocks[draft.slowest] == block {
                busy = Some(time);
            }
        }
    }
    let (layers, time) = busy.ok_or(Refusal::Layers)?;
    Ok(assembled(
        request,
        outline,
        &drafts[last],
        Busy { layers, time, microbatches: most(last) },
        after,
    ))
}

/// What the slowest stage's devices do, seen on a stage of `layers`.
struct Busy {
    layers: u32,
    time: StepTime,
    microbatches: u32,
}

/// Exchange and update of the fullest stage of a block, and the step it was read from.
fn after_block(
    request: &Request,
    outline: &Outline,
    draft: &Draft<'_>,
    block: usize,
    microbatches: u32,
) -> Result<(After, (u32, StepTime)), Refusal> {
    let own = draft.stages.iter().zip(&draft.blocks).filter(|(_, of)| **of == block);
    let layers = own.map(|(stage, _)| stage.layers).max().unwrap_or(1);
    let config = |ranks| {
        let at = &draft.kind.blocks[block];
        draft.kind.config(request, &outline.recipe, at, [ranks, microbatches])
    };
    let machine = &draft.paces[block].machine;
    let time = timed(request, &config(outline.replicas()), machine, layers)?;
    let sharing = outline.sharing(draft.kind);
    // Who shares states among fewer has more of them to update.
    let update = if sharing == outline.replicas() {
        time
    } else {
        timed(request, &config(sharing), machine, layers)?
    };
    let after = After {
        data_s: time.data_communication_s,
        optimizer_s: update.optimizer_s,
        offload_s: update.offload_s,
    };
    Ok((after, (layers, time)))
}

impl After {
    /// Everybody waits for the slowest.
    fn later(self, other: Self) -> Self {
        Self {
            data_s: self.data_s.max(other.data_s),
            optimizer_s: self.optimizer_s.max(other.optimizer_s),
            offload_s: self.offload_s.max(other.offload_s),
        }
    }
}

fn assembled(
    request: &Request,
    outline: &Outline,
    draft: &Draft<'_>,
    busy: Busy,
    after: After,
) -> StepTime {
    let Busy { layers, time, microbatches } = busy;
    let count = f64::from(microbatches);
    let slowest = &draft.stages[draft.slowest];
    let pace = &draft.paces[draft.blocks[draft.slowest]];
    let scale = f64::from(slowest.layers) / f64::from(layers);
    let head_s = if draft.slowest + 1 == draft.stages.len() { pace.head_s } else { 0.0 };
    let pipeline_s =
        draft.runner.fill_s - draft.fill_s + count * (draft.runner.microbatch_s - slowest.seconds);
    let parts = StepTime {
        compute_s: (time.compute_s - count * pace.head_s) * scale + count * head_s,
        recompute_s: time.recompute_s * scale,
        tensor_communication_s: time.tensor_communication_s * scale,
        bubble_s: draft.fill_s,
        pipeline_communication_s: pipeline_s,
        data_communication_s: after.data_s,
        optimizer_s: after.optimizer_s,
        offload_s: after.offload_s,
        total_s: 0.0,
        ..time
    };
    let total_s = parts.compute_s
        + parts.recompute_s
        + parts.tensor_communication_s
        + parts.bubble_s
        + parts.pipeline_communication_s
        + parts.data_communication_s
        + parts.optimizer_s
        + parts.offload_s;
    let peak = |pool: usize| {
        let precision = crate::outline::precision_on(request, pool, outline.recipe.precision);
        let peak = request.pools[pool].machine.device.peak_flops(precision).unwrap_or(0.0);
        f64::from(outline.devices_of(pool)) * peak
    };
    let peaks: f64 = (0..request.pools.len()).map(peak).sum();
    let flops = outline.recipe.tuning.step_flops(&request.model, outline.batch);
    let model_utilisation = flops / (peaks * total_s);
    let again = time.hardware_utilisation / time.model_utilisation;
    let step = StepTime {
        total_s,
        model_utilisation,
        hardware_utilisation: model_utilisation * again,
        error: expected_error(request, outline),
        ..parts
    };
    StepTime { limit: limit(&step, time.limit), ..step }
}

/// Of the devices whose times are known least.
fn expected_error(request: &Request, outline: &Outline) -> f64 {
    let blocks =
        outline.kinds.iter().flat_map(|kind| kind.blocks.iter().map(move |block| (kind, block)));
    let errors = blocks.map(|(kind, block)| {
        let config = kind.config(request, &outline.recipe, block, [1, 1]);
        request.pools[block.pool].machine.efficiency.error_of(&request.model, &config)
    });
    errors.fold(0.0, f64::max)
}

/// The largest part that could be saved, where it is a tenth of the step; else what the computation
/// waits for.
fn limit(step: &StepTime, alone: Limit) -> Limit {
    let parts = saveable(step);
    let largest = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    match (largest, alone) {
        (_, Limit::Launch) => Limit::Launch,
        (Some((limit, seconds)), _) if seconds > 0.1 * step.total_s => limit,
        (_, Limit::MemoryBandwidth) => Limit::MemoryBandwidth,
        _ => Limit::Compute,
    }
}

/// Parts of a step that are no work on the model itself.
pub(crate) fn saveable(step: &StepTime) -> [(Limit, f64); 7] {
    [
        (Limit::Recompute, step.recompute_s),
        (Limit::TensorCommunication, step.tensor_communication_s),
        (Limit::Bubble, step.bubble_s),
        (Limit::PipelineCommunication, step.pipeline_communication_s),
        (Limit::DataCommunication, step.data_communication_s),
        (Limit::Optimizer, step.optimizer_s),
        (Limit::Offload, step.offload_s),
    ]
}

fn candidate(request: &Request, layout: Layout, step: StepTime) -> Candidate {
    let batch = layout.batch;
    let tokens_per_s = f64::from(batch) * f64::from(request.model.sequence) / step.total_s;
    let pools = layout.pools();
    let room = |stage: &Stage| request.capacity(stage.pool).0.saturating_sub(stage.memory.0);
    let stages = layout.replicas.iter().flat_map(|kind| &kind.stages);
    let fullest = stages.min_by_key(|stage| room(stage)).copied();
    let needed = request.batch.samples_for_one(batch);
    let exposed =
        step.tensor_communication_s + step.pipeline_communication_s + step.data_communication_s;
    let finish = request
        .tokens
        .map(|tokens| Finish::of(request, &layout, tokens as f64 * needed, tokens_per_s));
    Candidate {
        devices: pools.iter().map(|pool| layout.devices_of(*pool)).sum(),
        memory: fullest.map_or(Bytes(0), |stage| stage.memory),
        capacity: fullest.map_or(Bytes(0), |stage| request.capacity(stage.pool)),
        tokens_per_s,
        bubble: step.bubble_s / step.total_s,
        exposed_communication: exposed / step.total_s,
        limit: step.limit,
        finish,
        launch: Launch::of(request, &pools),
        sample_s: step.total_s / f64::from(batch) * needed,
        step,
        layout,
    }
}

/// Least common multiple.
pub(crate) fn common(a: u32, b: u32) -> u32 {
    let (mut high, mut low) = (a, b);
    while low > 0 {
        (high, low) = (low, high % low);
    }
    a / high.max(1) * b
}
