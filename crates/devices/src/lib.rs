//! Discovery of this machine's devices and links, as data.
//!
//! Knows: sysfs, procfs, device nodes, cgroup limits, PCI ids, NVML, Vulkan, `npu-smi`, and the
//! environment variable by which each vendor's runtime chooses devices. Everything but the two
//! libraries and the tool is read from files below a root given as an argument, so a recorded tree
//! is a machine.
//! Must never know: jobs, tenants, policies, who asks or what for. It reports what there is, what
//! cannot be used and why; it never changes a device.
//!
//! `kernel` reads files, `drivers` talk to vendors' libraries and tools; `discovery` makes one
//! topology of both, with `catalogue` for models. `device_monitor` reads who uses discovered
//! devices and which failed, `load` how much they do; `mps`, `vnpu` and `visible_devices` say how
//! a program is given devices or parts of one.

mod catalogue;
mod device_monitor;
mod diagnostic;
mod discovery;
mod drivers;
mod kernel;
mod load;
mod mps;
mod pci_address;
mod visible_devices;
mod vnpu;

pub use catalogue::nvidia_class;
pub use device_monitor::{DeviceMonitor, DeviceObservation};
pub use diagnostic::Diagnostic;
pub use discovery::{DevicePlace, Discovery, NumaNode, System, discover};
pub use drivers::npu_smi::{NpuSmiProbe, PartitionedChip, Vnpu};
pub use drivers::nvml::{Mig, MigInstance, NvLink, NvidiaDevice, NvidiaProbe};
pub use drivers::vulkan::{
    VULKAN_PROBE_COMMAND, VulkanDevice, VulkanKind, VulkanProbe, vulkan_probe_main,
};
pub use load::{Clock, DeviceLoad, LoadSource, NodeLoad, Pressure};
pub use mps::{SHARES_MAX, ShareError, mps_answers, mps_pipe};
pub use pci_address::{BadPciAddress, PciAddress};
pub use visible_devices::{container_access, declared_id, visible_devices};
