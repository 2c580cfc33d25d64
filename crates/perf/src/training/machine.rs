//! What a job runs on, in figures.

use het_core::Bytes;

use super::{Efficiency, Island, Precision};

/// Devices of one class, how they stand together, and what they reach of their peaks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    pub device: DeviceFigures,
    pub island: Island,
    pub efficiency: Efficiency,
}

/// Peaks of a device, without sparsity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceFigures {
    pub fp32_tflops: Option<f64>,
    pub half_tflops: Option<f64>,
    pub fp8_tflops: Option<f64>,
    pub memory: Bytes,
    /// GB/s.
    pub memory_gbps: f64,
}

impl DeviceFigures {
    /// Peaks at fp32, 16 and 8 bits; `None` where memory or its bandwidth are not known.
    pub fn known(
        [fp32_tflops, half_tflops, fp8_tflops]: [Option<f64>; 3],
        memory: Option<Bytes>,
        memory_gbps: Option<f64>,
    ) -> Option<Self> {
        let (memory, memory_gbps) = memory.zip(memory_gbps)?;
        Some(Self { fp32_tflops, half_tflops, fp8_tflops, memory, memory_gbps })
    }

    /// FLOP/s of matrix multiplication; `None` where the class has no figure.
    pub fn peak_flops(&self, precision: Precision) -> Option<f64> {
        let tflops = match precision {
            Precision::Fp32 => self.fp32_tflops,
            Precision::Fp16 | Precision::Bf16 => self.half_tflops,
            Precision::Fp8 => self.fp8_tflops,
        };
        tflops.map(|tflops| tflops * 1e12)
    }
}
