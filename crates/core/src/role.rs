//! What a vertex is, told by its name.

use crate::{Topology, Vertex};

/// What a vertex is, from the top of a drawing to its bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Joins pods.
    Core,
    Spine,
    Leaf,
    /// The switch on top of a rack.
    Tor,
    Nic,
    /// A switch whose name says nothing.
    Switch,
    /// Memory of a machine, which its sockets share.
    Node,
    Socket,
    /// A PCIe switch or host bridge.
    Pcie,
    Accelerator,
    /// Joins accelerators: NVSwitch, UB switch.
    PeerSwitch,
}

/// First letters of the last part of a switch's name.
const ROLES: [(&str, Role); 14] = [
    ("core", Role::Core),
    ("spine", Role::Spine),
    ("leaf", Role::Leaf),
    ("fabric", Role::Leaf),
    ("tor", Role::Tor),
    ("nic", Role::Nic),
    ("storage-nic", Role::Nic),
    ("business-nic", Role::Nic),
    ("pci", Role::Pcie),
    ("network", Role::Leaf),
    ("socket", Role::Socket),
    ("nvswitch", Role::PeerSwitch),
    ("ub", Role::PeerSwitch),
    ("hccs", Role::PeerSwitch),
];

impl Role {
    pub fn of(topology: &Topology, vertex: &Vertex) -> Self {
        match vertex {
            Vertex::Node(_) => Self::Node,
            Vertex::Device(id) if topology.class_of(*id).kind == "cpu" => Self::Socket,
            Vertex::Device(_) => Self::Accelerator,
            Vertex::Switch(name) => Self::of_name(name.as_str()),
        }
    }

    /// Of a switch, by its name.
    pub fn of_name(name: &str) -> Self {
        let part = name.rsplit('/').next().unwrap_or_default();
        // A PCIe bridge without a name of its own has an address, `0000:c1:00.0`.
        if part.contains(':') && part.starts_with(|first: char| first.is_ascii_hexdigit()) {
            return Self::Pcie;
        }
        let known = ROLES.iter().find(|(word, _)| part.starts_with(word));
        known.map_or(Self::Switch, |(_, role)| *role)
    }

    /// Part of the network, not of one machine.
    pub fn is_network(self) -> bool {
        matches!(self, Self::Core | Self::Spine | Self::Leaf | Self::Tor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_switch_is() {
        let check = |name: &str, role: Role| assert_eq!(Role::of_name(name), role, "{name}");
        check("pod0/leaf3a", Role::Leaf);
        check("storage/tor0", Role::Tor);
        check("node-3/storage-nic1", Role::Nic);
        check("host/0000:c1:00.0", Role::Pcie);
        check("host/pci0000:c0", Role::Pcie);
        check("rack0/nvswitch17", Role::PeerSwitch);
        check("box", Role::Switch);
    }
}
