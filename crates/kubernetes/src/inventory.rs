//! What the cluster has: nodes and others' pods as topology and events. No I/O.
//!
//! A node's extended resources are counts, of which the kubelet picks devices itself: each becomes
//! so many slots, which are devices here, named after the resource (`nvidia.com/gpu/3`). The cores
//! of a node are one device.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{
    Bytes, Device, DeviceClass, Domain, Event, HostResources, Name, Node, NodeId, Share, State,
    Topology,
};

use crate::device_table::{DeviceTable, Known, dra_taints};
use crate::dra::{Claimable, claimed};
use crate::names::HOSTNAME;
use crate::network::{Network, NetworkObjects};
use crate::objects::NodeRow;
use crate::resources::{CPU, MEMORY, PODS, Requests, SCRATCH, host_of, is_device};

/// Larger than any device: what more somebody asks for makes no difference.
const TAKEN_MAX: u64 = Share::units(100_000).0 as u64;
const ARCHITECTURE: &str = "kubernetes.io/arch";

/// Nodes as they are, and as the loop was told that they are.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    table: DeviceTable,
    network: Network,
    nodes: BTreeMap<Name, NodeRow>,
    /// By node and resource: devices that are claimed and not requested.
    claimable: BTreeMap<Name, BTreeMap<Name, Slots>>,
    /// By node and resource: what others' pods request and others' claims have, in thousandths.
    others: BTreeMap<Name, BTreeMap<String, u64>>,
    told: BTreeMap<Name, Told>,
    /// Nodes of which something may have to be told.
    changed: BTreeSet<Name>,
    /// Goes up when nodes come, go or are described otherwise.
    revision: u64,
    /// Rows of the topology that the engine was shown last.
    rows: BTreeMap<Name, NodeId>,
}

/// What the loop knows of a node.
#[derive(Debug, Default)]
struct Told {
    /// It has joined and was not removed.
    is_there: bool,
    /// With its devices, as a topology of its own; `None` where it may have been another.
    node: Option<Topology>,
    is_lost: bool,
    is_suspected: bool,
    /// By class id.
    taken: BTreeMap<Name, Share>,
    /// Beside devices.
    host_taken: HostResources,
}

impl Inventory {
    pub fn new(table: DeviceTable) -> Self {
        Self { table, ..Self::default() }
    }

    /// Takes over what a state knows, and has everything that differs told.
    pub fn adopt(&mut self, state: &State) {
        let topology = state.topology();
        self.told.clear();
        for id in topology.node_ids().filter(|id| !state.is_removed(*id)) {
            let classes = topology.classes.iter().enumerate();
            let taken = classes.map(|(row, class)| (class.id.clone(), state.taken(id, row)));
            let told = Told {
                is_there: true,
                // How it is described may have changed with the table of devices.
                node: None,
                is_lost: state.is_lost(id),
                is_suspected: state.is_suspected(id),
                taken: taken.filter(|(_, share)| *share > Share::ZERO).collect(),
                host_taken: state.host_taken(id),
            };
            self.told.insert(topology.node(id).name.clone(), told);
        }
        self.changed = self.nodes.keys().chain(self.told.keys()).cloned().collect();
        self.topology_changed(topology);
    }

    pub fn topology_changed(&mut self, topology: &Topology) {
        let rows = topology.node_ids().map(|id| (topology.node(id).name.clone(), id));
        self.rows = rows.collect();
    }

    pub fn see(&mut self, row: NodeRow) {
        let before = self.nodes.get(&row.name);
        if before != Some(&row) {
            let is_as_before = before.is_some_and(|before| {
                before.labels == row.labels
                    && before.taints == row.taints
                    && before.allocatable == row.allocatable
            });
            self.revision += u64::from(!is_as_before);
            self.changed.insert(row.name.clone());
            self.nodes.insert(row.name.clone(), row);
        }
    }

    /// Takes over all objects of a kind that say how nodes are connected.
    pub fn see_network(&mut self, objects: NetworkObjects) {
        self.network.take(objects);
        self.changed.extend(self.nodes.keys().cloned());
        self.revision += 1;
    }

    /// The part of the network that lies within one value of a label of nodes, as far as those go
    /// that offer a resource: the largest. `None` where some of them have not that label, or where
    /// even racks lie in several.
    pub fn level(&self, label: &str, resource: &str) -> Option<Domain> {
        if label == HOSTNAME {
            return Some(Domain::Node);
        }
        let (mut racks, mut pods) = (BTreeMap::new(), BTreeMap::new());
        let (mut are_racks, mut are_pods) = (true, true);
        for (row, _) in self.offering(resource) {
            let value = row.labels.get(label)?;
            let (rack, pod) = self.network.around(row);
            are_racks &= racks.entry(rack).or_insert(value) == &value;
            are_pods &= pods.entry(pod).or_insert(value) == &value;
        }
        match (are_pods, are_racks) {
            (true, true) => Some(Domain::Pod),
            (_, true) => Some(Domain::Rack),
            _ => None,
        }
    }

