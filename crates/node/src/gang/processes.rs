//! All processes of a gang: watching, signalling and measuring them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

use het_core::{LeaseId, Millis, Time};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{Parent, Process};
use super::shutdown::Escalation;
use crate::cgroup::Group;
use crate::launch::{GangSpec, RANK};
use crate::poller::{Poller, Source, Trigger};
use crate::process::{Exit, ProcessSelector, Slots, kill_all, pidfd_open, procfs, signal_groups};
use crate::run_dir::marker_variable;

#[derive(Debug)]
pub(super) struct Processes {
    /// In the order of ranks, as far as they were started.
    ranks: Vec<Process>,
    /// Other processes that have to end before the gang does: children of a shell that died of the
    /// notice, and what was killed at the end.
    others: BTreeMap<u16, OwnedFd>,
}

impl Processes {
    pub(super) fn new(ranks: Vec<Process>) -> Self {
        Self { ranks, others: BTreeMap::new() }
    }

    pub(super) fn get(&self, index: usize) -> &Process {
        &self.ranks[index]
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut Process {
        &mut self.ranks[index]
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Process> {
        self.ranks.iter()
    }

    /// Any rank or other process has not ended.
    pub(super) fn is_any_running(&self) -> bool {
        let running = self.ranks.iter().any(|process| process.exit.is_none());
        running || self.is_waiting_for_others()
    }

    pub(super) fn is_waiting_for_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Every program ended by itself and left its files complete.
    pub(super) fn ended_orderly(&self) -> bool {
        self.ranks.iter().all(|process| process.exit.is_some_and(Exit::is_orderly))
    }

    /// When the record is to be read, for the first process that needs it.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.ranks.iter().filter_map(|process| process.read_record_at).min()
    }

    pub(super) fn of_rank(&mut self, rank: u32) -> Option<&mut Process> {
        self.ranks.iter_mut().find(|process| process.rank == rank)
    }

    /// Learns the ids that ranks noted; gives how many were new.
    pub(super) fn learn(&mut self, slots: &Slots) -> usize {
        let mut learned = 0;
        for process in self.ranks.iter_mut().filter(|process| process.pid.is_none()) {
            process.pid = slots.ranks.get(&process.rank).copied();
            learned += usize::from(process.pid.is_some());
        }
        learned
    }

    /// Forgets ranks that never were: they noted nothing.
    pub(super) fn forget_unstarted(&mut self) {
        self.ranks.retain(|process| process.pid.is_some());
    }

    /// Their shim is gone: what runs is watched, where it is whose child it was.
    pub(super) fn orphaned(&mut self, lease: LeaseId, poller: &Poller) {
        for index in 0..self.ranks.len() {
            let process = &mut self.ranks[index];
            if process.exit.is_some() {
                // Its shim held its id.
                process.parent = Parent::OtherShim;
                continue;
            }
            process.parent = Parent::Orphan;
            if process.pidfd.is_none() {
                process.pidfd = process.pid.and_then(|pid| pidfd_open(pid).ok());
                let _ = self.watch(index, lease, poller);
            }
        }
    }

    /// Watches for the end of a rank.
    pub(super) fn watch(&self, index: usize, lease: LeaseId, poller: &Poller) -> Result<(), Errno> {
        let Some(fd) = &self.ranks[index].pidfd else { return Ok(()) };
        poller.add(fd.as_fd(), Source::Rank(lease, index as u16), Trigger::Level)
    }

    /// The gang does not end before this process.
    pub(super) fn wait_for(&mut self, fd: OwnedFd, lease: LeaseId, poller: &Poller) {
        let free = (0..=u16::MAX).find(|index| !self.others.contains_key(index));
        let Some(index) = free else { return };
        let source = Source::Other(lease, index);
        if poller.add(fd.as_fd(), source, Trigger::Level).is_ok() {
            self.others.insert(index, fd);
        }
    }

    pub(super) fn other_ended(&mut self, index: u16, poller: &Poller) {
        poller.remove(self.others.remove(&index));
    }

    /// Sends the notice to every rank's program. A container runtime that is starting ends of a
    /// signal instead of forwarding it, so programs in containers get it themselves; where a
    /// container's program has not begun, only its runtime can get it.
    pub(super) fn notify(&self, spec: &GangSpec, signal: Signal) {
        let inside = self.in_containers(spec);
        let alive = self.ranks.iter().filter(|process| process.exit.is_none());
        let pids = alive.flat_map(|process| match inside.get(&process.rank) {
            Some(programs) => programs.clone(),
            None => process.valid_pid().into_iter().collect(),
        });
        let pids: Vec<i32> = pids.collect();
        for pid in pids {
            // One that has just ended needs no notice.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Sends the notice to the children of a shell that died of it instead of forwarding it.
    pub(super) fn notify_orphans(
        &mut self,
        group: i32,
        signal: Signal,
        lease: LeaseId,
        poller: &Poller,
    ) {
        for pid in procfs::orphans(group) {
            // Opened first: the id cannot be reused between the two.
            if let Ok(fd) = pidfd_open(pid) {
                let _ = kill(Pid::from_raw(pid), signal);
                self.wait_for(fd, lease, poller);
            }
        }
    }

    /// Terminates or kills the whole gang.
    pub(super) fn send(&self, escalation: Escalation, spec: &GangSpec, cgroups: &[Group]) {
        let signal = match escalation {
            Escalation::Terminate => Signal::SIGTERM,
            Escalation::Kill => Signal::SIGKILL,
        };
        match escalation {
            Escalation::Terminate => signal_groups(&self.groups(), signal),
            Escalation::Kill => drop(kill_all(&self.selector(spec, cgroups))),
        }
    }

    /// Selects all processes of the gang, also those that left their groups.
    pub(super) fn selector<'a>(
        &self,
        spec: &GangSpec,
        cgroups: &'a [Group],
    ) -> ProcessSelector<'a> {
        let variable = marker_variable(&spec.lease_dir);
        ProcessSelector { groups: self.groups(), variable, cgroups }
    }

    /// Processor time so far of all ranks and their descendants.
    pub(super) fn cpu_time(&self, spec: &GangSpec) -> Millis {
        let times = self.ranks.iter().map(|process| match process.exit {
            Some(_) => process.cpu,
            None => {
                let ticks = process.pid.map_or(0, procfs::tree_cpu_ticks);
                procfs::ticks_to_millis(ticks)
            }
        });
        let inside = self.in_containers(spec).into_values().flatten();
        let inside = inside.map(|pid| procfs::ticks_to_millis(procfs::tree_cpu_ticks(pid)));
        times.chain(inside).sum()
    }

    /// What all ranks that run, and their descendants, have read from disks so far.
    pub(super) fn read_bytes(&self) -> u64 {
        let running = self.ranks.iter().filter(|process| process.exit.is_none());
        running.filter_map(|process| process.pid).map(procfs::tree_read_bytes).sum()
    }

    /// Processes in containers that descend from no process of this gang outside, by rank.
    fn in_containers(&self, spec: &GangSpec) -> BTreeMap<u32, Vec<i32>> {
        let mut inside: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
        if spec.launch.container.is_none() {
            return inside;
        }
        let runtimes: BTreeSet<i32> = self.ranks.iter().filter_map(|process| process.pid).collect();
        for pid in procfs::topmost(&marker_variable(&spec.lease_dir)) {
            let rank = match spec.world() {
                1 => Some(0),
                _ => procfs::variable(pid, RANK).and_then(|rank| rank.parse().ok()),
            };
            if let Some(rank) = rank.filter(|_| !runtimes.contains(&pid)) {
                inside.entry(rank).or_default().push(pid);
            }
        }
        inside
    }

    /// The process groups that are certainly those of this gang.
    fn groups(&self) -> BTreeSet<i32> {
        self.ranks.iter().filter_map(Process::valid_pid).collect()
    }
}
