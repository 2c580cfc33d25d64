//! Nodes that join a topology. A row keeps its meaning for as long as anything names it: what is
//! known keeps its row, and what is new comes behind or takes the row of a node that was removed
//! and that nothing names any more.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Device, DeviceClass, DeviceId, HostResources, Index, Link, Name, Node, NodeId, Topology, Vertex,
};

/// What a topology becomes when nodes join it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    pub topology: Topology,
    /// The row of every node that joins, in its order there.
    pub nodes: Vec<NodeId>,
    /// The same of its devices.
    pub devices: Vec<DeviceId>,
    /// Rows that belonged to a node of another name.
    pub reused: BTreeSet<NodeId>,
    /// Whether the index of the topology before is that of this one, too.
    pub keeps_index: bool,
}

impl Topology {
    /// This topology with the nodes of `joining` as they are there: known ones, by name, are
    /// brought up to date. `vacant` are the rows that may be given to others; `index` is this
    /// topology's; `held` is what ranks hold of its nodes.
    pub fn joined_by(
        &self,
        joining: &Self,
        vacant: &BTreeSet<NodeId>,
        (index, held): (&Index, &[HostResources]),
    ) -> Joined {
        let mut join = Join::new(self, joining, vacant, (index, held));
        let mut devices_of: Vec<Vec<usize>> = vec![Vec::new(); joining.nodes.len()];
        for (row, device) in joining.devices.iter().enumerate() {
            devices_of[device.node.index()].push(row);
        }
        for (node, devices) in joining.nodes.iter().zip(&devices_of) {
            join.node(node, devices);
        }
        join.links();
        Joined {
            keeps_index: join.keeps_index,
            topology: join.topology,
            nodes: join.nodes,
            devices: join.devices,
            reused: join.reused,
        }
    }
}

/// A topology that nodes are joining.
struct Join<'a> {
    before: &'a Topology,
    joining: &'a Topology,
    index: &'a Index,
    held: &'a [HostResources],
    /// Rows of nodes that join and are known.
    known: BTreeMap<&'a Name, NodeId>,
    vacant: BTreeSet<NodeId>,
    /// The row of each class that joins.
    classes: Vec<usize>,
    topology: Topology,
    nodes: Vec<NodeId>,
    devices: Vec<DeviceId>,
    reused: BTreeSet<NodeId>,
    keeps_index: bool,
}

impl<'a> Join<'a> {
    fn new(
        before: &'a Topology,
        joining: &'a Topology,
        vacant: &BTreeSet<NodeId>,
        (index, held): (&'a Index, &'a [HostResources]),
    ) -> Self {
        let names: BTreeSet<&Name> = joining.nodes.iter().map(|node| &node.name).collect();
        let known = before.node_ids().map(|id| (&before.node(id).name, id));
        let known: BTreeMap<_, _> = known.filter(|(name, _)| names.contains(name)).collect();
        let mut topology = Topology {
            classes: before.classes.clone(),
            nodes: before.nodes.clone(),
            devices: before.devices.clone(),
            links: Vec::with_capacity(before.links.len() + joining.links.len()),
        };
        let classes = joining.classes.iter().map(|class| class_row(&mut topology.classes, class));
        let classes = classes.collect();
        let is_free = |id: &&NodeId| !known.values().any(|known| known == *id);
        Self {
            vacant: vacant.iter().filter(is_free).copied().collect(),
            keeps_index: topology.classes == before.classes,
            devices: vec![DeviceId(0); joining.devices.len()],
            nodes: Vec::new(),
            reused: BTreeSet::new(),
            before,
            joining,
            index,
            held,
            known,
            classes,
            topology,
        }
    }

    fn node(&mut self, node: &'a Node, devices: &[usize]) {
        if let Some(&id) = self.known.get(&node.name) {
            return self.renew(id, node, devices);
        }
        match self.vacant_row(node, devices) {
            Some(id) => self.reuse(id, node, devices),
            None => self.append(node, devices),
        }
    }

