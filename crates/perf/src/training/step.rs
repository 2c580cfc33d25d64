//! How long a step takes: layers through the pipeline, then what replicas exchange and the update.

use super::exchange::{crowding, data_communication_s, pipeline_communication_s, update_s};
use super::{
    Direction, LayerTime, Machine, ParallelConfig, Recompute, StepError, Transformer, head_time_s,
    layer_time,
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

/// A stage of an uneven pipeline: how many layers it has, and on what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    pub layers: u32,
    pub machine: Machine,
}

/// The time of a step with layers shared out evenly over devices of one class.
///
/// # Errors
/// When the configuration does not fit the model, or the device has no peak at its precision.
pub fn step_time(
    model: &Transformer,
    config: &ParallelConfig,
    machine: &Machine,
) -> Result<StepTime, StepError> {
    config.check(model).map_err(StepError::Config)?;
    let layers = f64::from(model.layers) / f64::from(config.pipeline);
    let last = Load { layers, machine, stages: 1, head: Head::Here };
    let others = Load { stages: config.pipeline - 1, head: Head::Elsewhere, ..last };
    match others.stages {
        0 => assemble(model, config, &[last]),
        _ => assemble(model, config, &[others, last]),
    }
}

/// The time of a step with layers shared out as said, each stage on devices of its own class.
///
/// # Errors
/// When stages and layers are not those of configuration and model, and as `step_time`.
pub fn uneven_step_time(
    model: &Transformer,
    config: &ParallelConfig,
    stages: &[Stage],
) -> Result<StepTime, StepError> {
    config.check(model).map_err(StepError::Config)?;
    let placed: u32 = stages.iter().map(|stage| stage.layers).sum();
    if stages.len() != config.pipeline as usize || placed != model.layers {
        return Err(StepError::Stages { stages: stages.len(), layers: placed });
    }
    let loads: Vec<Load<'_>> = stages
        .iter()
        .enumerate()
        .map(|(at, stage)| Load {
            layers: f64::from(stage.layers),
            machine: &stage.machine,
            stages: 1,
            head: if at + 1 == stages.len() { Head::Here } else { Head::Elsewhere },
        })
        .collect();
    assemble(model, config, &loads)
}

/// Equal stages.
#[derive(Debug, Clone, Copy)]
struct Load<'a> {
    layers: f64,
    machine: &'a Machine,
    stages: u32,
    head: Head,
}

/// Whether a stage makes logits and loss.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Head {
    Here,
    Elsewhere,
}

/// What a stage spends on one microbatch.
struct StageCost {
    layer: LayerTime,
    layers: f64,
    head_s: f64,
    seconds: f64,
}

fn stage_cost(
    model: &Transformer,
    config: &ParallelConfig,
    load: &Load<'_>,
) -> Result<StageCost, StepError> {
    let layer = layer_time(model, config, load.machine)?;
    let head_s = match load.head {
        Head::Here => head_time_s(model, config, load.machine)?,
        Head::Elsewhere => 0.0,
    };
    let layers = load.layers * crowding(config, load.machine);
    Ok(StageCost { layer, layers, head_s, seconds: layers * layer.total_s() + head_s })
}

