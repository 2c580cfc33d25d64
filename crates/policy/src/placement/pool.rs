//! Free devices, cores and memory as one round sees them; placements are taken out as they are
//! decided.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use het_core::{
    ByNode, Bytes, DeviceGroup, DeviceId, Drivers, Free, Grant, HostResources, Isolation, Name,
    NodeId, Placement, Selector, Share, StageKey, State,
};

use super::packing::Mix;

/// Devices that a selector accepts.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    /// Rows of [`het_core::Index::device_groups`].
    device_groups: Arc<[usize]>,
    by_node: ByNode,
    /// The one group whose members these are.
    all_of: Option<usize>,
}

impl Accepted {
    /// The same on one node only.
    pub fn only(&self, node: NodeId) -> Self {
        let rows = self.by_node.iter().filter(|(of, _)| *of == node).cloned();
        Self {
            device_groups: Arc::clone(&self.device_groups),
            by_node: rows.collect(),
            all_of: None,
        }
    }

    /// Those of them that are among these.
    pub fn among(&self, devices: &BTreeSet<DeviceId>) -> Self {
        self.filtered(|id| devices.contains(id))
    }

    /// Those of them that are not among these.
    pub fn without(&self, devices: &BTreeSet<DeviceId>) -> Self {
        self.filtered(|id| !devices.contains(id))
    }

    fn filtered(&self, keeps: impl Fn(&DeviceId) -> bool) -> Self {
        let of = |ids: &[DeviceId]| ids.iter().filter(|id| keeps(id)).copied().collect();
        let rows = self.by_node.iter().map(|(node, ids)| (*node, of(ids)));
        Self {
            device_groups: Arc::clone(&self.device_groups),
            by_node: rows.collect(),
            all_of: None,
        }
    }

    /// Whether this device is one of them.
    pub fn has(&self, state: &State, device: DeviceId) -> bool {
        self.device_groups.contains(&state.index().memberships[device.index()].group)
    }

    /// By node: the devices, and free whole units among them.
    pub fn free<'p>(
        &'p self,
        pool: &'p Pool<'_>,
    ) -> impl Iterator<Item = (NodeId, &'p [DeviceId], u32)> + 'p {
        let counted = self.all_of.map(|group| pool.free.units_by_node(group));
        self.by_node.iter().enumerate().map(move |(row, (node, ids))| {
            let sum = || ids.iter().map(|&id| pool.free(id).whole_units()).sum();
            (*node, ids.as_slice(), counted.map_or_else(sum, |units| units[row]))
        })
    }

    /// Rows of [`het_core::Index::device_groups`].
    pub fn sorts(&self) -> impl Iterator<Item = usize> + '_ {
        self.device_groups.iter().copied()
    }

    /// Rows of [`het_core::Topology::classes`].
    pub fn classes<'a>(&'a self, state: &'a State) -> impl Iterator<Item = usize> + 'a {
        let class = |&group: &usize| {
            state.topology().device(state.index().device_groups[group].representative).class
        };
        self.device_groups.iter().map(class)
    }
}

/// What is neither used nor reserved.
#[derive(Debug, Clone)]
pub struct Pool<'a> {
    state: &'a State,
    /// Below zero where what is reserved is still in use.
    free: Free,
    /// What is expected to be asked for besides, where that matters.
    expected: Option<Arc<Mix>>,
    /// Filled when first asked for.
    accepted: BTreeMap<(Name, Bytes, Isolation, Drivers, Option<usize>), Accepted>,
}

impl<'a> Pool<'a> {
    /// What is free now for anybody without a claim.
    pub fn of(state: &'a State) -> Self {
        Self::with_claims_of_others(state, None)
    }

    /// What is free for `key`: its own claim does not bind it.
    pub fn for_stage(state: &'a State, key: StageKey) -> Self {
        Self::with_claims_of_others(state, Some(key))
    }

    fn with_claims_of_others(state: &'a State, key: Option<StageKey>) -> Self {
        let mut pool = Self::with(state, state.free().clone());
        for (_, claim) in state.claims().iter().filter(|(stage, _)| Some(**stage) != key) {
            pool.take(&claim.placement);
        }
        pool
    }

    /// The same with devices on which programs hang.
    #[must_use]
    pub fn with_suspected(mut self) -> Self {
        for (device, share) in self.state.suspected_devices() {
            self.free.change_service(self.state.index(), device, Share::ZERO, share);
        }
        self
    }

    /// The cluster as it would be if nobody used it now: what is down does not count.
    pub(crate) fn in_service(state: &'a State) -> Self {
        let mut pool = Self::unused(state, state.service());
        for (node, amount) in state.hosts_taken() {
            pool.free.take_host(node, amount);
        }
        pool
    }

    /// The whole cluster as if nobody used it: what could ever fit. Failed devices count, since
    /// they come back.
    pub fn empty_cluster(state: &'a State) -> Self {
        Self::unused(state, &state.index().capacity)
    }

    fn unused(state: &'a State, capacity: &[Share]) -> Self {
        Self::with(state, Free::all_of(state.index(), capacity))
    }

