//! What is drawn of a topology: one node in detail, the others and long rows of switches folded
//! into boxes with counts, links between the same boxes as one line.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Bytes, NodeId, Topology, Vertex};
use het_wire::quantity;
use het_wire::topology::{Cluster, Role};

use super::graph::{self, Neighbours, Owners, short_name, stem, wire_text};

/// Boxes of other nodes; more are folded into the last.
const GROUPS_MAX: usize = 4;
/// Network switches in a row; more are folded into one box.
const SWITCHES_MAX: usize = 10;

/// A thing to draw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// The first is the name.
    pub lines: Vec<String>,
    pub role: Role,
    pub place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the node that is drawn in detail.
    Inside,
    /// Nodes that are folded, beside it.
    Beside,
    /// Shared by nodes.
    Network,
}

/// Links between two shapes of one kind and rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub from: usize,
    pub to: usize,
    pub kind: String,
    /// Of one link between two vertices: `nvlink 2 × 25 GB/s`.
    pub label: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Picture {
    pub title: String,
    pub subtitle: String,
    /// Name of the node that is drawn in detail.
    pub frame: String,
    pub shapes: Vec<Shape>,
    pub lines: Vec<Line>,
}

pub fn picture(cluster: &Cluster) -> Picture {
    let topology = &cluster.topology;
    let mut drawing = Drawing {
        topology,
        owners: Owners::of(topology),
        shapes: Vec::new(),
        of: BTreeMap::new(),
        groups: BTreeMap::new(),
    };
    let Some(detail) = drawing.detail() else {
        return Picture { title: cluster.name.clone(), ..Picture::default() };
    };
    drawing.nodes(detail);
    let neighbours = Neighbours::of(topology);
    drawing.inside(detail, &neighbours);
    drawing.network(&neighbours, detail);
    let lines = drawing.lines();
    let node = topology.node(detail);
    Picture {
        title: cluster.name.clone(),
        subtitle: subtitle(topology),
        frame: format!("{} ({} of memory)", node.name, node.host.memory),
        shapes: drawing.shapes,
        lines,
    }
}

fn subtitle(topology: &Topology) -> String {
    let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
    for device in &topology.devices {
        *counts.entry(device.class).or_default() += 1;
    }
    let nodes = topology.nodes.len();
    let devices =
        counts.iter().map(|(class, count)| format!("{count} × {}", topology.classes[*class].title));
    let devices: Vec<String> = devices.collect();
    format!("{nodes} node{}: {}", if nodes == 1 { "" } else { "s" }, devices.join(", "))
}

struct Drawing<'a> {
    topology: &'a Topology,
    owners: Owners<'a>,
    shapes: Vec<Shape>,
    /// The shape of each vertex that is drawn.
    of: BTreeMap<Vertex, usize>,
    /// The shape of each folded node.
    groups: BTreeMap<NodeId, usize>,
}