fn assemble(
    model: &Transformer,
    config: &ParallelConfig,
    loads: &[Load<'_>],
) -> Result<StepTime, StepError> {
    let mut costs = Vec::with_capacity(loads.len());
    let mut peaks = 0.0;
    for load in loads {
        costs.push(stage_cost(model, config, load)?);
        let peak = load.machine.device.peak_flops(config.precision);
        let peak = peak.ok_or(StepError::NoPeak { precision: config.precision })?;
        peaks += f64::from(load.stages) * peak / f64::from(config.pipeline);
    }
    let slowest = costs.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let slowest = slowest.expect("a pipeline has a stage: `check` refuses none");
    let all_s: f64 =
        costs.iter().zip(loads).map(|(c, load)| c.seconds * f64::from(load.stages)).sum();
    let bubble_s = (all_s - slowest.seconds) / f64::from(config.virtual_stages);
    let microbatches = f64::from(config.microbatches());
    let work = |part: f64| part * slowest.layers * microbatches;
    let seen = |direction: &Direction| direction.total_s() - direction.compute_s();
    let layer = &slowest.layer;
    let busy_s = microbatches * slowest.seconds;
    let most = |part: &dyn Fn(&Load<'_>) -> f64| loads.iter().map(part).fold(0.0, f64::max);
    let time = StepTime {
        compute_s: work(layer.forward.compute_s() + layer.backward.compute_s())
            + microbatches * slowest.head_s,
        recompute_s: work(layer.recompute.total_s()),
        tensor_communication_s: work(seen(&layer.forward) + seen(&layer.backward)),
        bubble_s,
        pipeline_communication_s: most(&|load| {
            pipeline_communication_s(model, config, load.machine)
        }),
        data_communication_s: most(&|load| {
            data_communication_s(model, config, load.machine, load.layers, busy_s)
        }),
        optimizer_s: most(&|load| update_s(model, config, load.machine, load.layers).0),
        offload_s: most(&|load| update_s(model, config, load.machine, load.layers).1),
        total_s: 0.0,
        model_utilisation: 0.0,
        hardware_utilisation: 0.0,
        limit: Limit::Compute,
        error: most(&|load| load.machine.efficiency.error_of(model, config)),
    };
    Ok(finished(model, config, time, layer, peaks))
}

/// The same with what follows from its parts.
fn finished(
    model: &Transformer,
    config: &ParallelConfig,
    time: StepTime,
    layer: &LayerTime,
    peak: f64,
) -> StepTime {
    let total_s = time.compute_s
        + time.recompute_s
        + time.tensor_communication_s
        + time.bubble_s
        + time.pipeline_communication_s
        + time.data_communication_s
        + time.optimizer_s
        + time.offload_s;
    let flops = config.tuning.step_flops(model, config.global_batch);
    let model_utilisation = flops / (f64::from(config.devices()) * peak * total_s);
    let hardware_utilisation = model_utilisation * hardware_share(model, config);
    let time = StepTime { total_s, model_utilisation, hardware_utilisation, ..time };
    StepTime { limit: limit(&time, layer), ..time }
}

/// Seconds until `microbatches` have gone forward and backward through stages that take so long for
/// one of them each: the slowest one's work, and the others' once (1F1B; an interleaved schedule
/// fills and drains in pieces). Stages may differ.
pub fn pipeline_time_s(stages_s: &[f64], microbatches: u32, virtual_stages: u32) -> f64 {
    let slowest = stages_s.iter().copied().fold(0.0, f64::max);
    let others = stages_s.iter().sum::<f64>() - slowest;
    f64::from(microbatches) * slowest + others / f64::from(virtual_stages.max(1))
}

/// FLOPs made over FLOPs of the model, with what is recomputed.
fn hardware_share(model: &Transformer, config: &ParallelConfig) -> f64 {
    let once = Transformer { vocabulary: 0, ..*model };
    let all = config.tuning.step_flops(model, 1);
    let again = match config.recompute {
        Recompute::None => 0.0,
        Recompute::Selective => {
            model.step_flops(1) - Transformer { attention_span: 0, ..*model }.step_flops(1)
        }
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

#[cfg(test)]
mod tests {
    use het_core::Bytes;

    use super::super::{
        Attention, DeviceFigures, Efficiency, Embeddings, Experts, FeedForward, FeedForwardKind,
        Island, Offload, Overlap, Precision, SequenceParallel, Tuning, Zero, days,
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

    /// 300 billion tokens on 19,968 A100, tensor 8, pipeline 8 in 12 pieces: between 1.7 and 2.2
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

    /// Two layers for one on devices twice as fast beat half and half; equal devices with equal
    /// layers are the even pipeline.
    #[test]
    fn uneven_stages_suit_unlike_devices() {
        let model = Transformer::gpt(24, 4_096, 32, 2_048, 51_200);
        let config = ParallelConfig { pipeline: 2, ..ParallelConfig::single(4, 64) };
        let slow = a100();
        let device =
            DeviceFigures { half_tflops: Some(624.0), memory_gbps: 4_078.0, ..slow.device };
        let fast = Machine { device, ..slow };
        let time = |layers: [u32; 2], machines: [Machine; 2]| {
            let [first, second] = layers.into_iter().zip(machines).collect::<Vec<_>>()[..] else {
                panic!("two of each");
            };
            let stages = [first, second].map(|(layers, machine)| Stage { layers, machine });
            uneven_step_time(&model, &config, &stages).expect("predicted")
        };
        let even = step_time(&model, &config, &slow).expect("predicted");
        assert!((time([12, 12], [slow, slow]).total_s / even.total_s - 1.0).abs() < 1e-12);
        let halves = time([12, 12], [slow, fast]).total_s;
        let thirds = time([8, 16], [slow, fast]).total_s;
        assert!(thirds < 0.8 * halves && halves <= even.total_s, "{thirds} {halves}");
        let stage = Stage { layers: 12, machine: slow };
        let refused = uneven_step_time(&model, &config, &[stage]).expect_err("one of two");
        assert_eq!(refused, StepError::Stages { stages: 1, layers: 12 });
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
