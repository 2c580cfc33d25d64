//! How long a step takes: layers through the pipeline, exchange between replicas, the update.

use std::error::Error;
use std::fmt;

use super::collective::{Group, all_reduce_s, gather_s};
use super::constants::{SEND_EXPOSED, SEND_LINK_SHARE, SEND_START_S};
use super::layer::tokens;
use super::{
    ConfigProblem, Direction, LayerTime, Machine, Offload, Overlap, ParallelConfig, Precision,
    Recompute, SequenceParallel, Transformer, Tuning, Zero, head_time_s, layer_time,
};

/// Seconds of a step by what they go into; `total_s` is their sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// Forward and backward of the slowest stage, with logits and loss.
    pub compute_s: f64,
    pub recompute_s: f64,
    /// Exchange of tensor, expert and context groups, where it is seen.
    pub tensor_communication_s: f64,
    /// Stages that wait for the first or the last microbatch.
    pub bubble_s: f64,
    pub pipeline_communication_s: f64,
    /// Exchange of gradients and sharded weights, where it is seen.
    pub data_communication_s: f64,
    pub optimizer_s: f64,
    pub offload_s: f64,
    pub total_s: f64,
    /// Model and hardware FLOPs over what the devices could do: fractions.
    pub model_utilisation: f64,
    pub hardware_utilisation: f64,
    pub limit: Limit,
    /// Mean relative error to expect.
    pub error: f64,
}

/// What a step spends most of its time on that a better configuration or machine would save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Matrix products.
    Compute,
    /// Element-wise kernels: bandwidth of the device's memory.
    MemoryBandwidth,
    /// The host starts kernels more slowly than the device runs them.
    Launch,
    Recompute,
    TensorCommunication,
    Bubble,
    PipelineCommunication,
    DataCommunication,
    Optimizer,
    Offload,
}

/// Why there is no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepError {
    Config(ConfigProblem),
    /// The device class has no figure for this precision.
    NoPeak {
        precision: Precision,
    },
}

/// The time of a step with layers shared out evenly.
///
/// # Errors
/// When the configuration does not fit the model, or the device has no peak at its precision.
pub fn step_time(
    model: &Transformer,
    config: &ParallelConfig,
    machine: &Machine,
) -> Result<StepTime, StepError> {
    config.check(model).map_err(StepError::Config)?;
    let layer = layer_time(model, config, machine)?;
    let head_s = head_time_s(model, config, machine)?;
    let crowd = crowding(config, machine);
    let layers = f64::from(model.layers) / f64::from(config.pipeline);
    let microbatches = f64::from(config.microbatches());
    let work = |part: f64| part * crowd * layers * microbatches;
    let forward_backward = layer.forward.compute_s() + layer.backward.compute_s();
    let stage_s = layer.total_s() * crowd * layers;
    let busy_s = microbatches * (stage_s + head_s);
    let seen = |direction: &Direction| direction.total_s() - direction.compute_s();
    let exchange = seen(&layer.forward) + seen(&layer.backward);
    let data_s = data_communication_s(model, config, machine, busy_s);
    let (optimizer_s, offload_s) = update_s(model, config, machine);
    let pipeline_s = pipeline_communication_s(model, config, machine);
    let bubble_s = f64::from(config.pipeline - 1) * stage_s / f64::from(config.virtual_stages);
    let total_s = busy_s + bubble_s + pipeline_s + data_s + optimizer_s + offload_s;
    let flops = model.step_flops(config.global_batch);
    let peak = machine.device.peak_flops(config.precision);
    let peak = peak.ok_or(StepError::NoPeak { precision: config.precision })?;
    let model_utilisation = flops / (f64::from(config.devices()) * peak * total_s);
    let time = StepTime {
        compute_s: work(forward_backward) + microbatches * head_s,
        recompute_s: work(layer.recompute.total_s()),
        tensor_communication_s: work(exchange),
        bubble_s,
        pipeline_communication_s: pipeline_s,
        data_communication_s: data_s,
        optimizer_s,
        offload_s,
        total_s,
        model_utilisation,
        hardware_utilisation: model_utilisation * hardware_share(model, config),
        limit: Limit::Compute,
        error: machine.efficiency.error,
    };
    Ok(StepTime { limit: limit(&time, &layer), ..time })
}

/// Seconds until `microbatches` have gone forward and backward through stages that take so long for
/// one of them each: the slowest one's work, and the others' once (1F1B; an interleaved schedule
/// fills and drains in pieces). Stages may differ.
pub fn pipeline_time_s(stages_s: &[f64], microbatches: u32, virtual_stages: u32) -> f64 {
    let slowest = stages_s.iter().copied().fold(0.0, f64::max);
    let others = stages_s.iter().sum::<f64>() - slowest;
    f64::from(microbatches) * slowest + others / f64::from(virtual_stages.max(1))
}

