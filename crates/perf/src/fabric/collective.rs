//! What collectives cost: a latency for every step and bytes over the bandwidth that the slowest
//! link leaves, for each algorithm and protocol, of which the fastest is taken. The form and its
//! constants are those by which NCCL chooses (`src/graph/tuning.cc` at 5067397c); a collective's
//! bandwidth is reported as nccl-tests does, by what crosses the busiest link.

/// What all ranks do together. Bytes are those of the whole buffer: of an all-gather what every
/// rank ends with, of a reduce-scatter and an all-to-all what every rank begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    Ring,
    Tree,
    /// Within nodes, across nodes, within nodes.
    Hierarchical,
    /// The switches of a node reduce (NVLS); across nodes between ranks of the same place.
    InSwitch,
    /// Every rank with every other.
    Pairwise,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Flags beside every 4 bytes: least latency, half of the bandwidth.
    LowLatency,
    /// Flags beside every 120 bytes.
    LowLatency128,
    /// Whole buffers, then a signal.
    Simple,
}

/// What joins two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    NvLink,
    /// Huawei's links between NPUs; no latencies are published, those of NVLink are taken.
    Hccs,
    Pcie,
    Network,
}

/// How one rank reaches others: bytes per second in one direction, as collectives attain them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transport {
    pub kind: TransportKind,
    pub bytes_per_s: f64,
}

/// Which ways a library knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// Rings and trees over all ranks, reduction in switches.
    Nccl,
    /// Rings, and hierarchies of rings; also who splits collectives by himself.
    Hccl,
}

/// Ranks that communicate, in nodes that are alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    pub ranks_per_node: u32,
    pub nodes: u32,
    pub library: Library,
    pub inside: Transport,
    /// Per rank: a NIC that two ranks share counts half.
    pub between: Transport,
    /// Bytes per second that the switches of a node reduce for one rank, where they can.
    pub in_switch_bytes_per_s: Option<f64>,
    /// Bytes per second of LL where links would allow more.
    pub low_latency_bytes_per_s_max: f64,
    /// Of copies from and to the buffers at both ends.
    pub local_bytes_per_s: f64,
    /// From the call to the first byte.
    pub launch_s: f64,
}

/// One way to do a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollectiveCost {
    pub seconds: f64,
    pub algorithm: Algorithm,
    pub protocol: Protocol,
    /// As nccl-tests prints it.
    pub bus_bytes_per_s: f64,
}

/// Launch of a collective: makes the constants below agree with measured small all-reduces on A100
/// and V100 to 7 % in the mean (vTrain's tables; checked in the peers' tests of `lab`).
const LAUNCH_S: f64 = 25e-6;

/// Part of a device's memory bandwidth that a copy within a collective attains; from the same
/// tables.
const LOCAL_PART: f64 = 0.74;

impl Group {
    /// A group on accelerators of `memory_bytes_per_s`, without reduction in switches; by HCCL
    /// where its links are inside.
    pub fn new(
        [nodes, ranks_per_node]: [u32; 2],
        inside: Transport,
        between: Transport,
        memory_bytes_per_s: f64,
    ) -> Self {
        // LL of Ampere by nodes; Volta has 39/39/20.4, Hopper 141/45/35.
        let low_latency = match nodes {
            0 | 1 => 87.7e9,
            2 => 22.5e9,
            _ => 19e9,
        };
        let library = match inside.kind {
            TransportKind::Hccs => Library::Hccl,
            _ => Library::Nccl,
        };
        Self {
            ranks_per_node,
            nodes,
            library,
            inside,
            between,
            in_switch_bytes_per_s: None,
            low_latency_bytes_per_s_max: low_latency,
            local_bytes_per_s: memory_bytes_per_s * LOCAL_PART,
            launch_s: LAUNCH_S,
        }
    }

    pub fn ranks(&self) -> u32 {
        self.ranks_per_node * self.nodes
    }

    /// The fastest way.
    pub fn cost(&self, collective: Collective, bytes: f64) -> CollectiveCost {
        let ways = self.ways(collective, bytes).into_iter();
        let fastest = ways.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        fastest.expect("every collective has a way")
    }

    /// Every way, in the order of [`Algorithm`] and [`Protocol`].
    pub fn ways(&self, collective: Collective, bytes: f64) -> Vec<CollectiveCost> {
        if self.ranks() <= 1 {
            return vec![self.way(collective, bytes, Algorithm::Ring, Protocol::Simple, 0.0)];
        }
        let mut ways = Vec::new();
        for algorithm in algorithms(collective) {
            for protocol in [Protocol::LowLatency, Protocol::LowLatency128, Protocol::Simple] {
                if let Some(seconds) = self.seconds(collective, bytes, *algorithm, protocol) {
                    let local = match algorithm {
                        Algorithm::InSwitch => 0.0,
                        _ => self.local_s(collective, bytes),
                    };
                    let seconds = self.launch_s + seconds + local;
                    ways.push(self.way(collective, bytes, *algorithm, protocol, seconds));
                }
            }
        }
        ways
    }

