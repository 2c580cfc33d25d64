//! Tables of small machines.

use std::sync::Arc;

use super::*;
use crate::{Device, DeviceClass, DeviceId, HostResources, Link, Node, NodeId, Share, Vertex};

/// Accelerators 0, 1, … and after them so many sockets, all of one node `n`.
pub(crate) fn machine(accelerators: u32, sockets: u32, links: Vec<Link>) -> Topology {
    let class = |kind: &str| DeviceClass {
        id: kind.into(),
        kind: kind.into(),
        vendor: "".into(),
        title: "".into(),
        peak_gflops: None,
        software: false,
    };
    let device = |row: u32| Device {
        node: NodeId(0),
        name: format!("device{row}").into(),
        class: usize::from(row >= accelerators),
        drivers: Vec::new(),
        capacity: Share::WHOLE,
        memory: Bytes::ZERO,
        visible_id: "".into(),
    };
    let (name, memory) = ("n".into(), Bytes::gib(1));
    Topology {
        classes: vec![class("gpu"), class("cpu")],
        nodes: vec![Node {
            name,
            host: HostResources::with_memory(memory),
            rack: "".into(),
            pod: "".into(),
        }],
        devices: (0..accelerators + sockets).map(device).collect(),
        links,
    }
}

pub(crate) fn link(from: impl Into<Vertex>, to: impl Into<Vertex>, kind: &str, gbps: u64) -> Link {
    Link {
        from: from.into(),
        to: to.into(),
        kind: kind.into(),
        bandwidth: (gbps > 0).then_some(Bytes(gbps * 1_000_000_000)),
        count: 1,
        latency_ns: None,
    }
}

pub(crate) fn switch(name: &str) -> Vertex {
    Vertex::Switch(format!("n/{name}").into())
}

fn table(topology: &Topology) -> Arc<Interconnect> {
    Interconnect::of_nodes(topology).remove(0)
}

/// `PIX 31`.
fn between(table: &Interconnect, a: usize, b: usize) -> String {
    let path = table.path(a, b).expect("they are joined");
    let gbps = path.bandwidth.map_or("?".to_owned(), |b| (b.0 / 1_000_000_000).to_string());
    format!("{} {gbps}", path.distance.word())
}

/// Two GPUs on a switch below a host bridge, one on the bridge, one on the other socket, each
/// socket on the memory and on its own card.
fn host_tree() -> Topology {
    let [gpu0, gpu1, gpu2, gpu3, cpu0, cpu1] = [0, 1, 2, 3, 4, 5].map(DeviceId);
    machine(
        4,
        2,
        vec![
            link(gpu0, switch("0000:01:00.0"), "pcie", 31),
            link(gpu1, switch("0000:01:00.0"), "pcie", 31),
            link(switch("0000:01:00.0"), switch("pci0000:00"), "pcie", 63),
            link(gpu2, switch("pci0000:00"), "pcie", 15),
            link(switch("pci0000:00"), cpu0, "pcie", 0),
            link(gpu3, switch("pci0000:80"), "pcie", 31),
            link(switch("pci0000:80"), cpu1, "pcie", 0),
            link(cpu0, NodeId(0), "memory", 200),
            link(cpu1, NodeId(0), "memory", 200),
            link(switch("nic0"), switch("0000:01:00.0"), "pcie", 31),
            link(switch("nic1"), switch("pci0000:80"), "pcie", 31),
            link(switch("storage-nic0"), cpu0, "pcie", 31),
        ],
    )
}

#[test]
fn distance_is_what_lies_between() {
    let table = table(&host_tree());
    assert_eq!(between(&table, 0, 1), "PIX 31");
    assert_eq!(between(&table, 0, 2), "PHB 15");
    assert_eq!(between(&table, 1, 3), "SYS 16");
    assert_eq!(table.sockets, [Some(0), Some(0), Some(0), Some(1)]);
    assert_eq!(table.islands, [0b11, 0b111]);
    assert_eq!(table.cards, ["nic0", "nic1"]);
    let near = |row: usize| table.near_cards[row].map(|near| (near.card, near.distance));
    assert_eq!(near(0), Some((0, Distance::Switch)));
    assert_eq!(near(2), Some((0, Distance::Socket)));
    assert_eq!(near(3), Some((1, Distance::Socket)));
}

#[test]
fn own_links_come_before_the_host_and_add_up() {
    let mut topology = host_tree();
    let [gpu0, gpu1, gpu3] = [0, 1, 3].map(DeviceId);
    topology.links.extend([
        link(gpu0, gpu3, "hccs", 28),
        link(gpu0, switch("nvswitch0"), "nvlink", 50),
        link(gpu1, switch("nvswitch0"), "nvlink", 50),
        link(gpu0, switch("nvswitch1"), "nvlink", 50),
        link(gpu1, switch("nvswitch1"), "nvlink", 25),
    ]);
    let table = table(&topology);
    assert_eq!(between(&table, 0, 1), "LINK 75");
    assert_eq!(between(&table, 0, 3), "LINK 28");
    assert_eq!(between(&table, 1, 3), "SYS 16");
    assert!(table.path(0, 3) > table.path(1, 2), "a link of their own beats a faster bus");
}

#[test]
fn the_fastest_set_is_the_one_whose_slowest_pair_is_fastest() {
    let table = table(&host_tree());
    let fastest = |among: u64, size: u32| {
        table
            .fastest(among, size)
            .map(|path| (path.distance, path.bandwidth.map(|b| b.0 / 1_000_000_000)))
    };
    assert_eq!(fastest(0b1111, 2), Some((Distance::Switch, Some(31))));
    assert_eq!(fastest(0b1111, 4), Some((Distance::Sockets, Some(15))));
    assert_eq!(fastest(0b1101, 2), Some((Distance::Sockets, Some(16))));
    assert_eq!(fastest(0b1111, 1), None);
    assert_eq!(table.slowest(0b1011), table.path(0, 3));
}

#[test]
fn nodes_of_one_make_share_a_table() {
    let mut topology = host_tree();
    let mut twin = host_tree();
    twin.nodes[0].name = "m".into();
    let renamed = |vertex: &Vertex| match vertex {
        Vertex::Node(_) => Vertex::Node(NodeId(1)),
        Vertex::Device(id) => Vertex::Device(DeviceId(id.0 + 6)),
        Vertex::Switch(name) => Vertex::Switch(name.as_str().replace("n/", "m/").into()),
    };
    topology.nodes.extend(twin.nodes);
    topology.devices.extend(twin.devices.into_iter().map(|d| Device { node: NodeId(1), ..d }));
    topology.links.extend(twin.links.iter().map(|link| Link {
        from: renamed(&link.from),
        to: renamed(&link.to),
        ..link.clone()
    }));
    let tables = Interconnect::of_nodes(&topology);
    assert!(Arc::ptr_eq(&tables[0], &tables[1]));
}

#[test]
fn without_links_nothing_is_known() {
    let table = table(&machine(3, 1, Vec::new()));
    assert!(table.is_uniform() && table.islands.is_empty());
    assert_eq!((table.slowest(0b111), table.fastest(0b111, 2)), (None, None));
}
