//! What follows from a topology once and for all, so that rounds need not derive it again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::{Bytes, DeviceId, NodeId, Share, Topology, Vertex};

/// Devices by node.
pub type ByNode = Arc<[(NodeId, Vec<DeviceId>)]>;

/// Devices that no selector can tell apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceGroup {
    /// One of them: what it accepts or refuses, it does for all.
    pub representative: DeviceId,
    pub members: ByNode,
    /// Peak of a unit; one where it is unknown, so that such devices count next to nothing beside
    /// others and all alike among themselves.
    pub peak_gflops: u64,
}

/// Where a device stands among those of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Membership {
    /// Row of [`Index::device_groups`].
    pub group: usize,
    /// Row of [`DeviceGroup::members`].
    pub row: usize,
}

/// Derived tables of a topology; rows as there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    pub device_groups: Vec<DeviceGroup>,
    /// Of each device.
    pub memberships: Arc<[Membership]>,
    /// Devices of each node.
    pub devices: Arc<[Vec<DeviceId>]>,
    /// Of each node, where its accelerators stand among those of their groups.
    pub accelerators_of: Arc<[Vec<Membership>]>,
    /// CPU sockets of each node.
    pub sockets: Arc<[Vec<DeviceId>]>,
    /// The socket to which each device is nearest, as far as links say.
    pub hosts: Arc<[Option<DeviceId>]>,
    /// Capacity of each device.
    pub capacity: Vec<Share>,
    /// Memory of each node.
    pub memory: Vec<Bytes>,
    /// How many accelerators there are.
    pub accelerators: usize,
    /// Of all devices together; see [`DeviceGroup::peak_gflops`].
    pub peak_gflops: u64,
}

impl Index {
    pub fn of(topology: &Topology) -> Self {
        let mut sockets = vec![Vec::new(); topology.nodes.len()];
        let mut devices = sockets.clone();
        let mut device_groups: BTreeMap<_, BTreeMap<NodeId, Vec<DeviceId>>> = BTreeMap::new();
        for id in topology.device_ids() {
            let device = topology.device(id);
            let group = (device.class, &device.drivers, topology.memory_of(id));
            device_groups.entry(group).or_default().entry(device.node).or_default().push(id);
            devices[device.node.index()].push(id);
            if topology.class_of(id).kind == "cpu" {
                sockets[device.node.index()].push(id);
            }
        }
        let mut device_groups: Vec<DeviceGroup> = device_groups
            .into_values()
            .filter_map(|by_node| {
                let representative = *by_node.values().flatten().min()?;
                let peak_gflops = topology.class_of(representative).peak_gflops.unwrap_or(1);
                Some(DeviceGroup {
                    representative,
                    members: by_node.into_iter().collect(),
                    peak_gflops,
                })
            })
            .collect();
        device_groups.sort_by_key(|group| group.representative);
        let mut accelerators_of = vec![Vec::new(); topology.nodes.len()];
        for (row, group) in device_groups.iter().enumerate() {
            if topology.class_of(group.representative).kind != "cpu" {
                for (member, (node, _)) in group.members.iter().enumerate() {
                    accelerators_of[node.index()].push(Membership { group: row, row: member });
                }
            }
        }
        Self {
            accelerators_of: accelerators_of.into(),
            hosts: hosts(topology, sockets.iter().flatten().copied()).into(),
            devices: devices.into(),
            sockets: sockets.into(),
            capacity: topology.devices.iter().map(|device| device.capacity).collect(),
            accelerators: topology.accelerators().count(),
            memory: topology.nodes.iter().map(|node| node.memory).collect(),
            peak_gflops: device_groups
                .iter()
                .map(|group| group.peak_gflops * group.units(topology))
                .sum(),
            memberships: memberships(topology, &device_groups).into(),
            device_groups,
        }
    }
}