    /// Takes over the devices of a node that are claimed and not requested.
    pub fn see_claimable<'a>(&mut self, node: &Name, devices: impl Iterator<Item = &'a Claimable>) {
        let mut slots: BTreeMap<Name, Slots> = BTreeMap::new();
        for Claimable { resource, slot, known, .. } in devices {
            let first = || Slots { known: known.clone(), names: BTreeSet::new() };
            let of_resource = slots.entry(resource.clone()).or_insert_with(first);
            of_resource.names.insert(slot.clone());
        }
        match slots.is_empty() {
            true => drop(self.claimable.remove(node)),
            false => drop(self.claimable.insert(node.clone(), slots)),
        }
        self.changed.insert(node.clone());
        self.revise();
    }

    /// The devices of a node that are claimed. Where a plug-in offers the same ones, these are
    /// requested.
    fn claimable_of(&self, row: &NodeRow) -> impl Iterator<Item = (&Name, &Slots)> {
        let of_node = self.claimable.get(&row.name).into_iter().flatten();
        let is_requested = |resource: &Name| {
            let driver = claimed(resource.as_str()).map_or("", |(driver, _)| driver);
            dra_taints(driver).any(|name| row.allocatable.get(name).is_some_and(|it| *it > 0))
        };
        of_node.filter(move |(resource, _)| !is_requested(resource))
    }

    /// What was found out of its nodes may be otherwise by now.
    pub fn revise(&mut self) {
        self.revision += 1;
    }

    pub fn see_gone(&mut self, name: &Name) {
        self.nodes.remove(name);
        self.changed.insert(name.clone());
        self.revision += 1;
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The nodes that offer a resource, and the class of its devices there.
    pub fn offering(&self, resource: &str) -> impl Iterator<Item = (&NodeRow, Name)> {
        self.nodes.values().filter_map(move |row| {
            let amount = row.allocatable.get(resource).copied().unwrap_or_default();
            let class = match resource {
                CPU => Some(processor(row).id),
                resource => self.table.known(resource, &row.labels).map(|known| known.class.id),
            };
            class.filter(|_| amount >= 1_000).map(|class| (row, class))
        })
    }

    /// By class, the names under which its devices are asked for.
    pub fn resources_by_class(&self) -> BTreeMap<Name, BTreeSet<Name>> {
        let mut resources: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
        let mut add = |class: &Name, resource: &str| {
            let of_class = resources.entry(class.clone()).or_default();
            if !of_class.contains(resource) {
                of_class.insert(resource.into());
            }
        };
        for row in self.nodes.values() {
            for (resource, _) in row.allocatable.iter().filter(|(name, _)| is_device(name)) {
                if let Some(known) = self.table.known(resource, &row.labels) {
                    add(&known.class.id, resource);
                }
            }
        }
        for (resource, slots) in self.claimable.values().flatten() {
            add(&slots.known.class.id, resource.as_str());
        }
        resources
    }

    pub fn node(&self, name: &Name) -> Option<&NodeRow> {
        self.nodes.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.nodes.keys()
    }

    /// Resources that nobody knows and that are not offered, and how many nodes have them.
    pub fn not_understood(&self) -> BTreeMap<String, usize> {
        let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
        for row in self.nodes.values() {
            let resources = row.allocatable.iter().filter(|(name, amount)| {
                **amount > 0 && is_device(name) && self.table.known(name, &row.labels).is_none()
            });
            for (name, _) in resources {
                *nodes.entry(name.clone()).or_default() += 1;
            }
        }
        nodes
    }

    /// A pod of somebody else takes so much of a node, or gives it back.
    pub fn others_change(
        &mut self,
        node: &Name,
        before: Option<&Requests>,
        after: Option<&Requests>,
    ) {
        if before == after {
            return;
        }
        let sums = self.others.entry(node.clone()).or_default();
        for (name, amount) in after.into_iter().flatten() {
            let sum = sums.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
        for (name, amount) in before.into_iter().flatten() {
            let sum = sums.entry(name.clone()).or_default();
            *sum = sum.saturating_sub(*amount);
        }
        self.changed.insert(node.clone());
    }

    /// Nodes on which something may start, and those that are named, whatever they are like now.
    pub fn known(&self, named: &BTreeSet<Name>) -> Topology {
        let mut known = Topology::default();
        let rows = self.nodes.values();
        rows.filter(|row| self.may_join(row) || named.contains(&row.name))
            .for_each(|row| append(&mut known, &self.described(row)));
        known
    }

    fn may_join(&self, row: &NodeRow) -> bool {
        row.is_ready && !self.repels(row)
    }

    /// Whether nothing may start there: it is cordoned, or has a taint that is not of a device that
    /// it offers, which pods that want one tolerate.
    fn repels(&self, row: &NodeRow) -> bool {
        let claimable = self.claimable.get(&row.name).into_iter().flat_map(BTreeMap::keys);
        let drivers = claimable.filter_map(|resource| Some(claimed(resource.as_str())?.0));
        let of_drivers: BTreeSet<&str> = drivers.flat_map(dra_taints).collect();
        let is_of_device =
            |key: &String| row.allocatable.contains_key(key) || of_drivers.contains(key.as_str());
        row.is_cordoned || !row.taints.iter().all(is_of_device)
    }

    /// A node with its devices.
    fn described(&self, row: &NodeRow) -> Topology {
        let claimable: Vec<_> = self.claimable_of(row).collect();
        described(row, &claimable, &self.table, &self.network)
    }

    /// What the loop is to be told. Facts about a node that joins follow once it has a row.
    pub fn news(&mut self, topology: &Topology) -> Vec<Event> {
        let mut events = Vec::new();
        let mut joining = Topology::default();
        for name in std::mem::take(&mut self.changed) {
            let Some(row) = self.nodes.get(&name) else {
                // Its row may come back with all that was said of it.
                if let Some(told) = self.told.get_mut(&name)
                    && told.is_there
                {
                    (told.is_there, told.node) = (false, None);
                    events.push(Event::NodeRemoved { name });
                }
                continue;
            };
            let (may_join, repels) = (self.may_join(row), self.repels(row));
            let described = self.described(row);
            let told = self.told.entry(name.clone()).or_default();
            // A new node on which nothing may start yet is none yet: what is decided when it joins
            // would not know.
            if !told.is_there && !may_join {
                continue;
            }
            if told.is_there
                && told.node.is_none()
                && self.rows.get(&name).is_some_and(|id| is_as(&described, topology, *id))
            {
                told.node = Some(described.clone());
            }
            if told.node.as_ref() != Some(&described) {
                append(&mut joining, &described);
                // Whoever joins is there.
                (told.is_there, told.is_lost, told.node) = (true, false, Some(described));
                self.changed.insert(name);
                continue;
            }
            match self.rows.get(&name) {
                Some(&id) => {
                    let others = self.others.get(&name);
                    let is_so = (id, row.is_ready, repels);
                    let taken = taken(row, others, &self.table);
                    told.differences(is_so, &taken, topology, &mut events);
                    let taken = others.map_or(HostResources::NONE, host_of);
                    if told.host_taken != taken {
                        told.host_taken = taken;
                        events.push(Event::HostTaken { node: id, amount: taken });
                    }
                }
                None => drop(self.changed.insert(name)),
            }
        }
        if !joining.nodes.is_empty() {
            events.push(Event::NodesJoined { nodes: joining.into() });
        }
        events
    }
}

/// Devices of a node that are claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slots {
    known: Known,
    names: BTreeSet<Name>,
}

