//! What a job runs on, in figures.

use het_core::Bytes;

use super::{Efficiency, Precision};

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

    /// Devices of a job of so many that stand in one node.
    pub(super) fn node_devices(&self, devices: u32) -> u32 {
        self.devices_per_node.clamp(1, devices.max(1))
    }
}
