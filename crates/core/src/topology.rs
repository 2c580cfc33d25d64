//! The topology graph: nodes, devices, switches and the links between them. It says what exists;
//! health and holdings are state.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::{Bytes, DeviceId, HostResources, Name, NodeId, Share};

/// A subtree of the topology that holds a whole gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Domain {
    Node,
    Rack,
    Pod,
    #[default]
    Any,
}

impl Domain {
    pub const ALL: [Self; 4] = [Self::Node, Self::Rack, Self::Pod, Self::Any];

    pub fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Rack => "rack",
            Self::Pod => "pod",
            Self::Any => "any",
        }
    }
}

/// A device model with the same performance wherever it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceClass {
    /// Catalogue id, for example `h100-sxm5-80`.
    pub id: Name,
    /// `cpu`, `gpu`, `npu`, or any other word: a kind is data, not code.
    pub kind: Name,
    pub vendor: Name,
    /// Human name, for example `NVIDIA H100 SXM5-80`.
    pub title: Name,
    /// Dense peak at the precision that training uses, per unit of share; `None` if unknown.
    pub peak_gflops: Option<u64>,
    /// Imitated by software (lavapipe): taken only when a request names it.
    pub software: bool,
}

/// One schedulable device: an accelerator, or the cores of one CPU socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub node: NodeId,
    /// Unique on its node, for example `cpu0`, `cuda1`.
    pub name: Name,
    /// Index of its class in [`Topology::classes`].
    pub class: usize,
    /// Words of the drivers that can run it, best first: `cuda`, `vulkan`, `npu-ort`, `cpu`.
    pub drivers: Vec<Name>,
    /// 10,000 for an accelerator, 10,000 × cores for a CPU socket.
    pub capacity: Share,
    /// The device's own memory; zero where it uses the node's (CPU).
    pub memory: Bytes,
    /// What the vendor's visible-device variable takes: an index or a UUID.
    pub visible_id: Name,
}

/// The driver word of virtual NPUs (Ascend): a program uses one by its vendor's driver, which shows
/// it in containers only. Kept beside that driver's word.
pub const VNPU: &str = "vnpu";

impl Device {
    /// Whether no program can use it outside of a container.
    pub fn needs_container(&self) -> bool {
        self.drivers.iter().any(|driver| driver == VNPU)
    }
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: Name,
    /// What it has beside its devices.
    pub host: HostResources,
    /// Names of the enclosing domains; equal names are the same domain.
    pub rack: Name,
    pub pod: Name,
}

/// An end of a link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vertex {
    Node(NodeId),
    Device(DeviceId),
    /// A switch, socket or network block that holds no devices itself.
    Switch(Name),
}

impl From<NodeId> for Vertex {
    fn from(id: NodeId) -> Self {
        Self::Node(id)
    }
}

impl From<DeviceId> for Vertex {
    fn from(id: DeviceId) -> Self {
        Self::Device(id)
    }
}

/// An edge of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub from: Vertex,
    pub to: Vertex,
    /// `pcie`, `nvlink`, `hccs`, `nic`, `tor`, `leaf`, `spine`, …
    pub kind: Name,
    /// Bytes per second in one direction, of all `count` together; `None` if unknown.
    pub bandwidth: Option<Bytes>,
    /// Physical links side by side that are one edge here, for example the two NVLinks
    /// between a GPU and an NVSwitch. At least 1.
    pub count: u32,
    pub latency_ns: Option<u64>,
}

/// What exists: an immutable value; ids are row numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    pub classes: Vec<DeviceClass>,
    pub nodes: Vec<Node>,
    pub devices: Vec<Device>,
    pub links: Vec<Link>,
}

/// Why a topology is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopologyError {
    #[error("device `{device}` stands on node {node}, which does not exist")]
    DanglingNode { device: Name, node: NodeId },
    #[error("device `{device}` is of class {class}, which does not exist")]
    DanglingClass { device: Name, class: usize },
    #[error("device `{device}` has no capacity")]
    NoCapacity { device: Name },
    #[error("node `{node}` has two devices named `{device}`")]
    DuplicateDevice { node: Name, device: Name },
    #[error("two nodes are named `{node}`")]
    DuplicateNode { node: Name },
    #[error("a `{kind}` link ends at something that does not exist")]
    DanglingLink { kind: Name },
}

impl Topology {
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    pub fn device(&self, id: DeviceId) -> &Device {
        &self.devices[id.index()]
    }

