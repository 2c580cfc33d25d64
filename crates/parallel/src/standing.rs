//! What devices of a class stand in and are joined by, where nobody says otherwise.

use het_perf::training::{Attention, DeviceFigures, Efficiency, Island, Machine};

use crate::request::{Collectives, Pool};

/// Bus bandwidth over the sum of a device's links in one direction: 245 of 300 GB/s measured on
/// A100 (see [`Island::hgx_a100`]); taken for every other mesh or switch of links.
pub const BUS_PART: f64 = 245.0 / 300.0;

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

/// Beginnings of the classes that FlashAttention-3 was written for.
const HOPPER_AND_LATER: [&str; 6] = ["h100", "h200", "h800", "h20", "b200", "gb200"];

/// Beginnings of the classes whose 16 bits are fp16 alone: NVIDIA's before Ampere, Huawei's before
/// the 910B.
const WITHOUT_BF16: [&str; 7] = ["v100", "t4", "p100", "p40", "k80", "rtx-20", "ascend-910-a"];

/// Whether devices of the class multiply matrices in bf16, as far as is known.
pub fn has_bf16(class: &str) -> bool {
    !WITHOUT_BF16.iter().any(|prefix| class.starts_with(prefix))
}

/// Devices of a class as they usually stand, with the software that their vendor ships.
pub fn standing(class: &str, vendor: &str, device: DeviceFigures, devices: u32) -> Pool {
    let collectives = match vendor {
        "NVIDIA" => Collectives::Nccl,
        "AMD" => Collectives::Rccl,
        "Huawei" => Collectives::Hccl,
        _ => Collectives::Host,
    };
    let attention = match () {
        () if HOPPER_AND_LATER.iter().any(|prefix| class.starts_with(prefix)) => Attention::Flash3,
        // FlashAttention-2 needs what came with bf16.
        () if has_bf16(class) => Attention::Flash2,
        () => Attention::Plain,
    };
    Pool { collectives, attention, ..Pool::new(class, machine(class, device), devices) }
}

/// A device of the class, in the node and on the network that it usually has.
fn machine(class: &str, device: DeviceFigures) -> Machine {
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
    Machine { device, island, efficiency: Efficiency::of_class(class) }
}

#[cfg(test)]
mod tests {
    use het_core::Bytes;

    use super::*;

    #[test]
    fn islands_are_as_fast_as_their_links() {
        let device = DeviceFigures {
            fp32_tflops: None,
            half_tflops: Some(312.0),
            fp8_tflops: None,
            memory: Bytes(80 << 30),
            memory_gbps: 2_039.0,
        };
        let bus = |class| machine(class, device).island.link_gbps.round();
        assert_eq!(bus("a100-sxm4-80"), 245.0);
        assert_eq!(bus("h100-sxm5-80"), 392.0);
        assert_eq!(bus("ascend-910b"), 160.0);
        assert_eq!(bus("rtx-4090"), 21.0);
    }

    #[test]
    fn each_vendor_has_its_library() {
        let device = DeviceFigures {
            fp32_tflops: None,
            half_tflops: Some(376.0),
            fp8_tflops: None,
            memory: Bytes(64 << 30),
            memory_gbps: 1_600.0,
        };
        let pool = standing("ascend-910b", "Huawei", device, 8);
        assert_eq!((pool.collectives, pool.attention), (Collectives::Hccl, Attention::Flash2));
        let pool = standing("h100-sxm5-80", "NVIDIA", device, 8);
        assert_eq!((pool.collectives, pool.attention), (Collectives::Nccl, Attention::Flash3));
        let pool = standing("v100-sxm2-32", "NVIDIA", device, 8);
        assert_eq!(pool.attention, Attention::Plain);
    }
}
