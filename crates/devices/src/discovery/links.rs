//! The graph of links: accelerators over PCIe switches and host bridges to sockets, sockets to the
//! node's memory, NVLink between GPUs.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Bytes, DeviceId, Link, NodeId, Vertex};

use crate::kernel::files::SystemFiles;
use crate::kernel::pci::{self, Function};
use crate::{Diagnostic, NvLink, PciAddress};

/// The one node of a discovered topology.
pub(crate) const NODE: NodeId = NodeId(0);

/// A device or network card on the bus, and where its traffic goes.
pub(crate) struct OnBus<'machine> {
    pub(crate) end: Vertex,
    pub(crate) function: &'machine Function,
    /// The socket's device, or the node where the socket is not known.
    pub(crate) host: Vertex,
}

/// A socket reaches the node's memory; how fast is not published by the kernel.
pub(super) fn socket_links(sockets: impl Iterator<Item = Vertex>) -> Vec<Link> {
    sockets.map(|socket| link(socket, Vertex::Node(NODE), "memory", None)).collect()
}

/// The PCIe links between the devices and their hosts, each once.
pub(super) fn pcie_links(
    files: &SystemFiles,
    node: &str,
    devices: &[OnBus<'_>],
    diagnostics: &mut Vec<Diagnostic>,
) -> Vec<Link> {
    let mut links = Vec::new();
    let mut seen = BTreeSet::new();
    for on_bus in devices {
        let Some((root, hops)) = on_bus.function.path.split_first() else { continue };
        let mut lower = on_bus.end.clone();
        // From the end up: the port above each link's lower end belongs to a root port (the
        // first bridge) or to a switch, whose two bridges (upstream, downstream) are one vertex.
        let mut position = hops.len().saturating_sub(1);
        while position > 0 {
            let (end, port) = (&hops[position], &hops[position - 1]);
            let upstream = position.checked_sub(2).map(|upstream| &hops[upstream]);
            let upper = match upstream {
                Some(upstream) => switch(node, upstream),
                None => switch(node, root),
            };
            if seen.insert((lower.clone(), upper.clone())) {
                let state = pci::link_state(files, end, Some(port));
                diagnostics.extend(narrow(end, state.narrowed));
                links.push(link(lower, upper.clone(), "pcie", state.bandwidth));
            }
            lower = upper;
            position = position.saturating_sub(2);
        }
        let root = switch(node, root);
        if lower != root && seen.insert((lower.clone(), root.clone())) {
            links.push(link(lower, root.clone(), "pcie", None));
        }
        // What joins a host bridge to its socket is inside the processor.
        if seen.insert((root.clone(), on_bus.host.clone())) {
            links.push(link(root, on_bus.host.clone(), "pcie", None));
        }
    }
    links
}

/// The ports of network cards, as far as they are up; what they lead to is not known here.
pub(super) fn port_links(files: &SystemFiles, node: &str, cards: &[OnBus<'_>]) -> Vec<Link> {
    let speed = |card: &OnBus<'_>| pci::port_speed(files, card.function.address);
    let port = |card: &OnBus<'_>| {
        let speed = speed(card)?;
        Some(link(card.end.clone(), switch(node, "network0"), "nic", Some(speed)))
    };
    cards.iter().filter_map(port).collect()
}

fn narrow(end: &str, narrowed: Option<(u64, u64)>) -> Option<Diagnostic> {
    let (lanes, lanes_max) = narrowed?;
    Some(Diagnostic::NarrowLink { address: end.parse().ok()?, lanes, lanes_max })
}

/// NVLink between GPUs, one link a pair with the sum of its lanes; what ends at no GPU ends at the
/// node's NVSwitch plane.
pub(super) fn nvlinks(
    node: &str,
    gpus: &BTreeMap<PciAddress, (DeviceId, Vec<NvLink>)>,
) -> Vec<Link> {
    let plane = switch(node, "nvswitch");
    let mut sums: BTreeMap<(DeviceId, Vertex), (Option<Bytes>, u32)> = BTreeMap::new();
    for (device, lanes) in gpus.values() {
        for lane in lanes {
            let upper = match lane.peer.and_then(|peer| gpus.get(&peer)) {
                // Both ends list the link: it counts at the lower id.
                Some((peer, _)) if peer <= device => continue,
                Some((peer, _)) => Vertex::Device(*peer),
                None => plane.clone(),
            };
            let (sum, count) = sums.entry((*device, upper)).or_insert((Some(Bytes::ZERO), 0));
            *sum = sum.zip(lane.bandwidth).map(|(sum, lane)| sum + lane);
            *count += 1;
        }
    }
    let edge = |((device, upper), (bandwidth, count)): ((DeviceId, Vertex), _)| Link {
        count,
        ..link(Vertex::Device(device), upper, "nvlink", bandwidth)
    };
    sums.into_iter().map(edge).collect()
}

/// Names of switches carry the node's, so that topologies of several nodes can be joined.
pub(super) fn switch(node: &str, name: &str) -> Vertex {
    Vertex::Switch(format!("{node}/{name}").into())
}

fn link(from: Vertex, to: Vertex, kind: &str, bandwidth: Option<Bytes>) -> Link {
    Link { from, to, kind: kind.into(), bandwidth, count: 1, latency_ns: None }
}
