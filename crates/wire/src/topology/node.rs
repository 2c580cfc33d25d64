//! From a template to a machine: sockets, PCIe, accelerators, links between them, cards.

use het_core::{Bytes, DeviceId, HostResources, NodeId, Vertex};

use super::graph::{Card, Graph, Network, Wire, part, spread};
use super::rates::{self, PEER_SWITCH_NS};
use super::template::{CardPlace, Peers, Template};
use crate::catalogue::Sheet;

/// One card for users and services beside the two fast networks (assumption: 25G).
const BUSINESS_GBIT: u64 = 25;

/// What a group of nodes has that its template has not.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    /// Another class on the same board: A800 for A100.
    pub accelerator: Option<Sheet>,
    pub host: HostChanges,
    /// Speed of the compute cards.
    pub card_speed: Option<Bytes>,
}

/// What is said of a node beside its devices.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostChanges {
    pub memory: Option<Bytes>,
    pub scratch: Option<Bytes>,
    pub read: Option<Bytes>,
}

impl HostChanges {
    /// So much memory where nothing else is said.
    pub fn or_memory(self, memory: Bytes) -> HostResources {
        let of = HostResources::with_memory(self.memory.unwrap_or(memory));
        HostResources {
            scratch: self.scratch.unwrap_or(of.scratch),
            read: self.read.unwrap_or(of.read),
            ..of
        }
    }
}

/// Where a node stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stand<'text> {
    pub name: &'text str,
    pub rack: &'text str,
    pub pod: &'text str,
    /// Names what the nodes of one template share.
    pub shared: &'text str,
}

/// Adds a node. The template's classes are in the catalogue or among the graph's own.
pub(crate) fn build(graph: &mut Graph, template: &Template, stand: Stand<'_>, changes: &Changes) {
    let host = changes.host.or_memory(template.memory);
    let node = graph.node(stand.name, host, stand.rack, stand.pod);
    let mut machine = Machine { graph, template, stand, node, sockets: Vec::new() };
    machine.sockets();
    let accelerators = machine.accelerators(changes);
    machine.guest(accelerators.len() as u32);
    machine.cards(&accelerators, changes.card_speed.unwrap_or(rates::gbit(template.cards.gbit)));
}

struct Machine<'a> {
    graph: &'a mut Graph,
    template: &'a Template,
    stand: Stand<'a>,
    node: NodeId,
    sockets: Vec<DeviceId>,
}

