//! Devices of the catalogue, for tests: dense peaks, memory and power as its data sheets have them.

use het_core::Bytes;
use het_parallel::{Collectives, Pool};
use het_perf::training::{Attention, DeviceFigures, Efficiency, Island, Machine};

/// So many devices of a class, in nodes as they are sold; a card stands in a workstation.
pub fn pool(class: &str, devices: u32) -> Pool {
    let pair = Island { devices_per_node: 1, link_gbps: 25.6, ..Island::hgx_a100(1.25) };
    let (figures, island) = match class {
        "h100-sxm5-80" => (figures(67.0, 989.0, Some(1_979.0), 80, 3_350.0), Island::hgx_h100()),
        "a100-sxm4-80" => (figures(19.5, 312.0, None, 80, 2_039.0), Island::hgx_a100(25.0)),
        // Eight in a node, joined by 392 GB/s both ways; one 200G port each.
        "ascend-910b" => {
            let island = Island { link_gbps: 150.0, host_gbps: 51.2, ..Island::hgx_a100(25.0) };
            (figures(94.0, 320.0, None, 64, 1_600.0), island)
        }
        "rtx-4090" => (figures(82.6, 165.0, Some(330.0), 24, 1_008.0), pair),
        other => panic!("`{other}` is not in the table"),
    };
    let machine = Machine { device: figures, island, efficiency: Efficiency::of_class(class) };
    let attention = if class.starts_with('h') { Attention::Flash3 } else { Attention::Flash2 };
    let collectives =
        if class.starts_with("ascend") { Collectives::Hccl } else { Collectives::Nccl };
    Pool { attention, collectives, ..Pool::new(class, machine, devices) }
}

fn figures(fp32: f64, half: f64, fp8: Option<f64>, gibibytes: u64, gbps: f64) -> DeviceFigures {
    DeviceFigures {
        fp32_tflops: Some(fp32),
        half_tflops: Some(half),
        fp8_tflops: fp8,
        memory: Bytes(gibibytes << 30),
        memory_gbps: gbps,
    }
}
