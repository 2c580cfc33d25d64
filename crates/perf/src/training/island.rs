//! What joins the devices of a node with each other, their host and other nodes.

/// Bus bandwidth over the sum of a device's links in one direction: 245 of 300 GB/s measured on
/// A100 (see [`Island::hgx_a100`]); taken for every other mesh or switch of links.
pub const BUS_PART: f64 = 245.0 / 300.0;

/// Class or prefix of one · devices a node · GB/s of a device's links to the others of its node,
/// one direction · GB/s of network a device. Links: `devices.csv`; network: the makers' own
/// eight-device machines.
const INTERCONNECTS: &[(&str, u32, f64, f64)] = &[
    ("a800", 8, 200.0, 25.0),
    ("h800", 8, 200.0, 50.0),
    ("b200", 8, 900.0, 50.0),
    ("gb200", 72, 900.0, 50.0),
    ("v100-sxm2", 8, 150.0, 12.5),
    ("p100-sxm2", 8, 80.0, 12.5),
    ("mi250x", 4, 400.0, 25.0),
    ("mi3", 8, 448.0, 50.0),
    ("ascend-910b", 8, 196.0, 25.0),
    ("ascend-910c", 16, 392.0, 50.0),
    ("ascend-910-a", 8, 45.0, 12.5),
    ("gaudi2", 8, 262.5, 37.5),
    ("gaudi3", 8, 525.0, 75.0),
    ("tpu", 8, 300.0, 50.0),
    ("p800", 8, 200.0, 50.0),
];

/// GB/s of PCIe 4 x16 that SimAI takes, and what a job's share of such a machine's network is.
const PCIE_GBPS: f64 = 25.6;
const NETWORK_GBPS: f64 = 12.5;

/// A node and what joins it to others. Bandwidths in GB/s (10⁹ bytes), one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Island {
    pub devices_per_node: u32,
    /// Bus bandwidth that a large all-reduce of many devices of a node reaches.
    pub link_gbps: f64,
    /// Line rate of the network, a device.
    pub network_gbps: f64,
    /// Between a device and the memory of its host.
    pub host_gbps: f64,
    /// Of the host's memory, a device.
    pub host_memory_gbps: f64,
    /// Of local storage, a device.
    pub storage_gbps: f64,
}

impl Island {
    /// Eight A100 behind NVSwitches. 245 GB/s reproduces vTrain's measured all-reduces of 2 to 8
    /// devices at 1 GiB (197, 222 and 229 GB/s); 25 GB/s are 8 × 200G a node, 12.5 GB/s 8 × 100G.
    /// PCIe 4 as SimAI has it; host memory and storage are estimates.
    pub fn hgx_a100(network_gbps: f64) -> Self {
        Self {
            devices_per_node: 8,
            link_gbps: 245.0,
            network_gbps,
            host_gbps: 25.6,
            host_memory_gbps: 40.0,
            storage_gbps: 3.0,
        }
    }

    /// Eight H100: 1.6 times an A100's, between a ring's 370 and NVLS's 475 GB/s (nccl-tests, issue
    /// 212); 8 × 400G a node.
    pub fn hgx_h100() -> Self {
        Self { link_gbps: 392.0, host_gbps: 51.2, ..Self::hgx_a100(50.0) }
    }

    /// The node and the network that devices of the class usually have.
    pub fn of_class(class: &str) -> Self {
        let known = INTERCONNECTS.iter().find(|(prefix, ..)| class.starts_with(prefix));
        match known {
            Some(&(_, devices_per_node, links, network_gbps)) => Self {
                devices_per_node,
                link_gbps: links * BUS_PART,
                network_gbps,
                ..Self::hgx_a100(network_gbps)
            },
            None if class.starts_with("a100-sxm") => Self::hgx_a100(25.0),
            None if ["h100-sxm", "h200", "h20"].iter().any(|known| class.starts_with(known)) => {
                Self::hgx_h100()
            }
            None => Self {
                link_gbps: PCIE_GBPS * BUS_PART,
                host_gbps: PCIE_GBPS,
                ..Self::hgx_a100(NETWORK_GBPS)
            },
        }
    }

    /// Devices of a job of so many that stand in one node.
    pub(super) fn node_devices(&self, devices: u32) -> u32 {
        self.devices_per_node.clamp(1, devices.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn islands_are_as_fast_as_their_links() {
        let bus = |class| Island::of_class(class).link_gbps.round();
        assert_eq!(bus("a100-sxm4-80"), 245.0);
        assert_eq!(bus("h100-sxm5-80"), 392.0);
        assert_eq!(bus("ascend-910b"), 160.0);
        assert_eq!(bus("rtx-4090"), 21.0);
    }
}
