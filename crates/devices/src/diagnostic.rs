//! Diagnostics of discovery: what cannot be used or works below its limits, why, and what to do.

use thiserror::Error;

use crate::PciAddress;

/// One thing the user should know about this machine. `Display` says what and why in one
/// sentence; [`Diagnostic::hint`] says what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Diagnostic {
    #[error("`/sys` does not list this machine's processors, so {cores} usable cores are assumed")]
    ProcessorsUnknown { cores: usize },
    #[error("the memory of this machine cannot be read from `/proc/meminfo`")]
    NodeMemoryUnknown,
    #[error(
        "a cgroup quota of {quota_millicores}/1000 cores is below the {cores} cores that this \
         process may use"
    )]
    CpuQuota { cores: usize, quota_millicores: u64 },
    #[error("no PCI bus is visible, so only devices that drivers report themselves are found")]
    PciUnknown,
    #[error("NVIDIA device {address} is present, but its management library is not installed")]
    NvmlMissing { address: PciAddress },
    #[error("the NVIDIA management library does not work: {why}")]
    NvmlFailed { why: String },
    #[error("NVIDIA device {index} cannot be read: {why}")]
    NvidiaUnreadable { index: u32, why: String },
    #[error("{title} at {address} is in MIG mode and has no instance that could be used")]
    NoMigInstance { title: String, address: PciAddress },
    #[error("`npu-smi` lists no virtual NPU, though this machine has device nodes of some: {why}")]
    VnpusUnlisted { why: String },
    #[error("there is nothing behind `{node}`: `npu-smi` lists no such virtual NPU")]
    VnpuNotListed { node: String },
    #[error("virtual NPU {number} of {title} at {address} has no device node `{node}`")]
    VnpuWithoutNode { title: String, address: PciAddress, number: u32, node: String },
    #[error("virtual NPU {number} is made by the template `{template}`, which is not known")]
    VnpuTemplateUnknown { number: u32, template: String },
    #[error("{title} at {address} has no kernel driver bound")]
    NoKernelDriver { title: String, address: PciAddress, driver: &'static str },
    #[error("{title} at {address} is handed to virtual machines by `vfio-pci`")]
    PassedThrough { title: String, address: PciAddress },
    #[error("{title} at {address} has no device node `{node}`")]
    NoDeviceNode { title: String, address: PciAddress, node: String, driver: &'static str },
    #[error("{title} at {address} cannot be opened: no permission for `{node}`")]
    NoPermission { title: String, address: PciAddress, node: String, group: Option<&'static str> },
    #[error("device {vendor:04x}:{device:04x} at {address} is an accelerator of an unknown make")]
    UnknownAccelerator { address: PciAddress, vendor: u16, device: u16 },
    #[error("the memory of `{device}` is not known and counts as zero")]
    MemoryUnknown { device: String },
    #[error("the PCIe link of {address} runs at {lanes} of {lanes_max} lanes")]
    NarrowLink { address: PciAddress, lanes: u64, lanes_max: u64 },
    #[error("the Vulkan loader is not installed")]
    VulkanMissing,
    #[error("a Vulkan driver crashed while it was asked for its devices: {how}")]
    VulkanCrashed { how: String },
    #[error("a Vulkan driver did not answer within {limit_ms} ms")]
    VulkanTimedOut { limit_ms: u64 },
    #[error("Vulkan devices cannot be listed: {why}")]
    VulkanFailed { why: String },
}

impl Diagnostic {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::ProcessorsUnknown { .. } => "mount sysfs at `/sys`",
            Self::NodeMemoryUnknown => "mount procfs at `/proc`",
            Self::CpuQuota { .. } => "raise the container's CPU limit or ask for fewer cores",
            Self::PciUnknown => "mount sysfs at `/sys`",
            Self::NvmlMissing { .. } => {
                "install the NVIDIA driver (`libnvidia-ml.so.1`), or in a container give it the \
                 device (`--gpus all`)"
            }
            Self::NvmlFailed { .. } => "run `nvidia-smi`: driver and library must be one version",
            Self::NvidiaUnreadable { .. } => "run `nvidia-smi -q` and look for a lost GPU",
            Self::NoMigInstance { .. } => {
                "make instances with `nvidia-smi mig -cgi PROFILE -C`, or turn MIG off with \
                 `nvidia-smi -mig 0`"
            }
            Self::VnpusUnlisted { .. } => {
                "see that `npu-smi info -m` answers; it may have to be root who asks"
            }
            Self::VnpuNotListed { .. } => {
                "see what `npu-smi info -t info-vnpu -i ID -c CHIP` lists, and make it anew with \
                 `npu-smi set -t create-vnpu`"
            }
            Self::VnpuWithoutNode { .. } => {
                "destroy it and make it anew with `npu-smi`, or give the container the device node"
            }
            Self::VnpuTemplateUnknown { .. } => {
                "make it by one of those that `npu-smi info -t template-info` lists"
            }
            Self::NoKernelDriver { driver, .. } => return Some(format!("load {driver}")),
            Self::PassedThrough { .. } => "unbind it from `vfio-pci` to use it here",
            Self::NoDeviceNode { driver, .. } => {
                return Some(format!("load {driver}, or give the container the device node"));
            }
            Self::NoPermission { group: Some(group), .. } => {
                return Some(format!("add your user to the group `{group}` and log in again"));
            }
            Self::NoPermission { node, .. } => {
                return Some(format!("add your user to the group that owns `{node}`"));
            }
            Self::NarrowLink { .. } => "reseat the card or use a slot with more lanes",
            Self::VulkanMissing => "install `libvulkan1` to use GPUs through Vulkan",
            Self::VulkanCrashed { .. } | Self::VulkanTimedOut { .. } => {
                "name the working driver with `VK_DRIVER_FILES`"
            }
            Self::VulkanFailed { .. }
            | Self::UnknownAccelerator { .. }
            | Self::MemoryUnknown { .. } => return None,
        };
        Some(hint.to_owned())
    }
}
