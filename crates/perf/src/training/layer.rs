//! What one layer costs for one microbatch on one device.
//!
//! A direction takes the products at a share of the peak, plus element-wise kernels at a share of
//! the memory bandwidth, plus the exchange of the tensor group; where the host starts kernels more
//! slowly than the device runs them, the host sets the pace.

use super::collective::{Group, all_reduce_s, all_to_all_s};
use super::constants::{
    FLASH_BACKWARD, LOGIT_BYTES, LOGIT_FUSED_BYTES, NF4_DECODE_BYTES, SCORE_BYTES, STREAM_BACKWARD,
    STREAM_HEADS_BYTES, STREAM_INNER_BYTES, STREAM_WHOLE_BYTES,
};
use super::{
    Attention, FeedForwardKind, Machine, Overlap, ParallelConfig, Precision, Recompute,
    SequenceParallel, StepError, Transformer, Tuning,
};

/// Seconds of one layer of one microbatch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerTime {
    pub forward: Direction,
    pub backward: Direction,
    /// What the backward pass computes again.
    pub recompute: Direction,
}

/// Seconds in one direction, by what they go into.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Direction {
    /// Matrix products.
    pub matrix_s: f64,
    /// Element-wise kernels.
    pub stream_s: f64,
    /// Exchange of the tensor, expert and context groups that is seen.
    pub exchange_s: f64,
    /// The host's time to start it all, beside the device's.
    pub launch_s: f64,
}

impl LayerTime {
    pub fn total_s(&self) -> f64 {
        self.forward.total_s() + self.backward.total_s() + self.recompute.total_s()
    }
}

impl Direction {
    pub fn total_s(&self) -> f64 {
        blend(self.matrix_s + self.stream_s + self.exchange_s, self.launch_s)
    }

    /// The same without exchange.
    pub fn compute_s(&self) -> f64 {
        blend(self.matrix_s + self.stream_s, self.launch_s)
    }
}

/// The cost of a layer.
///
/// # Errors
/// When the device has no peak at this precision.
pub fn layer_time(
    model: &Transformer,
    config: &ParallelConfig,
    machine: &Machine,
) -> Result<LayerTime, StepError> {
    let matrix = matrix_s(model, config, machine)?;
    let attention = attention(model, config, machine)?;
    let stream = stream_s(model, config, machine);
    let exchange = exchange_s(model, config, machine);
    let efficiency = &machine.efficiency;
    let tensor_launch = efficiency.launch_tensor_s * f64::from(config.tensor).log2();
    let frozen = matches!(config.tuning, Tuning::Lora { .. } | Tuning::Qlora { .. });
    // Without gradients of the weights there is one product backward, not two.
    let products = if frozen { 1.0 } else { 2.0 };
    let forward = Direction {
        matrix_s: matrix + attention.matrix_s,
        stream_s: stream + attention.stream_s,
        exchange_s: exchange,
        launch_s: efficiency.launch_forward_s + tensor_launch,
    };
    let again = match config.attention {
        Attention::Plain => 2.0,
        Attention::Flash1 | Attention::Flash2 | Attention::Flash3 => FLASH_BACKWARD,
    };
    let backward = Direction {
        matrix_s: products * matrix + again * attention.matrix_s,
        stream_s: STREAM_BACKWARD * stream + again * attention.stream_s,
        exchange_s: exchange,
        launch_s: efficiency.launch_backward_s + tensor_launch,
    };
    let recompute = match (config.recompute, config.attention) {
        (Recompute::Full, _) => forward,
        (Recompute::Selective, Attention::Plain) => attention,
        // Flash attention does that by itself, and is billed for it.
        (Recompute::Selective | Recompute::None, _) => Direction::default(),
    };
    Ok(LayerTime { forward, backward, recompute })
}

/// Seconds of the last stage for logits and loss of one microbatch, forward and backward.
///
/// # Errors
/// When the device has no 16-bit peak.
pub fn head_time_s(
    model: &Transformer,
    config: &ParallelConfig,
    machine: &Machine,
) -> Result<f64, StepError> {
    let peak = matrix_rate(machine, half_or_single(config.precision))?;
    let logits = tokens(model, config) * f64::from(model.vocabulary) / f64::from(config.tensor);
    let bytes = match (config.attention, config.precision) {
        (Attention::Flash2 | Attention::Flash3, Precision::Fp8) => LOGIT_FUSED_BYTES,
        _ => LOGIT_BYTES,
    };
    let products = 6.0 * logits * f64::from(model.hidden) / peak;
    Ok(products + logits * bytes / stream_rate(machine))
}

/// Tokens of a microbatch on one device.
pub(super) fn tokens(model: &Transformer, config: &ParallelConfig) -> f64 {
    f64::from(config.microbatch) * f64::from(model.sequence) / f64::from(config.context)
}

/// Seconds for one pass through the layer's matrices.
fn matrix_s(
    model: &Transformer,
    config: &ParallelConfig,
    machine: &Machine,
) -> Result<f64, StepError> {
    let active = model.active_layer_parameters() as f64;
    let rate = matrix_rate(machine, config.precision)?;
    let products = 2.0 * tokens(model, config) * active / f64::from(config.tensor) / rate;
    let decode = match config.tuning {
        Tuning::Qlora { .. } => {
            let weights = model.layer_parameters() as f64 / f64::from(config.tensor);
            weights * NF4_DECODE_BYTES / stream_rate(machine)
        }
        Tuning::Full | Tuning::Lora { .. } => 0.0,
    };
    Ok(products + decode)
}

