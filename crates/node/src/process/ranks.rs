//! The first processes of all ranks that this process started, and their surviving descendants.

use std::collections::BTreeSet;

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::cgroup::Group;
use crate::process::kill::ProcessSelector;
use crate::process::procfs::{self, Children};
use crate::process::sys::become_subreaper;

/// Ids that only this value may collect.
#[derive(Debug)]
pub(crate) struct RankProcesses {
    pids: BTreeSet<i32>,
    /// The system's list of this process's children, where it has one.
    children: Option<Children>,
    subreaper: Subreaper,
}

/// Whether orphaned descendants become children of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subreaper {
    Yes,
    No,
}

impl RankProcesses {
    pub(crate) fn new() -> Self {
        let subreaper = if become_subreaper().is_ok() { Subreaper::Yes } else { Subreaper::No };
        Self { pids: BTreeSet::new(), children: Children::open().ok(), subreaper }
    }

    pub(crate) fn insert(&mut self, pid: i32) {
        self.pids.insert(pid);
    }

    /// Collects a process that has ended.
    pub(crate) fn collect(&mut self, pid: i32) {
        // A process that is no longer a child has no status to collect.
        let _ = waitpid(Pid::from_raw(pid), None);
        self.pids.remove(&pid);
    }

    /// Whether matching processes may run although the ranks' own have ended. Where this process
    /// adopts orphans, only those are examined: that keeps the end of a gang cheap on a machine
    /// with many processes.
    pub(crate) fn may_have_survivors(&self, selector: &ProcessSelector<'_>) -> bool {
        let ProcessSelector { groups, variable, cgroups } = selector;
        if self.subreaper == Subreaper::No || cgroups.iter().any(Group::has_members) {
            return true;
        }
        let children = self.children.as_ref().and_then(|children| children.read().ok());
        let Some(children) = children else { return true };
        let adopted = procfs::adopted(&children, &self.pids);
        let mut found = false;
        for (pid, stat) in adopted {
            let grouped = groups.contains(&stat.group) || groups.contains(&stat.session);
            if !stat.is_gone() {
                found |= grouped || procfs::has_variable(pid, variable);
            } else if grouped {
                // Nobody needs its status. A process that is traced is left to its tracer.
                let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            }
        }
        found
    }
}
