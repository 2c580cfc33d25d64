//! Fabrics: how the cards of nodes are joined.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Bytes, NodeId, Vertex};

use super::graph::{Card, Graph, Network, Wire, spread};
use super::rates::NETWORK_NS;

/// Words of the fabrics.
pub const FABRICS: [&str; 4] = ["spine-leaf", "rail", "dual-plane", "flat"];

/// Cards on a leaf where nothing is said (SimAI's Spectrum-X and DCN+ templates: 64).
const CARDS_PER_LEAF: u32 = 64;
/// Spines of a pod where nothing is said (SimAI's DCN+ template: 8).
const SPINES: u32 = 8;
/// Switches that join pods (assumption).
const CORES: u32 = 4;

/// Which leaf a card goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// One switch for all, which never blocks.
    Flat,
    /// All cards of a node to one leaf.
    ByNode,
    /// Card `i` of every node to leaf `i`.
    ByRail,
}

/// A fabric with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Fabric {
    pub wiring: Wiring,
    /// Planes that share no switch; each card has a port in each, of its part of the speed.
    pub planes: u32,
    /// Nodes below one leaf, or one set of rails.
    pub nodes_per_leaf: Option<u32>,
    /// Spines of a pod and plane.
    pub spines: Option<u32>,
    /// What the pods of a cluster have; a pod that is not named has the default.
    pub pods: BTreeMap<String, PodShape>,
    pub default_pod: PodShape,
    /// Bandwidth of a pod's leaves to its spines over that of its spines to other pods, at least 1.
    pub between_pods: f64,
}

/// What a pod carries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodShape {
    /// Bytes per second of a leaf's ports; `None`: as fast as the cards.
    pub speed: Option<Bytes>,
    /// Bandwidth of a leaf to its nodes over that to its spines, at least 1.
    pub oversubscription: f64,
}

impl Fabric {
    /// The fabric of a word of [`FABRICS`].
    pub fn named(word: &str) -> Option<Self> {
        let (wiring, planes) = match word {
            "spine-leaf" => (Wiring::ByNode, 1),
            "rail" => (Wiring::ByRail, 1),
            "dual-plane" => (Wiring::ByRail, 2),
            "flat" => (Wiring::Flat, 1),
            _ => return None,
        };
        Some(Self {
            wiring,
            planes,
            nodes_per_leaf: None,
            spines: None,
            pods: BTreeMap::new(),
            default_pod: PodShape { speed: None, oversubscription: 1.0 },
            between_pods: 1.0,
        })
    }
}

/// Joins the compute cards by the fabric, those for storage and business by racks' switches of
/// their own.
pub(crate) fn join(graph: &mut Graph, fabric: &Fabric) {
    let cards = std::mem::take(&mut graph.cards);
    let of = |network| cards.iter().filter(move |card: &&Card| card.network == network);
    match fabric.wiring {
        Wiring::Flat => star(graph, of(Network::Compute), "fabric"),
        Wiring::ByNode | Wiring::ByRail => pods(graph, fabric, of(Network::Compute)),
    }
    star(graph, of(Network::Storage), "storage/tor");
    star(graph, of(Network::Business), "business/tor");
}

/// One switch that never blocks.
fn star<'a>(graph: &mut Graph, cards: impl Iterator<Item = &'a Card>, name: &str) {
    let kind = if name.ends_with("tor") { "tor" } else { "leaf" };
    for card in cards {
        let wire = Wire::one(kind, Some(card.speed)).delayed(NETWORK_NS);
        graph.link(card.vertex.clone(), Vertex::Switch(format!("{name}0").into()), wire);
    }
}

fn pods<'a>(graph: &mut Graph, fabric: &Fabric, cards: impl Iterator<Item = &'a Card>) {
    let mut by_pod: BTreeMap<String, Vec<&Card>> = BTreeMap::new();
    for card in cards {
        let pod = graph.topology.node(card.node).pod.to_string();
        by_pod.entry(pod).or_default().push(card);
    }
    let joined = by_pod.len() > 1;
    for (name, cards) in by_pod {
        let shape = fabric.pods.get(&name).copied().unwrap_or(fabric.default_pod);
        for plane in 0..fabric.planes {
            let pod = Pod { name: &name, shape, plane, fabric, cards: &cards };
            pod.build(graph, joined);
        }
    }
}

