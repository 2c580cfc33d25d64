//! What talks to vendors' libraries. Both are loaded at run time and may be missing.

pub(crate) mod nvml;
pub(crate) mod vulkan;