    fn device(&self, row: usize, node: NodeId) -> Device {
        let device = &self.joining.devices[row];
        Device { node, class: self.classes[device.class], ..device.clone() }
    }

    /// A node that was here before.
    fn renew(&mut self, id: NodeId, node: &Node, devices: &[usize]) {
        let known = &mut self.topology.nodes[id.index()];
        // What was promised of it must hold when the log is read again.
        let memory = known.host.memory.max(node.host.memory);
        let host = HostResources { memory, ..node.host.most(self.held[id.index()]) };
        // Devices without memory of their own have that of their node.
        self.keeps_index &= host.memory == known.host.memory;
        *known = Node { host, ..node.clone() };
        let mut left = self.index.devices[id.index()].clone();
        for &row in devices {
            let device = self.device(row, id);
            let is_it = |id: &DeviceId| is_same(self.topology.device(*id), &device);
            let at = match left.iter().position(is_it) {
                Some(position) => {
                    let at = left.remove(position);
                    let known = &mut self.topology.devices[at.index()];
                    let device = Device { name: known.name.clone(), ..device };
                    self.keeps_index &= is_alike(known, &device);
                    *known = device;
                    at
                }
                None => {
                    let name = free_name(&self.topology, &device);
                    self.push(Device { name, ..device })
                }
            };
            self.devices[row] = at;
        }
        self.nodes.push(id);
    }

    /// A row whose devices are like those that come, or at least as many.
    fn vacant_row(&self, node: &Node, devices: &[usize]) -> Option<NodeId> {
        let rows = |id: &NodeId| &self.index.devices[id.index()];
        let as_many = |id: &&NodeId| rows(id).len() == devices.len();
        let all_alike = |id: &&NodeId| {
            let known = rows(id).iter().map(|&row| self.before.device(row));
            let mut pairs = known.zip(devices);
            self.before.node(**id).host.memory == node.host.memory
                && pairs.all(|(known, &row)| is_alike(known, &self.device(row, **id)))
        };
        let mut fitting = self.vacant.iter().filter(as_many);
        fitting.clone().find(all_alike).or_else(|| fitting.next()).copied()
    }

    fn reuse(&mut self, id: NodeId, node: &Node, devices: &[usize]) {
        self.vacant.remove(&id);
        self.reused.insert(id);
        self.keeps_index &= self.before.node(id).host.memory == node.host.memory;
        self.topology.nodes[id.index()] = node.clone();
        for (&at, &row) in self.index.devices[id.index()].iter().zip(devices) {
            let device = self.device(row, id);
            let known = &mut self.topology.devices[at.index()];
            self.keeps_index &= is_alike(known, &device);
            *known = device;
            self.devices[row] = at;
        }
        self.nodes.push(id);
    }

    fn append(&mut self, node: &Node, devices: &[usize]) {
        self.keeps_index = false;
        let id = NodeId(self.topology.nodes.len() as u32);
        self.topology.nodes.push(node.clone());
        for &row in devices {
            let at = self.push(self.device(row, id));
            self.devices[row] = at;
        }
        self.nodes.push(id);
    }

    fn push(&mut self, device: Device) -> DeviceId {
        self.keeps_index = false;
        let id = DeviceId(self.topology.devices.len() as u32);
        self.topology.devices.push(device);
        id
    }

