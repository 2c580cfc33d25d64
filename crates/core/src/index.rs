//! What follows from a topology once and for all, so that rounds need not derive it again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{DeviceId, Interconnect, Locality, Micro, NodeId, Path, Placement, Share, Topology};

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
    /// What joins the accelerators of each node.
    pub interconnects: Arc<[Arc<Interconnect>]>,
    /// The row of each device among the accelerators of its node; of a socket, among those.
    pub local_rows: Arc<[usize]>,
    /// Capacity of each device.
    pub capacity: Vec<Share>,
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
            interconnects: Interconnect::of_nodes(topology).into(),
            local_rows: local_rows(topology).into(),
            devices: devices.into(),
            sockets: sockets.into(),
            capacity: topology.devices.iter().map(|device| device.capacity).collect(),
            accelerators: topology.accelerators().count(),
            peak_gflops: device_groups
                .iter()
                .map(|group| group.peak_gflops * group.units(topology))
                .sum(),
            memberships: memberships(topology, &device_groups).into(),
            device_groups,
        }
    }

    /// The socket to which a device is nearest, as far as links say.
    pub fn host(&self, topology: &Topology, id: DeviceId) -> Option<DeviceId> {
        let node = topology.device(id).node.index();
        let sockets = &self.sockets[node];
        if sockets.contains(&id) {
            return None;
        }
        let row = *self.interconnects[node].sockets.get(self.local_rows[id.index()])?;
        Some(sockets[row?])
    }

    /// The accelerators among these devices of a node, as a set of its interconnect's; those that
    /// it does not know are left out.
    pub fn local_set(&self, node: NodeId, devices: impl Iterator<Item = DeviceId>) -> u64 {
        let count = self.interconnects[node.index()].count();
        let accelerators = devices.filter(|id| !self.sockets[node.index()].contains(id));
        let rows = accelerators.map(|id| self.local_rows[id.index()]).filter(|row| *row < count);
        rows.fold(0, |set, row| set | 1 << row)
    }

    /// The two devices of a gang that are joined worst of all that share a node, as far as links
    /// tell.
    pub fn slowest_pair(&self, placement: &Placement) -> Option<(DeviceId, DeviceId, Path)> {
        let nodes = placement.devices_by_node().into_iter();
        let pairs = nodes.filter_map(|(node, devices)| {
            let set = self.local_set(node, devices.into_iter());
            let (a, b, path) = self.interconnects[node.index()].slowest_pair(set)?;
            let sockets = &self.sockets[node.index()];
            let all = self.devices[node.index()].iter().copied();
            let mut accelerators = all.filter(|id| !sockets.contains(id));
            let one = accelerators.nth(a)?;
            Some((one, accelerators.nth(b - a - 1)?, path))
        });
        pairs.min_by_key(|(.., path)| *path)
    }

    /// How close to each other the devices of a gang are.
    pub fn locality(&self, topology: &Topology, placement: &Placement) -> Locality {
        let links = self.links_part(topology, placement);
        Locality { within: placement.domain(topology), links }
    }

    /// Bandwidth of the slowest pair of a gang inside its nodes, as a part of that of the best set
    /// of as many devices of the same class there; the least of all nodes. One where no links tell.
    fn links_part(&self, topology: &Topology, placement: &Placement) -> Micro {
        let parts = placement.devices_by_node().into_iter().filter_map(|(node, devices)| {
            let interconnect = &self.interconnects[node.index()];
            if interconnect.is_uniform() {
                return None;
            }
            let class = topology.device(*devices.first()?).class;
            let alike = |id: &DeviceId| topology.device(*id).class == class;
            let all = self.devices[node.index()].iter().copied().filter(alike);
            let set = self.local_set(node, devices.iter().copied());
            let best = interconnect.fastest(self.local_set(node, all), set.count_ones())?;
            let own = interconnect.slowest(set)?;
            let part = own.bandwidth?.0 as f64 / best.bandwidth?.0.max(1) as f64;
            Micro::from_f64(part.min(1.0))
        });
        parts.min().unwrap_or(Locality::BEST.links).max(Micro(1))
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

fn local_rows(topology: &Topology) -> Vec<usize> {
    let mut next = vec![[0; 2]; topology.nodes.len()];
    let row = |id| {
        let is_socket = topology.class_of(id).kind == "cpu";
        let counter = &mut next[topology.device(id).node.index()][usize::from(is_socket)];
        *counter += 1;
        *counter - 1
    };
    topology.device_ids().map(row).collect()
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
    use crate::interconnect::tests::{link, machine, switch};

    #[test]
    fn a_device_is_nearest_to_the_socket_on_whose_bus_it_is() {
        let [gpu0, gpu1, gpu2, cpu0, cpu1] = [0, 1, 2, 3, 4].map(DeviceId);
        let topology = machine(
            3,
            2,
            vec![
                link(cpu0, cpu1, "pcie", 0),
                link(gpu0, switch("pcie1"), "pcie", 0),
                link(switch("pcie1"), cpu1, "pcie", 0),
                link(gpu1, cpu0, "pcie", 0),
                // A peer is no way to a socket.
                link(gpu1, gpu2, "pcie", 0),
                link(gpu0, gpu1, "pcie", 0),
            ],
        );
        let index = Index::of(&topology);
        let hosts: Vec<_> = topology.device_ids().map(|id| index.host(&topology, id)).collect();
        assert_eq!(hosts, [Some(cpu1), Some(cpu0), None, None, None]);
    }
}
