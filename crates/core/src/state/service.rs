//! What is in service: nodes and devices that come and go, fail, are drained, or are used by
//! others. Only what an event touches is counted anew.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::State;
use super::parts::reach;
use crate::{
    DeviceId, Free, HostResources, Index, Joined, Name, NodeId, Placement, Share, ShareMillis,
    Topology,
};

impl State {
    /// What the topology becomes when these nodes join.
    pub fn joined_by(&self, nodes: &Topology) -> Joined {
        let known = (&*self.index, self.host_held());
        self.topology.joined_by(nodes, &self.vacant_nodes(), known)
    }

    pub(super) fn join(&mut self, joining: &Topology) {
        let Joined { topology, nodes, devices, reused, keeps_index } = self.joined_by(joining);
        if topology != *self.topology {
            self.topology = Arc::new(topology);
        }
        self.add_rows();
        if !keeps_index {
            self.index = Arc::new(Index::of(&self.topology));
        }
        reused.into_iter().for_each(|node| self.forget_past_of(node));
        let present: BTreeSet<DeviceId> = devices.into_iter().collect();
        let joined: BTreeSet<NodeId> = nodes.into_iter().collect();
        for &node in &joined {
            self.removed.remove(&node);
            self.lost[node.index()] = false;
            for &device in &self.index.devices[node.index()] {
                match present.contains(&device) {
                    true => self.absent.remove(&device),
                    false => self.absent.insert(device),
                };
            }
            if keeps_index {
                self.count_node(node);
            }
        }
        if !keeps_index {
            self.count_all();
        }
        // Devices that are new may be used by others, too.
        self.spread_taken_on(&joined);
    }

    pub(super) fn remove_node(&mut self, name: &Name) {
        let found = self.topology.node_ids().find(|&id| self.topology.node(id).name == *name);
        let Some(node) = found else { return };
        self.removed.insert(node);
        self.count_node(node);
    }

    /// Whether something still stands on a node that was removed.
    pub(super) fn is_held_on_removed(&self) -> bool {
        let is_held = |id: &DeviceId| self.held[id.index()] > Share::ZERO;
        let mut nodes = self.removed.iter().map(|node| &self.index.devices[node.index()]);
        nodes.any(|devices| devices.iter().any(is_held))
    }

    /// Removed nodes that nothing names any more: their rows may be given to others.
    fn vacant_nodes(&self) -> BTreeSet<NodeId> {
        let mut vacant = self.removed.clone();
        if vacant.is_empty() {
            return vacant;
        }
        let held = self.leases.values().map(|lease| &lease.placement);
        let claimed = self.claims.values().map(|claim| &claim.placement);
        let stages = self.jobs.values().flat_map(|job| &job.stages);
        let ran = stages.filter_map(|stage| stage.placement.as_ref());
        for placement in held.chain(claimed).chain(ran) {
            placement.ranks.iter().for_each(|rank| {
                vacant.remove(&rank.node);
            });
        }
        vacant
    }

    /// Nothing has happened yet to rows that are new.
    fn add_rows(&mut self) {
        let classes = self.topology.classes.len();
        let (nodes, devices) = (self.topology.nodes.len(), self.topology.devices.len());
        self.used.values_mut().for_each(|used| reach(used, classes));
        [&mut self.lost, &mut self.suspected].into_iter().for_each(|flags| reach(flags, nodes));
        reach(&mut self.failed, devices);
        [&mut self.service, &mut self.held].into_iter().for_each(|shares| reach(shares, devices));
        let spans = [&mut self.charged, &mut self.busy, &mut self.useful];
        spans.into_iter().for_each(|spans| reach(spans, devices));
    }

    /// The row of a node belongs to another.
    fn forget_past_of(&mut self, node: NodeId) {
        self.lost[node.index()] = false;
        self.suspected[node.index()] = false;
        self.taken.retain(|(of, _), _| *of != node);
        self.take_host(node, HostResources::NONE);
        for &device in &self.index.devices[node.index()] {
            let at = device.index();
            self.failed[at] = false;
            self.drained.remove(&device);
            self.occupied.remove(&device);
            self.suspicions.remove(&device);
            self.slow_devices.remove(&device);
            self.degraded.remove(&device);
            self.taken_of.remove(&device);
            let spans = [&mut self.charged, &mut self.busy, &mut self.useful];
            spans.into_iter().for_each(|spans| spans[at] = ShareMillis::ZERO);
        }
    }

    pub(super) fn set_node(&mut self, node: NodeId, change: impl FnOnce(&mut Self, usize)) {
        change(self, node.index());
        self.count_node(node);
    }

