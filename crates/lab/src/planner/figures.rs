//! Peaks of the device classes that published runs are on.

use het_perf::training::DeviceFigures;
use het_wire::catalogue;

/// What the catalogue says of a class; `None` where it lacks memory or bandwidth.
pub fn figures(class: &str) -> Option<DeviceFigures> {
    let known = catalogue::figures(class)?;
    Some(DeviceFigures {
        fp32_tflops: known.fp32_tflops,
        half_tflops: known.bf16_tflops,
        fp8_tflops: known.fp8_tflops,
        memory: known.memory?,
        memory_gbps: known.memory_gbps?,
    })
}