    /// Links of nodes that join are those that they bring. Links between switches of nobody in
    /// particular stay until some of the same ends come, or until no other node is left.
    fn links(&mut self) {
        let owners = Owners::of(self.before, &self.nodes);
        let all_join = self.nodes.len() >= self.before.nodes.len()
            && self.before.node_ids().all(|id| owners.nodes.contains(&id));
        let brought: Vec<Link> = self.joining.links.iter().map(|link| self.in_rows(link)).collect();
        let shared = brought.iter().filter(|link| is_between_switches(link)).map(ends);
        let shared: BTreeSet<_> = shared.collect();
        let is_stale = |link: &Link| is_between_switches(link) && shared.contains(&ends(link));
        let mut replaced = Vec::new();
        for link in &self.before.links {
            if all_join || owners.own(link) {
                replaced.push(link.clone());
            } else if !is_stale(link) {
                self.topology.links.push(link.clone());
            }
        }
        self.topology.links.extend(brought.iter().cloned());
        // The index knows from links what joins the devices of a node.
        let after = Owners::of(&self.topology, &self.nodes);
        let shape = |owners: &Owners<'_>, links: &[Link]| -> Vec<Link> {
            links.iter().map(|link| owners.anonymous(link)).collect()
        };
        self.keeps_index &= shape(&owners, &replaced) == shape(&after, &brought);
    }

    fn in_rows(&self, link: &Link) -> Link {
        let end = |vertex: &Vertex| match vertex {
            Vertex::Node(id) => Vertex::Node(self.nodes[id.index()]),
            Vertex::Device(id) => Vertex::Device(self.devices[id.index()]),
            Vertex::Switch(name) => Vertex::Switch(name.clone()),
        };
        Link { from: end(&link.from), to: end(&link.to), ..link.clone() }
    }
}

/// Nodes and what belongs to them: their devices, and switches named `NODE/…`.
struct Owners<'a> {
    topology: &'a Topology,
    nodes: BTreeSet<NodeId>,
    names: BTreeSet<&'a str>,
}

impl<'a> Owners<'a> {
    fn of(topology: &'a Topology, nodes: &[NodeId]) -> Self {
        let known = nodes.iter().filter(|id| id.index() < topology.nodes.len());
        let names = known.clone().map(|&id| topology.node(id).name.as_str()).collect();
        Self { topology, nodes: known.copied().collect(), names }
    }

    fn own(&self, link: &Link) -> bool {
        [&link.from, &link.to].into_iter().any(|vertex| match vertex {
            Vertex::Node(id) => self.nodes.contains(id),
            Vertex::Device(id) => self.nodes.contains(&self.topology.device(*id).node),
            Vertex::Switch(name) => self.within(name).is_some(),
        })
    }

    /// What follows the name of the node that the switch is in.
    fn within<'b>(&self, name: &'b Name) -> Option<&'b str> {
        let (node, rest) = name.as_str().split_once('/')?;
        self.names.contains(node).then_some(rest)
    }

    /// A link without the names of nodes.
    fn anonymous(&self, link: &Link) -> Link {
        let end = |vertex: &Vertex| match vertex {
            Vertex::Switch(name) => match self.within(name) {
                Some(rest) => Vertex::Switch(rest.into()),
                None => vertex.clone(),
            },
            other => other.clone(),
        };
        Link { from: end(&link.from), to: end(&link.to), ..link.clone() }
    }
}

fn is_between_switches(link: &Link) -> bool {
    matches!((&link.from, &link.to), (Vertex::Switch(_), Vertex::Switch(_)))
}

fn ends(link: &Link) -> (&Vertex, &Vertex, &Name) {
    (&link.from, &link.to, &link.kind)
}

/// The row of a class, brought up to date.
fn class_row(known: &mut Vec<DeviceClass>, class: &DeviceClass) -> usize {
    match known.iter().position(|row| row.id == class.id) {
        Some(row) => {
            known[row] = class.clone();
            row
        }
        None => {
            known.push(class.clone());
            known.len() - 1
        }
    }
}

/// Whether it is the same thing, whatever it is called today: a device that falls off the bus
/// moves the numbers of those behind it.
fn is_same(known: &Device, found: &Device) -> bool {
    (known.class, known.capacity, &known.visible_id)
        == (found.class, found.capacity, &found.visible_id)
}

/// Whether an index cannot tell one from the other.
fn is_alike(one: &Device, other: &Device) -> bool {
    (one.class, &one.drivers, one.capacity, one.memory)
        == (other.class, &other.drivers, other.capacity, other.memory)
}

