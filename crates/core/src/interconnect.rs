//! What joins the accelerators of a node: with each other, with its sockets, with its network
//! cards. Read off the links.
//!
//! Two accelerators reach each other over links of their own where they have any (NVLink, HCCS,
//! UB: straight, or over the switches that they share), else over the host: PCIe switches, bridges
//! and sockets. Nodes of one make share one table.

mod graph;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Bytes, Topology};

use graph::{LocalLink, NodeGraph, Reached};

/// What two accelerators of different sockets have of whatever joins those, one direction: NCCL's
/// topology search takes 10 GB/s for Skylake, 16 for AMD, 22 for Sapphire Rapids (`topo.h`).
pub const ACROSS_SOCKETS: Bytes = Bytes(16_000_000_000);

/// Most accelerators of a node that are looked at; of those beyond nothing is known.
const ACCELERATORS_MAX: usize = u64::BITS as usize;

/// What lies between two ends inside a node, nearest first; words of `nvidia-smi topo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Links between accelerators.
    Peers,
    /// One PCIe switch at most.
    Switch,
    /// Several PCIe switches.
    Switches,
    /// A host bridge, or the root of one socket.
    Socket,
    /// The link between sockets.
    Sockets,
}

impl Distance {
    pub fn word(self) -> &'static str {
        match self {
            Self::Peers => "LINK",
            Self::Switch => "PIX",
            Self::Switches => "PXB",
            Self::Socket => "PHB",
            Self::Sockets => "SYS",
        }
    }
}

/// How two accelerators reach each other. The greater path is the faster one: links of their own
/// before the host, then the bandwidth, then what lies between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    pub distance: Distance,
    /// Bytes per second, one direction; `None` where no link tells.
    pub bandwidth: Option<Bytes>,
}

impl Path {
    fn rank(self) -> (bool, u64, Reverse<Distance>) {
        let bandwidth = self.bandwidth.map_or(u64::MAX, |bandwidth| bandwidth.0);
        (self.distance == Distance::Peers, bandwidth, Reverse(self.distance))
    }
}

