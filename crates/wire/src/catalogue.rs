//! The device catalogue: models with their peaks, shipped as data.

use std::fmt;
use std::sync::LazyLock;

use het_core::{Bytes, DeviceClass};
use serde::Deserialize;

const CSV: &str = include_str!("../data/devices.csv");

/// Stands between the class of a device and the profile of an instance that it was cut into:
/// `h100-sxm5-80-mig-1g.10gb`.
const MIG: &str = "-mig-";
/// The same for shares by NVIDIA's Multi-Process Service: `h100-sxm5-80-mps-4` is one of four.
const MPS: &str = "-mps-";
/// The same for virtual NPUs, with the beginning of their templates' names:
/// `ascend-910b-vir10_3c_16g` has 10 of the chip's AI cores.
const VNPU: &str = "-vir";
/// Compute slices of a whole device (NVIDIA, "Multi-Instance GPU User Guide" r555).
const MIG_SLICES: u64 = 7;
const MIG_SLICES_A30: u64 = 4;

/// A number of the catalogue, and how sure it is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Figure {
    Known(f64),
    /// Written `~128`.
    Approximate(f64),
    /// The device lacks it: no such precision, no such link.
    Absent,
    #[default]
    Unknown,
}

impl Figure {
    fn read(text: &str) -> Self {
        let (approximate, number) = match text.strip_prefix('~') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        match number.parse() {
            Ok(0.0) => Self::Absent,
            Ok(value) if approximate => Self::Approximate(value),
            Ok(value) => Self::Known(value),
            Err(_) => Self::Unknown,
        }
    }

    /// The number; `None` where there is none.
    pub fn value(self) -> Option<f64> {
        match self {
            Self::Known(value) | Self::Approximate(value) => Some(value),
            Self::Absent | Self::Unknown => None,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(value) => write!(f, "{value}"),
            Self::Approximate(value) => write!(f, "~{value}"),
            Self::Absent => f.write_str("-"),
            Self::Unknown => f.write_str("?"),
        }
    }
}

/// Where a sheet's figures are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// Read at a source that the sheet names.
    Read,
    /// From memory of the vendor's page: check before quoting.
    Memory,
    /// Sources disagree.
    Conflicting,
    /// Press figures only.
    Low,
    /// Written by the user in a cluster file.
    Own,
}

impl fmt::Display for Certainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Memory => "memory",
            Self::Conflicting => "conflicting",
            Self::Low => "low",
            Self::Own => "own",
        })
    }
}

/// What the catalogue says of a class: dense peaks (without sparsity) of a whole device, of a CPU
/// those of a socket.
#[derive(Debug, Clone, PartialEq)]
pub struct Sheet {
    pub id: String,
    pub title: String,
    pub vendor: String,
    pub kind: String,
    pub fp32_tflops: Figure,
    pub tf32_tflops: Figure,
    /// At bf16 or fp16.
    pub half_tflops: Figure,
    pub int8_tops: Figure,
    pub fp8_tflops: Figure,
    /// Own memory, GiB.
    pub memory_gib: Figure,
    /// GB/s.
    pub memory_gbps: Figure,
    /// Thermal design power, in watts.
    pub power_w: Figure,
    /// What joins it to its peers, for example `NVLink4 18x`.
    pub peer_link: String,
    /// GB/s, both directions and all links together.
    pub peer_gbps: Figure,
    /// What joins it to its host, for example `PCIe5 x16`.
    pub host_link: String,
    pub certainty: Certainty,
    pub source: String,
}

#[derive(Debug, Deserialize)]
struct Row {
    id: String,
    name: String,
    vendor: String,
    kind: String,
    fp32_tflops: String,
    tf32_tflops: String,
    bf16_fp16_tflops: String,
    int8_tops: String,
    fp8_tflops: String,
    mem_gb: String,
    mem_bw_gbps: String,
    tdp_w: String,
    peer_link: String,
    peer_link_gbps_bidir: String,
    host_link: String,
    certainty: String,
    source: String,
}

