//! What stages hand on, what replicas exchange, and what the update of the weights costs.

use super::collective::{Group, all_reduce_s, gather_s};
use super::constants::{SEND_EXPOSED, SEND_LINK_SHARE, SEND_START_S};
use super::layer::tokens;
use super::{
    Machine, Offload, Overlap, ParallelConfig, SequenceParallel, Transformer, Tuning, Zero,
};

/// Pipelines over several nodes go more slowly where tensor groups share a node.
pub(super) fn crowding(config: &ParallelConfig, machine: &Machine) -> f64 {
    let node = machine.island.node_devices(config.devices());
    let shared = config.tensor > 1 && config.tensor < node;
    if shared && config.pipeline > 1 && config.devices() > machine.island.devices_per_node {
        let further = f64::from(node) / f64::from(config.tensor) - 1.0;
        return 1.0 + machine.efficiency.crowding * further;
    }
    1.0
}

/// Seconds of handing activations and their gradients from stage to stage.
pub(super) fn pipeline_communication_s(
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

/// Seconds of summing gradients, or of gathering weights and scattering gradients layer by layer.
pub(super) fn data_communication_s(
    model: &Transformer,
    config: &ParallelConfig,
    machine: &Machine,
    layers: f64,
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
    let weights = exchanged(model, config, layers);
    let gradients = f64::from(config.gradients.bytes());
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
pub(super) fn update_s(
    model: &Transformer,
    config: &ParallelConfig,
    machine: &Machine,
    layers: f64,
) -> (f64, f64) {
    let share = match config.zero {
        Zero::None => 1,
        Zero::One | Zero::Two | Zero::Three => config.data * config.context,
    };
    let weights = exchanged(model, config, layers) / f64::from(share);
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

/// Trainable weights that one device exchanges.
fn exchanged(model: &Transformer, config: &ParallelConfig, layers: f64) -> f64 {
    let all = config.tuning.trainable_parameters(model) as f64;
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