impl Drawing<'_> {
    /// The first node with accelerators, else the first.
    fn detail(&self) -> Option<NodeId> {
        let with = self.topology.accelerators().next().map(|id| self.topology.device(id).node);
        with.or_else(|| self.topology.node_ids().next())
    }

    fn push(&mut self, lines: Vec<String>, role: Role, place: Place) -> usize {
        self.shapes.push(Shape { lines, role, place });
        self.shapes.len() - 1
    }

    /// Boxes for all nodes but the one in detail.
    fn nodes(&mut self, detail: NodeId) {
        let mut kinds = graph::kinds(self.topology);
        for kind in &mut kinds {
            kind.retain(|id| *id != detail);
        }
        kinds.retain(|kind| !kind.is_empty());
        let rest: Vec<NodeId> = match kinds.len() > GROUPS_MAX {
            true => kinds.split_off(GROUPS_MAX - 1).concat(),
            false => Vec::new(),
        };
        for kind in kinds {
            let node = self.topology.node(kind[0]);
            let mut lines = vec![match kind.len() {
                1 => node.name.to_string(),
                count => format!("{count} nodes, {} …", node.name),
            }];
            lines.push(node.pod.to_string());
            lines.extend(graph::contents(self.topology, kind[0]));
            self.group(&kind, lines);
        }
        if !rest.is_empty() {
            let pods: BTreeSet<_> = rest.iter().map(|id| &self.topology.node(*id).pod).collect();
            let lines =
                vec![format!("{} more nodes", rest.len()), format!("of {} pods", pods.len())];
            self.group(&rest, lines);
        }
    }

    fn group(&mut self, nodes: &[NodeId], lines: Vec<String>) {
        let shape = self.push(lines, Role::Node, Place::Beside);
        self.groups.extend(nodes.iter().map(|id| (*id, shape)));
    }

    /// Every vertex of the node in detail.
    fn inside(&mut self, detail: NodeId, neighbours: &Neighbours<'_>) {
        let of_detail = |vertex: &Vertex| self.owners.node(vertex) == Some(detail);
        let devices = self.topology.device_ids().map(Vertex::Device);
        let mut vertices: Vec<Vertex> = devices.filter(of_detail).collect();
        let switches = neighbours.vertices().filter(|it| matches!(it, Vertex::Switch(_)));
        vertices.extend(natural(self.topology, switches.filter(|it| of_detail(it)).cloned()));
        for vertex in vertices {
            let role = Role::of(self.topology, &vertex);
            let lines = self.texts(&vertex, neighbours);
            let shape = self.push(lines, role, Place::Inside);
            self.of.insert(vertex, shape);
        }
    }

    /// Name, and what helps to tell the thing.
    fn texts(&self, vertex: &Vertex, neighbours: &Neighbours<'_>) -> Vec<String> {
        let mut lines = vec![short_name(self.topology, vertex)];
        match (vertex, Role::of(self.topology, vertex)) {
            (Vertex::Device(id), role) => {
                let class = self.topology.class_of(*id);
                let vendor = format!("{} ", class.vendor);
                let title = class.title.as_str().trim_start_matches(&vendor);
                // A remark in brackets on a line of its own keeps the row narrow.
                match title.split_once(" (") {
                    Some((model, remark)) => {
                        lines.extend([model.to_owned(), format!("({remark}")]);
                    }
                    None => lines.push(title.to_owned()),
                }
                let device = self.topology.device(*id);
                lines.push(match role {
                    Role::Socket => format!("{} cores", device.capacity.whole_units()),
                    _ => device.memory.to_string(),
                });
            }
            (_, Role::Nic) => {
                let at = neighbours.at(vertex).iter();
                let ports = at.filter(|(link, far)| {
                    link.kind == "nic" || Role::of(self.topology, far).is_network()
                });
                let speeds = ports.filter_map(|(link, _)| link.bandwidth);
                lines.extend(speeds.max().map(quantity::port_text));
            }
            _ => {}
        }
        lines
    }

    /// What nodes share: each row of switches, those near the node in detail first.
    fn network(&mut self, neighbours: &Neighbours<'_>, detail: NodeId) {
        let mut rows: BTreeMap<Role, Vec<Vertex>> = BTreeMap::new();
        for vertex in neighbours.vertices().filter(|it| self.owners.node(it).is_none()) {
            let role = Role::of(self.topology, vertex);
            let ends = neighbours.at(vertex).iter().map(|(_, far)| self.owners.node(far));
            let ends: Vec<_> = ends.collect();
            // What only other nodes share is a part of their box.
            let elsewhere = role == Role::PeerSwitch && !ends.contains(&Some(detail));
            if !elsewhere {
                rows.entry(role).or_default().push(vertex.clone());
            }
        }
        let pod = format!("{}/", self.topology.node(detail).pod);
        for (role, vertices) in rows {
            let mut vertices = natural(self.topology, vertices.into_iter());
            let name = |vertex: &Vertex| graph::full_name(self.topology, vertex);
            vertices.sort_by_key(|vertex| !name(vertex).starts_with(&pod));
            let most = if role == Role::PeerSwitch { usize::MAX } else { SWITCHES_MAX };
            let shown = if vertices.len() > most { most - 1 } else { vertices.len() };
            let folded = vertices.split_off(shown);
            for vertex in vertices {
                let full = graph::full_name(self.topology, &vertex);
                let lines = match role {
                    Role::PeerSwitch => vec![short_name(self.topology, &vertex)],
                    _ => full.split('/').rev().map(str::to_owned).collect(),
                };
                let shape = self.push(lines, role, Place::Network);
                self.of.insert(vertex, shape);
            }
            if let Some(first) = folded.first() {
                let lines = vec![format!("{} more", folded.len()), stem(self.topology, first)];
                let shape = self.push(lines, role, Place::Network);
                self.of.extend(folded.into_iter().map(|vertex| (vertex, shape)));
            }
        }
    }

    fn shape(&self, vertex: &Vertex) -> Option<usize> {
        let group = || self.groups.get(&self.owners.node(vertex)?);
        self.of.get(vertex).or_else(group).copied()
    }

    /// Each pair of shapes and label once.
    fn lines(&self) -> Vec<Line> {
        let mut seen = BTreeSet::new();
        let mut lines = Vec::new();
        for link in &self.topology.links {
            let (Some(from), Some(to)) = (self.shape(&link.from), self.shape(&link.to)) else {
                continue;
            };
            let (upper, lower) = (from.min(to), from.max(to));
            let each = link.bandwidth.map(|sum| Bytes(sum.0 / u64::from(link.count.max(1))));
            let folded = |shape: usize| self.shapes[shape].place == Place::Beside;
            // Bundles differ where links do not divide evenly; folded, only one link's rate counts.
            let label = wire_text(&link.kind, link.bandwidth, link.count);
            let key = (upper, lower, link.kind.clone());
            if upper != lower && seen.insert(key) {
                let label = match folded(upper) || folded(lower) {
                    true => wire_text(&link.kind, each, 1),
                    false => label,
                };
                lines.push(Line { from: upper, to: lower, kind: link.kind.to_string(), label });
            }
        }
        lines
    }
}

/// In the order of people: `leaf2` before `leaf10`.
fn natural(topology: &Topology, vertices: impl Iterator<Item = Vertex>) -> Vec<Vertex> {
    let mut vertices: Vec<Vertex> = vertices.collect();
    vertices.sort_by_cached_key(|vertex| {
        let name = graph::full_name(topology, vertex);
        let (place, _) = name.rsplit_once('/').unwrap_or(("", &name));
        let last = short_name(topology, vertex);
        let digits: String = last.chars().filter(char::is_ascii_digit).collect();
        (place.to_owned(), stem(topology, vertex), digits.parse::<u64>().unwrap_or(0), name)
    });
    vertices
}
