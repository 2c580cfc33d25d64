//! The links of one node, without the names that differ from node to node.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::{ACROSS_SOCKETS, Distance, Path};
use crate::{Bytes, Link, Role, Topology, Vertex};

/// An end of a link, as its node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Local<'a> {
    /// The memory that the sockets share.
    Memory,
    /// Rows among the sockets and the accelerators of the node.
    Socket(usize),
    Accelerator(usize),
    /// Inside the node: what follows its name.
    Inner(&'a str),
    /// A device of another node, or a switch that several share.
    Outer(&'a Vertex),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LocalLink<'a> {
    ends: [Local<'a>; 2],
    kind: &'a str,
    bandwidth: Option<Bytes>,
}

/// How many accelerators each node has, and its links, by node in row order.
pub(super) fn by_node(topology: &Topology) -> Vec<(usize, Vec<LocalLink<'_>>)> {
    let mut nodes: Vec<(usize, Vec<LocalLink<'_>>)> = vec![(0, Vec::new()); topology.nodes.len()];
    let mut sockets = vec![0; topology.nodes.len()];
    let places: Vec<(usize, Local<'_>)> = topology
        .device_ids()
        .map(|id| {
            let node = topology.device(id).node.index();
            let is_socket = topology.class_of(id).kind == "cpu";
            let counter = if is_socket { &mut sockets[node] } else { &mut nodes[node].0 };
            let row = *counter;
            *counter += 1;
            (node, if is_socket { Local::Socket(row) } else { Local::Accelerator(row) })
        })
        .collect();
    let names: BTreeMap<&str, usize> =
        topology.node_ids().map(|id| (topology.node(id).name.as_str(), id.index())).collect();
    let place = |vertex: &Vertex| match vertex {
        Vertex::Node(id) => Some((id.index(), Local::Memory)),
        Vertex::Device(id) => Some(places[id.index()]),
        Vertex::Switch(_) => None,
    };
    let inner = |vertex: &'_ Vertex| -> Option<usize> {
        let Vertex::Switch(name) = vertex else { return None };
        names.get(name.as_str().split_once('/')?.0).copied()
    };
    for Link { from, to, kind, bandwidth, .. } in &topology.links {
        let owner = |vertex| place(vertex).map(|(node, _)| node).or_else(|| inner(vertex));
        let owners = [owner(from), owner(to)];
        let seen_by = |node: usize, vertex| match place(vertex) {
            Some((of, local)) if of == node => local,
            _ if inner(vertex) == Some(node) => Local::Inner(within(vertex)),
            _ => Local::Outer(vertex),
        };
        let several = owners[1].filter(|node| owners[0] != Some(*node));
        for node in owners[0].into_iter().chain(several) {
            let ends = [seen_by(node, from), seen_by(node, to)];
            nodes[node].1.push(LocalLink { ends, kind: kind.as_str(), bandwidth: *bandwidth });
        }
    }
    nodes
}

/// What follows the name of its node.
fn within(vertex: &Vertex) -> &str {
    match vertex {
        Vertex::Switch(name) => name.as_str().split_once('/').map_or("", |(_, rest)| rest),
        Vertex::Node(_) | Vertex::Device(_) => "",
    }
}

impl Local<'_> {
    fn role(&self) -> Role {
        match self {
            Self::Memory => Role::Node,
            Self::Socket(_) => Role::Socket,
            Self::Accelerator(_) => Role::Accelerator,
            Self::Inner(name) => Role::of_name(name),
            Self::Outer(Vertex::Switch(name)) => Role::of_name(name.as_str()),
            // What is beyond the network is nobody's way inside a node.
            Self::Outer(_) => Role::Core,
        }
    }

    /// Named `pci0000:c0` by the kernel: the root of a bus, a part of the processor.
    fn is_host_bridge(&self) -> bool {
        matches!(self, Self::Inner(name) if name.starts_with("pci") && name.contains(':'))
    }

    /// Whether it joins accelerators and nothing else.
    fn is_peer(&self) -> bool {
        matches!(self.role(), Role::Accelerator | Role::PeerSwitch)
    }
}

/// What an accelerator reaches over the host.
#[derive(Debug, Default)]
pub(super) struct Reached {
    pub(super) accelerators: BTreeMap<usize, Path>,
    /// The nearest one.
    pub(super) socket: Option<usize>,
    /// Compute cards by name.
    pub(super) cards: BTreeMap<String, Distance>,
}

/// What was passed on the way, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Passed {
    sockets: u32,
    bridges: u32,
    switches: u32,
}

impl Passed {
    fn and(self, vertex: &Local<'_>) -> Self {
        match vertex.role() {
            Role::Socket | Role::Node => Self { sockets: self.sockets + 1, ..self },
            Role::Pcie if vertex.is_host_bridge() => Self { bridges: self.bridges + 1, ..self },
            Role::Pcie | Role::Switch => Self { switches: self.switches + 1, ..self },
            _ => self,
        }
    }

    fn distance(self) -> Distance {
        match self {
            Self { sockets: 0, bridges: 0, switches: 0 | 1 } => Distance::Switch,
            Self { sockets: 0, bridges: 0, .. } => Distance::Switches,
            Self { sockets: 0 | 1, .. } => Distance::Socket,
            _ => Distance::Sockets,
        }
    }
}

/// The links of a node, from both ends.
pub(super) struct NodeGraph<'a> {
    from: BTreeMap<Local<'a>, Vec<(Local<'a>, &'a LocalLink<'a>)>>,
}

