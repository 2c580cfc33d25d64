//! Taking up what an engine left that died or was detached, by a state that was read from the log.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use het_core::{CheckpointSpec, LeaseId, Outcome, Phase, State};

use crate::cgroup::Group;
use crate::container;
use crate::gang::{Gang, Left, StopAsked};
use crate::node::{BIRTH_LIMIT, Node, Start};
use crate::order::record_path;
use crate::record::{self, Record};
use crate::site::Remains;
use crate::spawn::{Kin, Process};
use crate::sweep::{Marks, sweep};
use crate::sys::pidfd_open;

/// Between two looks for a note.
const NOTE_EVERY: Duration = Duration::from_millis(2);

impl Node {
    /// Takes up all that runs according to a state which was read from the log: what a supervisor
    /// left that died, or was detached. Programs that run go on; how those ended that are gone is
    /// told as soon as it is known; what was planned but never begun begins now. Also makes plans
    /// of generations up to the state's old ones.
    pub fn adopt(&mut self, state: &State) {
        self.generation = state.generation();
        for (&lease, held) in state.leases() {
            let (_, spec, stage) = state.stage(held.stage);
            let start = Start {
                lease,
                attempt: held.attempt,
                placement: &held.placement,
                launch: &spec.alternatives[held.placement.alternative].launch,
                resume: &stage.checkpoint,
            };
            self.take_up(start, held.phase);
        }
        self.forget_others(state);
    }

    /// Files of leases whose end is durable, which a supervisor had no time to remove.
    fn forget_others(&mut self, state: &State) {
        for (path, record) in record::live(&self.config.run_dir) {
            let is_over = !state.leases().contains_key(&LeaseId(record.lease));
            // Nobody was left when the end was told. Of another log's lease somebody may be.
            if is_over && !record::noted(&path).into_values().any(|pid| record.is_rank(pid)) {
                record::forget(&path);
            }
        }
    }

    fn take_up(&mut self, start: Start<'_>, phase: Phase) {
        let lease = start.lease;
        let asked = if phase.is_stopping() { StopAsked::Yes } else { StopAsked::No };
        let path = record_path(&self.config.run_dir, lease);
        if !path.exists() {
            return match phase {
                Phase::Starting => self.start(start),
                // It ran, so somebody removed its record: it may run still.
                Phase::Running { .. } | Phase::Stopping { .. } => self.lose(lease, &path, None),
            };
        }
        let world = start.placement.ranks.len();
        let record = Record::read(&path);
        let noted = noted_by_now(&path, record.as_ref(), world);
        let (Some(record), true) = (&record, noted.len() == world) else {
            return self.lose(lease, &path, record.as_ref());
        };
        let written = fs::metadata(&path).and_then(|metadata| metadata.modified());
        let since = written.unwrap_or(SystemTime::UNIX_EPOCH);
        let processes = noted.into_iter().map(|(rank, pid)| {
            // Opened first: the id cannot become another process's between the two.
            let pidfd = pidfd_open(pid).ok().filter(|_| record.is_rank(pid));
            Process::new(rank, pid, pidfd, Kin::Orphan)
        });
        let processes: Vec<Process> = processes.collect();
        let picked = record.cores.iter().map(|cores| self.cores.take_again(cores)).collect();
        self.ports.take_again(record.port);
        let order = self.order(&start, record.port, picked, record.since_ticks);
        let cgroups = record.control_groups();
        let left = Left { processes, cgroups, since, asked };
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
    fn lose(&mut self, lease: LeaseId, path: &Path, record: Option<&Record>) {
        let ranks = record::noted(path).into_values();
        let groups = ranks.filter(|&pid| record.is_some_and(|record| record.is_rank(pid)));
        let cgroups = record.map(Record::control_groups).unwrap_or_default();
        let (groups, mark) = (groups.collect(), record::mark(path));
        sweep(&Marks { groups, mark, cgroups: &cgroups }, None);
        container::remove_left(path);
        cgroups.iter().for_each(Group::remove);
        let children = Vec::new();
        let remains = Remains { record: path.to_owned(), slip: None, children };
        self.site.end(lease, Outcome::Lost, remains);
    }
}

/// Who noted itself, when all did or had the time to: a supervisor may have died between the birth
/// of a process and the moment in which that notes who it is.
fn noted_by_now(path: &Path, record: Option<&Record>, world: usize) -> BTreeMap<u32, i32> {
    loop {
        let noted = record::noted(path);
        let is_young = |record: &Record| record.age() < BIRTH_LIMIT;
        if noted.len() == world || !record.is_some_and(is_young) {
            return noted;
        }
        thread::sleep(NOTE_EVERY);
    }
}
