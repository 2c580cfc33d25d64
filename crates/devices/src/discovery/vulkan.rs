//! Devices that Vulkan reaches: a driver of what is known already, or devices of their own.

use het_core::Bytes;

use super::{Candidate, DevicePlace};
use crate::catalogue::{self, Family};
use crate::kernel::parse;
use crate::kernel::pci::Function;
use crate::pci_address::PciAddress;
use crate::{Diagnostic, VulkanDevice, VulkanKind, VulkanProbe};

/// Adds the driver `vulkan` to the candidates it reaches, and what only Vulkan knows.
pub(super) fn add_candidates(
    probe: &VulkanProbe,
    functions: &[Function],
    candidates: &mut Vec<Candidate>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let devices = match probe {
        VulkanProbe::NotAsked => return,
        VulkanProbe::Found(devices) => devices,
        VulkanProbe::Missing => {
            // Only reported where there is a GPU that Vulkan could reach.
            if candidates.iter().any(|candidate| candidate.kind == "gpu") {
                diagnostics.push(Diagnostic::VulkanMissing);
            }
            return;
        }
        VulkanProbe::Failed { why } => {
            return diagnostics.push(Diagnostic::VulkanFailed { why: why.clone() });
        }
        VulkanProbe::Crashed { how } => {
            return diagnostics.push(Diagnostic::VulkanCrashed { how: how.clone() });
        }
        VulkanProbe::TimedOut { limit } => {
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            return diagnostics.push(Diagnostic::VulkanTimedOut { limit_ms });
        }
    };
    for device in devices {
        let address = device.address.or_else(|| only_function(device, functions));
        let known = address.and_then(|address| {
            candidates.iter_mut().find(|candidate| candidate.place.address == Some(address))
        });
        match known {
            Some(candidate) => merge(candidate, device),
            None => {
                // Two drivers may imitate a device; one imitation is enough.
                let software = device.kind == VulkanKind::Software;
                if !software || !candidates.iter().any(|candidate| candidate.software) {
                    candidates.push(candidate(device, address));
                }
            }
        }
    }
}

/// An older driver does not tell the address; one function with its ids is it.
fn only_function(device: &VulkanDevice, functions: &[Function]) -> Option<PciAddress> {
    let same = |function: &&Function| {
        u32::from(function.vendor) == device.vendor && u32::from(function.device) == device.device
    };
    let mut matching = functions.iter().filter(same);
    let first = matching.next()?;
    matching.next().is_none().then_some(first.address)
}

fn merge(candidate: &mut Candidate, device: &VulkanDevice) {
    if !candidate.drivers.contains(&"vulkan") {
        candidate.drivers.push("vulkan");
    }
    if candidate.class.is_empty() {
        candidate.class = class(device);
        candidate.title = device.name.clone();
    }
    if candidate.visible_id.is_empty() {
        candidate.visible_id = device.index.to_string();
    }
    if candidate.memory == Bytes::ZERO && device.kind == VulkanKind::Discrete {
        candidate.memory = Bytes(device.memory_bytes);
    }
}

fn candidate(device: &VulkanDevice, address: Option<PciAddress>) -> Candidate {
    let software = device.kind == VulkanKind::Software;
    let family = |family: &&Family| u32::from(family.vendor_id) == device.vendor;
    let vendor = match device.vendor {
        vendor if vendor == u32::from(catalogue::NVIDIA) => "NVIDIA",
        _ if software => "Mesa",
        _ => catalogue::FAMILIES.iter().find(family).map_or("unknown", |family| family.vendor),
    };
    Candidate {
        prefix: "vulkan",
        class: class(device),
        title: device.name.clone(),
        vendor: vendor.to_owned(),
        kind: "gpu",
        software,
        drivers: vec!["vulkan"],
        // An imitated or integrated device uses the node's memory.
        memory: match device.kind {
            VulkanKind::Discrete | VulkanKind::Virtual => Bytes(device.memory_bytes),
            _ => Bytes::ZERO,
        },
        visible_id: device.index.to_string(),
        place: DevicePlace { address, ..DevicePlace::default() },
        ..Candidate::default()
    }
}

fn class(device: &VulkanDevice) -> String {
    if device.kind == VulkanKind::Software {
        return "lavapipe".to_owned();
    }
    if device.vendor == u32::from(catalogue::NVIDIA) {
        return catalogue::nvidia_class(&device.name);
    }
    // `AMD Radeon Graphics (RADV GFX1103)`: what is in brackets names the driver.
    let name = device.name.replace("(R)", " ").replace("(TM)", " ").replace("(tm)", " ");
    let slug = parse::slug(name.split('(').next().unwrap_or_default().split_whitespace());
    if slug.is_empty() { "vulkan-gpu".to_owned() } else { slug }
}
