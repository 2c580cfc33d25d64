//! Children that came to this process because their shim or their launcher died: they must not stay
//! zombies.

use std::collections::BTreeSet;

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::process::procfs::{self, Children};
use crate::process::sys::become_subreaper;

#[derive(Debug)]
pub(crate) struct Orphans {
    /// The system's list of this process's children, where it has one.
    children: Option<Children>,
}

impl Orphans {
    pub(crate) fn new() -> Self {
        // Where that is not possible they go to the first process of the system.
        let _ = become_subreaper();
        Self { children: Children::open().ok() }
    }

    /// Collects what has ended, but for these ranks, whose status is still to be read and whose
    /// ids are not to be reused.
    pub(crate) fn collect(&self, ranks: &BTreeSet<i32>) {
        let children = self.children.as_ref().and_then(|children| children.read().ok());
        for (pid, stat) in procfs::adopted(&children.unwrap_or_default(), ranks) {
            if stat.is_gone() {
                // A process that is traced is left to its tracer.
                let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            }
        }
    }
}