    fn way(
        &self,
        collective: Collective,
        bytes: f64,
        algorithm: Algorithm,
        protocol: Protocol,
        seconds: f64,
    ) -> CollectiveCost {
        let bus_bytes_per_s = match seconds > 0.0 {
            true => collective.bus_factor(self.ranks()) * bytes / seconds,
            false => f64::INFINITY,
        };
        CollectiveCost { seconds, algorithm, protocol, bus_bytes_per_s }
    }

    /// Each rank copies its part in and out beside what overlaps with sending.
    fn local_s(&self, collective: Collective, bytes: f64) -> f64 {
        let parts = match collective {
            Collective::AllReduce => 2.0,
            _ => 1.0,
        };
        parts * bytes / f64::from(self.ranks()) / self.local_bytes_per_s
    }

    fn seconds(
        &self,
        collective: Collective,
        bytes: f64,
        algorithm: Algorithm,
        protocol: Protocol,
    ) -> Option<f64> {
        match algorithm {
            Algorithm::Ring => Some(self.ring_s(collective, bytes, protocol)),
            Algorithm::Tree => {
                let known = self.library == Library::Nccl;
                known.then(|| self.tree_s(collective, bytes, protocol))
            }
            Algorithm::Hierarchical => {
                let two_levels = self.nodes > 1 && self.ranks_per_node > 1;
                let known = self.library == Library::Hccl;
                (known && two_levels && protocol == Protocol::Simple)
                    .then(|| self.hierarchical_s(collective, bytes))
            }
            Algorithm::InSwitch => {
                let reduced = self.in_switch_bytes_per_s?;
                (protocol == Protocol::Simple).then(|| self.in_switch_s(bytes, reduced))
            }
            Algorithm::Pairwise => (protocol == Protocol::Simple).then(|| self.pairwise_s(bytes)),
        }
    }

    fn ring_s(&self, collective: Collective, bytes: f64, protocol: Protocol) -> f64 {
        let rounds = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
        let steps = rounds * f64::from(self.ranks() - 1);
        let across = rounds * f64::from(self.nodes - 1);
        let latency = ring_base_s(protocol)
            + (steps - across) * self.inside.ring_hop_s(protocol)
            + across * self.between.ring_hop_s(protocol);
        let line = self.narrowest();
        let bandwidth = match protocol {
            Protocol::LowLatency => (line * 0.5).min(self.low_latency_bytes_per_s_max),
            Protocol::LowLatency128 => line * LOW_LATENCY_128_PART,
            Protocol::Simple => line,
        };
        latency + collective.bus_factor(self.ranks()) * bytes / bandwidth
    }

    /// A chain within each node, a double tree across; up and down again for an all-reduce.
    fn tree_s(&self, collective: Collective, bytes: f64, protocol: Protocol) -> f64 {
        let rounds = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
        let depth = f64::from(self.nodes).log2();
        let latency = tree_base_s(protocol)
            + rounds * f64::from(self.ranks_per_node - 1) * self.inside.tree_hop_s(protocol)
            + rounds * depth * self.between.tree_hop_s(protocol);
        let line = self.narrowest() * TREE_PART;
        let bandwidth = match (protocol, self.nodes) {
            (Protocol::LowLatency, _) => (line / 3.8).min(self.low_latency_bytes_per_s_max),
            (Protocol::LowLatency128, 1) => line * 7.0 / 9.0,
            (Protocol::LowLatency128, _) => line * 120.0 / 128.0,
            (Protocol::Simple, _) => line,
        };
        latency + rounds * bytes / bandwidth
    }

    fn hierarchical_s(&self, collective: Collective, bytes: f64) -> f64 {
        let (ranks, nodes) = (f64::from(self.ranks_per_node), f64::from(self.nodes));
        let rounds = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
        let protocol = Protocol::Simple;
        let latency = ring_base_s(protocol) * (1.0 + rounds)
            + rounds * (ranks - 1.0) * self.inside.ring_hop_s(protocol)
            + rounds * (nodes - 1.0) * self.between.ring_hop_s(protocol);
        let inside = (ranks - 1.0) / ranks * bytes / self.inside.bytes_per_s;
        let across = (nodes - 1.0) / nodes * bytes / ranks / self.between.bytes_per_s;
        latency + rounds * (inside + across)
    }

