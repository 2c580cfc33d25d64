//! What nobody holds: shares of devices and what nodes have beside, counted in whole units too, so
//! that whoever looks for room need not add them up.

use crate::{
    DeviceGroup, DeviceId, Grant, HostResources, Index, NodeId, Placement, Share, Topology,
};

/// What nobody holds; shares are below zero where what is held is out of service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Free {
    /// By device, in 1/10,000.
    shares: Vec<i64>,
    /// Of what each node has beside its devices, what is held: so much may be missing of it.
    host_held: Vec<HostResources>,
    /// The same that others use; what is held may be held of it.
    host_taken: Vec<HostResources>,
    /// Whole units by group of device.
    units: Vec<Units>,
}

/// Whole units of one group of device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Units {
    all: u32,
    /// By row of [`DeviceGroup::members`].
    by_row: Vec<u32>,
}

impl Free {
    /// So much of each device, and all that nodes have beside.
    pub fn all_of(index: &Index, shares: &[Share]) -> Self {
        let none = |group: &DeviceGroup| Units { all: 0, by_row: vec![0; group.members.len()] };
        let mut free = Self {
            shares: shares.iter().map(|share| i64::from(share.0)).collect(),
            host_held: vec![HostResources::NONE; index.devices.len()],
            host_taken: vec![HostResources::NONE; index.devices.len()],
            units: index.device_groups.iter().map(none).collect(),
        };
        for (share, at) in shares.iter().zip(&*index.memberships) {
            let units = &mut free.units[at.group];
            units.all += share.whole_units();
            units.by_row[at.row] += share.whole_units();
        }
        free
    }

    /// Of one device.
    pub fn share(&self, device: DeviceId) -> Share {
        Share(self.shares[device.index()].max(0) as u32)
    }

    /// What is held of each node beside its devices.
    pub fn host_held(&self) -> &[HostResources] {
        &self.host_held
    }

    /// What is left of a node beside its devices.
    pub fn host(&self, topology: &Topology, node: NodeId) -> HostResources {
        let used = self.host_held[node.index()].plus(self.host_taken[node.index()]);
        topology.node(node).host.minus(used)
    }

    /// Others use so much of a node beside its devices.
    pub fn take_host(&mut self, node: NodeId, amount: HostResources) {
        self.host_taken[node.index()] = amount;
    }

    /// Whole units of a group of device; a row of [`Index::device_groups`].
    pub fn units(&self, group: usize) -> u32 {
        self.units[group].all
    }

    /// The same by node, in the order of [`DeviceGroup::members`].
    pub fn units_by_node(&self, group: usize) -> &[u32] {
        &self.units[group].by_row
    }

    pub fn take(&mut self, index: &Index, placement: &Placement) {
        self.change(index, placement, (-1, HostResources::plus));
    }

    pub fn give_back(&mut self, index: &Index, placement: &Placement) {
        self.change(index, placement, (1, HostResources::minus));
    }

    /// Another part of a device is in service.
    pub fn change_service(&mut self, index: &Index, device: DeviceId, before: Share, after: Share) {
        self.change_share(index, device, i64::from(after.0) - i64::from(before.0));
    }

    fn change_share(&mut self, index: &Index, device: DeviceId, more: i64) {
        let free = &mut self.shares[device.index()];
        let before = whole_units(*free);
        *free += more;
        let after = whole_units(*free);
        let at = index.memberships[device.index()];
        let units = &mut self.units[at.group];
        units.all = units.all - before + after;
        units.by_row[at.row] = units.by_row[at.row] - before + after;
    }

    /// What becomes of free shares, and of what is held beside devices.
    fn change(
        &mut self,
        index: &Index,
        placement: &Placement,
        (sign, held_with): (i64, fn(HostResources, HostResources) -> HostResources),
    ) {
        for Grant { device, share } in placement.grants() {
            self.change_share(index, device, sign * i64::from(share.0));
        }
        for rank in &placement.ranks {
            let held = &mut self.host_held[rank.node.index()];
            *held = held_with(*held, rank.host);
        }
    }
}

/// Of what may be below zero.
fn whole_units(share: i64) -> u32 {
    Share(share.max(0) as u32).whole_units()
}
