//! The head of a log: the cluster that its ids refer to.

use het_core::{
    Bytes, Device, DeviceClass, DeviceId, HostResources, Link, Node, NodeId, Share, Topology,
    TopologyError, Vertex,
};
use serde::{Deserialize, Serialize};

use super::host::{read_disk, write_disk};

/// A topology as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyRecord {
    pub classes: Vec<ClassRecord>,
    pub nodes: Vec<NodeRecord>,
    pub devices: Vec<DeviceRecord>,
    pub links: Vec<LinkRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRecord {
    pub id: String,
    pub kind: String,
    pub vendor: String,
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_gflops: Option<u64>,
    pub software: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub name: String,
    pub memory_bytes: u64,
    /// Nothing where nobody said how much there is, as of reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// Nothing where there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    pub rack: String,
    pub pod: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    pub node: u32,
    pub name: String,
    pub class: usize,
    pub drivers: Vec<String>,
    pub capacity: u32,
    pub memory_bytes: u64,
    pub visible_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    pub from: VertexRecord,
    pub to: VertexRecord,
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Absent in logs that are older than it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<u64>,
}

fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VertexRecord {
    Node(u32),
    Device(u32),
    Switch(String),
}

pub fn write_topology(topology: &Topology) -> TopologyRecord {
    TopologyRecord {
        classes: topology.classes.iter().map(class_record).collect(),
        nodes: topology.nodes.iter().map(node_record).collect(),
        devices: topology.devices.iter().map(device_record).collect(),
        links: topology.links.iter().map(link_record).collect(),
    }
}

/// # Errors
/// When the record does not fit together.
pub fn read_topology(record: &TopologyRecord) -> Result<Topology, TopologyError> {
    let topology = Topology {
        classes: record.classes.iter().map(class).collect(),
        nodes: record.nodes.iter().map(node).collect(),
        devices: record.devices.iter().map(device).collect(),
        links: record.links.iter().map(link).collect(),
    };
    topology.validate().map(|()| topology)
}

fn class_record(class: &DeviceClass) -> ClassRecord {
    ClassRecord {
        id: class.id.to_string(),
        kind: class.kind.to_string(),
        vendor: class.vendor.to_string(),
        title: class.title.to_string(),
        peak_gflops: class.peak_gflops,
        software: class.software,
    }
}

fn class(record: &ClassRecord) -> DeviceClass {
    DeviceClass {
        id: record.id.as_str().into(),
        kind: record.kind.as_str().into(),
        vendor: record.vendor.as_str().into(),
        title: record.title.as_str().into(),
        peak_gflops: record.peak_gflops,
        software: record.software,
    }
}

fn node_record(node: &Node) -> NodeRecord {
    NodeRecord {
        name: node.name.to_string(),
        memory_bytes: node.host.memory.0,
        scratch_bytes: write_disk(node.host.scratch),
        read_bytes: write_disk(node.host.read),
        tasks: Some(node.host.tasks).filter(|most| *most != HostResources::TASKS_UNLIMITED),
        rack: node.rack.to_string(),
        pod: node.pod.to_string(),
    }
}

fn node(record: &NodeRecord) -> Node {
    Node {
        name: record.name.as_str().into(),
        host: HostResources {
            memory: Bytes(record.memory_bytes),
            scratch: read_disk(record.scratch_bytes),
            read: read_disk(record.read_bytes),
            tasks: record.tasks.unwrap_or(HostResources::TASKS_UNLIMITED),
        },
        rack: record.rack.as_str().into(),
        pod: record.pod.as_str().into(),
    }
}

fn device_record(device: &Device) -> DeviceRecord {
    DeviceRecord {
        node: device.node.0,
        name: device.name.to_string(),
        class: device.class,
        drivers: device.drivers.iter().map(ToString::to_string).collect(),
        capacity: device.capacity.0,
        memory_bytes: device.memory.0,
        visible_id: device.visible_id.to_string(),
    }
}

fn device(record: &DeviceRecord) -> Device {
    Device {
        node: NodeId(record.node),
        name: record.name.as_str().into(),
        class: record.class,
        drivers: record.drivers.iter().map(|driver| driver.as_str().into()).collect(),
        capacity: Share(record.capacity),
        memory: Bytes(record.memory_bytes),
        visible_id: record.visible_id.as_str().into(),
    }
}

fn link_record(link: &Link) -> LinkRecord {
    let vertex = |vertex: &Vertex| match vertex {
        Vertex::Node(id) => VertexRecord::Node(id.0),
        Vertex::Device(id) => VertexRecord::Device(id.0),
        Vertex::Switch(name) => VertexRecord::Switch(name.to_string()),
    };
    LinkRecord {
        from: vertex(&link.from),
        to: vertex(&link.to),
        kind: link.kind.to_string(),
        bandwidth_bytes_per_s: link.bandwidth.map(|bytes| bytes.0),
        count: link.count,
        latency_ns: link.latency_ns,
    }
}

fn link(record: &LinkRecord) -> Link {
    let vertex = |vertex: &VertexRecord| match vertex {
        VertexRecord::Node(id) => Vertex::Node(NodeId(*id)),
        VertexRecord::Device(id) => Vertex::Device(DeviceId(*id)),
        VertexRecord::Switch(name) => Vertex::Switch(name.as_str().into()),
    };
    Link {
        from: vertex(&record.from),
        to: vertex(&record.to),
        kind: record.kind.as_str().into(),
        bandwidth: record.bandwidth_bytes_per_s.map(Bytes),
        count: record.count,
        latency_ns: record.latency_ns,
    }
}