/// Its own name, or the next of its kind that is free on its node.
fn free_name(topology: &Topology, device: &Device) -> Name {
    let of_node = || topology.devices.iter().filter(|known| known.node == device.node);
    let taken = |name: &str| of_node().any(|known| known.name == name);
    if !taken(device.name.as_str()) {
        return device.name.clone();
    }
    let kind = device.name.as_str().trim_end_matches(|c: char| c.is_ascii_digit());
    let mut names = (0..).map(|number: u32| format!("{kind}{number}"));
    names.find(|name| !taken(name)).map_or_else(|| device.name.clone(), Name::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, Share};

    fn device(name: &str, class: usize, visible_id: &str) -> Device {
        Device {
            node: NodeId(0),
            name: name.into(),
            class,
            drivers: vec!["cuda".into()],
            capacity: Share::WHOLE,
            memory: Bytes::gib(80),
            visible_id: visible_id.into(),
        }
    }

    fn class(id: &str) -> DeviceClass {
        DeviceClass {
            id: id.into(),
            kind: "gpu".into(),
            vendor: "NVIDIA".into(),
            title: id.into(),
            peak_gflops: None,
            software: false,
        }
    }

    fn machine(name: &str, devices: &[(&str, usize, &str)], classes: &[&str]) -> Topology {
        let of = |&(name, class, id): &(&str, usize, &str)| device(name, class, id);
        let node = Node {
            name: name.into(),
            host: HostResources::with_memory(Bytes::gib(64)),
            rack: "rack".into(),
            pod: "pod".into(),
        };
        Topology {
            classes: classes.iter().map(|id| class(id)).collect(),
            nodes: vec![node],
            devices: devices.iter().map(of).collect(),
            links: Vec::new(),
        }
    }

    fn link(from: impl Into<Vertex>, to: &str) -> Link {
        let (from, to) = (from.into(), Vertex::Switch(to.into()));
        Link { from, to, kind: "pcie".into(), bandwidth: None, count: 1, latency_ns: None }
    }

    fn joined(known: &Topology, joining: &Topology) -> Joined {
        joined_while_held(known, joining, HostResources::NONE)
    }

    fn joined_while_held(known: &Topology, joining: &Topology, held: HostResources) -> Joined {
        let held = vec![held; known.nodes.len()];
        known.joined_by(joining, &BTreeSet::new(), (&Index::of(known), &held))
    }

    fn names(topology: &Topology) -> Vec<&str> {
        topology.devices.iter().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn an_unchanged_node_changes_nothing() {
        let known = machine("box", &[("cuda0", 0, "a"), ("cuda1", 0, "b")], &["h100"]);
        let same = joined(&known, &known);
        assert_eq!((&same.topology, same.keeps_index), (&known, true));
        assert_eq!(same.devices, [DeviceId(0), DeviceId(1)]);
    }

    #[test]
    fn what_falls_off_the_bus_keeps_its_row_and_the_others_their_names() {
        let three = [("cuda0", 0, "a"), ("cuda1", 0, "b"), ("cuda2", 0, "c")];
        let known = machine("box", &three, &["h100"]);
        let found = machine("box", &[("cuda0", 0, "a"), ("cuda1", 0, "c")], &["h100"]);
        let now = joined(&known, &found);
        assert_eq!(now.topology, known);
        assert_eq!(now.devices, [DeviceId(0), DeviceId(2)]);
    }

    #[test]
    fn what_is_new_comes_behind_under_a_free_name() {
        let known = machine("box", &[("cuda0", 0, "a"), ("cuda1", 0, "b")], &["v100"]);
        let found = machine("box", &[("cuda0", 0, "x"), ("cuda1", 1, "b")], &["h100", "v100"]);
        let now = joined(&known, &found);
        assert_eq!(names(&now.topology), ["cuda0", "cuda1", "cuda2"]);
        assert_eq!(now.devices, [DeviceId(2), DeviceId(1)]);
        let class_of = |id| now.topology.class_of(DeviceId(id)).id.as_str();
        assert_eq!([0, 1, 2].map(class_of), ["v100", "v100", "h100"]);
        assert_eq!(now.topology.validate(), Ok(()));
        assert_eq!(joined(&now.topology, &found).topology, now.topology);
    }

    #[test]
    fn links_lead_to_the_same_devices() {
        let known = machine("box", &[("cuda0", 0, "a"), ("cuda1", 0, "b")], &["h100"]);
        let mut found = machine("box", &[("cuda0", 0, "b")], &["h100"]);
        found.links = vec![link(DeviceId(0), "socket0")];
        let now = joined(&known, &found);
        assert_eq!(now.topology.links, [link(DeviceId(1), "socket0")]);
    }

    #[test]
    fn memory_that_is_missing_is_still_counted() {
        let known = machine("box", &[], &[]);
        let mut found = known.clone();
        found.nodes[0].host.memory = Bytes::gib(32);
        assert_eq!(joined(&known, &found).topology, known);
    }

    #[test]
    fn a_disk_that_became_fuller_has_at_least_what_is_promised() {
        let known = machine("box", &[], &[]);
        let mut found = known.clone();
        found.nodes[0].host.scratch = Bytes::gib(32);
        let scratch = |held| {
            let held = HostResources { scratch: Bytes::gib(held), ..HostResources::NONE };
            joined_while_held(&known, &found, held).topology.nodes[0].host.scratch
        };
        assert_eq!([0, 40].map(scratch), [32, 40].map(Bytes::gib));
    }

    #[test]
    fn another_node_comes_behind() {
        let known = machine("a", &[("cuda0", 0, "x")], &["h100"]);
        let two = joined(&known, &machine("b", &[("cuda0", 0, "x")], &["h100"]));
        assert_eq!((two.nodes, two.devices), (vec![NodeId(1)], vec![DeviceId(1)]));
        assert_eq!(names(&two.topology), ["cuda0", "cuda0"]);
        assert_eq!(two.topology.devices[1].node, NodeId(1));
        assert!(!two.keeps_index);
    }

    #[test]
    fn a_vacant_row_of_the_same_shape_is_reused_with_its_index() {
        let with_link = |name: &str, id: &str| {
            let mut node = machine(name, &[("cuda0", 0, id)], &["h100"]);
            node.links = vec![link(DeviceId(0), &format!("{name}/pcie0"))];
            node.links.push(link(NodeId(0), "tor"));
            node
        };
        let a = with_link("a", "x");
        let two = joined(&a, &with_link("b", "y")).topology;
        let index = Index::of(&two);
        let held = [HostResources::NONE; 2];
        let vacant = BTreeSet::from([NodeId(0)]);
        let now = two.joined_by(&with_link("c", "z"), &vacant, (&index, &held));
        assert_eq!((now.nodes, now.devices), (vec![NodeId(0)], vec![DeviceId(0)]));
        assert_eq!(now.reused, BTreeSet::from([NodeId(0)]));
        assert!(now.keeps_index);
        assert_eq!(Index::of(&now.topology), index);
        assert_eq!(now.topology.links.len(), two.links.len(), "none is left of the node before");
        assert_eq!(now.topology.node(NodeId(0)).name, "c");
    }

    #[test]
    fn a_vacant_row_of_another_number_of_devices_is_left() {
        let a = machine("a", &[("cuda0", 0, "x")], &["h100"]);
        let two = [("cuda0", 0, "y"), ("cuda1", 0, "z")];
        let vacant = BTreeSet::from([NodeId(0)]);
        let known = (&Index::of(&a), &[HostResources::NONE][..]);
        let now = a.joined_by(&machine("b", &two, &["h100"]), &vacant, known);
        assert_eq!((now.nodes, now.reused.len()), (vec![NodeId(1)], 0));
    }
}
