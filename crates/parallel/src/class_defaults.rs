//! Defaults of a device class: interconnect, collective library and attention kernel, where the
//! request does not say.

use het_perf::training::{Attention, DeviceFigures, Efficiency, Island, Machine};

use crate::request::{Collectives, Pool};

/// Prefixes of the classes that FlashAttention-3 was written for.
const HOPPER_AND_LATER: [&str; 6] = ["h100", "h200", "h800", "h20", "b200", "gb200"];

/// Prefixes of the classes whose 16 bits are fp16 alone: NVIDIA's before Ampere, Huawei's before
/// the 910B.
const WITHOUT_BF16: [&str; 7] = ["v100", "t4", "p100", "p40", "k80", "rtx-20", "ascend-910-a"];

/// Whether devices of the class multiply matrices in bf16, as far as is known.
pub fn has_bf16(class: &str) -> bool {
    !WITHOUT_BF16.iter().any(|prefix| class.starts_with(prefix))
}

/// A pool of `devices` devices of a class, with the class's usual node and network and the software
/// that its vendor ships.
pub fn pool_of_class(class: &str, vendor: &str, device: DeviceFigures, devices: u32) -> Pool {
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
    let (island, efficiency) = (Island::of_class(class), Efficiency::of_class(class));
    let machine = Machine { device, island, efficiency };
    Pool { collectives, attention, ..Pool::new(class, machine, devices) }
}

#[cfg(test)]
mod tests {
    use het_core::Bytes;

    use super::*;

    #[test]
    fn each_vendor_has_its_library() {
        let device = DeviceFigures {
            fp32_tflops: None,
            half_tflops: Some(376.0),
            fp8_tflops: None,
            memory: Bytes(64 << 30),
            memory_gbps: 1_600.0,
        };
        let pool = pool_of_class("ascend-910b", "Huawei", device, 8);
        assert_eq!((pool.collectives, pool.attention), (Collectives::Hccl, Attention::Flash2));
        let pool = pool_of_class("h100-sxm5-80", "NVIDIA", device, 8);
        assert_eq!((pool.collectives, pool.attention), (Collectives::Nccl, Attention::Flash3));
        let pool = pool_of_class("v100-sxm2-32", "NVIDIA", device, 8);
        assert_eq!(pool.attention, Attention::Plain);
    }
}
