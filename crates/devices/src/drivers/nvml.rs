//! NVIDIA's management library, through `nvml-wrapper`.

use het_core::Bytes;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use crate::PciAddress;

/// `NVML_NVLINK_MAX_LINKS` of nvml.h.
const LINKS_MAX: u32 = 18;
/// `NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON` of nvml.h: MB/s of each link, per direction.
const LINK_SPEED: FieldId = FieldId(90);

/// What NVML says, or why it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NvidiaProbe {
    /// Nobody looked.
    #[default]
    NotAsked,
    /// The library is not installed.
    Missing,
    /// The library is there and does not work.
    Failed { why: String },
    /// One entry a device; `Err` is a device's index and why it cannot be read.
    Found(Vec<Result<NvidiaDevice, (u32, String)>>),
}

/// A device as NVML describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvidiaDevice {
    pub name: String,
    pub uuid: String,
    pub memory: Option<Bytes>,
    pub address: PciAddress,
    /// Fallback where sysfs does not say.
    pub numa: Option<u32>,
    pub mig: Mig,
    /// Active links only.
    pub nvlinks: Vec<NvLink>,
}

/// Whether a device is partitioned into instances that are isolated from each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Mig {
    #[default]
    Off,
    /// It is of use by its instances only.
    On(Vec<MigInstance>),
}

/// One instance of a device in MIG mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigInstance {
    pub uuid: String,
    /// Slices and memory, `1g.10gb`.
    pub profile: String,
    pub memory: Option<Bytes>,
}

/// One active NVLink of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvLink {
    /// The device at the other end: another GPU, or else a switch. A virtual machine may hide its
    /// switches: `None`.
    pub peer: Option<PciAddress>,
    /// Bytes per second in one direction.
    pub bandwidth: Option<Bytes>,
}

impl NvidiaProbe {
    /// Loads the library and asks it.
    pub fn load() -> Self {
        match open() {
            Ok(nvml) => Self::Found(devices(&nvml)),
            Err(trouble) => trouble,
        }
    }
}

/// # Errors
/// The probe's answer where the library is missing or does not work.
pub(crate) fn open() -> Result<Nvml, NvidiaProbe> {
    Nvml::init().map_err(|error| match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => NvidiaProbe::Missing,
        // A machine with the library and without a GPU: nothing is wrong.
        NvmlError::NotFound => NvidiaProbe::Found(Vec::new()),
        error => NvidiaProbe::Failed { why: error.to_string() },
    })
}

fn devices(nvml: &Nvml) -> Vec<Result<NvidiaDevice, (u32, String)>> {
    let count = nvml.device_count().unwrap_or(0);
    let read = |index| {
        let device = nvml.device_by_index(index)?;
        describe(&device)
    };
    (0..count)
        .map(|index| read(index).map_err(|error: NvmlError| (index, error.to_string())))
        .collect()
}

fn describe(device: &Device<'_>) -> Result<NvidiaDevice, NvmlError> {
    let pci = device.pci_info()?;
    Ok(NvidiaDevice {
        name: device.name()?,
        uuid: device.uuid()?,
        memory: device.memory_info().ok().map(|memory| Bytes(memory.total)),
        address: address(pci.domain, pci.bus, pci.device),
        numa: device.numa_node_id().ok(),
        mig: match device.mig_mode() {
            Ok(mode) if mode.current != 0 => Mig::On(instances(device)),
            _ => Mig::Off,
        },
        nvlinks: nvlinks(device),
    })
}

/// Places without an instance answer with an error.
fn instances(device: &Device<'_>) -> Vec<MigInstance> {
    let read = |index| {
        let instance = device.mig_device_by_index(index).ok()?;
        // `NVIDIA H100 80GB HBM3 MIG 1g.10gb`
        let name = instance.name().ok()?;
        Some(MigInstance {
            uuid: instance.uuid().ok()?,
            profile: name.rsplit(' ').next()?.to_owned(),
            memory: instance.memory_info().ok().map(|memory| Bytes(memory.total)),
        })
    };
    (0..device.mig_device_count().unwrap_or(0)).filter_map(read).collect()
}

pub(crate) fn address(domain: u32, bus: u32, device: u32) -> PciAddress {
    let byte = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    PciAddress { domain, bus: byte(bus), device: byte(device), function: 0 }
}

/// The peer's kind follows from its address: the wrapper's `remote_device_type` (0.13.0) writes its
/// answer to a temporary and always returns `Unknown`.
fn nvlinks(device: &Device<'_>) -> Vec<NvLink> {
    let reported = link_speed(device);
    let read = |index| {
        let link = device.link_wrapper_for(index);
        if !link.is_active().ok()? {
            return None;
        }
        let peer = link.remote_pci_info().ok();
        let peer = peer.map(|peer| address(peer.domain, peer.bus, peer.device));
        let bandwidth = reported.or_else(|| version_bandwidth(link.version().ok()?));
        Some(NvLink { peer, bandwidth })
    };
    (0..LINKS_MAX).filter_map(read).collect()
}

fn link_speed(device: &Device<'_>) -> Option<Bytes> {
    let sample = device.field_values_for(&[LINK_SPEED]).ok()?.pop()?.ok()?;
    let megabytes = match sample.value.ok()? {
        SampleValue::U32(value) => u64::from(value),
        SampleValue::U64(value) => value,
        SampleValue::I64(value) => u64::try_from(value).ok()?,
        SampleValue::F64(_) => return None,
    };
    // A speed that no link has (up to generation 5: 50 GB/s) is a field that does not exist.
    (1..=1_000_000).contains(&megabytes).then(|| Bytes(megabytes * 1_000_000))
}

/// Bytes per second in one direction of one link, by NVLink generation (NVIDIA's datasheets of
/// P100, V100, A100, H100 and B200: total ÷ links ÷ 2).
fn version_bandwidth(version: u32) -> Option<Bytes> {
    match version {
        1 => Some(Bytes(20_000_000_000)),
        2..=4 => Some(Bytes(25_000_000_000)),
        5 => Some(Bytes(50_000_000_000)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_answers_or_is_missing() {
        match NvidiaProbe::load() {
            NvidiaProbe::Missing => eprintln!("SKIPPED: no NVML here, so no device was read"),
            NvidiaProbe::Failed { why } => eprintln!("SKIPPED: NVML does not work here: {why}"),
            NvidiaProbe::Found(devices) => {
                for device in devices.into_iter().flatten() {
                    assert!(device.uuid.starts_with("GPU-"), "{device:?}");
                }
            }
            NvidiaProbe::NotAsked => panic!("somebody asked"),
        }
    }

    #[test]
    fn a_generation_has_its_published_bandwidth() {
        let check = |version, lanes, gigabytes| {
            let total = version_bandwidth(version).map(|one| one.0 * lanes * 2 / 1_000_000_000);
            assert_eq!(total, gigabytes, "NVLink {version}");
        };
        // `peer_link_gbps_bidir` of wire/data/devices.csv: P100, V100, A100, H100, B200.
        check(1, 4, Some(160));
        check(2, 6, Some(300));
        check(3, 12, Some(600));
        check(4, 18, Some(900));
        check(5, 18, Some(1800));
        check(9, 18, None);
    }
}
