//! Node templates: machines that are sold, as rows of a table.

use het_core::Bytes;

/// A kind of machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Template {
    pub name: &'static str,
    /// In a few words.
    pub about: &'static str,
    /// Machines that one of it is: 18 trays of a rack with one NVLink domain.
    pub nodes: u32,
    /// Class, number and cores of the CPU sockets of a node.
    pub sockets: (&'static str, u32, u32),
    pub memory: Bytes,
    /// Class and number of the accelerators of a node; none where the number is 0.
    pub accelerators: (&'static str, u32),
    /// One more accelerator, alone on a root port of the last socket.
    pub guest: Option<&'static str>,
    pub peers: Peers,
    /// PCIe switches of a node between sockets and accelerators; 0: straight to the sockets.
    pub pcie_switches: u32,
    /// PCIe generation of the node's own switches and cards.
    pub pcie_generation: u32,
    pub cards: Cards,
}

/// How the accelerators reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peers {
    /// Over PCIe only.
    None,
    /// Each to each of so many switches of the node.
    Switches { kind: &'static str, word: &'static str, count: u32 },
    /// Each to each of so many switches that all nodes of the template share.
    Shared { kind: &'static str, word: &'static str, count: u32 },
    /// The first to the second, the third to the fourth, by a bridge with all links of both.
    Bridges { kind: &'static str },
    /// Each to each other.
    Mesh { kind: &'static str },
    /// As `Switches`, and two chips of a package by a link of their own: allocate both or none.
    Modules { kind: &'static str, word: &'static str, count: u32, pair_gbps: u32 },
}

/// Network cards of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cards {
    pub count: u32,
    pub gbit: u64,
    pub at: CardPlace,
    pub storage: u32,
    pub storage_gbit: u64,
}

/// What a compute card hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardPlace {
    /// The PCIe switch of its accelerator, a socket where there are no switches.
    Pcie,
    /// The accelerator itself has the port.
    Accelerator,
}

