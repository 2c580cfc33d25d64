//! Peaks of the device classes that published runs are on.

use het_perf::training::DeviceFigures;
use het_wire::catalogue;

/// TFLOP/s at 8 bits, which the catalogue's reader does not pass on yet (`devices.csv`).
const FP8_TFLOPS: [(&str, f64); 3] =
    [("h100-sxm5-80", 1_979.0), ("b200-sxm", 4_500.0), ("gb200-per-gpu", 5_000.0)];

/// What the catalogue says of a class; `None` where it lacks memory or bandwidth.
pub fn figures(class: &str) -> Option<DeviceFigures> {
    let known = catalogue::figures(class)?;
    let fp8 = FP8_TFLOPS.iter().find(|(id, _)| *id == class);
    Some(DeviceFigures {
        fp32_tflops: None,
        half_tflops: known.bf16_tflops,
        fp8_tflops: fp8.map(|(_, tflops)| *tflops),
        memory: catalogue::memory(class)?,
        memory_gbps: known.memory_gbps?,
    })
}