    fn in_switch_s(&self, bytes: f64, reduced_bytes_per_s: f64) -> f64 {
        let nodes = f64::from(self.nodes);
        let across = bytes / f64::from(self.ranks_per_node) / self.between.bytes_per_s;
        let across = if self.nodes > 1 {
            nodes.log2() * IN_SWITCH_NETWORK_S + 2.0 * (nodes - 1.0) / nodes * across
        } else {
            0.0
        };
        // Chunks go up, across and down at the same time: the slowest stage decides.
        let inside = bytes / reduced_bytes_per_s;
        IN_SWITCH_NVLINK_S + inside.max(across)
    }

    /// Bytes for ranks of the own node go inside, the rest across; both at the same time.
    fn pairwise_s(&self, bytes: f64) -> f64 {
        let own = bytes / f64::from(self.ranks());
        let inside = own * f64::from(self.ranks_per_node - 1) / self.inside.bytes_per_s;
        let others = f64::from(self.ranks() - self.ranks_per_node);
        let across = own * others / self.between.bytes_per_s;
        let protocol = Protocol::Simple;
        let hop = match self.nodes {
            1 => self.inside.ring_hop_s(protocol),
            _ => self.between.ring_hop_s(protocol),
        };
        ring_base_s(protocol) + hop + inside.max(across)
    }

    /// Bytes per second that a ring or a chain through all ranks has. A tree over two nodes could
    /// have twice the network's, and NCCL counts on it; what was measured there is no more than a
    /// ring's.
    fn narrowest(&self) -> f64 {
        let node = self.between.bytes_per_s * f64::from(self.ranks_per_node);
        match (self.nodes, self.ranks_per_node) {
            (1, _) => self.inside.bytes_per_s,
            (_, 1) => node,
            _ => self.inside.bytes_per_s.min(node),
        }
    }
}

impl Collective {
    /// Bytes over the busiest link per byte of the buffer (nccl-tests, `PERFORMANCE.md`).
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let part = f64::from(ranks.saturating_sub(1)) / f64::from(ranks.max(1));
        match self {
            Self::AllReduce => 2.0 * part,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => part,
            Self::Broadcast | Self::Reduce => 1.0,
        }
    }
}

impl Transport {
    /// NVLink of `links` links a device; GB/s of one link as NCCL counts it: 20 on Volta and
    /// Ampere, 20.6 on Hopper, 40.1 on Blackwell.
    pub fn nvlink(links: u32, link_gbytes_per_s: f64) -> Self {
        let bytes_per_s = f64::from(links) * link_gbytes_per_s * 1e9;
        Self { kind: TransportKind::NvLink, bytes_per_s }
    }

    /// A full mesh of HCCS, of which a group uses the links among its own ranks: 28 GB/s a link and
    /// direction on Ascend 910B.
    pub fn hccs_mesh(ranks: u32, link_gbytes_per_s: f64) -> Self {
        let bytes_per_s = f64::from(ranks.saturating_sub(1).max(1)) * link_gbytes_per_s * 1e9;
        Self { kind: TransportKind::Hccs, bytes_per_s }
    }

    /// 16 lanes of PCIe as NCCL counts them, GB/s: generation 3 has 12, 4 twice that, and so on.
    pub fn pcie(generation: u32) -> Self {
        let bytes_per_s = 12e9 * 2_f64.powi(generation as i32 - 3);
        Self { kind: TransportKind::Pcie, bytes_per_s }
    }

    /// A network of so many Gb/s a rank; of 400 Gb/s 48.5 GB/s are left, of 200 Gb/s 23.5 (SimAI).
    pub fn network(gbit_per_s: f64) -> Self {
        let part = if gbit_per_s >= 400.0 { 48.5 / 50.0 } else { 23.5 / 25.0 };
        Self { kind: TransportKind::Network, bytes_per_s: gbit_per_s * 1e9 / 8.0 * part }
    }

    fn ring_hop_s(&self, protocol: Protocol) -> f64 {
        let microseconds = match self.kind {
            TransportKind::NvLink | TransportKind::Hccs => [0.6, 1.9, 3.4],
            TransportKind::Pcie => [1.0, 2.5, 5.7],
            TransportKind::Network => [2.7, 4.0, 14.0],
        };
        microseconds[protocol as usize] * 1e-6
    }

    fn tree_hop_s(&self, protocol: Protocol) -> f64 {
        let microseconds = match self.kind {
            TransportKind::NvLink | TransportKind::Hccs => [0.6, 1.25, 4.0],
            TransportKind::Pcie => [1.0, 1.9, 4.0],
            TransportKind::Network => [5.0, 8.5, 14.0],
        };
        microseconds[protocol as usize] * 1e-6
    }
}

