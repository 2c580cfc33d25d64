//! What devices of a class share, and what is left of it from one domain to the next.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Bytes, DeviceId, Domain, Link, Name, NodeId, Topology, Vertex};

/// Of a device's bandwidth in its rack, what it has from rack to rack where no links say it: two
/// times as much below a leaf as above (an assumption; common where Ethernet is not built for
/// training alone).
const POD_PART: f64 = 0.5;

/// The same from pod to pod: the aggregation layer of the cluster that trained Llama 3 is
/// oversubscribed 1:7 (Llama team 2024, arXiv 2407.21783, section 3.3.1).
const ANY_PART: f64 = 1.0 / 7.0;

/// Links that join devices of several nodes as if they stood in one.
const ISLANDS: [&str; 2] = ["nvlink", "hccs"];

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
    /// GB/s a device from its node to the leaf, where links say it.
    leaf_gbps: Option<f64>,
    /// Parts of it above the leaf and above the spine, where links say it.
    above_leaf: Option<f64>,
    above_spine: Option<f64>,
}

impl Network {
    pub fn of(topology: &Topology, class: usize) -> Self {
        let of_class = |id: &DeviceId| topology.device(*id).class == class;
        let mut by_node: BTreeMap<NodeId, u32> = BTreeMap::new();
        for id in topology.device_ids().filter(of_class) {
            let device = topology.device(id);
            *by_node.entry(device.node).or_default() += device.capacity.whole_units();
        }
        let node = by_node.values().copied().max().unwrap_or(1);
        let islands = ISLANDS.iter().flat_map(|kind| topology.islands(kind));
        let spans_nodes = |island: &Vec<DeviceId>| {
            let first = topology.device(island[0]).node;
            island.iter().any(|id| topology.device(*id).node != first)
        };
        let members =
            |island: Vec<DeviceId>| island.iter().filter(|id| of_class(id)).count() as u32;
        let joined = islands.filter(spans_nodes).map(members).max().unwrap_or(0);
        let accelerators = accelerators(topology);
        let shared = by_node.keys().map(|node| {
            let sharers = accelerators.get(node).copied().unwrap_or(1);
            Bytes(topology.node(*node).memory.0 / u64::from(sharers))
        });
        let host_memory = shared.min().filter(|part| *part > Bytes::ZERO);
        let leaves = Leaves::of(topology, &by_node, &accelerators);
        Self {
            node,
            joined,
            wider: wider(topology, by_node.keys()),
            host_memory,
            leaf_gbps: leaves.as_ref().map(|leaves| leaves.gbps_a_device),
            above_leaf: leaves.as_ref().and_then(|leaves| leaves.part_above(topology, "spine")),
            above_spine: leaves.as_ref().and_then(|leaves| leaves.part_above_spine(topology)),
        }
    }

    /// GB/s of a device to others of its gang in a domain of this size and no smaller one, when
    /// everybody sends at once; `default` where no link says what its node has.
    pub fn gbps(&self, domain: Domain, default: f64) -> Option<f64> {
        let rack = self.leaf_gbps.unwrap_or(default);
        let pod = rack * self.above_leaf.unwrap_or(POD_PART);
        let any = pod * self.above_spine.unwrap_or(ANY_PART);
        match domain {
            Domain::Node => None,
            Domain::Rack => Some(rack),
            Domain::Pod => Some(pod),
            Domain::Any => Some(any),
        }
    }
}

/// The switches that nodes with devices of a class hang on.
struct Leaves {
    switches: BTreeSet<Name>,
    /// Of the node that has least.
    gbps_a_device: f64,
}

impl Leaves {
    fn of(
        topology: &Topology,
        by_node: &BTreeMap<NodeId, u32>,
        accelerators: &BTreeMap<NodeId, u32>,
    ) -> Option<Self> {
        let names: BTreeMap<&str, NodeId> =
            by_node.keys().map(|id| (topology.node(*id).name.as_str(), *id)).collect();
        let mut up: BTreeMap<NodeId, f64> = BTreeMap::new();
        let mut switches = BTreeSet::new();
        for link in topology.links.iter().filter(|link| link.kind == "leaf") {
            for (below, above) in [(&link.from, &link.to), (&link.to, &link.from)] {
                let node = node_of(topology, &names, below);
                let node = node.filter(|node| by_node.contains_key(node));
                if let (Some(node), Vertex::Switch(name)) = (node, above) {
                    *up.entry(node).or_default() += gbps(link);
                    switches.insert(name.clone());
                }
            }
        }
        let shared = |(node, gbps): (&NodeId, &f64)| {
            gbps / f64::from(accelerators.get(node).copied().unwrap_or(1))
        };
        let gbps_a_device = up.iter().map(shared).min_by(f64::total_cmp)?;
        (gbps_a_device > 0.0).then_some(Self { switches, gbps_a_device })
    }

    /// Bandwidth to switches above over that to what is below, of the leaf with the least.
    fn part_above(&self, topology: &Topology, kind: &str) -> Option<f64> {
        part_above(topology, &self.switches, "leaf", kind)
    }

    fn part_above_spine(&self, topology: &Topology) -> Option<f64> {
        let spines = topology.links.iter().filter(|link| link.kind == "spine");
        let above = spines.flat_map(|link| match (&link.from, &link.to) {
            (Vertex::Switch(a), Vertex::Switch(b)) if self.switches.contains(a) => Some(b.clone()),
            (Vertex::Switch(a), Vertex::Switch(b)) if self.switches.contains(b) => Some(a.clone()),
            _ => None,
        });
        part_above(topology, &above.collect(), "spine", "core")
    }
}

/// Of the switch that has least, at most 1; `None` where no link of the kind `above` is there.
fn part_above(
    topology: &Topology,
    switches: &BTreeSet<Name>,
    below: &str,
    above: &str,
) -> Option<f64> {
    let mut sums: BTreeMap<&Name, (f64, f64)> = BTreeMap::new();
    for link in &topology.links {
        for end in [&link.from, &link.to] {
            if let Vertex::Switch(name) = end
                && switches.contains(name)
            {
                let (down, up) = sums.entry(name).or_default();
                match link.kind.as_str() {
                    kind if kind == below => *down += gbps(link),
                    kind if kind == above => *up += gbps(link),
                    _ => {}
                }
            }
        }
    }
    let joined = sums.into_values().filter(|(down, up)| *down > 0.0 && *up > 0.0);
    joined.map(|(down, up)| (up / down).min(1.0)).min_by(f64::total_cmp)
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

/// The node that a vertex is, stands in, or is a part of: parts are called `NODE/PART`.
fn node_of(topology: &Topology, names: &BTreeMap<&str, NodeId>, vertex: &Vertex) -> Option<NodeId> {
    match vertex {
        Vertex::Node(node) => Some(*node),
        Vertex::Device(id) => Some(topology.device(*id).node),
        Vertex::Switch(name) => {
            let (node, _) = name.as_str().rsplit_once('/')?;
            names.get(node).copied()
        }
    }
}

fn gbps(link: &Link) -> f64 {
    link.bandwidth.map_or(0.0, |bandwidth| bandwidth.0 as f64 / 1e9)
}
