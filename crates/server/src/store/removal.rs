//! Which events leave the store: those before both snapshots and older than the newest so many,
//! unless they say how a job came to be what it is that is still kept. They leave some with each
//! batch.

use std::collections::BTreeSet;

use het_core::{Action, Event, JobId, LeaseId};
use het_wire::record::Record;
use redb::{ReadableTable, WriteTransaction};

use super::{EVENTS, EventStore, GAPS, Hash, StoreError, split};

/// Events looked at with each batch, and for each event of it: removal is faster than what comes.
const LOOKED_AT_MIN: usize = 64;
const LOOKED_AT_AN_EVENT: usize = 3;

/// One walk over the events that may be removed.
#[derive(Debug)]
pub(super) struct Removal {
    /// Events before this one were looked at.
    next: u64,
    /// This one and all after it stay.
    end: u64,
    jobs: BTreeSet<JobId>,
    /// Of these jobs, as far as their starts were seen.
    leases: BTreeSet<LeaseId>,
}

impl EventStore {
    /// Begins anew with the jobs that are kept now, unless the last walk is not over: one that
    /// began from the front again and again would never come to its end.
    pub(super) fn begin_removal(&mut self, jobs: BTreeSet<JobId>) {
        // With one snapshot alone the events have to stand in for it.
        let [older, _] = self.snapshots[..] else { return };
        if self.removal.is_some() {
            return;
        }
        let end = older.min(self.next.saturating_sub(self.keeping.events));
        self.removal = Some(Removal { next: 0, end, jobs, leases: BTreeSet::new() });
    }

    /// Goes on with the walk.
    pub(super) fn remove_events(
        &mut self,
        write: &WriteTransaction,
        events: usize,
    ) -> Result<(), StoreError> {
        let Some(removal) = &mut self.removal else { return Ok(()) };
        let mut table = write.open_table(EVENTS)?;
        let looked_at = LOOKED_AT_MIN + LOOKED_AT_AN_EVENT * events;
        let mut leaving: Vec<(u64, Hash)> = Vec::new();
        let mut seen = 0;
        for row in table.range(removal.next..removal.end)?.take(looked_at) {
            let (key, value) = row?;
            let sequence = key.value();
            let (hash, record) = split(sequence, value.value())?;
            if !removal.keeps(record) {
                leaving.push((sequence, hash));
            }
            removal.next = sequence + 1;
            seen += 1;
        }
        let mut gaps = write.open_table(GAPS)?;
        for (sequence, hash) in leaving {
            table.remove(sequence)?;
            gaps.remove(sequence)?;
            // Where the next one left before, the gap after it is noted already.
            if table.get(sequence + 1)?.is_some() {
                gaps.insert(sequence + 1, hash.as_slice())?;
            }
        }
        if seen < looked_at {
            self.removal = None;
        }
        Ok(())
    }
}

impl Removal {
    /// Whether somebody may still ask for it. What cannot be read stays for whoever verifies the
    /// log.
    fn keeps(&mut self, record: &[u8]) -> bool {
        let text = String::from_utf8_lossy(record);
        match Record::from_json(&text).and_then(|record| record.read()) {
            Ok((_, event)) => self.is_of_a_kept_job(&event),
            Err(_) => true,
        }
    }

    /// How it was submitted, changed, started, stopped and ended; not how it went on in between,
    /// of which the state has the newest.
    fn is_of_a_kept_job(&mut self, event: &Event) -> bool {
        match event {
            Event::JobsAdopted { adopted } => {
                let leases = adopted.leases.iter();
                let kept = leases.filter(|(_, lease)| self.jobs.contains(&lease.stage.job));
                self.leases.extend(kept.map(|(id, _)| *id));
                adopted.jobs.keys().any(|job| self.jobs.contains(job))
            }
            Event::JobSubmitted { job, .. }
            | Event::JobHeld { job }
            | Event::JobReleased { job }
            | Event::JobEligible { job }
            | Event::DependencyFailed { job }
            | Event::JobCancelled { job }
            | Event::ChangeRequested { job: Some(job), .. }
            | Event::JobChanged { job, .. } => self.jobs.contains(job),
            Event::PlanCommitted { plan } => {
                let starts = plan.actions.iter().filter_map(|action| match action {
                    Action::Start { lease, stage, .. } => Some((*lease, stage.job)),
                    _ => None,
                });
                let kept: Vec<_> = starts.filter(|(_, job)| self.jobs.contains(job)).collect();
                self.leases.extend(kept.iter().map(|(lease, _)| lease));
                let stops = |action: &Action| match action {
                    Action::Stop { lease, .. } => self.leases.contains(lease),
                    _ => false,
                };
                !kept.is_empty() || plan.actions.iter().any(stops)
            }
            Event::StageStarted { lease }
            | Event::StageEnded { lease, .. }
            | Event::StageYields { lease, .. } => self.leases.contains(lease),
            Event::CheckpointRejected { stage, .. } | Event::RetryDue { stage } => {
                self.jobs.contains(&stage.job)
            }
            _ => false,
        }
    }
}
