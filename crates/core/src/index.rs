//! What follows from a topology once and for all, so that rounds need not derive it again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Bytes, DeviceId, NodeId, Share, Topology};

/// Devices by node.
pub type ByNode = Arc<[(NodeId, Vec<DeviceId>)]>;

/// Devices that no selector can tell apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sort {
    /// One of them: what it accepts or refuses, it does for all.
    pub exemplar: DeviceId,
    pub members: ByNode,
    /// Peak of a unit; one where it is unknown, so that such devices count next to nothing beside
    /// others and all alike among themselves.
    pub peak_gflops: u64,
}

/// Derived tables of a topology; rows as there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    pub sorts: Vec<Sort>,
    /// Devices of each node.
    pub devices: Arc<[Vec<DeviceId>]>,
    /// Device classes of each node; rows of [`Topology::classes`].
    pub classes: Arc<[Vec<usize>]>,
    /// CPU sockets of each node.
    pub sockets: Arc<[Vec<DeviceId>]>,
    /// Capacity of each device.
    pub capacity: Vec<Share>,
    /// Memory of each node.
    pub memory: Vec<Bytes>,
    /// How many accelerators there are.
    pub accelerators: usize,
    /// Of all devices together; see [`Sort::peak_gflops`].
    pub peak_gflops: u64,
}

impl Index {
    pub fn of(topology: &Topology) -> Self {
        let mut sockets = vec![Vec::new(); topology.nodes.len()];
        let mut devices = sockets.clone();
        let mut classes = vec![Vec::new(); topology.nodes.len()];
        let mut sorts: BTreeMap<_, BTreeMap<NodeId, Vec<DeviceId>>> = BTreeMap::new();
        for id in topology.device_ids() {
            let device = topology.device(id);
            let sort = (device.class, &device.drivers, topology.memory_of(id));
            sorts.entry(sort).or_default().entry(device.node).or_default().push(id);
            devices[device.node.index()].push(id);
            let here: &mut Vec<usize> = &mut classes[device.node.index()];
            if !here.contains(&device.class) {
                here.push(device.class);
            }
            if topology.class_of(id).kind == "cpu" {
                sockets[device.node.index()].push(id);
            }
        }
        let mut sorts: Vec<Sort> = sorts
            .into_values()
            .filter_map(|by_node| {
                let exemplar = *by_node.values().flatten().min()?;
                let peak_gflops = topology.class_of(exemplar).peak_gflops.unwrap_or(1);
                Some(Sort { exemplar, members: by_node.into_iter().collect(), peak_gflops })
            })
            .collect();
        sorts.sort_by_key(|sort| sort.exemplar);
        Self {
            devices: devices.into(),
            classes: classes.into(),
            sockets: sockets.into(),
            capacity: topology.devices.iter().map(|device| device.capacity).collect(),
            accelerators: topology.accelerators().count(),
            memory: topology.nodes.iter().map(|node| node.memory).collect(),
            peak_gflops: sorts.iter().map(|sort| sort.peak_gflops * sort.units(topology)).sum(),
            sorts,
        }
    }
}

impl Sort {
    /// Whole units of all members.
    fn units(&self, topology: &Topology) -> u64 {
        let members = self.members.iter().flat_map(|(_, devices)| devices);
        members.map(|id| u64::from(topology.device(*id).capacity.whole_units())).sum()
    }
}
