//! Discovery: from what the probes and the files say to one node's topology.
//!
//! Each module finds candidates of its own kind (`nvidia` through NVML, `accelerators` of the other
//! vendors, `vulkan`); `assembly` turns those that some driver runs into devices and links.

mod accelerators;
mod assembly;
mod cpu;
mod links;
mod nvidia;
mod vnpu;
mod vulkan;

use std::collections::BTreeMap;
use std::path::PathBuf;

use het_core::{Bytes, DeviceId, Name, Topology};

use crate::kernel::files::SystemFiles;
use crate::kernel::pci::{self, Function};
use crate::pci_address::PciAddress;
use crate::{Diagnostic, NpuSmiProbe, NvLink, NvidiaProbe, VulkanProbe};
use vnpu::Vnpus;

pub use cpu::NumaNode;

/// What discovery looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// `/` on a real machine; `sys`, `proc` and `dev` lie below it.
    pub root: PathBuf,
    /// Cores to assume where neither sysfs nor procfs names any.
    pub fallback_cores: Vec<u32>,
    pub nvidia: NvidiaProbe,
    pub npu_smi: NpuSmiProbe,
    pub vulkan: VulkanProbe,
}

impl System {
    /// A recorded files, without NVML, `npu-smi` and Vulkan.
    pub fn recorded(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            fallback_cores: vec![0],
            nvidia: NvidiaProbe::NotAsked,
            npu_smi: NpuSmiProbe::NotAsked,
            vulkan: VulkanProbe::NotAsked,
        }
    }

    /// The machine this runs on. Loads NVML and, in a child of this program, Vulkan: the program
    /// must offer [`crate::VULKAN_PROBE_COMMAND`]. Where there are nodes of virtual NPUs, it asks
    /// `npu-smi` for them.
    pub fn this_machine() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let root = PathBuf::from("/");
        Self {
            npu_smi: NpuSmiProbe::load(&SystemFiles::new(&root)),
            root,
            fallback_cores: affinity().unwrap_or_else(|| (0..cores as u32).collect()),
            nvidia: NvidiaProbe::load(),
            vulkan: VulkanProbe::this_program(),
        }
    }
}

fn affinity() -> Option<Vec<u32>> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).ok()?;
    let count = nix::sched::CpuSet::count();
    let cores = (0..count).filter(|&core| set.is_set(core).unwrap_or(false));
    Some(cores.map(|core| core as u32).collect())
}

/// Where a device sits and what reaches it; the parts that the topology has no room for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DevicePlace {
    pub address: Option<PciAddress>,
    pub numa: Option<u32>,
    /// Device nodes through which programs open it, such as `/dev/davinci0` and the manager that it
    /// shares with others of its kind.
    pub nodes: Vec<PathBuf>,
    pub kernel_driver: Option<String>,
}

/// What this machine has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discovery {
    /// One node. Classes carry no peaks: the catalogue has them, by class id.
    pub topology: Topology,
    /// The usable cores (hardware threads) of each CPU socket, ascending: what to pin to. Their
    /// number is the socket's capacity.
    pub cores: BTreeMap<DeviceId, Vec<u32>>,
    pub numa: Vec<NumaNode>,
    /// Every device but the CPU sockets.
    pub places: BTreeMap<DeviceId, DevicePlace>,
    pub diagnostics: Vec<Diagnostic>,
}

impl Discovery {
    /// The nodes that open each device which has a place, by name.
    pub fn device_nodes(&self) -> BTreeMap<Name, Vec<PathBuf>> {
        let named = |(&id, place): (&DeviceId, &DevicePlace)| {
            (self.topology.device(id).name.clone(), place.nodes.clone())
        };
        self.places.iter().map(named).collect()
    }

    /// The same where the device that was found as row `n` stands in row `rows[n]` of `topology`.
    #[must_use]
    pub fn in_rows(&self, topology: &Topology, rows: &[DeviceId]) -> Self {
        fn moved<T: Clone>(of: &BTreeMap<DeviceId, T>, rows: &[DeviceId]) -> BTreeMap<DeviceId, T> {
            of.iter().map(|(id, value)| (rows[id.index()], value.clone())).collect()
        }
        Self {
            topology: topology.clone(),
            cores: moved(&self.cores, rows),
            places: moved(&self.places, rows),
            numa: self.numa.clone(),
            diagnostics: self.diagnostics.clone(),
        }
    }
}

/// Reads the machine. Never fails: what cannot be read or used is a diagnostic, and there is always
/// at least one CPU device.
pub fn discover(system: &System) -> Discovery {
    let files = SystemFiles::new(&system.root);
    let processors = cpu::processors(&files, &system.fallback_cores);
    let mut diagnostics = processors.diagnostics.clone();
    let functions = pci::scan(&files);
    if functions.is_none() {
        diagnostics.push(Diagnostic::PciUnknown);
    }
    let functions = functions.unwrap_or_default();
    let mut candidates = nvidia::candidates(&files, &system.nvidia, &functions, &mut diagnostics);
    let vnpus = Vnpus::read(&files, &system.npu_smi);
    diagnostics
        .extend(vnpus.query_error().map(|why| Diagnostic::VnpusUnlisted { why: why.to_owned() }));
    candidates.extend(accelerators::candidates(&files, &functions, &vnpus, &mut diagnostics));
    vulkan::add_candidates(&system.vulkan, &functions, &mut candidates, &mut diagnostics);
    assembly::assemble(&files, processors, &functions, candidates, diagnostics)
}

/// A device that may be usable: it is if any driver runs it.
#[derive(Debug, Clone, Default)]
struct Candidate {
    /// `cuda`, `gpu`, `npu`, …: the first part of its name.
    prefix: &'static str,
    class: String,
    title: String,
    vendor: String,
    kind: &'static str,
    software: bool,
    drivers: Vec<&'static str>,
    memory: Bytes,
    visible_id: String,
    place: DevicePlace,
    nvlinks: Vec<NvLink>,
}

/// The place of a device with these nodes below `/dev`, beside those that the bus tells.
fn place(function: &Function, mut nodes: Vec<String>) -> DevicePlace {
    let more = function.nodes.iter().filter(|node| !nodes.contains(node));
    nodes.extend(more.cloned().collect::<Vec<_>>());
    DevicePlace {
        address: Some(function.address),
        numa: function.numa,
        nodes: nodes.iter().map(|node| PathBuf::from(format!("/dev/{node}"))).collect(),
        kernel_driver: function.kernel_driver.clone(),
    }
}