impl Machine<'_> {
    fn sheet(&self, class: &str) -> Sheet {
        self.graph.sheet(class).expect("a test builds every template").clone()
    }

    /// Sockets on the node's memory, each joined to each; PCIe switches below them.
    fn sockets(&mut self) {
        let (class, count, cores) = self.template.sockets;
        let sheet = self.sheet(class);
        for number in 0..count {
            let socket = self.graph.device(self.node, &format!("cpu{number}"), &sheet, cores);
            let memory = sheet.memory_gbps.value().map(rates::gigabytes);
            self.graph.link(socket, self.node, Wire::one("memory", memory));
            // What a socket has for its peers is shared out to them; printed for both directions.
            let peers = sheet.peer_gbps.value();
            let each = peers.map(|sum| rates::gigabytes(sum / 2.0 / f64::from(count - 1)));
            for other in self.sockets.clone() {
                self.graph.link(other, socket, Wire::one("socket", each));
            }
            self.sockets.push(socket);
        }
        let uplink = rates::pcie(self.template.pcie_generation, 16);
        for number in 0..self.template.pcie_switches {
            let socket = self.socket(number, self.template.pcie_switches);
            let switch = part(self.stand.name, "pcie", number);
            self.graph.link(switch, socket, Wire::one("pcie", uplink));
        }
    }

    /// The socket of the `number`-th of `count` things that are shared out evenly.
    fn socket(&self, number: u32, count: u32) -> DeviceId {
        self.sockets[(number as usize * self.sockets.len()) / count.max(1) as usize]
    }

    /// The PCIe switch or socket that the `number`-th of `count` devices hangs on.
    fn host(&self, number: u32, count: u32) -> Vertex {
        match self.template.pcie_switches {
            0 => self.socket(number, count).into(),
            switches => part(self.stand.name, "pcie", number * switches / count),
        }
    }

    /// A PCIe link runs as fast as the slower of both ends.
    fn host_wire(&self, sheet: &Sheet) -> (&'static str, Option<Bytes>) {
        let (kind, rate) = rates::host(sheet);
        let host = rates::pcie(self.template.pcie_generation, 16);
        match kind {
            "pcie" => (kind, rate.zip(host).map(|(own, host)| own.min(host))),
            _ => (kind, rate),
        }
    }

    fn accelerators(&mut self, changes: &Changes) -> Vec<DeviceId> {
        let (class, count) = self.template.accelerators;
        if count == 0 {
            return Vec::new();
        }
        let sheet = changes.accelerator.clone().unwrap_or_else(|| self.sheet(class));
        let (kind, rate) = self.host_wire(&sheet);
        let mut devices = Vec::new();
        for number in 0..count {
            let name = format!("{}{number}", sheet.kind);
            let device = self.graph.device(self.node, &name, &sheet, 0);
            let host = self.host(number, count);
            self.graph.link(device, host, Wire::one(kind, rate));
            devices.push(device);
        }
        if let Some((links, each)) = rates::peers(&sheet) {
            self.peers(&devices, links, each);
        }
        devices
    }

    fn peers(&mut self, devices: &[DeviceId], links: u32, each: Bytes) {
        let stand = self.stand;
        match self.template.peers {
            Peers::None => {}
            Peers::Switches { kind, word, count } => {
                self.switched(devices, stand.name, (kind, word, count), (links, each));
            }
            Peers::Shared { kind, word, count } => {
                self.switched(devices, stand.shared, (kind, word, count), (links, each));
            }
            Peers::Bridges { kind } => {
                for pair in devices.chunks_exact(2) {
                    self.graph.link(pair[0], pair[1], Wire::many(kind, each, links));
                }
            }
            Peers::Mesh { kind } => {
                let pairs = devices.len().saturating_sub(1).max(1) as u32;
                for (row, &device) in devices.iter().enumerate() {
                    for &other in &devices[row + 1..] {
                        let wire = Wire::many(kind, each, (links / pairs).max(1));
                        self.graph.link(device, other, wire);
                    }
                }
            }
            Peers::Modules { kind, word, count, pair_gbps } => {
                for pair in devices.chunks_exact(2) {
                    let rate = rates::gigabytes(f64::from(pair_gbps));
                    self.graph.link(pair[0], pair[1], Wire::one("module", Some(rate)));
                }
                self.switched(devices, stand.name, (kind, word, count), (links, each));
            }
        }
    }

    /// `links` of each device, shared out over the switches.
    fn switched(
        &mut self,
        devices: &[DeviceId],
        place: &str,
        (kind, word, count): (&str, &str, u32),
        (links, each): (u32, Bytes),
    ) {
        for &device in devices {
            for (number, links) in spread(links, count) {
                let wire = Wire::many(kind, each, links).delayed(PEER_SWITCH_NS);
                self.graph.link(device, part(place, word, number), wire);
            }
        }
    }

    fn guest(&mut self, number: u32) {
        let (Some(class), Some(&socket)) = (self.template.guest, self.sockets.last()) else {
            return;
        };
        let sheet = self.sheet(class);
        let (kind, rate) = self.host_wire(&sheet);
        let same_kind = self.template.accelerators.0;
        let first = if self.sheet(same_kind).kind == sheet.kind { number } else { 0 };
        let device = self.graph.device(self.node, &format!("{}{first}", sheet.kind), &sheet, 0);
        self.graph.link(device, socket, Wire::one(kind, rate));
    }

    fn cards(&mut self, accelerators: &[DeviceId], speed: Bytes) {
        let cards = self.template.cards;
        for rail in 0..cards.count {
            let (host, wire) = match (cards.at, accelerators.get(rail as usize)) {
                (CardPlace::Accelerator, Some(&own)) => (own.into(), Wire::one("nic", Some(speed))),
                _ => (self.host(rail, cards.count), self.slot()),
            };
            self.card("nic", rail, Network::Compute, speed, (host, wire));
        }
        for rail in 0..cards.storage {
            let host = self.socket(rail, cards.storage).into();
            let speed = rates::gbit(cards.storage_gbit);
            self.card("storage-nic", rail, Network::Storage, speed, (host, self.slot()));
        }
        let host = self.socket(0, 1).into();
        let speed = rates::gbit(BUSINESS_GBIT);
        self.card("business-nic", 0, Network::Business, speed, (host, self.slot()));
    }

    /// The slot of a card.
    fn slot(&self) -> Wire<'static> {
        Wire::one("pcie", rates::pcie(self.template.pcie_generation, 16))
    }

    fn card(
        &mut self,
        word: &str,
        rail: u32,
        network: Network,
        speed: Bytes,
        (host, wire): (Vertex, Wire<'_>),
    ) {
        let vertex = part(self.stand.name, word, rail);
        self.graph.link(vertex.clone(), host, wire);
        self.graph.cards.push(Card { vertex, node: self.node, rail, speed, network });
    }
}
