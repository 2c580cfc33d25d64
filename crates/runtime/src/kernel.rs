//! What is known of a kernel: who has it, and what its runs took.

use crate::Nanos;

/// A kernel by name, and the device classes that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInfo {
    pub name: String,
    /// Names of classes of the machine; empty for all of them.
    pub classes: Vec<String>,
}

/// Runs of a kernel that ended, and what their devices spent on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelTime {
    pub count: u64,
    pub total: Nanos,
}