impl Ord for Path {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Path {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The network card that an accelerator sends through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NearCard {
    /// Row of [`Interconnect::cards`].
    pub card: usize,
    pub distance: Distance,
}

/// The table of one node. Accelerators are named by their rows among those of the node, sets of
/// them are bits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interconnect {
    /// Row by row; `None` where no link joins them, and of each with itself.
    paths: Vec<Option<Path>>,
    count: usize,
    /// Whether all pairs are alike.
    is_uniform: bool,
    /// The nearest socket of each accelerator, by its row among the sockets of the node.
    pub sockets: Vec<Option<usize>>,
    /// The nearest compute card of each, each card taken as often as the others.
    pub near_cards: Vec<Option<NearCard>>,
    /// Names of compute cards, without the node's: `nic3`.
    pub cards: Vec<String>,
    /// Accelerators that are nearer to each other than to the rest: by links of one kind, a PCIe
    /// switch, a socket.
    pub islands: Vec<u64>,
}

impl Interconnect {
    /// Of each node, in row order.
    pub fn of_nodes(topology: &Topology) -> Vec<Arc<Self>> {
        let mut known: BTreeMap<(usize, Vec<LocalLink<'_>>), Arc<Self>> = BTreeMap::new();
        let nodes = graph::by_node(topology).into_iter().map(|(accelerators, links)| {
            let count = accelerators.min(ACCELERATORS_MAX);
            let shape = (count, links);
            if let Some(same) = known.get(&shape) {
                return Arc::clone(same);
            }
            let one = Arc::new(Self::of(count, &shape.1));
            known.insert(shape, Arc::clone(&one));
            one
        });
        nodes.collect()
    }

    fn of(count: usize, links: &[LocalLink<'_>]) -> Self {
        let graph = NodeGraph::of(links);
        let reached: Vec<Reached> = (0..count).map(|row| graph.reach(row)).collect();
        let mut paths = vec![None; count * count];
        for (a, b) in pairs(count) {
            let peers =
                graph.peers(a, b).map(|bandwidth| Path { distance: Distance::Peers, bandwidth });
            let path = peers.or_else(|| reached[a].accelerators.get(&b).copied());
            (paths[a * count + b], paths[b * count + a]) = (path, path);
        }
        let (cards, near_cards) = assigned(&reached);
        let mut one = Self {
            is_uniform: pairs(count).all(|(a, b)| paths[a * count + b] == paths[1]),
            paths,
            count,
            sockets: reached.iter().map(|reached| reached.socket).collect(),
            near_cards,
            cards,
            islands: Vec::new(),
        };
        one.islands = islands(count, &graph, &reached);
        one
    }

    /// How many accelerators it knows.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether it makes no difference which of them a gang gets.
    pub fn is_uniform(&self) -> bool {
        self.is_uniform
    }

    pub fn path(&self, a: usize, b: usize) -> Option<Path> {
        self.paths[a * self.count + b]
    }

    /// The pair of a set that is joined worst, the first of equals: the pace of whatever they
    /// exchange. `None` of fewer than two, and where no link joins them.
    pub fn slowest_pair(&self, set: u64) -> Option<(usize, usize, Path)> {
        let pairs = pairs_of(set).map(|(a, b)| (self.path(a, b), a, b));
        let (path, a, b) = pairs.min()?;
        Some((a, b, path?))
    }

    /// How it is joined.
    pub fn slowest(&self, set: u64) -> Option<Path> {
        self.slowest_pair(set).map(|(.., path)| path)
    }

    /// The same of the set of so many, out of these, for which it is fastest.
    pub fn fastest(&self, among: u64, size: u32) -> Option<Path> {
        if size < 2 || among.count_ones() < size {
            return None;
        }
        let mut levels: Vec<Option<Path>> = pairs_of(among).map(|(a, b)| self.path(a, b)).collect();
        levels.sort_unstable();
        levels.dedup();
        let found = levels.into_iter().rev().find(|level| {
            let near = self.no_slower_than(*level);
            has_clique(&near, among, size)
        });
        found.flatten()
    }

    /// Of each accelerator, those that it reaches at least so fast.
    pub fn no_slower_than(&self, level: Option<Path>) -> Vec<u64> {
        let near = |a: usize| {
            let others = (0..self.count).filter(|&b| b != a && self.path(a, b) >= level);
            others.fold(0, |set, b| set | 1 << b)
        };
        (0..self.count).map(near).collect()
    }
}

/// Rows of the accelerators in a set.
pub fn bits(set: u64) -> impl Iterator<Item = usize> {
    let mut left = set;
    std::iter::from_fn(move || {
        let row = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(row)
    })
}

fn pairs_of(set: u64) -> impl Iterator<Item = (usize, usize)> {
    bits(set).flat_map(move |a| bits(set).filter(move |b| *b > a).map(move |b| (a, b)))
}

fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |a| (a + 1..count).map(move |b| (a, b)))
}

/// Whether so many of a set are all near each other.
fn has_clique(near: &[u64], among: u64, size: u32) -> bool {
    if size == 0 {
        return true;
    }
    let mut left = among;
    while left.count_ones() >= size {
        let first = left.trailing_zeros() as usize;
        left &= left - 1;
        if has_clique(near, left & near[first], size - 1) {
            return true;
        }
    }
    false
}

/// Cards by name, and the card of each accelerator: the nearest; of equally near ones that which
/// fewest have.
fn assigned(reached: &[Reached]) -> (Vec<String>, Vec<Option<NearCard>>) {
    let names: BTreeSet<&String> =
        reached.iter().flat_map(|reached| reached.cards.keys()).collect();
    let cards: Vec<String> = names.into_iter().cloned().collect();
    let mut taken = vec![0_u32; cards.len()];
    let near = reached.iter().map(|reached| {
        let rows = cards.iter().enumerate();
        let near = rows.filter_map(|(row, name)| Some((*reached.cards.get(name)?, row)));
        let (distance, card) = near.min_by_key(|(distance, row)| (*distance, taken[*row], *row))?;
        taken[card] += 1;
        Some(NearCard { card, distance })
    });
    let near = near.collect();
    (cards, near)
}

/// Groups of two and more, each once.
fn islands(count: usize, graph: &NodeGraph<'_>, reached: &[Reached]) -> Vec<u64> {
    let mut islands = graph.islands(count);
    for distance in [Distance::Switch, Distance::Switches, Distance::Socket] {
        let is_near = |a: usize, b: usize| {
            reached[a].accelerators.get(&b).is_some_and(|path| path.distance <= distance)
        };
        islands.extend(groups(count, is_near));
    }
    islands.sort_unstable();
    islands.dedup();
    islands.retain(|island| island.count_ones() > 1);
    islands
}

/// What is joined by pairs of which this holds.
fn groups(count: usize, is_joined: impl Fn(usize, usize) -> bool) -> Vec<u64> {
    let mut groups: Vec<u64> = Vec::new();
    for row in 0..count {
        let mut own = 1_u64 << row;
        groups.retain(|group| {
            let joined = bits(*group).any(|other| is_joined(other, row));
            if joined {
                own |= group;
            }
            !joined
        });
        groups.push(own);
    }
    groups
}

#[cfg(test)]
pub(crate) mod tests;
