//! Which exact devices for which ranks.

use std::collections::{BTreeMap, BTreeSet};

use crate::{DeviceId, Domain, HostResources, Name, NodeId, Share, Topology};

/// A part of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    pub device: DeviceId,
    pub share: Share,
}

/// One process of a gang and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    pub node: NodeId,
    /// The requested devices, by device id.
    pub grants: Vec<Grant>,
    /// Companion cores, parts of the node's sockets.
    pub companions: Vec<Grant>,
    /// What it holds of the node beside its devices.
    pub host: HostResources,
}

/// Which exact devices for which ranks, for one alternative of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Index into [`crate::StageSpec::alternatives`].
    pub alternative: usize,
    pub ranks: Vec<Rank>,
}

impl Placement {
    /// Everything held on devices, requested and companion.
    pub fn grants(&self) -> impl Iterator<Item = Grant> + '_ {
        self.ranks.iter().flat_map(|rank| rank.grants.iter().chain(&rank.companions).copied())
    }

    /// The requested devices only.
    pub fn devices(&self) -> impl Iterator<Item = Grant> + '_ {
        self.ranks.iter().flat_map(|rank| rank.grants.iter().copied())
    }

    /// The requested devices by node.
    pub fn devices_by_node(&self) -> BTreeMap<NodeId, Vec<DeviceId>> {
        let mut by_node: BTreeMap<NodeId, Vec<DeviceId>> = BTreeMap::new();
        for rank in &self.ranks {
            let devices = rank.grants.iter().map(|grant| grant.device);
            by_node.entry(rank.node).or_default().extend(devices);
        }
        by_node
    }

    /// What its ranks hold of each node beside devices.
    pub fn host_by_node(&self) -> BTreeMap<NodeId, HostResources> {
        let mut by_node: BTreeMap<NodeId, HostResources> = BTreeMap::new();
        for rank in &self.ranks {
            let held = by_node.entry(rank.node).or_default();
            *held = held.plus(rank.host);
        }
        by_node
    }

    pub fn uses_node(&self, node: NodeId) -> bool {
        self.ranks.iter().any(|rank| rank.node == node)
    }

    /// How many different nodes it stands in.
    pub fn nodes(&self) -> u32 {
        let nodes: BTreeSet<NodeId> = self.ranks.iter().map(|rank| rank.node).collect();
        nodes.len() as u32
    }

    /// The smallest domain that holds all of it.
    pub fn domain(&self, topology: &Topology) -> Domain {
        let holds = |domain: &Domain| self.domains(topology, *domain) <= 1;
        Domain::ALL.into_iter().find(holds).unwrap_or_default()
    }

    /// In how many domains of this size it stands.
    pub fn domains(&self, topology: &Topology, domain: Domain) -> u32 {
        let of = |name: fn(&crate::Node) -> &Name| {
            let nodes = self.ranks.iter().map(|rank| name(topology.node(rank.node)));
            nodes.collect::<BTreeSet<_>>().len() as u32
        };
        match domain {
            Domain::Node => self.nodes(),
            Domain::Rack => of(|node| &node.rack),
            Domain::Pod => of(|node| &node.pod),
            Domain::Any => 1,
        }
    }

    /// Whole units of the requested devices.
    pub fn units(&self) -> u32 {
        self.devices().map(|grant| grant.share.whole_units()).sum()
    }
}
