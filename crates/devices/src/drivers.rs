//! What talks to vendors' libraries and tools. They are loaded or started at run time and may be
//! missing.

pub(crate) mod npu_smi;
pub(crate) mod nvml;
pub(crate) mod vulkan;
