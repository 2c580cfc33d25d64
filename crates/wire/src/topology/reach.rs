//! What a device reaches, read off the links around it: its peers, its host, the network.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Bytes, DeviceId, Link, NodeId, Topology, Vertex};

use super::Role;

/// What every device of a class has at least, in bytes per second and direction; `None` where no
/// link tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reach {
    /// Devices of the class that their own links join, such as the NVLink domain; of a node where
    /// there are no such links.
    pub island: u32,
    /// To its peers, over all of its links.
    pub peers: Option<Bytes>,
    pub host: Option<Bytes>,
    /// Its part of the cards of its node, storage and business cards aside.
    pub network: Option<Bytes>,
    /// The same where all send at once to other leaves of the pod, and to other pods; `None` where
    /// there are none.
    pub beyond_leaf: Option<Bytes>,
    pub beyond_pod: Option<Bytes>,
    /// Its part of the cards on the storage network.
    pub storage: Option<Bytes>,
}

/// The reach of each class, in the order of the topology's classes; empty where a class has no
/// accelerator.
pub fn reaches(topology: &Topology) -> Vec<Reach> {
    let carried = Carried::of(topology);
    let mut reaches: Vec<Option<Reach>> = vec![None; topology.classes.len()];
    for id in topology.accelerators() {
        let own = carried.reach(topology, id);
        let of_class = &mut reaches[topology.device(id).class];
        *of_class = Some(of_class.map_or(own, |least| least.and(own)));
    }
    reaches.into_iter().map(Option::unwrap_or_default).collect()
}

impl Reach {
    /// The lesser of each.
    fn and(self, other: Self) -> Self {
        Self {
            island: self.island.min(other.island),
            peers: self.peers.min(other.peers),
            host: self.host.min(other.host),
            network: self.network.min(other.network),
            beyond_leaf: self.beyond_leaf.min(other.beyond_leaf),
            beyond_pod: self.beyond_pod.min(other.beyond_pod),
            storage: self.storage.min(other.storage),
        }
    }
}

/// Sums over links, bytes per second.
#[derive(Debug, Default)]
struct Carried {
    /// By device.
    peers: BTreeMap<DeviceId, u64>,
    host: BTreeMap<DeviceId, u64>,
    /// Devices that are joined to it, itself included, by device.
    islands: BTreeMap<DeviceId, u32>,
    /// By name of the node.
    network: BTreeMap<String, u64>,
    storage: BTreeMap<String, u64>,
    accelerators: Vec<u32>,
    /// Accelerators by node and class.
    alike: BTreeMap<(NodeId, usize), u32>,
    pods: BTreeMap<String, Pod>,
}

/// Sums of a pod's links between its tiers, and its leaf switches.
#[derive(Debug, Default)]
struct Pod {
    leaves: BTreeSet<String>,
    below: u64,
    above: u64,
    cores: u64,
}

impl Carried {
    fn of(topology: &Topology) -> Self {
        let mut carried = Self { accelerators: vec![0; topology.nodes.len()], ..Self::default() };
        for id in topology.accelerators() {
            let device = topology.device(id);
            carried.accelerators[device.node.index()] += 1;
            *carried.alike.entry((device.node, device.class)).or_default() += 1;
        }
        let mut kinds = BTreeSet::new();
        for link in &topology.links {
            if let Some(bandwidth) = link.bandwidth
                && carried.add(topology, link, bandwidth.0)
            {
                kinds.insert(link.kind.as_str());
            }
        }
        for kind in kinds {
            for island in topology.islands(kind) {
                for id in &island {
                    let class = topology.device(*id).class;
                    let alike = island.iter().filter(|id| topology.device(**id).class == class);
                    let count = carried.islands.entry(*id).or_default();
                    *count = (*count).max(alike.count() as u32);
                }
            }
        }
        carried
    }

    /// Counts a link; `true` of one between peers.
    fn add(&mut self, topology: &Topology, link: &Link, bandwidth: u64) -> bool {
        let mut ends = [&link.from, &link.to].map(|end| (Role::of(topology, end), end));
        // From the accelerator up to the core of the network.
        ends.sort_by_key(|(role, _)| height(*role));
        let [(low, from), (high, to)] = ends;
        match (low, high) {
            (Role::Accelerator, Role::Accelerator | Role::PeerSwitch) => {
                // Two chips of a module reach their peers over other links.
                if link.kind == "module" || link.kind == "pcie" {
                    return false;
                }
                for end in [from, to] {
                    if let Vertex::Device(id) = end {
                        *self.peers.entry(*id).or_default() += bandwidth;
                    }
                }
                return true;
            }
            (Role::Accelerator, Role::Pcie | Role::Socket | Role::Node) => {
                if let Vertex::Device(id) = from {
                    self.host.insert(*id, bandwidth);
                }
            }
            (Role::Nic, Role::Leaf | Role::Tor) => {
                let (node, card) = parts(from);
                if carries_training(from) {
                    *self.network.entry(node.to_owned()).or_default() += bandwidth;
                    self.pod(to).below += bandwidth;
                } else if card.starts_with("storage") {
                    *self.storage.entry(node.to_owned()).or_default() += bandwidth;
                }
            }
            (Role::Leaf, Role::Spine) => {
                let (_, leaf) = parts(from);
                let pod = self.pod(from);
                pod.leaves.insert(leaf.to_owned());
                pod.above += bandwidth;
            }
            (Role::Spine, Role::Core) => self.pod(from).cores += bandwidth,
            _ => {}
        }
        false
    }

