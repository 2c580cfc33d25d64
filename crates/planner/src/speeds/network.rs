//! What devices of a class share, and what is left of it from one domain to the next.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Bytes, Domain, NodeId, Topology};
use het_wire::topology::Reach;

/// Of a device's bandwidth in its rack, what it has from rack to rack where no links say it: two
/// times as much below a leaf as above (an assumption; common where Ethernet is not built for
/// training alone).
const POD_PART: f64 = 0.5;

/// The same from pod to pod: the aggregation layer of the cluster that trained Llama 3 is
/// oversubscribed 1:7 (Llama team 2024, arXiv 2407.21783, section 3.3.1).
const ANY_PART: f64 = 1.0 / 7.0;

/// The surroundings of the devices of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// Most of them in one node.
    pub node: u32,
    /// Most that links of their own join over several nodes; 0 where none do.
    pub joined: u32,
    /// Domains that hold them and no smaller one does.
    pub wider: Vec<Domain>,
    /// Of a node, an accelerator's part, where that is known.
    pub host_memory: Option<Bytes>,
    /// What links give a device.
    reach: Reach,
}

impl Network {
    /// `reach` is what links give a device of the class.
    pub fn of(topology: &Topology, class: usize, reach: Reach) -> Self {
        let mut by_node: BTreeMap<NodeId, u32> = BTreeMap::new();
        for device in topology.devices.iter().filter(|device| device.class == class) {
            *by_node.entry(device.node).or_default() += device.capacity.whole_units();
        }
        let node = by_node.values().copied().max().unwrap_or(1);
        let accelerators = accelerators(topology);
        let shared = by_node.keys().map(|node| {
            let sharers = accelerators.get(node).copied().unwrap_or(1);
            Bytes(topology.node(*node).host.memory.0 / u64::from(sharers))
        });
        Self {
            node,
            joined: if reach.island > node { reach.island } else { 0 },
            wider: wider(topology, by_node.keys()),
            host_memory: shared.min().filter(|part| *part > Bytes::ZERO),
            reach,
        }
    }

    /// GB/s of a device to others of its gang in a domain of this size and no smaller one, when
    /// everybody sends at once; `default` where no link says what its node has.
    pub fn gbps(&self, domain: Domain, default: f64) -> Option<f64> {
        let rack = self.reach.network.map_or(default, gigabytes);
        let pod = self.reach.beyond_leaf.map_or(rack * POD_PART, gigabytes);
        let any = self.reach.beyond_pod.map_or(pod * ANY_PART, gigabytes);
        match domain {
            Domain::Node => None,
            Domain::Rack => Some(rack),
            Domain::Pod => Some(pod),
            Domain::Any => Some(any),
        }
    }
}

/// Domains of several nodes, racks and pods, of those that these nodes stand in.
fn wider<'a>(topology: &Topology, nodes: impl Iterator<Item = &'a NodeId>) -> Vec<Domain> {
    let (mut racks, mut pods) = (BTreeMap::<_, u32>::new(), BTreeMap::<_, BTreeSet<_>>::new());
    for id in nodes {
        let node = topology.node(*id);
        *racks.entry(&node.rack).or_default() += 1;
        pods.entry(&node.pod).or_default().insert(&node.rack);
    }
    let several = [
        (Domain::Rack, racks.values().any(|nodes| *nodes > 1)),
        (Domain::Pod, pods.values().any(|racks| racks.len() > 1)),
        (Domain::Any, pods.len() > 1),
    ];
    several.into_iter().filter(|(_, several)| *several).map(|(domain, _)| domain).collect()
}

/// How many share the memory and the cards of each node.
fn accelerators(topology: &Topology) -> BTreeMap<NodeId, u32> {
    let mut counts = BTreeMap::new();
    for id in topology.accelerators() {
        *counts.entry(topology.device(id).node).or_default() += 1;
    }
    counts
}

fn gigabytes(bytes: Bytes) -> f64 {
    bytes.0 as f64 / 1e9
}
