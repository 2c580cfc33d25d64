//! Discovery of this machine's devices and links, as data.
//!
//! Knows: sysfs, procfs, device nodes, cgroup limits, PCI ids, NVML, Vulkan, `npu-smi`, and the
//! environment variable by which each vendor's runtime chooses devices. Everything but the two
//! libraries and the tool is read from files below a root given as an argument, so a recorded tree
//! is a machine.
//! Must never know: jobs, tenants, policies, who asks or what for. It reports what there is, what
//! cannot be used and why; it never changes a device.

mod catalogue;
mod cgroup;
mod counters;
mod cpu;
mod discovery;
mod drivers;
mod finding;
mod links;
mod lookout;
mod parse;
mod pci;
mod shares;
mod tree;
mod visible;
mod vnpu;

pub use catalogue::nvidia_class;
pub use counters::{CounterSource, Counters, counters};
pub use cpu::NumaNode;
pub use discovery::{DevicePlace, Discovery, System, discover};
pub use drivers::npu_smi::{CutChip, NpuSmiProbe, Vnpu};
pub use drivers::nvml::{Mig, MigInstance, NvLink, NvidiaDevice, NvidiaProbe};
pub use drivers::vulkan::{
    VULKAN_PROBE_COMMAND, VulkanDevice, VulkanKind, VulkanProbe, vulkan_probe_main,
};
pub use finding::Finding;
pub use lookout::{Lookout, Sight};
pub use pci::{BadPciAddress, PciAddress};
pub use shares::{SHARES_MAX, ShareError, mps_answers, mps_pipe};
pub use visible::{container_access, visible_devices};