impl<'a> NodeGraph<'a> {
    pub(super) fn of(links: &'a [LocalLink<'a>]) -> Self {
        let mut from: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for link in links {
            let [a, b] = link.ends;
            from.entry(a).or_default().push((b, link));
            from.entry(b).or_default().push((a, link));
        }
        Self { from }
    }

    fn ends(&self, at: Local<'a>) -> impl Iterator<Item = (Local<'a>, &'a LocalLink<'a>)> + '_ {
        self.from.get(&at).into_iter().flatten().copied()
    }

    /// Everything on the shortest way over the host. No way leads through another accelerator.
    pub(super) fn reach(&self, row: usize) -> Reached {
        let mut reached = Reached::default();
        let start = Local::Accelerator(row);
        let mut done: Vec<Local<'a>> = Vec::new();
        let mut open = BinaryHeap::from([Reverse((Passed::default(), start, None::<Bytes>))]);
        while let Some(Reverse((passed, at, bandwidth))) = open.pop() {
            if done.contains(&at) {
                continue;
            }
            done.push(at);
            match (at.role(), at) {
                (Role::Accelerator, Local::Accelerator(other)) if other != row => {
                    let distance = passed.distance();
                    let bandwidth = match distance {
                        Distance::Sockets => least(bandwidth, Some(ACROSS_SOCKETS)),
                        _ => bandwidth,
                    };
                    reached.accelerators.insert(other, Path { distance, bandwidth });
                    continue;
                }
                (Role::Nic, Local::Inner(name)) => {
                    if name.starts_with("nic") {
                        reached.cards.insert(name.to_owned(), passed.distance());
                    }
                    continue;
                }
                (_, Local::Socket(socket)) if reached.socket.is_none() => {
                    reached.socket = Some(socket);
                }
                _ => {}
            }
            for (next, link) in self.ends(at) {
                let is_way = match next.role() {
                    Role::Pcie | Role::Switch | Role::Socket | Role::Node | Role::Nic => true,
                    // From the host's side only.
                    Role::Accelerator => at != start,
                    _ => false,
                };
                if is_way && !done.contains(&next) {
                    let bandwidth = least(bandwidth, link.bandwidth);
                    open.push(Reverse((passed.and(&next), next, bandwidth)));
                }
            }
        }
        reached
    }

    /// What two accelerators have of links of their own: straight ones, and over each switch that
    /// they share. `None` where they have none; how much where all of them tell.
    pub(super) fn peers(&self, a: usize, b: usize) -> Option<Option<Bytes>> {
        let (a, b) = (Local::Accelerator(a), Local::Accelerator(b));
        let mut sum: Option<Option<Bytes>> = None;
        let mut add = |bandwidth: Option<Bytes>| {
            let before = sum.unwrap_or(Some(Bytes::ZERO));
            sum = Some(before.zip(bandwidth).map(|(before, more)| before + more));
        };
        for (next, link) in self.ends(a).filter(|(next, _)| next.is_peer()) {
            if next == b {
                add(link.bandwidth);
            } else if next.role() == Role::PeerSwitch {
                let down = self.ends(next).filter(|(end, _)| *end == b);
                down.for_each(|(_, down)| add(both(link.bandwidth, down.bandwidth)));
            }
        }
        sum
    }

    /// What links of one kind join, by kind.
    pub(super) fn islands(&self, count: usize) -> Vec<u64> {
        let links =
            self.from.values().flatten().filter(|(_, link)| link.ends.iter().all(Local::is_peer));
        let mut kinds: Vec<&str> = links.map(|(_, link)| link.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let mut islands = Vec::new();
        for kind in kinds {
            let own = |at: Local<'a>| {
                self.ends(at).filter(|(end, link)| end.is_peer() && link.kind == kind)
            };
            islands.extend(super::groups(count, |a, b| {
                let (a, b) = (Local::Accelerator(a), Local::Accelerator(b));
                own(a).any(|(next, _)| {
                    let switched =
                        || next.role() == Role::PeerSwitch && own(next).any(|(end, _)| end == b);
                    next == b || switched()
                })
            }));
        }
        islands
    }
}

/// The lesser of what is known.
fn least(one: Option<Bytes>, other: Option<Bytes>) -> Option<Bytes> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The lesser where both are known.
fn both(one: Option<Bytes>, other: Option<Bytes>) -> Option<Bytes> {
    one.zip(other).map(|(one, other)| one.min(other))
}
