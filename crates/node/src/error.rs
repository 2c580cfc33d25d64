//! Why an engine cannot start.

use std::io;
use std::path::PathBuf;

use het_core::{DeviceId, LeaseId};
use thiserror::Error;

/// Why the engine cannot work here.
#[derive(Debug, Error)]
pub enum NodeError {
    #[error("this machine is one node, and {count} were found")]
    NotOneNode { count: usize },
    #[error("device {device} is no CPU socket but was given core ids")]
    NotASocket { device: DeviceId },
    #[error(
        "core {core} of device {device} may not be used by this process, \
         hint: look at `taskset -p $$` or the container's cpuset"
    )]
    ForbiddenCore { device: DeviceId, core: u32 },
    #[error("core {core} was given twice")]
    DuplicateCore { core: u32 },
    #[error("cannot ask for this process's CPU affinity")]
    Affinity(#[source] nix::Error),
    #[error("what processes do cannot be waited for")]
    Poller(#[source] nix::Error),
    #[error("cannot use `{path}`", path = path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error(
        "lease {lease} in `{run_dir}` is still supervised by process {pid}, \
         hint: stop that one first",
        run_dir = run_dir.display()
    )]
    Supervised { run_dir: PathBuf, lease: LeaseId, pid: i32 },
    #[error("processes {pids:?} of lease {lease} cannot be killed")]
    Unkillable { lease: LeaseId, pids: Vec<i32> },
}
