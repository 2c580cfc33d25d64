//! What the control loop stood still at, across the restarts that followed: the second time at the
//! same job's files, that job is quarantined.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use het_core::{JobId, Lease, LeaseId, Millis, State};
use het_files::{Links, replace_private};
use het_host::Home;
use het_node::{LoopTask, wall_time};
use serde::{Deserialize, Serialize};

/// Stalls at the same job's files from which on it is quarantined.
const QUARANTINE_AFTER: u32 = 2;
/// Stalls for no job's sake within a span, after which no server starts by itself.
const UNEXPLAINED_MAX: usize = 10;
const UNEXPLAINED_SPAN: Millis = Millis::seconds(3_600);
const RECORD_BYTES_MAX: u64 = 1 << 20;

/// What a server has to know of those before.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    /// Leases that are not adopted.
    pub(crate) quarantined: BTreeSet<LeaseId>,
    /// Jobs whose files the control loop leaves alone.
    pub(crate) avoided: BTreeSet<JobId>,
    /// The newest, if the server before ended by one: a sentence for people.
    pub(crate) news: Option<String>,
    /// So many stalls within an hour have no known cause, and that is too many.
    pub(crate) too_many: Option<usize>,
}

/// As the file has it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    /// What a watchdog saw and no server has looked at.
    newest: Option<StalledAt>,
    /// Stalls by job.
    jobs: BTreeMap<u64, u32>,
    /// When the loop stood still for no job's sake, in milliseconds since 1970.
    unexplained_ms: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StalledAt {
    Lease(u64),
    Job(u64),
    Unknown,
}

/// Notes what the loop stands still at, for the next server.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn note(path: &Path, task: LoopTask) -> io::Result<()> {
    let newest = match task {
        LoopTask::Lease(lease) => StalledAt::Lease(lease.0),
        LoopTask::Job(job) => StalledAt::Job(job.0),
        LoopTask::Idle | LoopTask::Store | LoopTask::Other => StalledAt::Unknown,
    };
    Record { newest: Some(newest), ..Record::read(path) }.write(path)
}

impl Stalls {
    /// Takes in what the server before noted, and keeps it.
    pub(crate) fn of(home: &Home, state: &State) -> Self {
        let path = home.stalls();
        let mut record = Record::read(&path);
        let mut stalls = Self::default();
        let newest = record.newest.take();
        let job = newest.and_then(|newest| newest.job(state));
        match (newest, job) {
            (None, _) => {}
            (Some(_), Some(job)) => stalls.take_in(job, &mut record, state),
            (Some(_), None) => stalls.take_in_unexplained(&mut record),
        }
        record.jobs.retain(|&job, _| state.job(JobId(job)).is_some());
        stalls.avoided = record.avoided(state, job);
        if newest.is_some() {
            // Else a stall counts less than it should, and happens once more.
            let _ = record.write(&path);
        }
        stalls
    }

    fn take_in(&mut self, job: JobId, record: &mut Record, state: &State) {
        let count = record.jobs.entry(job.0).or_default();
        *count += 1;
        if *count < QUARANTINE_AFTER {
            self.news = Some(format!("the server stood still at the files of job {job}"));
            return;
        }
        self.news = Some(format!(
            "the server stood still {count} times at the files of job {job}, which is quarantined"
        ));
        let of_job = |(_, lease): &(_, &Lease)| lease.stage.job == job;
        self.quarantined = state.leases().iter().filter(of_job).map(|(&id, _)| id).collect();
    }

    fn take_in_unexplained(&mut self, record: &mut Record) {
        let now = wall_time();
        record.unexplained_ms.retain(|at| now.0.saturating_sub(*at) < UNEXPLAINED_SPAN.0);
        record.unexplained_ms.push(now.0);
        self.news = Some("the server stood still, and not at the files of a job".to_owned());
        let count = record.unexplained_ms.len();
        if count >= UNEXPLAINED_MAX {
            self.too_many = Some(count);
            // Whoever starts it again has looked.
            record.unexplained_ms.clear();
        }
    }
}

impl StalledAt {
    /// The job at whose files it was, where it is known.
    fn job(self, state: &State) -> Option<JobId> {
        match self {
            Self::Lease(lease) => Some(state.leases().get(&LeaseId(lease))?.stage.job),
            Self::Job(job) => Some(JobId(job)),
            Self::Unknown => None,
        }
    }
}

impl Record {
    /// Nothing where there is none, or none that can be read.
    fn read(path: &Path) -> Self {
        let text = het_files::read(path, Links::Refused, RECORD_BYTES_MAX);
        text.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Jobs that made servers stand still too often; not those that somebody let go on since.
    fn avoided(&self, state: &State, newest: Option<JobId>) -> BTreeSet<JobId> {
        let stands_still = |job: &JobId| {
            let is_live = state.job(*job).is_some_and(|job| job.end.is_none() && !job.held);
            !is_live || newest == Some(*job)
        };
        let often = self.jobs.iter().filter(|(_, count)| **count >= QUARANTINE_AFTER);
        often.map(|(&job, _)| JobId(job)).filter(stands_still).collect()
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        replace_private(path, &serde_json::to_vec(self).map_err(io::Error::other)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use het_core::Topology;

    use super::*;

    fn home(dir: &Path) -> Home {
        let home = Home::at(dir);
        home.server_dir().expect("it can be made");
        home
    }

    #[test]
    fn a_server_that_stands_still_for_no_known_cause_starts_by_itself_so_many_times() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let (home, state) = (home(dir.path()), State::new(Arc::new(Topology::default())));
        for count in 1..=UNEXPLAINED_MAX + 1 {
            note(&home.stalls(), LoopTask::Other).expect("it can be written");
            let stalls = Stalls::of(&home, &state);
            assert!(stalls.news.is_some() && stalls.quarantined.is_empty());
            assert_eq!(stalls.too_many, (count == UNEXPLAINED_MAX).then_some(UNEXPLAINED_MAX));
        }
    }

    #[test]
    fn a_start_after_an_ordinary_end_says_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let (home, state) = (home(dir.path()), State::new(Arc::new(Topology::default())));
        note(&home.stalls(), LoopTask::Lease(LeaseId(7))).expect("it can be written");
        assert!(Stalls::of(&home, &state).news.is_some());
        assert!(Stalls::of(&home, &state).news.is_none());
        het_files::replace(&home.stalls(), b"{ torn").expect("it can be written");
        assert!(Stalls::of(&home, &state).news.is_none());
    }
}
