//! Adopting what an engine left that died or was detached, by a state that was read from the log.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use het_core::{CheckpointSpec, Event, Failure, LeaseId, Outcome, Phase, PreparationEnd, State};
use het_engine::Engine;

use super::{LiveLease, NOTE_LIMIT, Node};
use crate::cgroup::Group;
use crate::context::{Cleanup, RecordCleanup, ShimCleanup};
use crate::gang::{AbandonedGang, EarlyStart, Gang, Process, Shim, StopRequested};
use crate::inputs::LocalInputs;
use crate::launch::Devices;
use crate::process::{ProcessSelector, containers, kill_and_wait, pidfd_open};
use crate::recovery::{AbandonedLease, RecordFile, readable};
use crate::resources::GangResources;
use crate::run_dir::{lease_path, marker_variable};

/// Interval between two reads of a record whose notes are missing.
const NOTE_EVERY: Duration = Duration::from_millis(2);

impl Node {
    /// As [`Engine::adopt`], of these leases of a state alone.
    pub fn adopt_of(&mut self, state: &State, leases: Vec<LiveLease>) {
        self.fence.adopt(state);
        self.topology_changed(state.topology());
        self.report_machine(state);
        self.end_preparations(state);
        self.adopt_leases(leases.into_iter().map(|lease| (lease, None)));
    }

    /// Adopts everything that runs according to a state which was read from the log, after its
    /// supervisor died or was detached. Running programs continue; how the others ended is reported
    /// as soon as it is known; what was planned but never begun begins now, with the resources that
    /// were chosen for it. Plans of generations up to the state's are ignored from here on.
    pub fn adopt_leases(
        &mut self,
        leases: impl Iterator<Item = (LiveLease, Option<GangResources>)>,
    ) {
        let (mut found, unread) = readable(&self.config.run_dir);
        // Others have what was chosen for them, and these get what is left.
        let mut leases: Vec<_> = leases.collect();
        leases.sort_by_key(|(live, _)| {
            found.iter().any(|it| it.lease() == live.lease && it.record.warm)
        });
        // Where two leases have the same number, one is of a lost state, and the newest counts.
        found.sort_by_key(|found| (found.record.is_of_this_boot(), found.record.since_ticks));
        let mut records: BTreeMap<LeaseId, AbandonedLease> = BTreeMap::new();
        for found in found {
            records.insert(found.lease(), found).into_iter().for_each(discard);
        }
        for (live, chosen) in leases {
            let _task = self.begin(live.lease);
            let found = records.remove(&live.lease);
            if self.config.quarantined.contains(&live.lease) {
                self.lose(live.lease, found.as_ref(), Failure::quarantined());
                continue;
            }
            match found {
                Some(found) => self.adopt_lease(&live, chosen.as_ref(), found),
                None if live.phase == Phase::Starting && unread.is_empty() => {
                    self.start(live.start(), chosen.as_ref());
                }
                // It ran, or may have: its record was removed, or cannot be read.
                None => self.lose(live.lease, None, Failure::unseen()),
            }
        }
        records.into_values().for_each(discard);
    }

    /// What was begun for stages without devices is killed, and may be begun again.
    fn end_preparations(&mut self, state: &State) {
        let (found, _) = readable(&self.config.run_dir);
        for (_, preparation) in state.preparations() {
            let lease = preparation.lease;
            for found in found.iter().filter(|found| found.lease() == lease) {
                kill(&found.lease_dir(), Some(found));
                found.discard();
            }
            let end = PreparationEnd::Lost;
            self.context.emit(Event::PreparationEnded { lease, end });
        }
    }

    /// Reports this machine as it was found, where the state knows it otherwise or not at all.
    fn report_machine(&mut self, state: &State) {
        let joins = Event::NodesJoined { nodes: Arc::clone(&self.config.found) };
        let mut joined = state.clone();
        joined.apply(state.now(), &joins);
        if joined != *state {
            self.context.emit(joins);
        }
    }

