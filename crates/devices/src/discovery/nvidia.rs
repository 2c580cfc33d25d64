//! NVIDIA's GPUs: what NVML lists, and what is on the bus without being listed.

use het_core::Bytes;

use super::{Candidate, place};
use crate::catalogue::{self, Recognised};
use crate::kernel::files::SystemFiles;
use crate::kernel::pci::Function;
use crate::pci_address::PciAddress;
use crate::{Diagnostic, Mig, MigInstance, NvidiaDevice, NvidiaProbe};

/// Every NVIDIA GPU, in the order of addresses.
pub(super) fn candidates(
    files: &SystemFiles,
    probe: &NvidiaProbe,
    functions: &[Function],
    diagnostics: &mut Vec<Diagnostic>,
) -> Vec<Candidate> {
    let on_bus =
        functions.iter().filter(|it| matches!(catalogue::recognise(it), Recognised::Nvidia));
    let on_bus: Vec<&Function> = on_bus.filter(|function| !function.is_virtual).collect();
    match probe {
        NvidiaProbe::NotAsked | NvidiaProbe::Found(_) => {}
        NvidiaProbe::Missing => diagnostics.extend(
            on_bus.iter().map(|function| Diagnostic::NvmlMissing { address: function.address }),
        ),
        NvidiaProbe::Failed { why } => {
            diagnostics.push(Diagnostic::NvmlFailed { why: why.clone() })
        }
    }
    let mut candidates = Vec::new();
    for answer in if let NvidiaProbe::Found(found) = probe { found.as_slice() } else { &[] } {
        match answer {
            Ok(device) => candidates.extend(candidates_of(files, device, &on_bus, diagnostics)),
            Err((index, why)) => {
                diagnostics.push(Diagnostic::NvidiaUnreadable { index: *index, why: why.clone() });
            }
        }
    }
    candidates.sort_by_key(|candidate| candidate.place.address);
    // What NVML does not list may still be reached through Vulkan.
    for function in on_bus {
        if !candidates.iter().any(|it| it.place.address == Some(function.address)) {
            candidates.push(Candidate {
                prefix: "gpu",
                kind: "gpu",
                vendor: "NVIDIA".to_owned(),
                place: place(function, Vec::new()),
                ..Candidate::default()
            });
        }
    }
    candidates
}

/// The device, or its instances where it is partitioned.
fn candidates_of(
    files: &SystemFiles,
    device: &NvidiaDevice,
    on_bus: &[&Function],
    diagnostics: &mut Vec<Diagnostic>,
) -> Vec<Candidate> {
    let whole = whole_candidate(files, device, on_bus);
    let Mig::On(instances) = &device.mig else { return vec![whole] };
    if instances.is_empty() {
        let (title, address) = (device.name.clone(), device.address);
        diagnostics.push(Diagnostic::NoMigInstance { title, address });
    }
    let instance = |instance: &MigInstance| Candidate {
        class: format!("{}-mig-{}", whole.class, instance.profile),
        title: format!("{} MIG {}", whole.title, instance.profile),
        memory: instance.memory.unwrap_or(Bytes::ZERO),
        visible_id: instance.uuid.clone(),
        // Instances reach each other through memory of the host only.
        nvlinks: Vec::new(),
        ..whole.clone()
    };
    instances.iter().map(instance).collect()
}

fn whole_candidate(files: &SystemFiles, device: &NvidiaDevice, on_bus: &[&Function]) -> Candidate {
    let function = on_bus.iter().find(|function| function.address == device.address);
    let nodes: Vec<String> = node(files, device.address).into_iter().collect();
    let mut place = function.map(|function| place(function, nodes)).unwrap_or_default();
    place.address = Some(device.address);
    place.numa = place.numa.or(device.numa);
    Candidate {
        prefix: "cuda",
        class: catalogue::nvidia_class(&device.name),
        title: device.name.clone(),
        vendor: "NVIDIA".to_owned(),
        kind: "gpu",
        software: false,
        drivers: vec!["cuda"],
        memory: device.memory.unwrap_or(Bytes::ZERO),
        visible_id: device.uuid.clone(),
        place,
        nvlinks: device.nvlinks.clone(),
    }
}

/// `nvidia0`, by the number that NVIDIA's kernel module publishes.
fn node(files: &SystemFiles, address: PciAddress) -> Option<String> {
    let text = files.text(&format!("proc/driver/nvidia/gpus/{address}/information"))?;
    let row = text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
    Some(format!("nvidia{}", row.trim().parse::<u32>().ok()?))
}
