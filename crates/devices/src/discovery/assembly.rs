//! From processors and candidates to the devices and links of a topology.

use std::collections::BTreeMap;

use het_core::{
    Bytes, Device, DeviceClass, DeviceId, HostResources, Link, Name, Node as Machine, Share,
    Topology, Vertex,
};

use super::cpu::{NumaNode, Processors};
use super::links::{self, NODE, OnBus};
use super::{Candidate, Discovery};
use crate::Diagnostic;
use crate::kernel::files::SystemFiles;
use crate::kernel::pci::Function;

/// Rows and links from the processors and from the candidates that some driver runs.
pub(super) fn assemble(
    files: &SystemFiles,
    processors: Processors,
    functions: &[Function],
    candidates: Vec<Candidate>,
    diagnostics: Vec<Diagnostic>,
) -> Discovery {
    let name = files.text("proc/sys/kernel/hostname").filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| "localhost".to_owned());
    let node = Name::from(name.as_str());
    let mut found =
        Discovery { diagnostics, numa: processors.numa.clone(), ..Discovery::default() };
    let (rack, pod) = (node.clone(), node.clone());
    let resources = HostResources::with_memory(processors.memory);
    found.topology.nodes.push(Machine { name: node, host: resources, rack, pod });
    let sockets = push_sockets(&mut found, &processors, &name);
    found.topology.links = links::socket_links(sockets.iter().cloned());

    let mut on_bus = Vec::new();
    let mut gpus = BTreeMap::new();
    for candidate in candidates.into_iter().filter(|candidate| !candidate.drivers.is_empty()) {
        let address = candidate.place.address;
        let nvlinks = candidate.nvlinks.clone();
        let host = host(candidate.place.numa, &processors.numa, &sockets);
        let device = push(&mut found, candidate);
        let Some(address) = address else { continue };
        gpus.insert(address, (device, nvlinks));
        let at = functions.iter().find(|function| function.address == address);
        on_bus.extend(at.map(|function| OnBus { end: device.into(), function, host }));
    }
    let cards = functions.iter().filter(|function| function.is_network_card()).enumerate();
    let cards: Vec<OnBus<'_>> = cards
        .map(|(number, function)| {
            let end = links::switch(&name, &format!("nic{number}"));
            OnBus { end, function, host: host(function.numa, &processors.numa, &sockets) }
        })
        .collect();
    let ports = links::port_links(files, &name, &cards);
    on_bus.extend(cards);
    let mut extra: Vec<Link> = links::pcie_links(files, &name, &on_bus, &mut found.diagnostics);
    extra.extend(links::nvlinks(&name, &gpus));
    extra.extend(ports);
    found.topology.links.extend(extra);
    found
}

/// One device a socket with usable cores. Gives every socket's vertex; one whose cores are all
/// out of reach is a switch, for devices may still hang on it.
fn push_sockets(found: &mut Discovery, processors: &Processors, node: &str) -> Vec<Vertex> {
    let class = class_index(
        &mut found.topology,
        DeviceClass {
            id: processors.class.as_str().into(),
            kind: "cpu".into(),
            vendor: processors.vendor.into(),
            title: processors.title.as_str().into(),
            peak_gflops: None,
            software: false,
        },
    );
    let vertex = |socket: usize| {
        let Some(cores) = processors.sockets.get(&socket) else {
            return links::switch(node, &format!("socket{socket}"));
        };
        let id = DeviceId(found.topology.devices.len() as u32);
        found.topology.devices.push(Device {
            node: NODE,
            name: format!("cpu{socket}").into(),
            class,
            drivers: vec!["cpu".into()],
            capacity: Share::units(cores.len() as u32),
            memory: Bytes::ZERO,
            visible_id: socket.to_string().into(),
        });
        found.cores.insert(id, cores.clone());
        Vertex::Device(id)
    };
    (0..processors.socket_count).map(vertex).collect()
}

/// The socket whose NUMA node a device is on; the only one where the firmware does not say.
fn host(numa: Option<u32>, nodes: &[NumaNode], sockets: &[Vertex]) -> Vertex {
    let socket = numa.and_then(|id| nodes.iter().find(|node| node.id == id)?.socket);
    let socket = socket.or((sockets.len() == 1).then_some(0));
    let vertex = socket.and_then(|socket| sockets.get(socket));
    vertex.cloned().unwrap_or(Vertex::Node(NODE))
}

fn push(found: &mut Discovery, candidate: Candidate) -> DeviceId {
    let topology = &mut found.topology;
    let class = class_index(
        topology,
        DeviceClass {
            id: candidate.class.into(),
            kind: candidate.kind.into(),
            vendor: candidate.vendor.into(),
            title: candidate.title.into(),
            peak_gflops: None,
            software: candidate.software,
        },
    );
    let is_sibling = |device: &&Device| {
        let number = device.name.as_str().strip_prefix(candidate.prefix);
        number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let name =
        format!("{}{}", candidate.prefix, topology.devices.iter().filter(is_sibling).count());
    if candidate.memory == Bytes::ZERO && !candidate.software {
        found.diagnostics.push(Diagnostic::MemoryUnknown { device: name.clone() });
    }
    let id = DeviceId(topology.devices.len() as u32);
    topology.devices.push(Device {
        node: NODE,
        name: name.into(),
        class,
        drivers: candidate.drivers.into_iter().map(Name::from).collect(),
        capacity: Share::WHOLE,
        memory: candidate.memory,
        visible_id: candidate.visible_id.into(),
    });
    found.places.insert(id, candidate.place);
    id
}

fn class_index(topology: &mut Topology, class: DeviceClass) -> usize {
    let known = topology.classes.iter().position(|known| known.id == class.id);
    known.unwrap_or_else(|| {
        topology.classes.push(class);
        topology.classes.len() - 1
    })
}