    fn adopt_lease(
        &mut self,
        live: &LiveLease,
        chosen: Option<&GangResources>,
        found: AbandonedLease,
    ) {
        let (mut start, lease) = (live.start(), live.lease);
        let world = start.placement.ranks.len();
        let found = wait_for_notes(found, world);
        if found.never_began() {
            // No shim and no rank noted itself, and what was asked before is settled.
            found.discard();
            return self.start(start, chosen);
        }
        let AbandonedLease { record, slots, path } = &found;
        if !record.is_of_this_boot() || slots.ranks.len() != world {
            return self.lose(lease, Some(&found), Failure::unseen());
        }
        let written = fs::metadata(path).and_then(|metadata| metadata.modified());
        let since = written.unwrap_or(SystemTime::UNIX_EPOCH);
        let processes = slots.ranks.iter().map(|(&rank, &pid)| {
            // Opened first: the id cannot be reused between the two.
            let pidfd = pidfd_open(pid).ok().filter(|_| record.is_of_lease(pid));
            Process::adopted(rank, pid, pidfd)
        });
        let processes: Vec<Process> = processes.collect();
        let chosen = match (record.warm, chosen) {
            (false, _) => Some(&record.cores),
            (true, chosen) => chosen.map(|chosen| &chosen.cores),
        };
        let cores = match chosen {
            Some(chosen) => chosen.iter().map(|cores| self.cores.take_again(cores)).collect(),
            None => self.take_cores(start.placement),
        };
        self.ports.take_again(record.port);
        start.local_inputs = LocalInputs::noted(&found.lease_dir(), &self.copies);
        let spec = self.spec(&start, Devices::Granted, record.port, cores);
        let shim = found.shim().and_then(|pid| Some(Shim::Other(pidfd_open(pid).ok()?, pid)));
        let shim = shim.unwrap_or(Shim::None);
        let (cgroups, file) = (record.control_groups(), RecordFile::open(path).ok());
        let stop = if live.phase.is_stopping() { StopRequested::Yes } else { StopRequested::No };
        let early = match (record.warm, live.phase) {
            (false, _) => EarlyStart::No,
            (true, Phase::Starting) => EarlyStart::PerhapsUntold,
            (true, _) => EarlyStart::Told,
        };
        let abandoned =
            AbandonedGang { processes, shim, cgroups, record: file, since, stop, early };
        let mut gang = Gang::adopt(spec, abandoned, &mut self.context);
        if stop == StopRequested::Yes {
            let checkpoint = start.launch.checkpoint.as_ref();
            let grace = checkpoint.map_or(CheckpointSpec::GRACE_DEFAULT, |spec| spec.grace);
            gang.stop("restart", grace, self.context.clock.now());
        }
        self.insert(lease, gang);
    }

    /// Ends a lease of which not every rank began, or of an earlier boot, or without a record, or
    /// that is not to be adopted: kills and removes what is left of it.
    fn lose(&mut self, lease: LeaseId, found: Option<&AbandonedLease>, failure: Failure) {
        let lease_dir = lease_path(&self.config.run_dir, lease);
        kill(&lease_dir, found);
        let record = match found.and_then(|found| RecordFile::open(&found.path).ok()) {
            // A process that has not noted its id yet may write to it.
            Some(file) => RecordCleanup::Discard(file),
            None => RecordCleanup::None,
        };
        let cleanup = Cleanup { lease_dir: Some(lease_dir), record, shim: ShimCleanup::None };
        self.context.emit_end(lease, Outcome::Failed(failure), cleanup);
    }
}

/// Kills what is left of a lease, with its shim and its control groups.
fn kill(lease_dir: &Path, found: Option<&AbandonedLease>) {
    found.into_iter().for_each(AbandonedLease::kill_shim);
    let current = found.filter(|found| found.record.is_of_this_boot());
    let groups = current.into_iter().flat_map(AbandonedLease::ranks).collect();
    let cgroups = current.map(|found| found.record.control_groups()).unwrap_or_default();
    let variable = marker_variable(lease_dir);
    kill_and_wait(&ProcessSelector { groups, variable, cgroups: &cgroups }, None);
    containers::remove_of_lease(lease_dir);
    cgroups.iter().for_each(Group::remove);
}

/// Removes a lease whose end is durable, before whose removal its supervisor died. It had no
/// processes at its end. A lease of another log may have some, and is left alone, unless it never
/// had devices: then no log has it as a lease.
fn discard(found: AbandonedLease) {
    if found.awaits_devices() {
        kill(&found.lease_dir(), Some(&found));
    }
    if !found.record.is_of_this_boot() || found.ranks().next().is_none() {
        found.discard();
    }
}

/// Waits for the notes of all processes, as long as they may be missing because a supervisor died
/// between the start of a process and its note.
fn wait_for_notes(mut found: AbandonedLease, world: usize) -> AbandonedLease {
    // Without a shim nothing more begins; one that lives is about to start its ranks, or to end.
    let is_starting = |found: &AbandonedLease| {
        let is_noted = found.slots.ranks.len() == world;
        !is_noted && found.had_shim()
    };
    let is_young =
        |found: &AbandonedLease| found.record.is_of_this_boot() && found.record.age() < NOTE_LIMIT;
    while is_starting(&found) && is_young(&found) {
        thread::sleep(NOTE_EVERY);
        found = found.reread();
    }
    found
}
