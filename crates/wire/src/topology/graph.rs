//! Rows of a topology under construction.

use std::collections::BTreeMap;

use het_core::{
    Bytes, Device, DeviceId, HostResources, Link, Name, Node, NodeId, Share, Topology, Vertex,
};

use super::Cluster;
use crate::catalogue::{self, Sheet};

/// What an edge is, beside its two ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wire<'text> {
    pub kind: &'text str,
    /// Of all `count` together; `None` if unknown.
    pub bandwidth: Option<Bytes>,
    pub count: u32,
    pub latency_ns: Option<u64>,
}

impl<'text> Wire<'text> {
    pub fn one(kind: &'text str, bandwidth: Option<Bytes>) -> Self {
        Self { kind, bandwidth, count: 1, latency_ns: None }
    }

    /// `count` links of the same rate side by side.
    pub fn many(kind: &'text str, each: Bytes, count: u32) -> Self {
        let bandwidth = Some(Bytes(each.0 * u64::from(count)));
        Self { kind, bandwidth, count, latency_ns: None }
    }

    pub fn delayed(self, latency_ns: u64) -> Self {
        Self { latency_ns: Some(latency_ns), ..self }
    }
}

/// Which of the separate networks a card belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Network {
    Compute,
    Storage,
    Business,
}

/// A network card that waits for a fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    pub vertex: Vertex,
    pub node: NodeId,
    /// Its place among the cards of its node and network: the rail.
    pub rail: u32,
    pub speed: Bytes,
    pub network: Network,
}

#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub topology: Topology,
    pub cards: Vec<Card>,
    pub own: BTreeMap<String, Sheet>,
}

impl Graph {
    /// `own` are the sheets that the owner of the cluster wrote.
    pub fn new(own: BTreeMap<String, Sheet>) -> Self {
        Self { own, ..Self::default() }
    }

    pub fn finish(self, name: &str) -> Cluster {
        Cluster { name: name.to_owned(), topology: self.topology, own: self.own }
    }

    pub fn sheet(&self, class: &str) -> Option<&Sheet> {
        self.own.get(class).or_else(|| catalogue::sheet(class))
    }

    pub fn node(&mut self, name: &str, host: HostResources, rack: &str, pod: &str) -> NodeId {
        let id = NodeId(self.topology.nodes.len() as u32);
        let (name, rack, pod) = (name.into(), rack.into(), pod.into());
        self.topology.nodes.push(Node { name, host, rack, pod });
        id
    }

    /// A device named after its kind and its number on the node; a CPU with so many cores.
    pub fn device(&mut self, node: NodeId, name: &str, sheet: &Sheet, cores: u32) -> DeviceId {
        let class = self.class(sheet);
        let is_cpu = sheet.kind == "cpu";
        let id = DeviceId(self.topology.devices.len() as u32);
        let number = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        self.topology.devices.push(Device {
            node,
            name: name.into(),
            class,
            drivers: vec![driver(sheet)],
            capacity: if is_cpu { Share::units(cores.max(1)) } else { Share::WHOLE },
            memory: if is_cpu { Bytes::ZERO } else { sheet.memory().unwrap_or(Bytes::ZERO) },
            visible_id: if number.is_empty() { "0" } else { number }.into(),
        });
        id
    }

    pub fn link(&mut self, from: impl Into<Vertex>, to: impl Into<Vertex>, wire: Wire<'_>) {
        let Wire { kind, bandwidth, count, latency_ns } = wire;
        let (from, to, kind) = (from.into(), to.into(), kind.into());
        self.topology.links.push(Link { from, to, kind, bandwidth, count, latency_ns });
    }

    fn class(&mut self, sheet: &Sheet) -> usize {
        let known = self.topology.classes.iter().position(|class| class.id == *sheet.id);
        known.unwrap_or_else(|| {
            self.topology.classes.push(sheet.class());
            self.topology.classes.len() - 1
        })
    }
}

/// A vertex of a node or of a part of the network.
pub(crate) fn part(of: &str, word: &str, number: u32) -> Vertex {
    Vertex::Switch(format!("{of}/{word}{number}").into())
}

/// `count` links over `switches`, as even as it goes.
pub(crate) fn spread(count: u32, switches: u32) -> impl Iterator<Item = (u32, u32)> {
    let share = move |row: u32| count / switches + u32::from(row < count % switches);
    (0..switches).map(move |row| (row, share(row))).filter(|(_, links)| *links > 0)
}

/// The driver that runs a maker's devices.
fn driver(sheet: &Sheet) -> Name {
    let driver = match (sheet.kind.as_str(), sheet.vendor.as_str()) {
        ("gpu", "NVIDIA") => "cuda",
        ("gpu", "AMD") => "rocm",
        ("npu", "Huawei") => "cann",
        ("npu", "Intel") => "habana",
        (kind, _) => kind,
    };
    driver.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_spread_evenly() {
        let check = |count, switches, expected: &[u32]| {
            let shares: Vec<u32> = spread(count, switches).map(|(_, links)| links).collect();
            assert_eq!(shares, expected);
        };
        check(12, 6, &[2; 6]);
        check(18, 4, &[5, 5, 4, 4]);
        check(2, 4, &[1, 1]);
    }
}
