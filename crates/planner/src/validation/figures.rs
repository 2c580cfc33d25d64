//! Peaks of the device classes that published runs are on.

use het_perf::training::DeviceFigures;
use het_wire::catalogue::{self, Figures};

/// What the catalogue says of a class; `None` where it lacks memory or bandwidth.
pub fn figures(class: &str) -> Option<DeviceFigures> {
    device_figures(&catalogue::figures(class)?)
}

/// A sheet's figures as the planner takes them; `None` where memory or bandwidth are missing.
pub fn device_figures(known: &Figures) -> Option<DeviceFigures> {
    let peaks = [known.fp32_tflops, known.bf16_tflops, known.fp8_tflops];
    DeviceFigures::known(peaks, known.memory, known.memory_gbps)
}