    fn pod(&mut self, of: &Vertex) -> &mut Pod {
        self.pods.entry(parts(of).0.to_owned()).or_default()
    }

    fn reach(&self, topology: &Topology, id: DeviceId) -> Reach {
        let device = topology.device(id);
        let node = topology.node(device.node);
        let beside = self.accelerators[device.node.index()];
        let part_of = |sums: &BTreeMap<String, u64>| {
            let sum = sums.get(node.name.as_str());
            sum.map(|sum| Bytes(sum / u64::from(beside.max(1))))
        };
        let network = part_of(&self.network);
        let pod = self.pods.get(node.pod.as_str());
        let part = |above: u64, below: u64| {
            let share = (above as f64 / below.max(1) as f64).min(1.0);
            network.map(|network| Bytes((network.0 as f64 * share) as u64))
        };
        Reach {
            island: match self.islands.get(&id) {
                Some(island) => *island,
                None => self.alike[&(device.node, device.class)],
            },
            peers: self.peers.get(&id).copied().map(Bytes),
            host: self.host.get(&id).copied().map(Bytes),
            network,
            beyond_leaf: match pod {
                Some(pod) if pod.leaves.len() > 1 => part(pod.above, pod.below),
                _ => None,
            },
            beyond_pod: match pod {
                Some(pod) if pod.cores > 0 => part(pod.cores.min(pod.above), pod.below),
                _ => None,
            },
            storage: part_of(&self.storage),
        }
    }
}

/// Tiers from the bottom.
fn height(role: Role) -> u32 {
    match role {
        Role::Accelerator => 0,
        Role::PeerSwitch | Role::Pcie | Role::Switch => 1,
        Role::Socket => 2,
        Role::Node => 3,
        Role::Nic => 4,
        Role::Leaf | Role::Tor => 5,
        Role::Spine => 6,
        Role::Core => 7,
    }
}

/// What stands before the last part of a switch's name, and that part.
fn parts(vertex: &Vertex) -> (&str, &str) {
    match vertex {
        Vertex::Switch(name) => name.as_str().rsplit_once('/').unwrap_or(("", name.as_str())),
        Vertex::Node(_) | Vertex::Device(_) => ("", ""),
    }
}

/// Of a card, whether training sends over it: not one of the storage or the business network.
fn carries_training(card: &Vertex) -> bool {
    parts(card).1.starts_with("nic")
}

#[cfg(test)]
mod tests {
    use super::super::from_word;
    use super::*;

    #[test]
    fn templates_reach_what_their_makers_print() {
        let check = |word: &str, class: &str, island: u32, gbps: [f64; 3]| {
            let topology = from_word(word).expect("a cluster").topology;
            let row = topology.classes.iter().position(|known| known.id == *class);
            let reach = reaches(&topology)[row.expect("of the template")];
            let told = |bytes: Option<Bytes>| bytes.map_or(0.0, |bytes| bytes.0 as f64 / 1e9);
            assert_eq!(reach.island, island, "{word}");
            let found = [reach.peers, reach.host, reach.network].map(told);
            let near = found.iter().zip(&gbps).all(|(found, told)| (found - told).abs() < 0.1);
            assert!(near, "{word}: {found:?}");
        };
        check("hgx-a100-8x2+rail", "a100-sxm4-80", 8, [300.0, 31.5, 25.0]);
        check("hgx-h100-8x4+spine-leaf", "h100-sxm5-80", 8, [450.0, 63.0, 50.0]);
        check("gb200-nvl72", "gb200-per-gpu", 72, [900.0, 450.0, 50.0]);
        check("atlas-800t-a2x2", "ascend-910b", 8, [196.0, 31.5, 25.0]);
        check("t4x4", "t4", 4, [0.0, 15.8, 1.6]);
    }

    #[test]
    fn uplinks_that_are_too_few_are_shared() {
        let text = "apiVersion: heterosis.dev/v1alpha1\nkind: Cluster\nmetadata: { name: two }\n\
                    nodes:\n- { template: hgx-h100-8, count: 32, pod: a }\n\
                    - { template: hgx-h100-8, count: 32, pod: b }\n\
                    fabric: { template: spine-leaf, oversubscription: 2, between_pods: 4 }\n";
        let topology = super::super::parse(text, "two.yaml").expect("a cluster").topology;
        let row = topology.classes.iter().position(|class| class.id == "h100-sxm5-80");
        let reach = reaches(&topology)[row.expect("of the template")];
        let network = reach.network.expect("cards").0 as f64;
        let part = |of: Option<Bytes>| of.expect("a tier above").0 as f64 / network;
        assert!((part(reach.beyond_leaf) - 0.5).abs() < 0.05, "{reach:?}");
        assert!((part(reach.beyond_pod) - 0.125).abs() < 0.05, "{reach:?}");
    }
}