impl From<Row> for Sheet {
    fn from(row: Row) -> Self {
        Self {
            fp32_tflops: Figure::read(&row.fp32_tflops),
            tf32_tflops: Figure::read(&row.tf32_tflops),
            half_tflops: Figure::read(&row.bf16_fp16_tflops),
            int8_tops: Figure::read(&row.int8_tops),
            fp8_tflops: Figure::read(&row.fp8_tflops),
            memory_gib: Figure::read(&row.mem_gb),
            memory_gbps: Figure::read(&row.mem_bw_gbps),
            power_w: Figure::read(&row.tdp_w),
            peer_gbps: Figure::read(&row.peer_link_gbps_bidir),
            certainty: match row.certainty.as_str() {
                "read" => Certainty::Read,
                "memory" => Certainty::Memory,
                "conflicting" => Certainty::Conflicting,
                _ => Certainty::Low,
            },
            id: row.id,
            title: row.name,
            vendor: row.vendor,
            kind: row.kind,
            peer_link: row.peer_link,
            host_link: row.host_link,
            source: row.source,
        }
    }
}

impl Sheet {
    /// The class in the scheduler's words.
    pub fn class(&self) -> DeviceClass {
        // A CPU's sheet is a whole socket, a unit is one core: its peak a unit is not in it.
        let tflops = match self.kind.as_str() {
            "cpu" => None,
            _ => self.half_tflops.value().or(self.fp32_tflops.value()),
        };
        DeviceClass {
            id: self.id.as_str().into(),
            kind: self.kind.as_str().into(),
            vendor: self.vendor.as_str().into(),
            title: self.title.as_str().into(),
            peak_gflops: tflops.map(|tflops| (tflops * 1_000.0) as u64),
            software: false,
        }
    }

    /// Own memory; `None` where the sheet has no figure.
    pub fn memory(&self) -> Option<Bytes> {
        self.memory_gib.value().map(|gib| Bytes((gib * (1_u64 << 30) as f64) as u64))
    }
}

/// Peaks of a whole device, for estimates; `None` where the catalogue has no figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub fp32_tflops: Option<f64>,
    pub tf32_tflops: Option<f64>,
    /// What training gets: bf16 or fp16, fp32 where the device has neither.
    pub bf16_tflops: Option<f64>,
    /// What quantised inference gets: int8, bf16 or fp16 where the device lacks it.
    pub int8_tops: Option<f64>,
    pub fp8_tflops: Option<f64>,
    pub memory: Option<Bytes>,
    /// GB/s.
    pub memory_gbps: Option<f64>,
    /// Thermal design power, in watts.
    pub power_w: Option<f64>,
    /// To peers, GB/s, both directions and all links together.
    pub peer_gbps: Option<f64>,
    pub certainty: Certainty,
}

impl Figures {
    /// Those of an instance such as `1g.10gb`: compute by its slices, bandwidth by its memory.
    fn instance(self, whole: &str, profile: &str) -> Option<Self> {
        let gib: f64 = profile.split_once('.')?.1.trim_end_matches("gb").parse().ok()?;
        let memory = Bytes((gib * (1_u64 << 30) as f64) as u64);
        Some(self.part(slices(whole, profile)?, memory))
    }

    /// Those of a virtual NPU, of whose template what is behind `vir` is told: compute by its AI
    /// cores, bandwidth by its memory.
    fn virtual_npu(self, whole: &str, template: &str) -> Option<Self> {
        let (cores, of) = ai_cores(whole, template)?;
        let mut parts = template.split('_');
        let gib: Option<u64> = parts.find_map(|part| part.strip_suffix('g')?.parse().ok());
        let memory = gib.map(Bytes::gib).or(self.memory.map(|all| Bytes(all.0 * cores / of)))?;
        Some(self.part((cores, of), memory))
    }

    /// Those of `parts.0` of `parts.1` equal parts that has so much memory.
    fn part(self, parts: (u64, u64), memory: Bytes) -> Self {
        let compute = |figure: Option<f64>| figure.map(|all| all * parts.0 as f64 / parts.1 as f64);
        let share = self.memory.map(|all| (memory.0 as f64 / all.0.max(1) as f64).min(1.0));
        Self {
            fp32_tflops: compute(self.fp32_tflops),
            tf32_tflops: compute(self.tf32_tflops),
            bf16_tflops: compute(self.bf16_tflops),
            int8_tops: compute(self.int8_tops),
            fp8_tflops: compute(self.fp8_tflops),
            memory: Some(memory),
            memory_gbps: self.memory_gbps.zip(share).map(|(all, share)| all * share),
            power_w: compute(self.power_w),
            // Instances reach no peers over NVLink, and nobody says that virtual NPUs reach any.
            peer_gbps: None,
            certainty: self.certainty,
        }
    }
}

