//! Filling a cluster until it is full, as in FGD's experiments (Weng et al., USENIX ATC 2023): how
//! much of the accelerators is allocated when as much was asked for as there is?

use het_core::{Share, Topology};
use het_policy::packing::{Bin, Item, Mix, Packer, PackingRule};

use crate::Draw;

/// First seed of the published runs; further runs count up from it.
pub const PACKING_SEED: u64 = 42;

/// Part of the accelerators that is allocated when the demand that has arrived first reaches all of
/// them. Pods come in random order, then drawn from the same list again; none leaves, and what does
/// not fit is passed over.
pub fn pack(topology: &Topology, pods: &[Item], rule: PackingRule, seed: u64) -> f64 {
    let bins = bins(topology);
    let devices = bins.iter().flat_map(|bin| &bin.devices);
    let capacity: u64 = devices.map(|share| u64::from(share.0)).sum();
    let mut order = Draw::new(seed, 0);
    let mut again = Draw::new(seed, 1);
    let mut ties = Draw::new(seed, 2);
    let mut queue: Vec<&Item> = pods.iter().collect();
    order.shuffle(&mut queue);
    let mut packer = Packer::new(rule, Mix::of(pods), bins);
    let (mut arrived, mut allocated) = (0, 0);
    let mut queue = queue.into_iter();
    let asks = pods.iter().any(|pod| pod.demand() > Share::ZERO);
    while asks && arrived < capacity {
        let pod = queue.next().unwrap_or_else(|| again.pick(pods));
        let demand = u64::from(pod.demand().0);
        arrived += demand;
        if packer.put(pod, ties.between(0, u64::MAX - 1)).is_some() {
            allocated += demand;
        }
    }
    allocated as f64 / capacity.max(1) as f64
}

fn bins(topology: &Topology) -> Vec<Bin> {
    let empty = |node: &het_core::Node| Bin {
        cores: Share::ZERO,
        memory: node.host.memory,
        model: 0,
        devices: Vec::new(),
    };
    let mut bins: Vec<Bin> = topology.nodes.iter().map(empty).collect();
    for device in &topology.devices {
        let bin = &mut bins[device.node.index()];
        if topology.classes[device.class].kind == "cpu" {
            bin.cores += device.capacity;
        } else {
            bin.model = device.class as u8;
            bin.devices.push(device.capacity);
        }
    }
    bins
}