impl Told {
    fn differences(
        &mut self,
        (node, is_ready, repels): (NodeId, bool, bool),
        taken: &BTreeMap<Name, Share>,
        topology: &Topology,
        events: &mut Vec<Event>,
    ) {
        if self.is_lost == is_ready {
            self.is_lost = !is_ready;
            events.push(match self.is_lost {
                true => Event::NodeLost { node },
                false => Event::NodeReturned { node },
            });
        }
        if self.is_suspected != repels {
            self.is_suspected = repels;
            events.push(match self.is_suspected {
                true => Event::NodeSuspected { node },
                false => Event::NodeCleared { node },
            });
        }
        // What is taken of a class that no node has yet is told once one has.
        for (class, of) in topology.classes.iter().enumerate() {
            let amount = taken.get(&of.id).copied().unwrap_or_default();
            let before = self.taken.insert(of.id.clone(), amount).unwrap_or_default();
            if before != amount {
                events.push(Event::CapacityTaken { node, class, amount });
            }
        }
    }
}

/// What others' pods take, by class.
fn taken(row: &NodeRow, others: Option<&Requests>, table: &DeviceTable) -> BTreeMap<Name, Share> {
    let mut taken: BTreeMap<Name, Share> = BTreeMap::new();
    for (resource, amount) in others.into_iter().flatten() {
        let class = match resource.as_str() {
            CPU => Some(processor(row).id),
            resource => match claimed(resource) {
                Some((_, class)) => Some(class.into()),
                // What a node does not offer is allocated by a claim, which is counted itself.
                None if !row.allocatable.contains_key(resource) => None,
                None => table.known(resource, &row.labels).map(|known| known.class.id),
            },
        };
        let share = amount.saturating_mul(u64::from(Share::WHOLE.0)) / 1_000;
        let share = Share(share.min(TAKEN_MAX) as u32);
        if let Some(class) = class.filter(|_| share > Share::ZERO) {
            *taken.entry(class).or_default() += share;
        }
    }
    taken
}

