//! Which network card each accelerator sends through, and how near it is.

use std::collections::BTreeMap;

use het_core::{DeviceId, NodeId, Topology, Vertex};

use super::Role;
use super::parts::{carries_training, parts};

/// An accelerator with its card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCard {
    pub device: DeviceId,
    /// Among the accelerators of its node, from 0.
    pub local: u32,
    /// The nearest card of the compute network, each taken as often as the others; `None` where the
    /// node has none.
    pub card: Option<Card>,
}

/// A card on the compute network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Without the node's name: `nic3`. What drivers call it no topology says.
    pub name: String,
    pub distance: Distance,
    /// The switch that it is plugged into.
    pub leaf: Option<String>,
}

/// What lies between a device and its card, nearest first; words of `nvidia-smi topo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// One PCIe switch at most.
    Switch,
    /// Several PCIe switches.
    Switches,
    /// The root of one socket.
    Socket,
    /// The link between sockets.
    Sockets,
}

impl Distance {
    pub fn word(self) -> &'static str {
        match self {
            Self::Switch => "PIX",
            Self::Switches => "PXB",
            Self::Socket => "PHB",
            Self::Sockets => "SYS",
        }
    }
}

/// Every accelerator with its card, by node, in row order.
pub fn device_cards(topology: &Topology) -> Vec<DeviceCard> {
    let inside = Inside::of(topology);
    let mut taken: BTreeMap<&Vertex, u32> = BTreeMap::new();
    let mut next: BTreeMap<NodeId, u32> = BTreeMap::new();
    let mut devices: Vec<DeviceId> = topology.accelerators().collect();
    devices.sort_by_key(|id| (topology.device(*id).node, *id));
    let cards = devices.into_iter().map(|device| {
        let local = next.entry(topology.device(device).node).or_default();
        *local += 1;
        let near = inside.near(topology, device);
        // The nearest; of equally near ones that which fewest have.
        let best = near.into_iter().min_by_key(|(card, distance)| {
            (*distance, taken.get(card).copied().unwrap_or_default(), *card)
        });
        let card = best.map(|(card, distance)| {
            *taken.entry(card).or_default() += 1;
            Card {
                name: parts(card).1.to_owned(),
                distance,
                leaf: inside.leaves.get(card).map(|leaf| (*leaf).to_owned()),
            }
        });
        DeviceCard { device, local: *local - 1, card }
    });
    cards.collect()
}

/// Links inside nodes, both ways, and the leaf of each card.
struct Inside<'a> {
    links: BTreeMap<&'a Vertex, Vec<&'a Vertex>>,
    leaves: BTreeMap<&'a Vertex, &'a str>,
}

impl<'a> Inside<'a> {
    fn of(topology: &'a Topology) -> Self {
        let mut inside = Self { links: BTreeMap::new(), leaves: BTreeMap::new() };
        for link in &topology.links {
            let ends = [&link.from, &link.to];
            let roles = ends.map(|end| Role::of(topology, end));
            for (own, other) in [(0, 1), (1, 0)] {
                if roles[own] == Role::Nic && roles[other].is_network() {
                    if let Vertex::Switch(leaf) = ends[other] {
                        inside.leaves.insert(ends[own], leaf.as_str());
                    }
                } else if roles.iter().all(|role| lies_between(*role)) {
                    inside.links.entry(ends[own]).or_default().push(ends[other]);
                }
            }
        }
        inside
    }

    /// Cards that the device reaches inside its node. Paths over another accelerator are none.
    fn near(&self, topology: &Topology, device: DeviceId) -> Vec<(&'a Vertex, Distance)> {
        let start = Vertex::Device(device);
        let Some((start, _)) = self.links.get_key_value(&start) else { return Vec::new() };
        let mut found = Vec::new();
        let mut seen: Vec<&Vertex> = vec![*start];
        // Sockets and PCIe switches on the way.
        let mut front: Vec<(&Vertex, u32, u32)> = vec![(*start, 0, 0)];
        while let Some((at, sockets, switches)) = front.pop() {
            for next in self.links.get(at).into_iter().flatten() {
                if seen.contains(next) {
                    continue;
                }
                let (sockets, switches) = match Role::of(topology, next) {
                    Role::Nic if !carries_training(next) => continue,
                    Role::Nic => {
                        found.push((*next, distance(sockets, switches)));
                        seen.push(next);
                        continue;
                    }
                    Role::Socket => (sockets + 1, switches),
                    Role::Pcie | Role::Switch => (sockets, switches + 1),
                    _ => continue,
                };
                seen.push(next);
                front.push((next, sockets, switches));
                // Near ones first, so that what is seen is seen on the shortest way.
                front
                    .sort_by_key(|(_, sockets, switches)| std::cmp::Reverse((*sockets, *switches)));
            }
        }
        found
    }
}

fn distance(sockets: u32, switches: u32) -> Distance {
    match (sockets, switches) {
        (0, 0 | 1) => Distance::Switch,
        (0, _) => Distance::Switches,
        (1, _) => Distance::Socket,
        _ => Distance::Sockets,
    }
}

fn lies_between(role: Role) -> bool {
    matches!(role, Role::Accelerator | Role::Pcie | Role::Switch | Role::Socket | Role::Nic)
}

#[cfg(test)]
mod tests {
    use super::super::from_word;
    use super::*;

    #[test]
    fn every_device_has_the_card_beside_it() {
        let check = |word: &str, cards: &[&str], distance: Distance| {
            let topology = from_word(word).expect("a cluster").topology;
            let found: Vec<Card> =
                device_cards(&topology).into_iter().filter_map(|device| device.card).collect();
            let names: Vec<&str> = found.iter().map(|card| card.name.as_str()).collect();
            assert_eq!(names, cards, "{word}");
            assert!(found.iter().all(|card| card.distance == distance), "{word}: {found:?}");
            assert!(found.iter().all(|card| card.leaf.is_some()));
        };
        let eight = ["nic0", "nic1", "nic2", "nic3", "nic4", "nic5", "nic6", "nic7"];
        check("hgx-h100-8", &eight, Distance::Switch);
        check("atlas-800t-a2", &eight, Distance::Switch);
        check("t4x4", &["nic0"; 4], Distance::Socket);
    }
}