    pub(super) fn set_device(&mut self, device: DeviceId, change: impl FnOnce(&mut Self)) {
        change(self);
        self.count_device(device);
    }

    pub(super) fn take(&mut self, node: NodeId, class: usize, amount: Share) {
        match amount {
            Share::ZERO => self.taken.remove(&(node, class)),
            _ => self.taken.insert((node, class), amount),
        };
        self.spread_taken(node, class);
    }

    pub(super) fn take_host(&mut self, node: NodeId, amount: HostResources) {
        match amount {
            HostResources::NONE => self.host_taken.remove(&node),
            _ => self.host_taken.insert(node, amount),
        };
        self.free.take_host(node, amount);
    }

    /// What others use and could not be counted off because leases held it may be now.
    pub(super) fn spread_taken_over(&mut self, placement: &Placement) {
        if !self.taken.is_empty() {
            self.spread_taken_on(&placement.ranks.iter().map(|rank| rank.node).collect());
        }
    }

    fn spread_taken_on(&mut self, nodes: &BTreeSet<NodeId>) {
        let taken = self.taken.keys().filter(|(node, _)| nodes.contains(node));
        let taken: Vec<(NodeId, usize)> = taken.copied().collect();
        taken.into_iter().for_each(|(node, class)| self.spread_taken(node, class));
    }

    /// Counts what others use of a class off devices that no lease holds, from the last row on;
    /// those that are down only where no other is left. What it is counted off already stays:
    /// nobody knows better. Where leases hold all, the rest is counted off as they end.
    fn spread_taken(&mut self, node: NodeId, class: usize) {
        let devices = &self.index.devices[node.index()];
        let of_class = devices.iter().filter(|id| self.topology.device(**id).class == class);
        let devices: Vec<DeviceId> = of_class.copied().collect();
        let mut wanted = self.taken(node, class);
        for &device in &devices {
            let kept = self.taken_of.get(&device).copied().unwrap_or_default().min(wanted);
            wanted -= kept;
            self.count_off(device, kept);
        }
        let (up, down): (Vec<DeviceId>, Vec<DeviceId>) =
            devices.into_iter().rev().partition(|id| self.is_up(*id));
        for device in up.into_iter().chain(down) {
            let counted = self.taken_of.get(&device).copied().unwrap_or_default();
            let used = self.held[device.index()] + counted;
            let more = self.topology.device(device).capacity.saturating_sub(used).min(wanted);
            wanted -= more;
            self.count_off(device, counted + more);
        }
    }

    fn count_off(&mut self, device: DeviceId, taken: Share) {
        match taken {
            Share::ZERO => self.taken_of.remove(&device),
            _ => self.taken_of.insert(device, taken),
        };
        self.count_device(device);
    }

    fn count_node(&mut self, node: NodeId) {
        let index = Arc::clone(&self.index);
        index.devices[node.index()].iter().for_each(|&device| self.count_device(device));
    }

    fn count_device(&mut self, device: DeviceId) {
        let (before, now) = (self.service[device.index()], self.in_service(device));
        if before != now {
            self.free.change_service(&self.index, device, before, now);
            self.service[device.index()] = now;
        }
    }

    /// Counts what is in service from nothing, and has it all free.
    pub(super) fn count_service(&mut self) {
        self.service = self.topology.device_ids().map(|id| self.in_service(id)).collect();
        self.free = Free::all_of(&self.index, &self.service);
        self.host_taken.iter().for_each(|(node, amount)| self.free.take_host(*node, *amount));
    }

    fn count_all(&mut self) {
        self.count_service();
        for lease in self.leases.values() {
            self.free.take(&self.index, &lease.placement);
        }
    }

    fn in_service(&self, id: DeviceId) -> Share {
        match self.suspected_since(id) {
            None => self.sound_share(id),
            Some(_) => Share::ZERO,
        }
    }

    /// What of a device could be used, whether or not programs hang on it.
    pub fn sound_share(&self, id: DeviceId) -> Share {
        let device = self.topology.device(id);
        let node = device.node;
        let is_sound = !self.failed[id.index()]
            && !self.drained.contains(&id)
            && !self.occupied.contains_key(&id)
            && !self.absent.contains(&id);
        let node_is_up = !self.lost[node.index()]
            && !self.suspected[node.index()]
            && !self.removed.contains(&node);
        match is_sound && node_is_up {
            true => {
                device.capacity.saturating_sub(self.taken_of.get(&id).copied().unwrap_or_default())
            }
            false => Share::ZERO,
        }
    }
}