/// One plane of one pod.
struct Pod<'a> {
    name: &'a str,
    shape: PodShape,
    plane: u32,
    fabric: &'a Fabric,
    cards: &'a [&'a Card],
}

impl Pod<'_> {
    fn build(&self, graph: &mut Graph, joined: bool) {
        let nodes: BTreeSet<NodeId> = self.cards.iter().map(|card| card.node).collect();
        let rails = self.cards.iter().map(|card| card.rail + 1).max().unwrap_or(1);
        let per_leaf = self.fabric.nodes_per_leaf.unwrap_or(match self.fabric.wiring {
            Wiring::ByRail => CARDS_PER_LEAF,
            Wiring::ByNode | Wiring::Flat => (CARDS_PER_LEAF / rails).max(1),
        });
        let block: BTreeMap<NodeId, u32> =
            nodes.iter().enumerate().map(|(row, node)| (*node, row as u32 / per_leaf)).collect();
        // Bandwidth and cables of each leaf to what is below it.
        let mut below: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for card in self.cards {
            let leaf = match self.fabric.wiring {
                Wiring::ByRail => block[&card.node] * rails + card.rail,
                Wiring::ByNode | Wiring::Flat => block[&card.node],
            };
            let port = Bytes(card.speed.0 / u64::from(self.fabric.planes));
            let speed = self.shape.speed.map_or(port, |speed| speed.min(port));
            let wire = Wire::one("leaf", Some(speed)).delayed(NETWORK_NS);
            graph.link(card.vertex.clone(), self.switch("leaf", leaf), wire);
            let (sum, cables) = below.entry(leaf).or_default();
            *sum += speed.0;
            *cables += 1;
        }
        if below.len() > 1 || joined {
            self.spines(graph, &below, joined);
        }
        if self.fabric.wiring == Wiring::ByNode {
            for (node, block) in block {
                graph.topology.nodes[node.index()].rack = format!("{}-{block}", self.name).into();
            }
        }
    }

    fn spines(&self, graph: &mut Graph, below: &BTreeMap<u32, (u64, u32)>, joined: bool) {
        let of = self.shape.oversubscription;
        let up = |cables: u32| ((f64::from(cables) / of).ceil() as u32).max(1);
        // A spine that some leaf has no cable to would leave leaves without a way to each other.
        let fewest = below.values().map(|(_, cables)| up(*cables)).min().unwrap_or(1);
        let spines = self.fabric.spines.unwrap_or(SPINES).min(fewest);
        let mut to_spine: BTreeMap<u32, u64> = BTreeMap::new();
        for (&leaf, &(sum, cables)) in below {
            let cables_up = up(cables);
            let each = sum as f64 / of / f64::from(cables_up);
            for (spine, cables) in spread(cables_up, spines) {
                let wire = Wire::many("spine", Bytes(each as u64), cables).delayed(NETWORK_NS);
                graph.link(self.switch("leaf", leaf), self.switch("spine", spine), wire);
                *to_spine.entry(spine).or_default() += each as u64 * u64::from(cables);
            }
        }
        for (spine, sum) in to_spine.into_iter().filter(|_| joined) {
            let each = sum as f64 / self.fabric.between_pods / f64::from(CORES);
            for core in 0..CORES {
                let name = format!("core{core}{}", self.letter());
                let wire = Wire::one("core", Some(Bytes(each as u64))).delayed(NETWORK_NS);
                graph.link(self.switch("spine", spine), Vertex::Switch(name.into()), wire);
            }
        }
    }

    fn switch(&self, word: &str, number: u32) -> Vertex {
        Vertex::Switch(format!("{}/{word}{number}{}", self.name, self.letter()).into())
    }

    /// Of the plane: `a`, `b`; none where there is only one.
    fn letter(&self) -> &'static str {
        match (self.fabric.planes, self.plane) {
            (1, _) => "",
            (_, 0) => "a",
            _ => "b",
        }
    }
}
