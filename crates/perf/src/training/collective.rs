//! What an exchange between ranks costs: a start-up time and bytes over a bandwidth.

use super::Machine;
use super::constants::{LINK_START_PER_RANK_S, LINK_START_S, LINK_WARM_UP_RANKS, NETWORK_START_S};

/// Ranks that exchange, and how many of them stand in one node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub ranks: u32,
    pub per_node: u32,
}

/// Seconds to sum `bytes` over the ranks of a group, in a ring. A node's network is shared by all
/// groups that reach into it.
pub(super) fn all_reduce_s(machine: &Machine, group: Group, bytes: f64) -> f64 {
    if group.ranks < 2 {
        return 0.0;
    }
    let (ranks, per_node) = (f64::from(group.ranks), f64::from(group.per_node.max(1)));
    let island = &machine.island;
    let link = island.link_gbps / (1.0 + LINK_WARM_UP_RANKS / per_node);
    let nodes = (ranks / per_node).max(1.0);
    let own = machine.efficiency.network * island.network_gbps * per_node;
    let bandwidth = if nodes > 1.0 { link.min(own) } else { link };
    let start = LINK_START_S + LINK_START_PER_RANK_S * per_node + NETWORK_START_S * nodes.log2();
    let seconds = start + 2.0 * (ranks - 1.0) / ranks * bytes / (bandwidth * 1e9);
    seconds * machine.efficiency.communication_scale
}

/// Seconds to gather `bytes`, or to sum and scatter them: half of an all-reduce.
pub(super) fn gather_s(machine: &Machine, group: Group, bytes: f64) -> f64 {
    all_reduce_s(machine, group, bytes) / 2.0
}

/// Seconds until every rank has sent its part of `bytes` to every other.
pub(super) fn all_to_all_s(machine: &Machine, group: Group, bytes: f64) -> f64 {
    if group.ranks < 2 {
        return 0.0;
    }
    let island = &machine.island;
    let outside = f64::from(group.ranks.saturating_sub(group.per_node)) / f64::from(group.ranks);
    let inside = f64::from(group.per_node.min(group.ranks) - 1) / f64::from(group.ranks);
    let network = island.network_gbps * machine.efficiency.network;
    let seconds = LINK_START_S + bytes * (inside / island.link_gbps + outside / network) / 1e9;
    seconds * machine.efficiency.communication_scale
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceFigures, Efficiency, Island};
    use super::*;

    /// vTrain's measured all-reduces of A100 in one node (MIT, `collectives.csv` of the reference
    /// data), microseconds.
    #[test]
    fn all_reduces_take_as_long_as_measured() {
        let device = DeviceFigures {
            fp32_tflops: None,
            half_tflops: Some(312.0),
            fp8_tflops: None,
            memory: het_core::Bytes(80 << 30),
            memory_gbps: 2_039.0,
        };
        let island = Island::hgx_a100(25.0);
        let machine = Machine { device, island, efficiency: Efficiency::A100 };
        let check = |ranks, mebibytes: f64, micros: f64| {
            let group = Group { ranks, per_node: ranks };
            let seconds = all_reduce_s(&machine, group, mebibytes * 1_048_576.0);
            let error = seconds * 1e6 / micros - 1.0;
            assert!(error.abs() < 0.12, "{ranks} ranks, {mebibytes} MiB: {error:+.3}");
        };
        check(2, 1.0, 44.2);
        check(2, 64.0, 404.7);
        check(2, 1_024.0, 5_442.8);
        check(4, 64.0, 543.8);
        check(4, 1_024.0, 7_259.4);
        check(8, 1.0, 92.8);
        check(8, 64.0, 580.0);
        check(8, 1_024.0, 8_193.0);
    }
}
