//! How much processor time the sessions of a machine take, and whose they are.
//!
//! Counted by session: what a process took goes to its parent when that collects it, and so stays
//! in the session, however short its processes live.

use std::collections::{BTreeMap, BTreeSet};

use het_core::Millis;

use super::owner::{LiveLeases, ProcessOwner};
use crate::process::procfs::{self, Stat};

/// What a session took between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTime {
    pub time: Millis,
    /// Its process that took most of it.
    pub process: u32,
    /// Cores on which its processes ran last.
    pub cores: BTreeSet<u32>,
    pub owner: ProcessOwner,
}

/// Remembers the last reading.
#[derive(Debug, Default)]
pub struct ProcessorTime {
    /// By session; nothing before the first reading.
    before: Option<BTreeMap<i32, Session>>,
}

#[derive(Debug, Default)]
struct Session {
    ticks: u64,
    /// Ticks by process and its start.
    processes: BTreeMap<(i32, u64), u64>,
    cores: BTreeSet<u32>,
}

impl ProcessorTime {
    /// Sessions that took any time since the reading before; none at the first one. Processes of
    /// this program are a lease's, for they collect its ranks; this one is in a session of its own.
    pub fn read(&mut self, leases: &LiveLeases) -> Vec<SessionTime> {
        let now = sessions();
        let Some(before) = &self.before else {
            self.before = Some(now);
            return Vec::new();
        };
        let none = Session::default();
        let taken = now.iter().filter_map(|(id, session)| {
            let earlier = before.get(id).unwrap_or(&none);
            let ticks = session.ticks.saturating_sub(earlier.ticks);
            let of_process = |(key, ticks): &(&(i32, u64), &u64)| {
                ticks.saturating_sub(earlier.processes.get(key).copied().unwrap_or(0))
            };
            let ((process, _), _) = session.processes.iter().max_by_key(of_process)?;
            let owner = || match procfs::is_of_this_program(*process) {
                true => ProcessOwner::Lease,
                false => leases.owner_of(*process as u32),
            };
            (ticks > 0).then(|| SessionTime {
                time: procfs::ticks_to_millis(ticks),
                process: *process as u32,
                cores: session.cores.clone(),
                owner: owner(),
            })
        });
        let taken = taken.collect();
        self.before = Some(now);
        taken
    }
}

/// No process has this id.
const OWN_SESSION: i32 = -1;

/// The parent of the kernel's own threads.
const KTHREADD: i32 = 2;

/// Every session but that of the kernel's own threads.
fn sessions() -> BTreeMap<i32, Session> {
    let own = std::process::id() as i32;
    let mut sessions: BTreeMap<i32, Session> = BTreeMap::new();
    // Programs of an outer namespace's session have none either.
    let is_of_kernel = |pid: i32, stat: &Stat| pid == KTHREADD || stat.parent == KTHREADD;
    for (pid, stat) in procfs::all().filter(|(pid, stat)| !is_of_kernel(*pid, stat)) {
        let Stat { session, cpu_ticks, start_ticks, core, .. } = stat;
        let id = if pid == own { OWN_SESSION } else { session };
        let session = sessions.entry(id).or_default();
        session.ticks += cpu_ticks;
        session.processes.insert((pid, start_ticks), cpu_ticks);
        session.cores.insert(core);
    }
    sessions
}
