//! The first processes of all ranks that this process started, and what they leave behind.

use std::collections::BTreeSet;

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::cgroup::Group;
use crate::process::kill::Marks;
use crate::process::procfs::{self, Children};
use crate::process::sys::adopt_orphans;

/// Ids that nobody else may collect.
#[derive(Debug)]
pub(crate) struct Leaders {
    pids: BTreeSet<i32>,
    /// What the system says of this process's children, where it does.
    children: Option<Children>,
    /// What a rank leaves behind becomes a child of this process.
    adopts: Adopts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Adopts {
    Yes,
    No,
}

impl Leaders {
    pub(crate) fn new() -> Self {
        let adopts = if adopt_orphans().is_ok() { Adopts::Yes } else { Adopts::No };
        Self { pids: BTreeSet::new(), children: Children::open().ok(), adopts }
    }

    pub(crate) fn insert(&mut self, pid: i32) {
        self.pids.insert(pid);
    }

    /// Collects a process that has ended.
    pub(crate) fn collect(&mut self, pid: i32) {
        // Somebody who ended has a status; whoever is no child any more needs none.
        let _ = waitpid(Pid::from_raw(pid), None);
        self.pids.remove(&pid);
    }

    /// Whether processes of these groups or with this mark may live although their leaders are
    /// gone. Looks only at those that this process adopted, where it does: that is what makes the
    /// end of a gang cheap on a machine with many processes.
    pub(crate) fn may_have_left_somebody(&self, marks: &Marks<'_>) -> bool {
        let Marks { groups, mark, cgroups } = marks;
        if self.adopts == Adopts::No || cgroups.iter().any(Group::has_members) {
            return true;
        }
        let children = self.children.as_ref().and_then(|children| children.read().ok());
        let Some(children) = children else { return true };
        let adopted = procfs::adopted(&children, &self.pids);
        let mut left = false;
        for (pid, stat) in adopted {
            let grouped = groups.contains(&stat.group) || groups.contains(&stat.session);
            if !stat.is_gone() {
                left |= grouped || procfs::is_marked(pid, mark);
            } else if grouped {
                // Its status is nobody's; who is still being traced is left to whoever traces it.
                let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            }
        }
        left
    }
}
