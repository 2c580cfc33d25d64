//! A topology seen from its vertices: names, neighbours, and links in words.

use std::collections::BTreeMap;

use het_core::{Bytes, Link, Name, NodeId, Topology, Vertex};
use het_wire::quantity;
use het_wire::topology::Role;

/// The links at each vertex, in row order.
pub struct Neighbours<'a>(BTreeMap<&'a Vertex, Vec<(&'a Link, &'a Vertex)>>);

impl<'a> Neighbours<'a> {
    pub fn of(topology: &'a Topology) -> Self {
        let mut at: BTreeMap<&Vertex, Vec<(&Link, &Vertex)>> = BTreeMap::new();
        for link in &topology.links {
            at.entry(&link.from).or_default().push((link, &link.to));
            at.entry(&link.to).or_default().push((link, &link.from));
        }
        Self(at)
    }

    pub fn at(&self, vertex: &Vertex) -> &[(&'a Link, &'a Vertex)] {
        self.0.get(vertex).map_or(&[], Vec::as_slice)
    }

    pub fn vertices(&self) -> impl Iterator<Item = &'a Vertex> {
        self.0.keys().copied()
    }
}

/// The node that a vertex is a part of; `None` for what several share.
pub struct Owners<'a> {
    topology: &'a Topology,
    by_name: BTreeMap<&'a str, NodeId>,
}

impl<'a> Owners<'a> {
    pub fn of(topology: &'a Topology) -> Self {
        let named = topology.node_ids().map(|id| (topology.node(id).name.as_str(), id));
        Self { topology, by_name: named.collect() }
    }

    pub fn node(&self, vertex: &Vertex) -> Option<NodeId> {
        match vertex {
            Vertex::Node(id) => Some(*id),
            Vertex::Device(id) => Some(self.topology.device(*id).node),
            Vertex::Switch(name) => {
                let (node, _) = name.as_str().split_once('/')?;
                self.by_name.get(node).copied()
            }
        }
    }
}

/// Unique in the topology: `node-0/gpu3`.
pub fn full_name(topology: &Topology, vertex: &Vertex) -> String {
    match vertex {
        Vertex::Node(id) => topology.node(*id).name.to_string(),
        Vertex::Switch(name) => name.to_string(),
        Vertex::Device(id) => {
            let device = topology.device(*id);
            format!("{}/{}", topology.node(device.node).name, device.name)
        }
    }
}

/// Without the name of its node: `gpu3`.
pub fn short_name(topology: &Topology, vertex: &Vertex) -> String {
    match vertex {
        Vertex::Device(id) => topology.device(*id).name.to_string(),
        Vertex::Node(id) => topology.node(*id).name.to_string(),
        Vertex::Switch(name) => {
            let last = name.as_str().rsplit('/').next().unwrap_or_default();
            last.to_owned()
        }
    }
}

/// The name without its number: `nvswitch`, `gpu`.
pub fn stem(topology: &Topology, vertex: &Vertex) -> String {
    let name = short_name(topology, vertex);
    let letters = |letter: char| !letter.is_ascii_digit();
    let end = name.find(|letter| !letters(letter)).unwrap_or(name.len());
    name[..end].trim_end_matches('-').to_owned()
}

/// `nvlink 2 × 25 GB/s`, `leaf 400G`, `pcie` where the rate is not known.
pub fn wire_text(kind: &Name, bandwidth: Option<Bytes>, count: u32) -> String {
    let Some(sum) = bandwidth else { return kind.to_string() };
    let each = Bytes(sum.0 / u64::from(count.max(1)));
    let rate = match kind.as_str() {
        "nic" | "leaf" | "tor" | "spine" | "core" => quantity::port_text(each),
        _ => quantity::rate_text(each),
    };
    match count {
        1 => format!("{kind} {rate}"),
        _ => format!("{kind} {count} × {rate}"),
    }
}

/// Whether a link is on the way between a device and its host's memory, as opposed to peers among
/// themselves and to the network.
pub fn is_of_host(topology: &Topology, link: &Link) -> bool {
    let roles = [&link.from, &link.to].map(|vertex| Role::of(topology, vertex));
    let is_peer = |role| matches!(role, Role::Accelerator | Role::PeerSwitch);
    let network = roles.iter().any(|role| role.is_network());
    !network && !roles.iter().all(|role| is_peer(*role)) && roles != [Role::Socket; 2]
}

/// Nodes of the same make, in the order of their first: pod, and devices by class with their sum of
/// units, memory.
pub fn kinds(topology: &Topology) -> Vec<Vec<NodeId>> {
    let mut makes: Vec<(BTreeMap<usize, u32>, u32)> =
        vec![(BTreeMap::new(), 0); topology.nodes.len()];
    for device in &topology.devices {
        let (classes, devices) = &mut makes[device.node.index()];
        *classes.entry(device.class).or_default() += device.capacity.0;
        *devices += 1;
    }
    let mut kinds: Vec<Vec<NodeId>> = Vec::new();
    let mut rows = BTreeMap::new();
    for id in topology.node_ids() {
        let node = topology.node(id);
        let key = (node.pod.clone(), node.host.memory, makes[id.index()].clone());
        let row = *rows.entry(key).or_insert_with(|| {
            kinds.push(Vec::new());
            kinds.len() - 1
        });
        kinds[row].push(id);
    }
    kinds
}

/// What stands in a node: `2 × AMD EPYC 7763, 8 × NVIDIA A100 SXM4-80`.
pub fn contents(topology: &Topology, node: NodeId) -> Vec<String> {
    let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
    for device in topology.devices.iter().filter(|device| device.node == node) {
        *counts.entry(device.class).or_default() += 1;
    }
    let text =
        |(class, count): (&usize, &u32)| format!("{count} × {}", topology.classes[*class].title);
    counts.iter().map(text).collect()
}
