//! Nodes and devices that come, go, fail, and are used by others.

use std::array::from_fn;
use std::collections::BTreeSet;
use std::sync::Arc;

use het_core::{DeviceId, Event, HostResources, NodeId, Placement, StageKey, State, Topology};

use super::Oracle;

impl Oracle {
    /// Takes in what changes what is in service.
    pub(super) fn service(&mut self, event: &Event) {
        match event {
            Event::NodesJoined { nodes } => self.joining = Some(Arc::clone(nodes)),
            Event::NodeRemoved { name } => {
                let ids = self.topology.node_ids();
                let named = ids.filter(|&id| self.topology.node(id).name == *name);
                self.removed_nodes.extend(named);
            }
            Event::CapacityTaken { node, class, amount } => {
                self.taken.insert((*node, *class), u64::from(amount.0));
            }
            Event::HostTaken { node, amount } => {
                self.host_taken.insert(*node, *amount);
            }
            Event::NodeLost { node } => {
                self.lost_nodes.insert(*node);
            }
            Event::NodeReturned { node } => {
                self.lost_nodes.remove(node);
            }
            Event::NodeSuspected { node } => {
                self.suspected_nodes.insert(*node);
            }
            Event::NodeCleared { node } => {
                self.suspected_nodes.remove(node);
            }
            Event::DeviceFailed { device } => {
                self.failed_devices.insert(*device);
            }
            Event::DeviceRepaired { device } => {
                self.failed_devices.remove(device);
            }
            Event::DeviceDrained { device } => {
                self.drained_devices.insert(*device);
            }
            Event::DeviceUndrained { device } => {
                self.drained_devices.remove(device);
            }
            Event::DeviceOccupied { device, .. } => {
                self.occupied_devices.insert(*device);
            }
            Event::DeviceVacated { device } => {
                self.occupied_devices.remove(device);
            }
            _ => {}
        }
    }

    /// It failed, its node did or is going to, or it is kept from use.
    pub(super) fn is_down(&self, device: DeviceId) -> bool {
        let node = self.topology.device(device).node;
        self.lost_nodes.contains(&node)
            || self.suspected_nodes.contains(&node)
            || self.failed_devices.contains(&device)
            || self.drained_devices.contains(&device)
            || self.occupied_devices.contains(&device)
            || self.removed_nodes.contains(&node)
            || self.absent_devices.contains(&device)
    }

    /// Some devices of its class on its node are.
    pub(super) fn is_used_by_others(&self, device: DeviceId) -> bool {
        let device = self.topology.device(device);
        self.taken.get(&(device.node, device.class)).is_some_and(|&taken| taken > 0)
    }

    /// A row keeps its meaning for as long as anything names it, and every node that joined stands
    /// in one row with all its devices.
    pub(super) fn take_in_nodes(&mut self, state: &State) {
        let Some(joining) = self.joining.take() else { return };
        let before = std::mem::replace(&mut self.topology, Arc::clone(state.topology()));
        let now = Arc::clone(&self.topology);
        let named: BTreeSet<NodeId> =
            self.placements().flat_map(|place| &place.ranks).map(|rank| rank.node).collect();
        for node in before.node_ids().filter(|id| before.node(*id).name != now.node(*id).name) {
            self.given_away(&before, node, named.contains(&node));
        }
        for device in before.device_ids() {
            let (was, is) = (before.device(device), now.device(device));
            let kept = named.contains(&was.node);
            if kept && (was.node, was.class, was.capacity) != (is.node, is.class, is.capacity) {
                self.blame(1, format!("device {device} is another and something stands there"));
            }
        }
        self.charged.resize(now.devices.len(), 0);
        for (row, node) in joining.nodes.iter().enumerate() {
            let ids = now.node_ids().filter(|id| now.node(*id).name == node.name);
            match ids.collect::<Vec<_>>()[..] {
                [id] => self.joined(&joining, row, id),
                ref ids => self.blame(1, format!("`{}` stands in {} rows", node.name, ids.len())),
            }
        }
    }