fn memberships(topology: &Topology, device_groups: &[DeviceGroup]) -> Vec<Membership> {
    let mut memberships = vec![Membership::default(); topology.devices.len()];
    for (group, of) in device_groups.iter().enumerate() {
        for (row, (_, devices)) in of.members.iter().enumerate() {
            devices.iter().for_each(|id| memberships[id.index()] = Membership { group, row });
        }
    }
    memberships
}

/// From all sockets at once, by the fewest links and through no other device: what is reached first
/// from a socket of its own node is nearest to it.
fn hosts(topology: &Topology, sockets: impl Iterator<Item = DeviceId>) -> Vec<Option<DeviceId>> {
    let mut hosts = vec![None; topology.devices.len()];
    let mut ends: BTreeMap<&Vertex, Vec<&Vertex>> = BTreeMap::new();
    for link in &topology.links {
        ends.entry(&link.from).or_default().push(&link.to);
        ends.entry(&link.to).or_default().push(&link.from);
    }
    let sockets: Vec<(Vertex, DeviceId)> = sockets.map(|id| (id.into(), id)).collect();
    let mut reached: BTreeMap<&Vertex, DeviceId> =
        sockets.iter().map(|(vertex, id)| (vertex, *id)).collect();
    let mut next: VecDeque<&Vertex> = sockets.iter().map(|(vertex, _)| vertex).collect();
    while let Some(vertex) = next.pop_front() {
        let socket = reached[vertex];
        for &end in ends.get(vertex).into_iter().flatten() {
            if reached.contains_key(end) {
                continue;
            }
            reached.insert(end, socket);
            match end {
                Vertex::Switch(_) => next.push_back(end),
                Vertex::Device(id) if topology.device(*id).node == topology.device(socket).node => {
                    hosts[id.index()] = Some(socket);
                }
                Vertex::Device(_) | Vertex::Node(_) => {}
            }
        }
    }
    hosts
}

impl DeviceGroup {
    /// Whole units of all members.
    fn units(&self, topology: &Topology) -> u64 {
        let members = self.members.iter().flat_map(|(_, devices)| devices);
        members.map(|id| u64::from(topology.device(*id).capacity.whole_units())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, DeviceClass, Link, Node};

    #[test]
    fn a_device_is_nearest_to_the_socket_on_whose_bus_it_is() {
        let class = |kind: &str| DeviceClass {
            id: kind.into(),
            kind: kind.into(),
            vendor: "".into(),
            title: "".into(),
            peak_gflops: None,
            software: false,
        };
        let device = |class: usize, name: &str| Device {
            node: NodeId(0),
            name: name.into(),
            class,
            drivers: Vec::new(),
            capacity: Share::WHOLE,
            memory: Bytes::ZERO,
            visible_id: "".into(),
        };
        let link = |from: Vertex, to: Vertex| Link {
            from,
            to,
            kind: "pcie".into(),
            bandwidth: None,
            count: 1,
            latency_ns: None,
        };
        let [cpu0, cpu1, gpu0, gpu1, gpu2] = [0, 1, 2, 3, 4].map(DeviceId);
        let switch = |name: &str| Vertex::Switch(name.into());
        let topology = Topology {
            classes: vec![class("cpu"), class("gpu")],
            nodes: vec![Node {
                name: "n".into(),
                memory: Bytes::gib(1),
                rack: "".into(),
                pod: "".into(),
            }],
            devices: vec![
                device(0, "cpu0"),
                device(0, "cpu1"),
                device(1, "gpu0"),
                device(1, "gpu1"),
                device(1, "gpu2"),
            ],
            links: vec![
                link(cpu0.into(), cpu1.into()),
                link(gpu0.into(), switch("pcie1")),
                link(switch("pcie1"), cpu1.into()),
                link(gpu1.into(), cpu0.into()),
                // A peer is no way to a socket.
                link(gpu1.into(), gpu2.into()),
                link(gpu0.into(), gpu1.into()),
            ],
        };
        let hosts = Index::of(&topology).hosts;
        assert_eq!(hosts[..], [None, None, Some(cpu1), Some(cpu0), None]);
    }
}
