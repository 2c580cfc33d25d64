//! What the kernel says of a machine, read from files below a root: sysfs, procfs, control groups.

pub(crate) mod cgroup;
pub(crate) mod files;
pub(crate) mod parse;
pub(crate) mod pci;