    pub fn class_of(&self, id: DeviceId) -> &DeviceClass {
        &self.classes[self.device(id).class]
    }

    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.devices.len() as u32).map(DeviceId)
    }

    /// Every device but the sockets.
    pub fn accelerators(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.device_ids().filter(|&id| self.class_of(id).kind != "cpu")
    }

    /// The CPU sockets of a node, in row order.
    pub fn sockets(&self, node: NodeId) -> impl Iterator<Item = DeviceId> + '_ {
        self.device_ids()
            .filter(move |&id| self.device(id).node == node && self.class_of(id).kind == "cpu")
    }

    /// Whole units of each class, whatever is down.
    pub fn units_by_class(&self) -> Vec<u32> {
        let mut units = vec![0; self.classes.len()];
        for device in &self.devices {
            units[device.class] += device.capacity.whole_units();
        }
        units
    }

    /// The memory a program on the device can use: its own, or its node's where it has none.
    pub fn memory_of(&self, id: DeviceId) -> Bytes {
        let device = self.device(id);
        match device.memory {
            Bytes::ZERO => self.node(device.node).host.memory,
            own => own,
        }
    }

    /// Groups of two or more devices that links of one kind join, straight or over switches, each
    /// in row order: `nvlink` gives the NVLink domains, `module` the packages of several chips that
    /// are allocated whole.
    pub fn islands(&self, kind: &str) -> Vec<Vec<DeviceId>> {
        let mut rows: BTreeMap<&Vertex, usize> = BTreeMap::new();
        let mut parents: Vec<usize> = Vec::new();
        for link in self.links.iter().filter(|link| link.kind == kind) {
            let [from, to] = [&link.from, &link.to].map(|vertex| {
                let row = *rows.entry(vertex).or_insert_with(|| {
                    parents.push(parents.len());
                    parents.len() - 1
                });
                root(&mut parents, row)
            });
            parents[from.max(to)] = from.min(to);
        }
        let mut islands: BTreeMap<usize, Vec<DeviceId>> = BTreeMap::new();
        for (vertex, row) in rows {
            if let Vertex::Device(id) = vertex {
                islands.entry(root(&mut parents, row)).or_default().push(*id);
            }
        }
        let mut islands: Vec<_> = islands.into_values().filter(|one| one.len() > 1).collect();
        islands.sort();
        islands
    }

    /// One node with its devices, and the links that end at it, at one of them, or at a switch
    /// inside it: one whose name begins with the node's and a slash.
    #[must_use]
    pub fn only(&self, node: NodeId) -> Self {
        let devices: Vec<DeviceId> =
            self.device_ids().filter(|&id| self.device(id).node == node).collect();
        let row = |vertex: &Vertex| match vertex {
            Vertex::Node(id) => (*id == node).then_some(Vertex::Node(NodeId(0))),
            Vertex::Device(id) => {
                let row = devices.iter().position(|of| of == id)?;
                Some(Vertex::Device(DeviceId(row as u32)))
            }
            Vertex::Switch(name) => Some(Vertex::Switch(name.clone())),
        };
        let name = self.node(node).name.as_str();
        let is_inside =
            |switch: &Name| switch.as_str().split_once('/').is_some_and(|at| at.0 == name);
        let touches = |link: &&Link| {
            [&link.from, &link.to].into_iter().any(|end| match end {
                Vertex::Switch(switch) => is_inside(switch),
                end => row(end).is_some(),
            })
        };
        let links = self.links.iter().filter(touches).filter_map(|link| {
            Some(Link { from: row(&link.from)?, to: row(&link.to)?, ..link.clone() })
        });
        let of_node = |id: &DeviceId| Device { node: NodeId(0), ..self.device(*id).clone() };
        Self {
            classes: self.classes.clone(),
            nodes: vec![self.node(node).clone()],
            devices: devices.iter().map(of_node).collect(),
            links: links.collect(),
        }
    }

    /// Checks that every id names a row and every device can be told apart.
    ///
    /// # Errors
    /// The first thing that does not fit together.
    pub fn validate(&self) -> Result<(), TopologyError> {
        let mut names = BTreeSet::new();
        if let Some(again) = self.nodes.iter().find(|node| !names.insert(&node.name)) {
            return Err(TopologyError::DuplicateNode { node: again.name.clone() });
        }
        let mut seen = BTreeSet::new();
        for device in &self.devices {
            let name = device.name.clone();
            if device.node.index() >= self.nodes.len() {
                return Err(TopologyError::DanglingNode { device: name, node: device.node });
            }
            if device.class >= self.classes.len() {
                return Err(TopologyError::DanglingClass { device: name, class: device.class });
            }
            if device.capacity == Share::ZERO {
                return Err(TopologyError::NoCapacity { device: name });
            }
            if !seen.insert((device.node, name.clone())) {
                let node = self.node(device.node).name.clone();
                return Err(TopologyError::DuplicateDevice { node, device: name });
            }
        }
        let dangling = |vertex: &Vertex| match vertex {
            Vertex::Node(id) => id.index() >= self.nodes.len(),
            Vertex::Device(id) => id.index() >= self.devices.len(),
            Vertex::Switch(_) => false,
        };
        match self.links.iter().find(|link| dangling(&link.from) || dangling(&link.to)) {
            Some(link) => Err(TopologyError::DanglingLink { kind: link.kind.clone() }),
            None => Ok(()),
        }
    }
}

/// The representative of a row's group; halves the path to it for those who ask later.
fn root(parents: &mut [usize], mut row: usize) -> usize {
    while parents[row] != row {
        parents[row] = parents[parents[row]];
        row = parents[row];
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn islands_are_what_links_of_one_kind_join() {
        let device = |id| Vertex::Device(DeviceId(id));
        let link = |from, to, kind: &str| Link {
            from,
            to,
            kind: kind.into(),
            bandwidth: None,
            count: 1,
            latency_ns: None,
        };
        let switch = || Vertex::Switch("nvswitch0".into());
        let links = vec![
            link(device(3), device(2), "module"),
            link(device(1), device(0), "module"),
            link(device(0), switch(), "nvlink"),
            link(switch(), device(2), "nvlink"),
            link(device(4), Vertex::Switch("nvswitch1".into()), "nvlink"),
        ];
        let topology = Topology { links, ..Topology::default() };
        let rows = |kind| -> Vec<Vec<u32>> {
            let islands = topology.islands(kind).into_iter();
            islands.map(|island| island.into_iter().map(|id| id.0).collect()).collect()
        };
        assert_eq!(rows("module"), [[0, 1], [2, 3]]);
        assert_eq!(rows("nvlink"), [[0, 2]]);
        assert!(rows("hccs").is_empty());
    }
}
