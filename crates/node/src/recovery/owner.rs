//! Whose a process is that somebody came upon: a job's of this engine, or a stranger's.

use std::collections::BTreeSet;
use std::path::Path;

use crate::cgroup::Group;
use crate::launch::container;
use crate::launch::environment::NOTICE;
use crate::launch::spec::notice_path;
use crate::process::procfs::{self, Stat};
use crate::recovery::record::{self, Record};

/// Whose a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// That of a live lease.
    Lease,
    Stranger,
    /// It is gone, or is just ending or becoming another program.
    Nobody,
}

/// By what the processes of an engine's live leases are told from all others. To be read after the
/// processes were seen: a record is there before its processes are.
#[derive(Debug, Default)]
pub struct LiveLeases {
    /// What [`NOTICE`] is in their environments.
    notices: BTreeSet<String>,
    /// The first processes of ranks, which are also their sessions. A program may overwrite its
    /// environment, to show another title for one.
    ranks: BTreeSet<i32>,
    /// Members of the ranks' control groups.
    grouped: BTreeSet<i32>,
    containers: Vec<String>,
}

impl LiveLeases {
    pub fn read(run_dir: &Path) -> Self {
        let mut found = Self::default();
        for lease in record::live(run_dir) {
            let lease_dir = lease.lease_dir();
            found.notices.insert(notice_path(&lease_dir).display().to_string());
            let ranks = lease.noted.values().copied();
            found.ranks.extend(ranks.filter(|&pid| is_free_or_rank(&lease.record, pid)));
            found.grouped.extend(lease.record.control_groups().iter().flat_map(Group::members));
            found.containers.extend(container::of_lease(&lease_dir));
        }
        found
    }

    /// Whether any rank or member of its control group still runs.
    pub fn are_alive(&self) -> bool {
        let runs = |pid: &i32| procfs::stat(*pid).is_some_and(|stat| !stat.is_gone());
        self.ranks.iter().chain(&self.grouped).any(runs)
    }

    /// Whose this process is; one that descends from a lease's is the lease's.
    pub fn owner_of(&self, pid: u32) -> Owner {
        let Ok(pid) = i32::try_from(pid) else { return Owner::Nobody };
        let is_gone = procfs::stat(pid).is_none_or(|stat| stat.is_gone());
        if is_gone || procfs::is_bare(pid) {
            return Owner::Nobody;
        }
        if procfs::lineage(pid).any(|(pid, stat)| self.holds(pid, &stat)) {
            return Owner::Lease;
        }
        Owner::Stranger
    }

    fn holds(&self, pid: i32, stat: &Stat) -> bool {
        self.ranks.contains(&pid)
            || self.ranks.contains(&stat.session)
            || self.grouped.contains(&pid)
            || procfs::variable(pid, NOTICE).is_some_and(|path| self.notices.contains(&path))
            || self.containers.iter().any(|id| procfs::is_in_group_of(pid, id))
    }
}

/// The id of a rank that ended may be somebody else's now.
fn is_free_or_rank(record: &Record, pid: i32) -> bool {
    procfs::stat(pid).is_none_or(|stat| stat.is_gone()) || record.is_rank(pid)
}