/// Parts of a link that LL128 and trees use, and latencies of reduction in switches, from NCCL.
const LOW_LATENCY_128_PART: f64 = 0.92;
const TREE_PART: f64 = 0.92;
const IN_SWITCH_NVLINK_S: f64 = 25e-6;
const IN_SWITCH_NETWORK_S: f64 = 18e-6;

fn ring_base_s(protocol: Protocol) -> f64 {
    [6.6e-6, 14e-6, 8.4e-6][protocol as usize]
}

fn tree_base_s(protocol: Protocol) -> f64 {
    [6.8e-6, 14e-6, 8.4e-6][protocol as usize]
}

fn algorithms(collective: Collective) -> &'static [Algorithm] {
    match collective {
        Collective::AllReduce => {
            &[Algorithm::Ring, Algorithm::Tree, Algorithm::Hierarchical, Algorithm::InSwitch]
        }
        Collective::AllGather | Collective::ReduceScatter => {
            &[Algorithm::Ring, Algorithm::Hierarchical]
        }
        Collective::AllToAll => &[Algorithm::Pairwise],
        Collective::Broadcast | Collective::Reduce => &[Algorithm::Ring, Algorithm::Tree],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(group: Group, collective: Collective, gbytes_per_s: f64, part: f64) {
        let cost = group.cost(collective, 8.0 * 1024.0 * 1024.0 * 1024.0);
        let reported = cost.bus_bytes_per_s * 1e-9;
        assert!((reported / gbytes_per_s - 1.0).abs() < part, "{reported:.1} GB/s by {cost:?}");
    }

    #[test]
    fn large_collectives_attain_what_was_published() {
        let a100 = |nodes, nic| {
            let inside = Transport::nvlink(12, 20.0);
            Group::new([nodes, 8], inside, Transport::network(nic), 1.555e12)
        };
        let hopper =
            Group::new([1, 8], Transport::nvlink(18, 20.6), Transport::network(400.0), 3.35e12);
        let in_switch = Group { in_switch_bytes_per_s: Some(475e9 / 1.75), ..hopper };
        // nccl issue 1048, nccl-tests issues 119, 212 and 290.
        check(a100(1, 200.0), Collective::AllReduce, 232.5, 0.03);
        check(a100(2, 100.0), Collective::AllReduce, 86.0, 0.10);
        check(a100(3, 100.0), Collective::AllReduce, 96.0, 0.10);
        check(hopper, Collective::AllReduce, 370.0, 0.03);
        check(hopper, Collective::AllGather, 370.8, 0.03);
        check(in_switch, Collective::AllReduce, 478.0, 0.03);
    }

    #[test]
    fn latency_decides_for_few_bytes_and_bandwidth_for_many() {
        let inside = Transport::nvlink(12, 20.0);
        let group = Group::new([16, 8], inside, Transport::network(200.0), 2e12);
        let few = group.cost(Collective::AllReduce, 1e3);
        assert_eq!((few.algorithm, few.protocol), (Algorithm::Tree, Protocol::LowLatency));
        let many = group.cost(Collective::AllReduce, 1e10);
        assert_eq!(many.protocol, Protocol::Simple);
        for collective in [Collective::AllGather, Collective::AllToAll, Collective::Broadcast] {
            let more = group.cost(collective, 2e9).seconds / group.cost(collective, 1e9).seconds;
            assert!((1.8..2.05).contains(&more), "{collective:?}: {more}");
        }
    }

    #[test]
    fn what_a_hierarchy_saves_shows_where_the_network_is_narrow() {
        let npus = |library| Group {
            library,
            ..Group::new([8, 8], Transport::hccs_mesh(8, 28.0), Transport::network(200.0), 1.6e12)
        };
        let ring = npus(Library::Nccl).cost(Collective::AllReduce, 1e9);
        let levels = npus(Library::Hccl).cost(Collective::AllReduce, 1e9);
        assert_eq!(levels.algorithm, Algorithm::Ring);
        assert!(levels.seconds >= ring.seconds);
        let narrow = |library| Group { between: Transport::network(25.0), ..npus(library) };
        let ring = narrow(Library::Nccl).cost(Collective::AllReduce, 1e9);
        let levels = narrow(Library::Hccl).cost(Collective::AllReduce, 1e9);
        assert_eq!(levels.algorithm, Algorithm::Hierarchical);
        assert!(levels.seconds < ring.seconds);
    }

    #[test]
    fn one_rank_alone_communicates_nothing() {
        let inside = Transport::pcie(4);
        let alone = Group::new([1, 1], inside, Transport::network(100.0), 1e12);
        assert_eq!(alone.cost(Collective::AllReduce, 1e9).seconds, 0.0);
    }
}