/// The core of attention, forward.
fn attention(
    model: &Transformer,
    config: &ParallelConfig,
    machine: &Machine,
) -> Result<Direction, StepError> {
    let tensor = f64::from(config.tensor);
    let tokens = tokens(model, config);
    let span = f64::from(model.attention_span);
    let flops = 4.0 * tokens * span * model.attention_width() / tensor;
    let precision = half_or_single(config.precision);
    let peak = machine.device.peak_flops(precision).ok_or(StepError::NoPeak { precision })?;
    let flash = |generation: usize| Direction {
        matrix_s: flops / (peak * machine.efficiency.flash[generation]),
        ..Direction::default()
    };
    Ok(match config.attention {
        Attention::Plain => {
            let scores = f64::from(model.heads) * span / tensor * tokens;
            Direction {
                matrix_s: flops / matrix_rate(machine, precision)?,
                stream_s: SCORE_BYTES * scores / stream_rate(machine),
                ..Direction::default()
            }
        }
        Attention::Flash1 => flash(0),
        Attention::Flash2 => flash(1),
        Attention::Flash3 => flash(2),
    })
}

/// Seconds of element-wise kernels, forward.
fn stream_s(model: &Transformer, config: &ParallelConfig, machine: &Machine) -> f64 {
    let tensor = f64::from(config.tensor);
    let hidden = f64::from(model.hidden);
    let whole = match config.sequence_parallel {
        SequenceParallel::Off => STREAM_WHOLE_BYTES,
        SequenceParallel::On => STREAM_WHOLE_BYTES / tensor,
    };
    let gates = match model.feed_forward.kind {
        FeedForwardKind::Plain => 1.0,
        FeedForwardKind::Gated => 1.5,
    };
    let inner = f64::from(model.experts_active() * model.feed_forward.hidden) * gates;
    let cut = STREAM_HEADS_BYTES * hidden + STREAM_INNER_BYTES * inner;
    tokens(model, config) * (whole * hidden + cut / tensor) / stream_rate(machine)
}

/// Seconds of exchange in one direction: two sums over the tensor group, experts' tokens there and
/// back, keys and values round the context group.
fn exchange_s(model: &Transformer, config: &ParallelConfig, machine: &Machine) -> f64 {
    let node = machine.island.node_devices(config.devices());
    let tensor_node = config.tensor.min(node);
    let activations = 2.0 * tokens(model, config) * f64::from(model.hidden);
    let group = Group { ranks: config.tensor, per_node: tensor_node };
    let tensor = 2.0 * all_reduce_s(machine, group, activations);
    let exposed = match config.overlap {
        Overlap::None => 1.0,
        Overlap::Split if config.precision == Precision::Fp8 => machine.efficiency.tensor_exposed,
        Overlap::Split => machine.efficiency.tensor_exposed_half,
    };
    let beside = (node / tensor_node.max(1)).max(1);
    let experts = Group { ranks: config.expert, per_node: config.expert.min(beside) };
    let routed = activations * f64::from(model.experts_active()) / f64::from(config.tensor);
    let expert = 2.0 * all_to_all_s(machine, experts, routed);
    exposed * tensor + expert + context_s(model, config, machine)
}

/// What is seen of keys and values that go round the context group while scores are computed.
fn context_s(model: &Transformer, config: &ParallelConfig, machine: &Machine) -> f64 {
    if config.context < 2 {
        return 0.0;
    }
    let width = f64::from(model.key_value_heads) * f64::from(model.head_width);
    let bytes = 4.0 * tokens(model, config) * width / f64::from(config.tensor);
    let rounds = f64::from(config.context - 1);
    let across = config.tensor * config.context > machine.island.devices_per_node;
    let island = &machine.island;
    let rate =
        if across { island.network_gbps * machine.efficiency.network } else { island.link_gbps };
    let sent = rounds * bytes / (rate * 1e9) * machine.efficiency.communication_scale;
    let hidden = attention(model, config, machine).map_or(0.0, |part| part.matrix_s);
    (sent - hidden).max(0.0)
}

/// FLOP/s that matrix products reach.
fn matrix_rate(machine: &Machine, precision: Precision) -> Result<f64, StepError> {
    let peak = machine.device.peak_flops(precision).ok_or(StepError::NoPeak { precision })?;
    Ok(peak
        * match precision {
            Precision::Fp8 => machine.efficiency.matrix_fp8,
            Precision::Fp32 | Precision::Fp16 | Precision::Bf16 => machine.efficiency.matrix,
        })
}

/// Bytes per second that element-wise kernels reach.
fn stream_rate(machine: &Machine) -> f64 {
    machine.device.memory_gbps * 1e9 * machine.efficiency.stream
}

/// Attention and logits stay at 16 bits where matrices are multiplied in 8.
fn half_or_single(precision: Precision) -> Precision {
    match precision {
        Precision::Fp8 => Precision::Bf16,
        Precision::Fp32 | Precision::Fp16 | Precision::Bf16 => precision,
    }
}

/// The larger of the two where they are far apart, more than it where they are near. A sharper
/// blend (a sum of cubes or fourth powers) fits as well and chooses worse.
fn blend(device_s: f64, host_s: f64) -> f64 {
    device_s.hypot(host_s)
}