fn described(
    row: &NodeRow,
    claimable: &[(&Name, &Slots)],
    table: &DeviceTable,
    network: &Network,
) -> Topology {
    let mut topology = Topology::default();
    let amount = |resource: &str| row.allocatable.get(resource).copied().unwrap_or_default();
    let cores = (amount(CPU) / 1_000) as u32;
    if cores > 0 {
        let class = class_row(&mut topology, processor(row));
        let device = device("cpu0".into(), class, "cpu".into(), Share::units(cores));
        topology.devices.push(device);
    }
    let requested = row.allocatable.iter().filter(|(name, _)| is_device(name));
    let requested = requested.filter_map(|(resource, amount)| {
        let slots: Vec<Name> = (0..amount / 1_000).map(|at| Name::from(at.to_string())).collect();
        Some((resource.as_str(), table.known(resource, &row.labels)?, slots))
    });
    let claimable = claimable.iter().map(|(resource, Slots { known, names })| {
        (resource.as_str(), known.clone(), names.iter().cloned().collect())
    });
    for (resource, known, slots) in requested.chain(claimable) {
        let class = class_row(&mut topology, known.class);
        for slot in slots {
            let name = format!("{resource}/{slot}").as_str().into();
            let device = device(name, class, known.driver.clone(), Share::WHOLE);
            topology.devices.push(Device { memory: known.memory, ..device });
        }
    }
    let of = |resource| Bytes(amount(resource) / 1_000);
    let limits_pods = row.allocatable.contains_key(PODS);
    let host = HostResources {
        memory: of(MEMORY),
        scratch: of(SCRATCH),
        read: HostResources::UNLIMITED,
        tasks: if limits_pods { amount(PODS) / 1_000 } else { HostResources::TASKS_UNLIMITED },
    };
    let (rack, pod) = network.around(row);
    topology.nodes.push(Node { name: row.name.clone(), host, rack, pod });
    topology
}

/// What is known of a node's processor: without a label no more than its architecture.
fn processor(row: &NodeRow) -> DeviceClass {
    let architecture = row.labels.get(ARCHITECTURE).map_or("any", String::as_str);
    DeviceClass {
        id: format!("cpu-{architecture}").as_str().into(),
        kind: "cpu".into(),
        vendor: "unknown".into(),
        title: format!("processor ({architecture})").as_str().into(),
        peak_gflops: None,
        software: false,
    }
}

fn device(name: Name, class: usize, driver: Name, capacity: Share) -> Device {
    Device {
        node: NodeId(0),
        visible_id: name.clone(),
        name,
        class,
        drivers: vec![driver],
        capacity,
        memory: Bytes::ZERO,
    }
}

fn class_row(topology: &mut Topology, class: DeviceClass) -> usize {
    let known = topology.classes.iter().position(|known| *known == class);
    known.unwrap_or_else(|| {
        topology.classes.push(class);
        topology.classes.len() - 1
    })
}

/// Whether a row of a topology says the same of a node as its description.
fn is_as(described: &Topology, topology: &Topology, id: NodeId) -> bool {
    let of_node = topology.devices.iter().filter(|device| device.node == id);
    let told = of_node.map(|device| (device, &topology.classes[device.class]));
    let own = described.devices.iter().map(|device| (device, &described.classes[device.class]));
    let bare = |(device, class): (&Device, &DeviceClass)| {
        (Device { node: NodeId(0), class: 0, ..device.clone() }, class.clone())
    };
    *topology.node(id) == described.nodes[0] && told.map(bare).eq(own.map(bare))
}

/// Adds a topology of one node to others.
fn append(to: &mut Topology, node: &Topology) {
    let id = NodeId(to.nodes.len() as u32);
    let rows: Vec<usize> = node.classes.iter().map(|it| class_row(to, it.clone())).collect();
    let devices = node.devices.iter();
    let devices = devices.map(|it| Device { node: id, class: rows[it.class], ..it.clone() });
    to.devices.extend(devices);
    to.nodes.extend(node.nodes.iter().cloned());
}

#[cfg(test)]
mod tests;
