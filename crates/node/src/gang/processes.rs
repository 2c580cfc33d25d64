//! All processes of a gang: watching, signalling and measuring them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

use het_core::{LeaseId, Millis, Time};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getpgid};

use super::process::{Origin, Process};
use super::shutdown::Escalation;
use crate::cgroup::Group;
use crate::launch::{GangSpec, RANK};
use crate::poller::{Poller, Source, Trigger};
use crate::process::{Exit, ProcessSelector, kill_all, pidfd_open, procfs, signal_groups};
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

    pub(super) fn push(&mut self, process: Process) {
        self.ranks.push(process);
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

    /// When an exit log is to be read, for the first process that needs it.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.ranks.iter().filter_map(|process| process.read_exit_log_at).min()
    }

    /// Watches for the end of a rank.
    pub(super) fn watch(&self, index: usize, lease: LeaseId, poller: &Poller) -> Result<(), Errno> {
        let Some(fd) = &self.ranks[index].pidfd else { return Ok(()) };
        poller.add(fd.as_fd(), Source::Rank(lease, index as u16), Trigger::Level)
    }

    /// Kills a rank whose end cannot be watched, and waits for it.
    pub(super) fn kill_and_wait(&self, index: usize) {
        let pid = Pid::from_raw(self.ranks[index].pid);
        let _ = kill(pid, Signal::SIGKILL);
        // It stays a zombie, as all of a gang's do.
        let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
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
        let alive = self.ranks.iter().filter(|process| process.pidfd.is_some());
        let pids = alive.flat_map(|process| match inside.get(&process.rank) {
            Some(programs) => programs.clone(),
            None => vec![process.pid],
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
        for pid in self.without_group() {
            let _ = kill(pid, signal);
        }
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
            None => procfs::ticks_to_millis(procfs::tree_cpu_ticks(process.pid)),
        });
        let inside = self.in_containers(spec).into_values().flatten();
        let inside = inside.map(|pid| procfs::ticks_to_millis(procfs::tree_cpu_ticks(pid)));
        times.chain(inside).sum()
    }

    /// Ids of children of this engine.
    pub(super) fn children(&self) -> Vec<i32> {
        let children = self.ranks.iter().filter(|process| process.origin == Origin::Child);
        children.map(|process| process.pid).collect()
    }

    /// Processes in containers that descend from no process of this gang outside, by rank.
    fn in_containers(&self, spec: &GangSpec) -> BTreeMap<u32, Vec<i32>> {
        let mut inside: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
        if spec.launch.container.is_none() {
            return inside;
        }
        let runtimes: BTreeSet<i32> = self.ranks.iter().map(|process| process.pid).collect();
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

    /// Children that were just started and do not lead a group yet.
    fn without_group(&self) -> impl Iterator<Item = Pid> {
        let running = self.ranks.iter().filter(|process| process.is_running_child());
        let pids = running.map(|process| Pid::from_raw(process.pid));
        pids.filter(|&pid| getpgid(Some(pid)).is_ok_and(|group| group != pid))
    }

    /// The process groups that are certainly those of this gang.
    fn groups(&self) -> BTreeSet<i32> {
        let valid = self.ranks.iter().filter(|process| process.is_pid_valid());
        valid.map(|process| process.pid).collect()
    }
}
