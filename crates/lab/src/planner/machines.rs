//! What devices of a class stand in and are joined by, where nobody says otherwise.

use het_perf::training::{Efficiency, Island, Machine};

use super::figures;

/// Bus bandwidth over the sum of a device's links in one direction: 245 of 300 GB/s measured on
/// A100 (see [`Island::hgx_a100`]); taken for every other mesh or switch of links.
const BUS_PART: f64 = 245.0 / 300.0;

/// Class or beginning of one · devices a node · GB/s of a device's links to the others of its node,
/// one direction · GB/s of network a device. Links: `devices.csv`; network: the makers' own
/// eight-device machines.
const STANDING: &[(&str, u32, f64, f64)] = &[
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

/// A device of the class as the planner sees it; `None` where the catalogue lacks its memory or
/// bandwidth.
pub fn machine(class: &str) -> Option<Machine> {
    let device = figures(class)?;
    let standing = STANDING.iter().find(|(prefix, ..)| class.starts_with(prefix));
    let island = match standing {
        Some(&(_, devices_per_node, links, network_gbps)) => Island {
            devices_per_node,
            link_gbps: links * BUS_PART,
            network_gbps,
            ..Island::hgx_a100(network_gbps)
        },
        None if class.starts_with("a100-sxm") => Island::hgx_a100(25.0),
        None if ["h100-sxm", "h200", "h20"].iter().any(|known| class.starts_with(known)) => {
            Island::hgx_h100()
        }
        None => Island {
            link_gbps: PCIE_GBPS * BUS_PART,
            host_gbps: PCIE_GBPS,
            ..Island::hgx_a100(NETWORK_GBPS)
        },
    };
    Some(Machine { device, island, efficiency: Efficiency::of_class(class) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn islands_are_as_fast_as_their_links() {
        let bus = |class| machine(class).map(|machine| machine.island.link_gbps.round());
        assert_eq!(bus("a100-sxm4-80"), Some(245.0));
        assert_eq!(bus("h100-sxm5-80"), Some(392.0));
        assert_eq!(bus("ascend-910b"), Some(160.0));
        assert_eq!(bus("rtx-4090"), Some(21.0));
        assert_eq!(bus("nobody"), None);
    }
}
