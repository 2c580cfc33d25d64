//! A topology as a tree of text: one node of each make in detail, then the switches of the network.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Name, NodeId, Topology, Vertex};
use het_wire::topology::Role;

use super::graph::{self, Neighbours, Owners, full_name, short_name, stem, wire_text};

pub fn text(topology: &Topology) -> String {
    let neighbours = Neighbours::of(topology);
    let mut tree = Tree { topology, neighbours: &neighbours, text: String::new() };
    for alike in graph::kinds(topology) {
        tree.node(&alike);
    }
    tree.switches();
    tree.text
}

/// What links of a vertex that are told together have in common: stem of the far end, kind, rate.
type LinksAlike<'a> = (String, &'a Name, Option<u64>);

struct Tree<'a> {
    topology: &'a Topology,
    neighbours: &'a Neighbours<'a>,
    text: String,
}

impl Tree<'_> {
    fn node(&mut self, alike: &[NodeId]) {
        let [id, others @ ..] = alike else { return };
        let node = self.topology.node(*id);
        let size = node.host.memory.to_string();
        let place = match (others.first(), others.last()) {
            (Some(first), Some(last)) => {
                let [first, last] = [first, last].map(|id| &self.topology.node(*id).name);
                let count = others.len();
                let range =
                    if count == 1 { first.to_string() } else { format!("{first} … {last}") };
                format!("{size}), and {count} like it: {range}")
            }
            _ => format!("{size})"),
        };
        self.text.push_str(&format!("{} ({place}\n", node.name));
        let mut drawn = BTreeSet::new();
        self.branch(&Vertex::Node(*id), "", &mut drawn);
        let own = self.topology.device_ids().filter(|it| self.topology.device(*it).node == *id);
        let alone: Vec<Vertex> =
            own.map(Vertex::Device).filter(|vertex| !drawn.contains(vertex)).collect();
        for (index, vertex) in alone.iter().enumerate() {
            let fork = if index + 1 == alone.len() { "└─" } else { "├─" };
            self.text.push_str(&format!("{fork} {} (link unknown)\n", self.title(vertex)));
        }
    }

    /// What hangs on a vertex on the way from the node's memory.
    fn branch(&mut self, from: &Vertex, indent: &str, drawn: &mut BTreeSet<Vertex>) {
        drawn.insert(from.clone());
        let next = self.neighbours.at(from).iter().copied();
        let next: Vec<_> = next
            .filter(|(link, far)| graph::is_of_host(self.topology, link) && !drawn.contains(*far))
            .collect();
        for (index, (link, far)) in next.iter().enumerate() {
            if !drawn.insert((*far).clone()) {
                continue;
            }
            let last = index + 1 == next.len();
            let (fork, rest) = if last { ("└─", "   ") } else { ("├─", "│  ") };
            let name = self.title(far);
            let wire = wire_text(&link.kind, link.bandwidth, link.count);
            let aside = self.aside(far, Links::NotOfHost);
            self.text.push_str(&format!("{indent}{fork} {name}  [{wire}]{aside}\n"));
            self.branch(far, &format!("{indent}{rest}"), drawn);
        }
    }

    /// Switches that several nodes share, or that join peers: those with links alike in one line.
    fn switches(&mut self) {
        let owners = Owners::of(self.topology);
        let mut lines: BTreeMap<(Role, String, String), Vec<&Vertex>> = BTreeMap::new();
        for vertex in self.neighbours.vertices() {
            let role = Role::of(self.topology, vertex);
            if role.is_network() || owners.node(vertex).is_none() {
                let place = full_name(self.topology, vertex);
                let place = place.rsplit_once('/').map_or("", |(place, _)| place).to_owned();
                let aside = self.aside(vertex, Links::All);
                lines.entry((role, place, aside)).or_default().push(vertex);
            }
        }
        for ((.., aside), alike) in lines {
            let [first, .., last] = alike.as_slice() else {
                let names = alike.iter().map(|vertex| full_name(self.topology, vertex));
                self.text.push_str(&format!("{}{aside}\n", names.collect::<String>()));
                continue;
            };
            let (first, last) = (full_name(self.topology, first), short_name(self.topology, last));
            self.text.push_str(&format!("{first} … {last} ({}){aside}\n", alike.len()));
        }
    }

    /// Links of a vertex in words, those alike together: ` ⇄ 6 nvswitch by nvlink 12 × 25 GB/s`.
    fn aside(&self, vertex: &Vertex, which: Links) -> String {
        let mut groups: BTreeMap<LinksAlike<'_>, (Vec<&Vertex>, u32)> = BTreeMap::new();
        for (link, far) in self.neighbours.at(vertex) {
            if which == Links::All || !graph::is_of_host(self.topology, link) {
                let each = link.bandwidth.map(|sum| sum.0 / u64::from(link.count.max(1)));
                let key = (stem(self.topology, far), &link.kind, each);
                let (ends, count) = groups.entry(key).or_default();
                ends.push(far);
                *count += link.count;
            }
        }
        let mut text = String::new();
        for ((stem, kind, each), (ends, count)) in groups {
            let sum = each.map(|each| het_core::Bytes(each * u64::from(count)));
            let wire = wire_text(kind, sum, count);
            let far = match ends.as_slice() {
                [only] => match Role::of(self.topology, only).is_network() {
                    true => full_name(self.topology, only),
                    false => short_name(self.topology, only),
                },
                several => format!("{} {stem}", several.len()),
            };
            text.push_str(&format!(" ⇄ {far} by {wire}"));
        }
        if text.is_empty() { text } else { format!(" {text}") }
    }

    fn title(&self, vertex: &Vertex) -> String {
        let name = short_name(self.topology, vertex);
        let Vertex::Device(id) = vertex else { return name };
        let class = self.topology.class_of(*id);
        match class.kind.as_str() {
            "cpu" => {
                let cores = self.topology.device(*id).capacity.whole_units();
                format!("{name} {} ({cores} cores)", class.title)
            }
            _ => format!("{name} {}", class.title),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    All,
    NotOfHost,
}
