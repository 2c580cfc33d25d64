//! Accelerators of other vendors than NVIDIA, by the PCI bus and their device nodes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use het_core::{Bytes, VNPU};

use super::vnpu::{VnpuState, Vnpus};
use super::{Candidate, DevicePlace, place};
use crate::catalogue::{self, Family, Node, Recognised};
use crate::kernel::files::{Access, SystemFiles};
use crate::kernel::pci::Function;
use crate::{Diagnostic, vnpu};

/// Every other accelerator on the bus. One that cannot be opened has no drivers, and a diagnostic.
pub(super) fn candidates(
    files: &SystemFiles,
    functions: &[Function],
    vnpus: &Vnpus<'_>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    // Of each maker and kind: how many were seen, and how many of them can be used.
    let mut counts: BTreeMap<(u16, &str), (usize, usize)> = BTreeMap::new();
    for function in functions.iter().filter(|function| !function.is_virtual) {
        let family = match catalogue::recognise(function) {
            Recognised::Member(family) => family,
            Recognised::Unknown => {
                let Function { address, vendor, device, .. } = *function;
                diagnostics.push(Diagnostic::UnknownAccelerator { address, vendor, device });
                continue;
            }
            Recognised::Nvidia | Recognised::Other => continue,
        };
        let (seen, usable) = counts.entry((family.vendor_id, family.kind)).or_default();
        let (class, title) = catalogue::model(family, function.device);
        let rank = *seen;
        let opened = open(files, family, function, &title, rank);
        *seen += 1;
        let visible_id = visible_id(&class, function, *usable);
        *usable += usize::from(opened.is_ok());
        let (drivers, nodes) = match opened {
            Ok(nodes) => (family.drivers.to_vec(), nodes),
            Err(diagnostic) => {
                diagnostics.push(diagnostic);
                (Vec::new(), Vec::new())
            }
        };
        let whole = Candidate {
            prefix: family.kind,
            class,
            title,
            vendor: family.vendor.to_owned(),
            kind: family.kind,
            drivers,
            memory: function.memory.unwrap_or(Bytes::ZERO),
            visible_id,
            place: place(function, nodes),
            ..Candidate::default()
        };
        let parts = if family.drivers.contains(&"cann") { vnpus.of(rank) } else { Vec::new() };
        if parts.is_empty() || whole.drivers.is_empty() {
            candidates.push(whole);
            continue;
        }
        let parts = parts.into_iter();
        candidates.extend(
            parts.filter_map(|(number, state)| {
                virtual_npu(files, &whole, number, state, diagnostics)
            }),
        );
    }
    candidates
}

/// A part of the chip `whole`, in its place; a diagnostic where it cannot be used.
fn virtual_npu(
    files: &SystemFiles,
    whole: &Candidate,
    number: u32,
    state: VnpuState,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Candidate> {
    let node = vnpu::node_name(number);
    let path = format!("/dev/{node}");
    let (title, address) = (whole.title.clone(), whole.place.address.unwrap_or_default());
    let diagnostic = match state {
        VnpuState::Usable { .. } if files.access(&format!("dev/{node}")) == Access::Denied => {
            Diagnostic::NoPermission { title, address, group: group("davinci"), node: path }
        }
        VnpuState::Usable { template, memory } => {
            // Beside its own node it needs those that the chip needs.
            let shared = whole.place.nodes.iter().skip(1).cloned();
            let nodes = std::iter::once(PathBuf::from(path)).chain(shared).collect();
            return Some(Candidate {
                class: format!("{}-{template}", whole.class),
                title: format!("{title} vNPU {template}"),
                drivers: vec!["cann", VNPU],
                memory,
                visible_id: node,
                place: DevicePlace { nodes, ..whole.place.clone() },
                ..whole.clone()
            });
        }
        VnpuState::UnknownTemplate { template } => {
            Diagnostic::VnpuTemplateUnknown { number, template }
        }
        VnpuState::NoNode => Diagnostic::VnpuWithoutNode { title, address, number, node: path },
        VnpuState::NotListed => Diagnostic::VnpuNotListed { node: path },
        // One diagnostic covers all of them: `VnpusUnlisted`.
        VnpuState::NotQueried => return None,
    };
    diagnostics.push(diagnostic);
    None
}

/// The device's nodes below `/dev`, or why it cannot be used. `rank` counts the family's devices
/// in the order of addresses.
fn open(
    files: &SystemFiles,
    family: &Family,
    function: &Function,
    title: &str,
    rank: usize,
) -> Result<Vec<String>, Diagnostic> {
    let (title, address, driver) = (title.to_owned(), function.address, family.install);
    if function.kernel_driver.as_deref() == Some("vfio-pci") {
        return Err(Diagnostic::PassedThrough { title, address });
    }
    let named = |prefix: &str| function.nodes.iter().find(|node| node.starts_with(prefix)).cloned();
    let own = match family.node {
        Node::Accel => named("accel/"),
        Node::Render => named("dri/"),
        Node::Numbered(prefix) => Some(format!("{prefix}{rank}")),
    };
    let present = |node: &String| files.exists(&format!("dev/{node}"));
    let Some(own) = own else {
        return Err(match &function.kernel_driver {
            None => Diagnostic::NoKernelDriver { title, address, driver },
            Some(_) => {
                let node = if family.node == Node::Accel { "accel/accelN" } else { "dri/renderDN" };
                Diagnostic::NoDeviceNode { title, address, node: format!("/dev/{node}"), driver }
            }
        });
    };
    let mut nodes = vec![own];
    nodes.extend(family.manager.map(str::to_owned));
    for node in &nodes {
        let path = format!("/dev/{node}");
        if !present(node) {
            return Err(Diagnostic::NoDeviceNode { title, address, node: path, driver });
        }
        if files.access(&format!("dev/{node}")) == Access::Denied {
            return Err(Diagnostic::NoPermission {
                title,
                address,
                group: group(node),
                node: path,
            });
        }
    }
    Ok(nodes)
}

/// The group that owns a device node where the maker's driver or udev has its default rules.
fn group(node: &str) -> Option<&'static str> {
    if node.starts_with("davinci") {
        return Some("HwHiAiUser");
    }
    let of_render = node.starts_with("dri/") || node.starts_with("accel/") || node == "kfd";
    of_render.then_some("render")
}

/// What the runtime calls the device that is the `index`-th it can open: runtimes number what they
/// find, in the order of addresses.
fn visible_id(class: &str, function: &Function, index: usize) -> String {
    // NeuronCores of a device (AWS Neuron documentation): Neuron numbers cores, not devices.
    let neuron_cores = match class {
        "inferentia" => 4,
        "trainium" | "inferentia2" => 2,
        _ => 0,
    };
    if neuron_cores > 0 {
        let first = index * neuron_cores;
        return format!("{first}-{}", first + neuron_cores - 1);
    }
    // Habana's variable takes the module's number on its board.
    function.module.map_or_else(|| index.to_string(), |module| module.to_string())
}
