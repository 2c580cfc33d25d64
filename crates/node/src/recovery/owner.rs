//! Whether a process belongs to a job of an engine or to somebody else.

use std::collections::BTreeSet;
use std::path::Path;

use super::abandoned;
use super::record::Record;
use crate::cgroup::Group;
use crate::process::containers;
use crate::process::procfs::{self, Stat};
use crate::run_dir::{NOTICE, notice_path};

/// Who owns a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessOwner {
    /// A live lease.
    Lease,
    /// None of the leases.
    External,
    /// It is gone, ending or in `execve`.
    Unknown,
}

/// Identifies the processes of an engine's live leases. Read it after the processes in question
/// were seen: a record exists before its processes do.
#[derive(Debug, Default)]
pub struct LiveLeases {
    /// Values of [`NOTICE`] in their environments.
    notices: BTreeSet<String>,
    /// The first processes of ranks, which are also their sessions. A program may overwrite its
    /// environment, for example to change its title.
    ranks: BTreeSet<i32>,
    /// Members of the ranks' cgroups.
    grouped: BTreeSet<i32>,
    containers: Vec<String>,
    /// All that descends from it is of leases too.
    supervisor: Option<i32>,
}

impl LiveLeases {
    pub fn read(run_dir: &Path) -> Self {
        let mut found = Self::default();
        for lease in abandoned::live(run_dir) {
            let lease_dir = lease.lease_dir();
            found.notices.insert(notice_path(&lease_dir).display().to_string());
            let ranks = lease.slots.ranks.values().copied();
            found.ranks.extend(ranks.filter(|&pid| is_gone_or_rank(&lease.record, pid)));
            found.grouped.extend(lease.record.control_groups().iter().flat_map(Group::members));
            found.containers.extend(containers::of_lease(&lease_dir));
        }
        found
    }

    /// With those that agents have: they and their programs descend from whoever starts agents.
    pub fn with_agents_of(self, supervisor: Option<u32>) -> Self {
        Self { supervisor: supervisor.and_then(|pid| pid.try_into().ok()), ..self }
    }

    /// Whether any rank or member of its cgroup runs.
    pub fn are_alive(&self) -> bool {
        let runs = |pid: &i32| procfs::stat(*pid).is_some_and(|stat| !stat.is_gone());
        self.ranks.iter().chain(&self.grouped).any(runs)
    }

    /// The owner of a process. Descendants of a lease's processes are the lease's.
    pub fn owner_of(&self, pid: u32) -> ProcessOwner {
        let Ok(pid) = i32::try_from(pid) else { return ProcessOwner::Unknown };
        let is_gone = procfs::stat(pid).is_none_or(|stat| stat.is_gone());
        if is_gone || procfs::is_bare(pid) {
            return ProcessOwner::Unknown;
        }
        if procfs::lineage(pid).any(|(pid, stat)| self.holds(pid, &stat)) {
            return ProcessOwner::Lease;
        }
        ProcessOwner::External
    }

    fn holds(&self, pid: i32, stat: &Stat) -> bool {
        self.ranks.contains(&pid)
            || self.supervisor == Some(pid)
            || self.ranks.contains(&stat.session)
            || self.grouped.contains(&pid)
            || procfs::variable(pid, NOTICE).is_some_and(|path| self.notices.contains(&path))
            || self.containers.iter().any(|id| procfs::is_in_cgroup_named(pid, id))
    }
}

/// The id of a rank that ended may be reused.
fn is_gone_or_rank(record: &Record, pid: i32) -> bool {
    procfs::stat(pid).is_none_or(|stat| stat.is_gone()) || record.is_of_lease(pid)
}