    /// The row of a node belongs to another.
    fn given_away(&mut self, before: &Topology, node: NodeId, is_named: bool) {
        if !self.removed_nodes.remove(&node) {
            self.blame(1, format!("the row of node {node} was given away"));
        }
        if is_named {
            self.blame(1, format!("node {node} is another and something stands there"));
        }
        self.lost_nodes.remove(&node);
        self.suspected_nodes.remove(&node);
        self.taken.retain(|(of, _), _| *of != node);
        self.host_taken.remove(&node);
        for device in before.device_ids().filter(|id| before.device(*id).node == node) {
            let sets = [
                &mut self.failed_devices,
                &mut self.drained_devices,
                &mut self.occupied_devices,
                &mut self.absent_devices,
            ];
            sets.into_iter().for_each(|set| {
                set.remove(&device);
            });
            self.charged[device.index()] = 0;
        }
    }

    /// A node that joined as a row of `joining` stands in row `id` with all its devices.
    fn joined(&mut self, joining: &Topology, row: usize, id: NodeId) {
        self.removed_nodes.remove(&id);
        self.lost_nodes.remove(&id);
        let own = joining.devices.iter().filter(|device| device.node.index() == row);
        let own = own.map(|device| (&joining.classes[device.class].id, &device.visible_id));
        let mut brought: Vec<_> = own.collect();
        let now = Arc::clone(&self.topology);
        for device in now.device_ids().filter(|of| now.device(*of).node == id) {
            let known = (&now.class_of(device).id, &now.device(device).visible_id);
            match brought.iter().position(|other| *other == known) {
                Some(at) => {
                    brought.remove(at);
                    self.absent_devices.remove(&device);
                }
                None => {
                    self.absent_devices.insert(device);
                }
            }
        }
        if !brought.is_empty() {
            let count = brought.len();
            self.blame(1, format!("`{}` lacks {count} devices", now.node(id).name));
        }
    }

    /// Everything that names nodes and devices.
    fn placements(&self) -> impl Iterator<Item = &Placement> {
        let held = self.holds.values().map(|hold| &*hold.placement);
        held.chain(self.claims.values().map(|placement| &**placement))
    }

    /// Nothing starts on what others use.
    pub(super) fn nothing_taken_is_promised(&mut self, newest: StageKey, placement: &Placement) {
        let place = |device: DeviceId| {
            let device = self.topology.device(device);
            (device.node, device.class)
        };
        let touched: BTreeSet<_> = placement.grants().map(|grant| place(grant.device)).collect();
        let over = touched.into_iter().filter(|at| {
            let Some(&taken) = self.taken.get(at) else { return false };
            let grants = self.holds.values().flat_map(|hold| hold.placement.grants());
            let of_place = grants.filter(|grant| place(grant.device) == *at);
            let held: u64 = of_place.map(|grant| u64::from(grant.share.0)).sum();
            let devices = self.topology.device_ids().filter(|id| place(*id) == *at);
            let capacity = devices.map(|id| u64::from(self.topology.device(id).capacity.0));
            held + taken > capacity.sum()
        });
        for (node, _) in over.collect::<Vec<_>>() {
            self.blame(1, format!("{newest} is given what others use on node {node}"));
        }
        self.nothing_taken_beside_is_promised(newest, placement);
    }

    /// The same beside devices, of what the start asks for.
    fn nothing_taken_beside_is_promised(&mut self, newest: StageKey, placement: &Placement) {
        let over = |(node, asked): &(NodeId, HostResources)| {
            let taken = amounts(self.host_taken.get(node).copied().unwrap_or_default());
            let all = amounts(self.topology.node(*node).host);
            let ranks = self.holds.values().flat_map(|hold| &hold.placement.ranks);
            let of_node = ranks.filter(|rank| rank.node == *node).map(|rank| amounts(rank.host));
            let held = of_node.fold([0; 4], |sums, of| from_fn(|at| sums[at] + of[at]));
            (0..4).any(|at| amounts(*asked)[at] > 0 && held[at] + taken[at] > all[at])
        };
        let over: Vec<_> = placement.host_by_node().into_iter().filter(over).collect();
        for (node, _) in over {
            self.blame(1, format!("{newest} is given what others use beside on node {node}"));
        }
    }
}

pub(super) fn amounts(of: HostResources) -> [u64; 4] {
    [of.memory.0, of.scratch.0, of.read.0, of.tasks]
}
