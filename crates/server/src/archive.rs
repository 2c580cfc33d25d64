//! The event store with the reports of ended jobs beside it, as the service takes them.

use std::collections::BTreeSet;
use std::fs;

use het_control::{Log, LogError, Past};
use het_core::{Event, JobId, Time};
use het_host::{Home, Reserve};
use het_node::{Heartbeat, LoopTask};
use het_service::{MakeSnapshot, Store};
use het_wire::api::JobRow;
use het_wire::report::RunReport;

use crate::store::{Draft, EventStore};

/// An event store in a state directory.
#[derive(Debug)]
pub struct Archive {
    pub events: EventStore,
    pub home: Home,
    pub reserve: Option<Reserve>,
    /// Says what the loop's thread is doing here.
    pub heartbeat: Heartbeat,
    /// Jobs whose directories are left alone.
    pub avoided: BTreeSet<JobId>,
}

impl Log for Archive {
    fn append(&mut self, batch: &[(Time, Event)]) -> Result<(), LogError> {
        let _task = self.heartbeat.begin(LoopTask::Store);
        self.events.append(batch)
    }
}

impl Store for Archive {
    type Snapshot = Draft;

    fn length(&self) -> u64 {
        self.events.length()
    }

    fn keep_row(&mut self, row: &JobRow) {
        self.events.keep_row(row);
    }

    fn drop_row(&mut self, job: JobId) {
        self.events.drop_row(job);
    }

    fn archive(&mut self, report: &RunReport) {
        let id = JobId(report.id);
        if self.avoided.contains(&id) {
            return;
        }
        let (dir, _task) = (self.home.job(id.0), self.heartbeat.begin(LoopTask::Job(id)));
        let text = serde_json::to_string_pretty(report).unwrap_or_default();
        // Without it `het describe` has less to tell; the log has everything.
        let _ = fs::create_dir_all(&dir.path).and_then(|()| dir.write_report(&text));
    }

    fn is_archived(&self, job: JobId) -> bool {
        let _task = self.heartbeat.begin(LoopTask::Job(job));
        self.avoided.contains(&job) || self.home.job(job.0).report().exists()
    }

    fn due_snapshot(&self) -> Option<MakeSnapshot<Draft>> {
        let mark = self.events.snapshot_is_due().then(|| self.events.mark())?;
        Some(Box::new(move |past: Past| Draft::new(mark, past)))
    }

    fn put_snapshot(&mut self, draft: Draft) {
        self.events.put_snapshot(draft);
    }

    fn mend(&mut self) -> Result<(), LogError> {
        let _task = self.heartbeat.begin(LoopTask::Store);
        self.events.reopen().map_err(|error| LogError(Box::new(error)))?;
        let kept = self.reserve.as_ref().map_or(Ok(()), Reserve::keep);
        kept.map_err(|error| LogError(Box::new(error)))
    }

    fn release_reserve(&mut self) {
        self.reserve.iter().for_each(Reserve::release);
    }
}