/// Pipelines over several nodes go more slowly where tensor groups share a node.
fn crowding(config: &ParallelConfig, machine: &Machine) -> f64 {
    let node = machine.island.node_devices(config.devices());
    let shared = config.tensor > 1 && config.tensor < node;
    if shared && config.pipeline > 1 && config.devices() > machine.island.devices_per_node {
        let further = f64::from(node) / f64::from(config.tensor) - 1.0;
        return 1.0 + machine.efficiency.crowding * further;
    }
    1.0
}

/// Seconds of handing activations and their gradients from stage to stage.
fn pipeline_communication_s(
    model: &Transformer,
    config: &ParallelConfig,
    machine: &Machine,
) -> f64 {
    if config.pipeline < 2 {
        return 0.0;
    }
    let whole = 2.0 * tokens(model, config) * f64::from(model.hidden);
    let bytes = match config.sequence_parallel {
        SequenceParallel::Off => whole,
        SequenceParallel::On => whole / f64::from(config.tensor),
    };
    let island = &machine.island;
    let stage = config.tensor * config.data * config.context;
    let across = stage >= island.devices_per_node && config.devices() > island.devices_per_node;
    let rate = if across {
        island.network_gbps * machine.efficiency.network
    } else {
        island.link_gbps * SEND_LINK_SHARE
    };
    let send = SEND_START_S + SEND_EXPOSED * bytes / (rate * 1e9);
    let turns = config.microbatches() * config.virtual_stages + config.pipeline - 1;
    2.0 * send * f64::from(turns) * machine.efficiency.communication_scale
}

/// Trainable weights that one device exchanges.
fn exchanged(model: &Transformer, config: &ParallelConfig) -> f64 {
    let layers = f64::from(model.layers) / f64::from(config.pipeline);
    let all = config.tuning.trainable(model) as f64;
    let experts = model.feed_forward.experts.map_or(1, |experts| experts.count);
    let routed = match config.tuning {
        Tuning::Full => u64::from(experts) * model.expert_parameters(),
        Tuning::Lora { .. } | Tuning::Qlora { .. } => 0,
    };
    let routed = if experts > 1 { routed as f64 } else { 0.0 };
    let kept = all - routed + routed / f64::from(config.expert);
    let embedding = match config.tuning {
        Tuning::Full => model.embedding_parameters() as f64,
        Tuning::Lora { .. } | Tuning::Qlora { .. } => 0.0,
    };
    (layers * kept + embedding) / f64::from(config.tensor)
}

/// Seconds of summing gradients, or of gathering weights and scattering gradients layer by layer.
fn data_communication_s(
    model: &Transformer,
    config: &ParallelConfig,
    machine: &Machine,
    busy_s: f64,
) -> f64 {
    let ranks = config.data * config.context;
    let node = machine.island.node_devices(config.devices());
    let beside = (node / config.tensor.min(node).max(1)).max(1);
    let group = Group { ranks, per_node: ranks.min(beside).max(1) };
    let exposed = match config.overlap {
        Overlap::None => 1.0,
        Overlap::Split => machine.efficiency.data_exposed,
    };
    let weights = exchanged(model, config);
    let gradients = f64::from(config.gradients.bytes());
    let layers = f64::from(model.layers) / f64::from(config.pipeline);
    let sharded = |passes: f64| {
        let one = gather_s(machine, group, 2.0 * weights / layers);
        let all = passes * one * layers * f64::from(config.microbatches());
        // Nine tenths of the work is there to hide behind at best.
        (all * exposed).max(all - 0.9 * busy_s)
    };
    match config.zero {
        Zero::None => exposed * all_reduce_s(machine, group, gradients * weights),
        // Gradients scattered in their width, weights gathered in two bytes.
        Zero::One => exposed * all_reduce_s(machine, group, (gradients + 2.0) / 2.0 * weights),
        Zero::Two => sharded(2.0),
        Zero::Three => sharded(3.0),
    }
}

/// Seconds of the update itself, and of bringing it to the host and back.
fn update_s(model: &Transformer, config: &ParallelConfig, machine: &Machine) -> (f64, f64) {
    let share = match config.zero {
        Zero::None => 1,
        Zero::One | Zero::Two | Zero::Three => config.data * config.context,
    };
    let weights = exchanged(model, config) / f64::from(share);
    let kept = config.precision.master_bytes() + config.optimizer.state_bytes();
    let gradient = config.gradients.bytes();
    // Every state is read and written, the gradient read, the weight written.
    let touched = f64::from(gradient + 2 * kept + config.precision.weight_bytes());
    let fixed = machine.efficiency.step_s;
    let island = &machine.island;
    let seconds = |bytes: f64, gbps: f64| weights * bytes / (gbps * 1e9);
    let moved = f64::from(gradient + config.precision.weight_bytes());
    let host = seconds(moved, island.host_gbps) + seconds(touched, island.host_memory_gbps);
    match config.offload {
        Offload::None => (fixed + seconds(touched, machine.device.memory_gbps), 0.0),
        Offload::Cpu => (fixed, host),
        Offload::Nvme => (fixed, host + seconds(2.0 * f64::from(kept), island.storage_gbps)),
    }
}