/// Every template.
pub const TEMPLATES: [Template; 10] = [
    // NVIDIA DGX A100: 6 NVSwitches, 12 NVLink3 a GPU (2 to each switch, 25 GB/s a direction), 4
    // PCIe 4 switches with 2 GPUs and 2 cards each, 8 x 200G and 2 for storage (MLPerf's system
    // descriptions; H3C's R5500 G5 is the same class). Host: MLPerf's Juniper rows.
    Template {
        name: "hgx-a100-8",
        about: "8 x A100, 6 NVSwitches, 8 x 200G",
        nodes: 1,
        sockets: ("epyc-7763", 2, 64),
        memory: Bytes::gib(2_048),
        accelerators: ("a100-sxm4-80", 8),
        guest: None,
        peers: Peers::Switches { kind: "nvlink", word: "nvswitch", count: 6 },
        pcie_switches: 4,
        pcie_generation: 4,
        cards: Cards { count: 8, gbit: 200, at: CardPlace::Pcie, storage: 2, storage_gbit: 200 },
    },
    // NVIDIA DGX H100: 4 NVSwitch3, 18 NVLink4 a GPU, PCIe 5, 8 x ConnectX-7 of 400G and 2 for
    // storage, hosts Xeon 8480C (MLPerf's system descriptions).
    Template {
        name: "hgx-h100-8",
        about: "8 x H100, 4 NVSwitches, 8 x 400G",
        nodes: 1,
        sockets: ("xeon-8480", 2, 56),
        memory: Bytes::gib(2_048),
        accelerators: ("h100-sxm5-80", 8),
        guest: None,
        peers: Peers::Switches { kind: "nvlink", word: "nvswitch", count: 4 },
        pcie_switches: 4,
        pcie_generation: 5,
        cards: Cards { count: 8, gbit: 400, at: CardPlace::Pcie, storage: 2, storage_gbit: 400 },
    },
    // NVIDIA GB200 NVL72: 18 trays of 2 Grace and 4 GPUs, 9 NVLink switch trays of two chips,
    // 18 NVLink5 a GPU, one to each chip; 4 x 400G a tray (MLPerf's system descriptions; NVIDIA's
    // multi-node tuning guide, which names 2 BlueField-3 for storage). 480 GB a Grace.
    Template {
        name: "gb200-nvl72",
        about: "18 trays of 4 GB200 in one NVLink domain, 4 x 400G a tray",
        nodes: 18,
        sockets: ("grace", 2, 72),
        memory: Bytes::gib(894),
        accelerators: ("gb200-per-gpu", 4),
        guest: None,
        peers: Peers::Shared { kind: "nvlink", word: "nvswitch", count: 18 },
        pcie_switches: 0,
        pcie_generation: 5,
        cards: Cards { count: 4, gbit: 400, at: CardPlace::Pcie, storage: 2, storage_gbit: 400 },
    },
    // Huawei Atlas 800T A2: 4 x Kunpeng 920, 8 x 910B in a full mesh of HCCS (7 x 56 GB/s both
    // directions), a 200G RoCE port on each NPU (vendor's guide, from memory). The host's own card
    // is an option of the order: 2 x 100G are an assumption.
    Template {
        name: "atlas-800t-a2",
        about: "8 x Ascend 910B in a full mesh, 8 x 200G RoCE",
        nodes: 1,
        sockets: ("kunpeng-920", 4, 48),
        memory: Bytes::gib(1_024),
        accelerators: ("ascend-910b", 8),
        guest: None,
        peers: Peers::Mesh { kind: "hccs" },
        pcie_switches: 0,
        pcie_generation: 4,
        cards: Cards {
            count: 8,
            gbit: 200,
            at: CardPlace::Accelerator,
            storage: 2,
            storage_gbit: 100,
        },
    },
    // Huawei Atlas A3 (a node of CloudMatrix384): 8 x 910C of two dies each, 7 UB switches with a
    // link to every die, 200G RoCE a die, 4 x Kunpeng (arXiv 2506.12708). Dies of a package: 270
    // GB/s a direction (the same paper, from memory).
    Template {
        name: "atlas-a3",
        about: "16 NPUs as 8 modules of 2, 7 UB switches, 16 x 200G RoCE",
        nodes: 1,
        sockets: ("kunpeng-920", 4, 48),
        memory: Bytes::gib(1_536),
        accelerators: ("ascend-910c-die", 16),
        guest: None,
        peers: Peers::Modules { kind: "ub", word: "ub", count: 7, pair_gbps: 270 },
        pcie_switches: 0,
        pcie_generation: 4,
        cards: Cards {
            count: 16,
            gbit: 200,
            at: CardPlace::Accelerator,
            storage: 2,
            storage_gbit: 200,
        },
    },
    // AWS g4dn.12xlarge: 24 cores, 192 GiB, 50 Gbit/s (Amazon EC2 instance types); the `aws` nodes
    // of Sia's cluster.
    Template {
        name: "t4x4",
        about: "4 x T4, 50G",
        nodes: 1,
        sockets: ("xeon-8259cl", 1, 24),
        memory: Bytes::gib(192),
        accelerators: ("t4", 4),
        guest: None,
        peers: Peers::None,
        pcie_switches: 0,
        pcie_generation: 3,
        cards: Cards { count: 1, gbit: 50, at: CardPlace::Pcie, storage: 0, storage_gbit: 0 },
    },
    // A PCIe box of two sockets, each with a PCIe switch of four accelerators and two cards: the
    // common build of eight double-width cards; memory is an assumption.
    Template {
        name: "l40s-8",
        about: "8 x L40S on two PCIe switches, 4 x 200G",
        nodes: 1,
        sockets: ("xeon-8480", 2, 56),
        memory: Bytes::gib(1_024),
        accelerators: ("l40s", 8),
        guest: None,
        peers: Peers::None,
        pcie_switches: 2,
        pcie_generation: 4,
        cards: Cards { count: 4, gbit: 200, at: CardPlace::Pcie, storage: 1, storage_gbit: 100 },
    },
    // The same with A100 PCIe cards, which an NVLink bridge joins by twos.
    Template {
        name: "a100-pcie-8",
        about: "8 x A100 PCIe, joined by twos, on four PCIe switches, 2 x 200G",
        nodes: 1,
        sockets: ("epyc-7763", 2, 64),
        memory: Bytes::gib(1_024),
        accelerators: ("a100-pcie-80", 8),
        guest: None,
        peers: Peers::Bridges { kind: "nvlink" },
        pcie_switches: 4,
        pcie_generation: 4,
        cards: Cards { count: 2, gbit: 200, at: CardPlace::Pcie, storage: 1, storage_gbit: 100 },
    },
    // A mixed node: 2 x EPYC 9654, an HGX H100 board and one 910B.
    Template {
        name: "epyc-h100x8-910b",
        about: "8 x H100 and one Ascend 910B, 8 x 400G",
        nodes: 1,
        sockets: ("epyc-9654", 2, 96),
        memory: Bytes::gib(1_024),
        accelerators: ("h100-sxm5-80", 8),
        guest: Some("ascend-910b"),
        peers: Peers::Switches { kind: "nvlink", word: "nvswitch", count: 4 },
        pcie_switches: 4,
        pcie_generation: 5,
        cards: Cards { count: 8, gbit: 400, at: CardPlace::Pcie, storage: 2, storage_gbit: 400 },
    },
    // A node for preprocessing and serving data; memory and card are an assumption.
    Template {
        name: "cpu",
        about: "2 x EPYC 9654, 100G",
        nodes: 1,
        sockets: ("epyc-9654", 2, 96),
        memory: Bytes::gib(768),
        accelerators: ("", 0),
        guest: None,
        peers: Peers::None,
        pcie_switches: 0,
        pcie_generation: 5,
        cards: Cards { count: 1, gbit: 100, at: CardPlace::Pcie, storage: 1, storage_gbit: 100 },
    },
];

/// The template of that name.
pub(crate) fn by_name(name: &str) -> Option<Template> {
    TEMPLATES.iter().find(|template| template.name == name).copied()
}
