//! The device catalogue: models with their peaks, shipped as data.

use std::sync::LazyLock;

use het_core::DeviceClass;
use serde::Deserialize;

const CSV: &str = include_str!("../data/devices.csv");

#[derive(Debug, Deserialize)]
struct Row {
    id: String,
    name: String,
    vendor: String,
    kind: String,
    fp32_tflops: String,
    bf16_fp16_tflops: String,
}

static CLASSES: LazyLock<Vec<DeviceClass>> = LazyLock::new(|| {
    let mut reader = csv::Reader::from_reader(CSV.as_bytes());
    let rows = reader.deserialize::<Row>();
    rows.map(|row| class(row.expect("the shipped catalogue is tested"))).collect()
});

/// Every class of the catalogue, in file order.
pub fn classes() -> &'static [DeviceClass] {
    &CLASSES
}

/// The class of that id.
pub fn class_by_id(id: &str) -> Option<&'static DeviceClass> {
    classes().iter().find(|class| class.id == *id)
}

fn class(row: Row) -> DeviceClass {
    // A CPU row is a whole socket, a unit is one core: its peak a unit is not in the table.
    let figure = match row.kind.as_str() {
        "cpu" => None,
        _ => tflops(&row.bf16_fp16_tflops).or_else(|| tflops(&row.fp32_tflops)),
    };
    DeviceClass {
        id: row.id.into(),
        kind: row.kind.into(),
        vendor: row.vendor.into(),
        title: row.name.into(),
        peak_gflops: figure.map(|tflops| (tflops * 1_000.0) as u64),
        software: false,
    }
}

fn tflops(text: &str) -> Option<f64> {
    text.trim_start_matches('~').parse().ok().filter(|value: &f64| *value > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_catalogue_reads() {
        assert!(classes().len() >= 40);
        let h100 = class_by_id("h100-sxm5-80").expect("in the catalogue");
        assert_eq!((h100.kind.as_str(), h100.peak_gflops.is_some()), ("gpu", true));
    }
}
