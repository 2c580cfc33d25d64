//! Which network card each accelerator sends through, and how near it is.

use std::collections::BTreeMap;

use het_core::{DeviceId, Distance, Interconnect, NearCard, NodeId, Role, Topology, Vertex};

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

/// Every accelerator with its card, by node, in row order.
pub fn device_cards(topology: &Topology) -> Vec<DeviceCard> {
    let (interconnects, leaves) = (Interconnect::of_nodes(topology), leaves(topology));
    let mut next: BTreeMap<NodeId, u32> = BTreeMap::new();
    let mut devices: Vec<DeviceId> = topology.accelerators().collect();
    devices.sort_by_key(|id| (topology.device(*id).node, *id));
    let cards = devices.into_iter().map(|device| {
        let node = topology.device(device).node;
        let interconnect = &interconnects[node.index()];
        let counter = next.entry(node).or_default();
        let local = *counter;
        *counter += 1;
        let near = interconnect.near_cards.get(local as usize).copied().flatten();
        let card = near.map(|NearCard { card, distance }| {
            let name = interconnect.cards[card].clone();
            let vertex = Vertex::Switch(format!("{}/{name}", topology.node(node).name).into());
            let leaf = leaves.get(&vertex).map(|leaf| (*leaf).to_owned());
            Card { name, distance, leaf }
        });
        DeviceCard { device, local, card }
    });
    cards.collect()
}

/// The switch that each card is plugged into.
fn leaves(topology: &Topology) -> BTreeMap<&Vertex, &str> {
    let mut leaves = BTreeMap::new();
    for link in &topology.links {
        for (card, leaf) in [(&link.from, &link.to), (&link.to, &link.from)] {
            if let Vertex::Switch(name) = leaf
                && Role::of(topology, card) == Role::Nic
                && Role::of(topology, leaf).is_network()
            {
                leaves.insert(card, name.as_str());
            }
        }
    }
    leaves
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