/// FLOPs made over FLOPs of the model, with what is recomputed.
fn hardware_share(model: &Transformer, config: &ParallelConfig) -> f64 {
    let once = Transformer { vocabulary: 0, ..*model };
    let all = model.step_flops(1);
    let again = match config.recompute {
        Recompute::None => 0.0,
        Recompute::Selective => all - Transformer { attention_span: 0, ..*model }.step_flops(1),
        Recompute::Full => once.step_flops(1),
    };
    1.0 + again / 3.0 / all
}

/// The largest part that could be saved; of the computation, its largest part, where none of the
/// others reaches a tenth of the step.
fn limit(time: &StepTime, layer: &LayerTime) -> Limit {
    let parts = [
        (Limit::Recompute, time.recompute_s),
        (Limit::TensorCommunication, time.tensor_communication_s),
        (Limit::Bubble, time.bubble_s),
        (Limit::PipelineCommunication, time.pipeline_communication_s),
        (Limit::DataCommunication, time.data_communication_s),
        (Limit::Optimizer, time.optimizer_s),
        (Limit::Offload, time.offload_s),
    ];
    let launch = layer.forward.launch_s + layer.backward.launch_s;
    let matrix = layer.forward.matrix_s + layer.backward.matrix_s;
    let stream = layer.forward.stream_s + layer.backward.stream_s;
    if launch > matrix + stream {
        return Limit::Launch;
    }
    let largest = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    match largest {
        Some((limit, seconds)) if seconds > 0.1 * time.total_s => limit,
        _ if stream > matrix => Limit::MemoryBandwidth,
        _ => Limit::Compute,
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problem) => problem.fmt(f),
            Self::NoPeak { precision } => {
                write!(f, "the device class has no figure for {precision:?}")
            }
        }
    }
}