impl Figures {
    /// Those of one of so many equal shares, while the others are busy too.
    fn share(self, ways: u32) -> Self {
        let part = |figure: Option<f64>| figure.map(|all| all / f64::from(ways.max(1)));
        Self {
            fp32_tflops: part(self.fp32_tflops),
            tf32_tflops: part(self.tf32_tflops),
            bf16_tflops: part(self.bf16_tflops),
            int8_tops: part(self.int8_tops),
            fp8_tflops: part(self.fp8_tflops),
            memory: self.memory.map(|all| Bytes(all.0 / u64::from(ways.max(1)))),
            memory_gbps: part(self.memory_gbps),
            power_w: part(self.power_w),
            peer_gbps: part(self.peer_gbps),
            certainty: self.certainty,
        }
    }
}

impl From<&Sheet> for Figures {
    fn from(sheet: &Sheet) -> Self {
        Self {
            fp32_tflops: sheet.fp32_tflops.value(),
            tf32_tflops: sheet.tf32_tflops.value(),
            bf16_tflops: sheet.half_tflops.value().or(sheet.fp32_tflops.value()),
            int8_tops: sheet.int8_tops.value().or(sheet.half_tflops.value()),
            fp8_tflops: sheet.fp8_tflops.value(),
            memory: sheet.memory(),
            memory_gbps: sheet.memory_gbps.value(),
            power_w: sheet.power_w.value(),
            peer_gbps: sheet.peer_gbps.value(),
            certainty: sheet.certainty,
        }
    }
}

/// The figures of a class: of a CPU those of a whole socket, of an instance, a share or a virtual
/// part of a device its part of the whole.
pub fn figures(id: &str) -> Option<Figures> {
    if let Some((whole, profile)) = id.split_once(MIG) {
        return Figures::from(sheet(whole)?).instance(whole, profile);
    }
    if let Some((whole, ways)) = id.split_once(MPS) {
        return Some(Figures::from(sheet(whole)?).share(ways.parse().ok()?));
    }
    if let Some((whole, template)) = id.split_once(VNPU) {
        return Figures::from(sheet(whole)?).virtual_npu(whole, template);
    }
    sheet(id).map(Figures::from)
}

/// All that the catalogue says of a class.
pub fn sheet(id: &str) -> Option<&'static Sheet> {
    SHEETS.iter().find(|sheet| sheet.id == id)
}

/// Every sheet, in file order.
pub fn sheets() -> &'static [Sheet] {
    &SHEETS
}

/// What the first line of the data says of itself.
pub fn version() -> &'static str {
    let first = CSV.lines().next().unwrap_or_default();
    first.trim_start_matches("# version:").trim()
}

static SHEETS: LazyLock<Vec<Sheet>> = LazyLock::new(|| {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(CSV.as_bytes());
    let rows = reader.deserialize::<Row>();
    rows.map(|row| row.expect("the shipped catalogue is tested").into()).collect()
});

static CLASSES: LazyLock<Vec<DeviceClass>> =
    LazyLock::new(|| SHEETS.iter().map(Sheet::class).collect());

/// Every class of the catalogue, in file order.
pub fn classes() -> &'static [DeviceClass] {
    &CLASSES
}

/// Whether an id is of the form of those of parts: instances, shares and virtual parts of devices.
/// Which of them there are only the machine knows that has them.
pub fn is_part(id: &str) -> bool {
    let named = |separator: &str| {
        let parts = id.split_once(separator);
        parts.is_some_and(|(whole, part)| {
            !whole.is_empty() && part.starts_with(|first: char| first.is_ascii_digit())
        })
    };
    [MIG, MPS, VNPU].into_iter().any(named)
}

/// The class of that id.
pub fn class_by_id(id: &str) -> Option<&'static DeviceClass> {
    classes().iter().find(|class| class.id == *id)
}

/// Compute slices of an instance, `1` of `1g.10gb`, and of the whole device.
fn slices(whole: &str, profile: &str) -> Option<(u64, u64)> {
    let slices: u64 = profile.split_once('g')?.0.parse().ok()?;
    let of = if whole.starts_with("a30") { MIG_SLICES_A30 } else { MIG_SLICES };
    Some((slices.min(of), of))
}

