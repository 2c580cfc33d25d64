//! The device catalogue: models with their peaks, shipped as data.

use std::sync::LazyLock;

use het_core::{Bytes, DeviceClass};
use serde::Deserialize;

const CSV: &str = include_str!("../data/devices.csv");

/// Stands between the class of a device and the profile of an instance that it was cut into:
/// `h100-sxm5-80-mig-1g.10gb`.
const MIG: &str = "-mig-";
/// Compute slices of a whole device (NVIDIA, "Multi-Instance GPU User Guide" r555).
const MIG_SLICES: u64 = 7;
const MIG_SLICES_A30: u64 = 4;

#[derive(Debug, Deserialize)]
struct Row {
    id: String,
    name: String,
    vendor: String,
    kind: String,
    fp32_tflops: String,
    bf16_fp16_tflops: String,
    int8_tops: String,
    mem_gb: String,
    mem_bw_gbps: String,
    tdp_w: String,
}

/// Peaks of a whole device, for estimates; `None` where the catalogue has no figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub bf16_tflops: Option<f64>,
    pub int8_tops: Option<f64>,
    /// GB/s.
    pub memory_gbps: Option<f64>,
    /// Thermal design power, in watts.
    pub power_w: Option<f64>,
}

/// The figures of a class; of a CPU those of a whole socket.
pub fn figures(id: &str) -> Option<Figures> {
    let row = ROWS.iter().find(|row| row.id == id)?;
    Some(Figures {
        bf16_tflops: figure(&row.bf16_fp16_tflops).or_else(|| figure(&row.fp32_tflops)),
        int8_tops: figure(&row.int8_tops).or_else(|| figure(&row.bf16_fp16_tflops)),
        memory_gbps: figure(&row.mem_bw_gbps),
        power_w: figure(&row.tdp_w),
    })
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let mut reader = csv::Reader::from_reader(CSV.as_bytes());
    reader.deserialize().map(|row| row.expect("the shipped catalogue is tested")).collect()
});

static CLASSES: LazyLock<Vec<DeviceClass>> = LazyLock::new(|| ROWS.iter().map(class).collect());

/// Every class of the catalogue, in file order.
pub fn classes() -> &'static [DeviceClass] {
    &CLASSES
}

/// The class of that id.
pub fn class_by_id(id: &str) -> Option<&'static DeviceClass> {
    classes().iter().find(|class| class.id == *id)
}

/// The peak of a class; of an instance of a cut device its part of the whole.
pub fn peak_gflops(id: &str) -> Option<u64> {
    match id.split_once(MIG) {
        Some((whole, profile)) => {
            let slices: u64 = profile.split_once('g')?.0.parse().ok()?;
            let of = if whole.starts_with("a30") { MIG_SLICES_A30 } else { MIG_SLICES };
            Some(class_by_id(whole)?.peak_gflops? * slices.min(of) / of)
        }
        None => class_by_id(id)?.peak_gflops,
    }
}

/// The nominal memory of a device of the class; `None` where the catalogue has no figure.
pub fn memory(id: &str) -> Option<Bytes> {
    let row = ROWS.iter().find(|row| row.id == id)?;
    figure(&row.mem_gb).map(|gib| Bytes((gib * (1_u64 << 30) as f64) as u64))
}

fn class(row: &Row) -> DeviceClass {
    // A CPU row is a whole socket, a unit is one core: its peak a unit is not in the table.
    let tflops = match row.kind.as_str() {
        "cpu" => None,
        _ => figure(&row.bf16_fp16_tflops).or_else(|| figure(&row.fp32_tflops)),
    };
    DeviceClass {
        id: row.id.as_str().into(),
        kind: row.kind.as_str().into(),
        vendor: row.vendor.as_str().into(),
        title: row.name.as_str().into(),
        peak_gflops: tflops.map(|tflops| (tflops * 1_000.0) as u64),
        software: false,
    }
}

fn figure(text: &str) -> Option<f64> {
    text.trim_start_matches('~').parse().ok().filter(|value: &f64| *value > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_its_part_of_the_peak() {
        let whole = peak_gflops("h100-sxm5-80").expect("the catalogue has it");
        assert_eq!(peak_gflops("h100-sxm5-80-mig-1g.10gb"), Some(whole / 7));
        assert_eq!(peak_gflops("h100-sxm5-80-mig-7g.80gb"), Some(whole));
        assert_eq!(peak_gflops("nobody-mig-1g.10gb"), None);
    }

    #[test]
    fn the_shipped_catalogue_reads() {
        assert!(classes().len() >= 40);
        let h100 = class_by_id("h100-sxm5-80").expect("in the catalogue");
        assert_eq!((h100.kind.as_str(), h100.peak_gflops.is_some()), ("gpu", true));
    }
}