impl Error for StepError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(problem) => Some(problem),
            Self::NoPeak { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use het_core::Bytes;

    use super::super::{
        Attention, DeviceFigures, Efficiency, Embeddings, Experts, FeedForward, FeedForwardKind,
        Island, days,
    };
    use super::*;

    fn a100() -> Machine {
        let device = DeviceFigures {
            fp32_tflops: Some(19.5),
            half_tflops: Some(312.0),
            fp8_tflops: None,
            memory: Bytes(80 << 30),
            memory_gbps: 2_039.0,
        };
        Machine { device, island: Island::hgx_a100(25.0), efficiency: Efficiency::A100 }
    }

    fn gpt3() -> Transformer {
        Transformer::gpt(96, 12_288, 96, 2_048, 51_200)
    }

    /// Korthikanti et al. 2022, table 5: 64 A100, tensor 8, pipeline 8, three virtual stages, batch
    /// 64; nothing of it took part in the fit.
    #[test]
    fn gpt3_takes_as_long_as_published() {
        let plain = ParallelConfig {
            tensor: 8,
            pipeline: 8,
            virtual_stages: 3,
            attention: Attention::Plain,
            ..ParallelConfig::single(1, 64)
        };
        let check = |config, seconds: f64, utilisation: f64| {
            let time = step_time(&gpt3(), &config, &a100()).expect("predicted");
            let error = time.total_s / seconds - 1.0;
            assert!(error.abs() < 0.07, "{error:+.3}: {time:#?}");
            let found = time.hardware_utilisation;
            assert!((found - utilisation).abs() < 0.04, "{found} for {utilisation}");
        };
        check(ParallelConfig { recompute: Recompute::Full, ..plain }, 18.13, 0.52);
        let recompute = Recompute::Selective;
        let sequence_parallel = SequenceParallel::On;
        check(ParallelConfig { recompute, sequence_parallel, ..plain }, 13.75, 0.528);
    }

    #[test]
    fn parts_add_up() {
        let check = |config: ParallelConfig| {
            let time = step_time(&gpt3(), &config, &a100()).expect("predicted");
            let parts = [
                time.compute_s,
                time.recompute_s,
                time.tensor_communication_s,
                time.bubble_s,
                time.pipeline_communication_s,
                time.data_communication_s,
                time.optimizer_s,
                time.offload_s,
            ];
            let sum: f64 = parts.iter().sum();
            assert!((sum / time.total_s - 1.0).abs() < 1e-9, "{time:#?}");
            assert!(parts.iter().all(|part| *part >= 0.0), "{time:#?}");
        };
        let config = ParallelConfig {
            data: 4,
            tensor: 8,
            pipeline: 8,
            context: 2,
            ..ParallelConfig::single(1, 256)
        };
        check(config);
        check(ParallelConfig { recompute: Recompute::Full, zero: Zero::One, ..config });
        check(ParallelConfig { offload: Offload::Nvme, zero: Zero::Three, ..config });
        check(ParallelConfig { tuning: Tuning::Qlora { rank: 16 }, ..config });
        check(ParallelConfig { virtual_stages: 3, overlap: Overlap::Split, ..config });
    }

    /// 300 billion tokens on 19,968 A100, tensor 8, pipeline 8 in 12 pieces: between the 1.7 and 2.2
    /// days that published throughputs at 1,024 and 1,536 devices scale to.
    #[test]
    fn gpt3_on_twenty_thousand_a100_takes_two_days() {
        let config = ParallelConfig {
            data: 312,
            tensor: 8,
            pipeline: 8,
            virtual_stages: 12,
            sequence_parallel: SequenceParallel::On,
            recompute: Recompute::Selective,
            zero: Zero::One,
            attention: Attention::Plain,
            ..ParallelConfig::single(1, 312 * 8)
        };
        let model = gpt3();
        let time = step_time(&model, &config, &a100()).expect("predicted");
        let steps = 300e9 / (2_048.0 * f64::from(config.global_batch));
        let taken = days(steps * model.step_flops(config.global_batch), 19_968, 312.0, 1.0)
            / time.model_utilisation;
        assert!((taken * 86_400.0 / (steps * time.total_s) - 1.0).abs() < 1e-9);
        assert!((1.4..2.2).contains(&taken), "{taken}: {time:#?}");
    }

    #[test]
    fn unequal_stages_wait_for_the_slowest() {
        assert_eq!(pipeline_time_s(&[1.0, 1.0], 4, 1), 5.0);
        assert_eq!(pipeline_time_s(&[1.0, 3.0, 2.0], 4, 1), 15.0);
        assert_eq!(pipeline_time_s(&[1.0; 4], 8, 3), 9.0);
        assert_eq!(pipeline_time_s(&[], 8, 1), 0.0);
    }

    /// Mixtral's shape: experts on eight ranks exchange tokens, and cost what two of them do.
    #[test]
    fn experts_cost_what_is_active() {
        let experts = Some(Experts { count: 8, active: 2 });
        let kind = FeedForwardKind::Gated;
        let model = Transformer {
            key_value_heads: 8,
            feed_forward: FeedForward { hidden: 14_336, kind, experts },
            embeddings: Embeddings::Untied,
            ..Transformer::gpt(32, 4_096, 32, 4_096, 32_000)
        };
        let config = ParallelConfig { data: 8, expert: 8, ..ParallelConfig::single(1, 64) };
        let mixture = step_time(&model, &config, &a100()).expect("predicted");
        let hidden = 2 * model.feed_forward.hidden;
        let feed_forward = FeedForward { hidden, kind, experts: None };
        let dense = Transformer { feed_forward, ..model };
        let config = ParallelConfig { expert: 1, ..config };
        let plain = step_time(&dense, &config, &a100()).expect("predicted");
        assert!((mixture.compute_s / plain.compute_s - 1.0).abs() < 1e-9);
        assert!(mixture.tensor_communication_s > plain.tensor_communication_s);
    }

    #[test]
    fn a_precision_without_a_peak_is_refused() {
        let config = ParallelConfig { precision: Precision::Fp8, ..ParallelConfig::single(1, 8) };
        let refused = step_time(&gpt3(), &config, &a100()).expect_err("an A100 has no FP8");
        assert_eq!(refused.to_string(), "the device class has no figure for Fp8");
    }

    #[test]
    fn what_limits_a_step_is_named() {
        let small = Transformer::gpt(12, 1_024, 16, 1_024, 51_200);
        let check = |model: Transformer, config: ParallelConfig, expected: Limit| {
            let time = step_time(&model, &config, &a100()).expect("predicted");
            assert_eq!(time.limit, expected, "{time:#?}");
        };
        check(small, ParallelConfig::single(1, 8), Limit::Launch);
        check(gpt3(), ParallelConfig::single(8, 64), Limit::Compute);
        let deep = ParallelConfig { pipeline: 16, tensor: 8, ..ParallelConfig::single(1, 16) };
        check(gpt3(), deep, Limit::Bubble);
        let host = ParallelConfig { offload: Offload::Nvme, ..ParallelConfig::single(1, 1) };
        check(gpt3(), host, Limit::Offload);
    }
}