    fn with(state: &'a State, free: Free) -> Self {
        Self { state, free, expected: None, accepted: BTreeMap::new() }
    }

    /// The same where such requests are expected: see `packing`.
    pub(crate) fn expecting(self, expected: Option<Arc<Mix>>) -> Self {
        Self { expected, ..self }
    }

    pub(crate) fn expected(&self) -> Option<&Mix> {
        self.expected.as_deref()
    }

    pub fn state(&self) -> &'a State {
        self.state
    }

    pub fn free(&self, device: DeviceId) -> Share {
        self.free.share(device)
    }

    /// Of what a node has beside its devices.
    pub fn host(&self, node: NodeId) -> HostResources {
        self.free.host(self.state.topology(), node)
    }

    pub fn sockets(&self, node: NodeId) -> &'a [DeviceId] {
        &self.state.index().sockets[node.index()]
    }

    /// The sockets of a node, those first to which most of these devices are nearest.
    pub(crate) fn sockets_near(&self, node: NodeId, grants: &[Grant]) -> Vec<DeviceId> {
        let (index, topology) = (self.state.index(), self.state.topology());
        let mut sockets = self.sockets(node).to_vec();
        let near = |socket: DeviceId| {
            let hosts = grants.iter().map(|grant| index.host(topology, grant.device));
            hosts.filter(|host| *host == Some(socket)).count()
        };
        sockets.sort_by_cached_key(|&socket| Reverse(near(socket)));
        sockets
    }

    /// Free whole units of a node's accelerators, by group of device, each with its class.
    pub(crate) fn accelerators(&self, node: NodeId) -> impl Iterator<Item = (usize, u32)> + '_ {
        let index = self.state.index();
        index.accelerators_of[node.index()].iter().map(|at| {
            let class =
                self.state.topology().device(index.device_groups[at.group].representative).class;
            (class, self.free.units_by_node(at.group)[at.row])
        })
    }

    /// Whole free cores of a node's sockets.
    pub fn free_cores(&self, node: NodeId) -> u32 {
        self.sockets(node).iter().map(|&socket| self.free(socket).whole_units()).sum()
    }

    /// The devices that a selector accepts, of one class if one is named.
    pub(crate) fn accepted(&mut self, selector: &Selector, class: Option<usize>) -> Accepted {
        let Selector { word, memory_min, isolation, drivers, .. } = selector;
        let key = (word.clone(), *memory_min, *isolation, drivers.clone(), class);
        let state = self.state;
        self.accepted.entry(key).or_insert_with(|| accepted(state, selector, class)).clone()
    }

    /// Free whole units among accepted devices.
    pub(crate) fn units(&self, accepted: &Accepted) -> u32 {
        accepted.device_groups.iter().map(|&group| self.free.units(group)).sum()
    }

    /// Free whole units by device class.
    pub(crate) fn units_by_class(&self) -> Vec<u32> {
        let topology = self.state.topology();
        let mut units = vec![0; topology.classes.len()];
        for (row, group) in self.state.index().device_groups.iter().enumerate() {
            units[topology.device(group.representative).class] += self.free.units(row);
        }
        units
    }

    /// Uses a placement, or keeps it for somebody, whoever uses it now.
    pub fn take(&mut self, placement: &Placement) {
        self.free.take(self.state.index(), placement);
    }

    /// The opposite of [`Pool::take`].
    pub fn give_back(&mut self, placement: &Placement) {
        self.free.give_back(self.state.index(), placement);
    }

    /// Whether all of a placement is free.
    pub fn covers(&self, placement: &Placement) -> bool {
        let mut need: BTreeMap<DeviceId, Share> = BTreeMap::new();
        for grant in placement.grants() {
            *need.entry(grant.device).or_default() += grant.share;
        }
        need.iter().all(|(&device, &share)| share <= self.free(device))
            && placement.host_by_node().iter().all(|(&node, held)| held.fits(self.host(node)))
    }
}

/// The device groups that a selector accepts, of one class if one is named. Mostly that is one
/// group, and nothing is copied.
pub(crate) fn accepted(state: &State, selector: &Selector, class: Option<usize>) -> Accepted {
    let topology = state.topology();
    let accepts = |group: &DeviceGroup| {
        class.is_none_or(|class| topology.device(group.representative).class == class)
            && selector.accepts(topology, group.representative)
    };
    let all = &state.index().device_groups;
    let device_groups: Arc<[usize]> = (0..all.len()).filter(|&row| accepts(&all[row])).collect();
    if let [only] = *device_groups {
        return Accepted {
            all_of: Some(only),
            by_node: Arc::clone(&all[only].members),
            device_groups,
        };
    }
    let mut by_node: BTreeMap<NodeId, Vec<DeviceId>> = BTreeMap::new();
    for (node, ids) in device_groups.iter().flat_map(|&row| all[row].members.iter()) {
        by_node.entry(*node).or_default().extend(ids);
    }
    by_node.values_mut().for_each(|ids| ids.sort_unstable());
    Accepted { device_groups, by_node: by_node.into_iter().collect(), all_of: None }
}