/// AI cores of a virtual NPU, `10` of `10_3c_16g`, and of the whole chip. The 910 has 32, in some
/// makes 30, which the class does not tell; the 910B has 20 or 24, which its templates do. Source:
/// MindCluster 7.3 documentation, "Virtualization templates".
fn ai_cores(whole: &str, template: &str) -> Option<(u64, u64)> {
    let cores: u64 = template.split('_').next()?.parse().ok().filter(|cores| *cores > 0)?;
    let of = match whole {
        "ascend-910-a" => 32,
        "ascend-910b" if cores.is_multiple_of(3) => 24,
        "ascend-910b" => 20,
        _ => return None,
    };
    Some((cores.min(of), of))
}

/// The peak of a class; of an instance, a share or a virtual part of a device its part of the
/// whole.
pub fn peak_gflops(id: &str) -> Option<u64> {
    if let Some((whole, profile)) = id.split_once(MIG) {
        let (slices, of) = slices(whole, profile)?;
        return Some(class_by_id(whole)?.peak_gflops? * slices / of);
    }
    if let Some((whole, ways)) = id.split_once(MPS) {
        return class_by_id(whole)?.peak_gflops?.checked_div(ways.parse().ok()?);
    }
    if let Some((whole, template)) = id.split_once(VNPU) {
        let (cores, of) = ai_cores(whole, template)?;
        return Some(class_by_id(whole)?.peak_gflops? * cores / of);
    }
    class_by_id(id)?.peak_gflops
}

/// The nominal memory of a device of the class; `None` where the catalogue has no figure.
pub fn memory(id: &str) -> Option<Bytes> {
    sheet(id)?.memory()
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
        assert_eq!(peak_gflops("h100-sxm5-80-mps-4"), Some(whole / 4));
        assert_eq!(peak_gflops("h100-sxm5-80-mps-0"), None);
        let part = figures("h100-sxm5-80-mig-1g.10gb").expect("a part of it");
        assert_eq!((part.memory, part.memory_gbps), (Some(Bytes(10 << 30)), Some(3350.0 / 8.0)));
        assert_eq!(part.bf16_tflops.map(f64::round), Some(141.0));
    }

    #[test]
    fn a_virtual_npu_has_the_part_of_its_cores() {
        let check = |id: &str, of: &str, (part, parts): (u64, u64), gib: u64| {
            let whole = peak_gflops(of).expect("the catalogue has it");
            assert_eq!(peak_gflops(id), Some(whole * part / parts), "{id}");
            let figures = figures(id).expect("a part of it");
            assert_eq!((figures.memory, figures.peer_gbps), (Some(Bytes::gib(gib)), None), "{id}");
        };
        check("ascend-910b-vir10_3c_32g", "ascend-910b", (1, 2), 32);
        check("ascend-910b-vir05_1c_16g", "ascend-910b", (1, 4), 16);
        check("ascend-910b-vir06_1c_16g", "ascend-910b", (1, 4), 16);
        check("ascend-910b-vir03_1c_8g", "ascend-910b", (1, 8), 8);
        check("ascend-910-a-vir16", "ascend-910-a", (1, 2), 16);
        check("ascend-910-a-vir02", "ascend-910-a", (1, 16), 2);
        assert_eq!(peak_gflops("ascend-310p-vir02"), None);
        assert_eq!(peak_gflops("ascend-910b-virtual"), None);
    }

    #[test]
    fn the_shipped_catalogue_reads() {
        assert!(classes().len() >= 40);
        let h100 = class_by_id("h100-sxm5-80").expect("in the catalogue");
        assert_eq!((h100.kind.as_str(), h100.peak_gflops.is_some()), ("gpu", true));
        assert!(version().starts_with(|first: char| first.is_ascii_digit()), "{}", version());
    }

    #[test]
    fn what_is_uncertain_or_absent_is_said() {
        let told = |text| Figure::read(text).to_string();
        assert_eq!(["1979", "~192", "0", "", "-"].map(told), ["1979", "~192", "-", "?", "?"]);
        let h100 = figures("h100-sxm5-80").expect("in the catalogue");
        assert_eq!((h100.fp8_tflops, h100.tf32_tflops), (Some(1_979.0), Some(495.0)));
        let kunlun = sheet("p800").expect("in the catalogue");
        assert_eq!((kunlun.certainty, kunlun.fp8_tflops), (Certainty::Low, Figure::Unknown));
    }
}
