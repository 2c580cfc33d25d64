//! Taking up what an engine left that died or was detached, by a state that was read from the log.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, SystemTime};

use het_core::{CheckpointSpec, LeaseId, Outcome, Phase, State};

use crate::cgroup::Group;
use crate::context::{LastOf, Remains};
use crate::gang::{Gang, Left, StopAsked};
use crate::launch::container;
use crate::launch::spawn::{Kin, Process};
use crate::launch::spec::lease_path;
use crate::node::{Node, STARTUP_LIMIT, Start};
use crate::process::kill::{Marks, sweep};
use crate::process::sys::pidfd_open;
use crate::recovery::record::{self, Found};
use crate::recovery::record_file::RecordFile;

/// Between two looks for a note.
const NOTE_EVERY: Duration = Duration::from_millis(2);

impl Node {
    /// Takes up all that runs according to a state which was read from the log: what a supervisor
    /// left that died, or was detached. Programs that run go on; how those ended that are gone is
    /// told as soon as it is known; what was planned but never begun begins now. Also makes plans
    /// of generations up to the state's old ones.
    pub(crate) fn take_up_all(&mut self, state: &State) {
        self.generation = state.generation();
        let (mut found, unread) = record::readable(&self.config.run_dir);
        // Where a number was given twice, by a state that is gone, the newest is the state's.
        found.sort_by_key(|found| (found.record.is_of_this_boot(), found.record.since_ticks));
        let mut records: BTreeMap<LeaseId, Found> = BTreeMap::new();
        for found in found {
            records.insert(found.lease(), found).into_iter().for_each(forget);
        }
        for (&lease, held) in state.leases() {
            let (_, spec, stage) = state.stage(held.stage);
            let start = Start {
                lease,
                attempt: held.attempt,
                placement: &held.placement,
                launch: &spec.alternatives[held.placement.alternative].launch,
                resume: &stage.checkpoint,
            };
            match records.remove(&lease) {
                Some(found) => self.take_up(start, held.phase, found),
                None if held.phase == Phase::Starting && unread.is_empty() => self.start(start),
                // It ran, or may have: somebody removed its record, or it cannot be read.
                None => self.lose(lease, None),
            }
        }
        records.into_values().for_each(forget);
    }

    fn take_up(&mut self, start: Start<'_>, phase: Phase, found: Found) {
        let lease = start.lease;
        let world = start.placement.ranks.len();
        let found = noted_by_now(found, world);
        let Found { record, noted, path } = &found;
        if !record.is_of_this_boot() || noted.len() != world {
            return self.lose(lease, Some(&found));
        }
        let written = fs::metadata(path).and_then(|metadata| metadata.modified());
        let since = written.unwrap_or(SystemTime::UNIX_EPOCH);
        let processes = noted.iter().map(|(&rank, &pid)| {
            // Opened first: the id cannot become another process's between the two.
            let pidfd = pidfd_open(pid).ok().filter(|_| record.is_rank(pid));
            Process::new(rank, pid, pidfd, Kin::Orphan)
        });
        let processes: Vec<Process> = processes.collect();
        let picked = record.cores.iter().map(|cores| self.cores.take_again(cores)).collect();
        self.ports.take_again(record.port);
        let order = self.order(&start, record.port, picked, record.since_ticks);
        let (cgroups, record_file) = (record.control_groups(), RecordFile::open(path).ok());
        let asked = if phase.is_stopping() { StopAsked::Yes } else { StopAsked::No };
        let left = Left { processes, cgroups, record_file, since, asked };
        let mut gang = Gang::take_up(order, left, &mut self.site);
        if asked == StopAsked::Yes {
            let spec = start.launch.checkpoint.as_ref();
            let grace = spec.map_or(CheckpointSpec::GRACE_DEFAULT, |spec| spec.grace);
            gang.stop("restart", grace, self.site.clock.now());
        }
        self.keep(lease, gang);
    }

    /// A lease of which not every rank began, or of a boot that is over, or whose record is gone:
    /// what there is of it goes.
    fn lose(&mut self, lease: LeaseId, found: Option<&Found>) {
        let lease_dir = lease_path(&self.config.run_dir, lease);
        let this_boots = found.filter(|found| found.record.is_of_this_boot());
        let groups = this_boots.into_iter().flat_map(Found::ranks).collect();
        let cgroups = this_boots.map(|found| found.record.control_groups()).unwrap_or_default();
        sweep(&Marks { groups, mark: record::mark(&lease_dir), cgroups: &cgroups }, None);
        container::remove_left(&lease_dir);
        cgroups.iter().for_each(Group::remove);
        let record = match found.and_then(|found| RecordFile::open(&found.path).ok()) {
            // Somebody who has not noted itself yet may write to it.
            Some(record_file) => LastOf::Discarded(record_file),
            None => LastOf::Nothing,
        };
        let remains = Remains { lease_dir: Some(lease_dir), record, children: Vec::new() };
        self.site.end(lease, Outcome::Lost, remains);
    }
}

/// Forgets a lease whose end is durable, which a supervisor had no time to do. Nobody was left when
/// the end was told; of another log's lease somebody may be.
fn forget(found: Found) {
    if !found.record.is_of_this_boot() || found.ranks().next().is_none() {
        found.forget();
    }
}

/// With the notes of all its processes, or those of all that had the time: a supervisor may have
/// died between the birth of one and the moment in which it notes who it is.
fn noted_by_now(mut found: Found, world: usize) -> Found {
    let is_young =
        |found: &Found| found.record.is_of_this_boot() && found.record.age() < STARTUP_LIMIT;
    while found.noted.len() < world && is_young(&found) {
        thread::sleep(NOTE_EVERY);
        found = found.again();
    }
    found
}
