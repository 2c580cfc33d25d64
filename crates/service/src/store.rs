//! What the service needs of a store beside the event log: rows of ended jobs, their reports, and
//! snapshots.

use het_control::{Log, LogError, MemoryLog, Past};
use het_core::{Event, JobId, Time};
use het_wire::api::JobRow;
use het_wire::report::RunReport;

/// An event log with what is kept beside it.
pub trait Store: Log + Send + 'static {
    /// A snapshot that is made and not yet stored.
    type Snapshot: Send + 'static;

    /// How many events were ever written.
    fn length(&self) -> u64;

    /// Stores the last row of a job together with the next batch.
    fn keep_row(&mut self, row: &JobRow);

    /// Removes the row of a job together with the next batch.
    fn drop_row(&mut self, job: JobId);

    /// Keeps the report of an ended job. Without it there is less to show; the log has everything.
    fn archive(&mut self, report: &RunReport);

    /// Whether a report of the job was kept.
    fn is_archived(&self, job: JobId) -> bool;

    /// Where a snapshot is due: what makes it of the state and speeds after the last batch, on a
    /// thread of its own.
    fn due_snapshot(&self) -> Option<MakeSnapshot<Self::Snapshot>>;

    /// Stores a snapshot together with the batches to come.
    fn put_snapshot(&mut self, snapshot: Self::Snapshot);

    /// Makes sure, as far as can be seen without writing a batch, that changes can be made durable:
    /// tried at the start and after a failure. Also takes the reserve back.
    ///
    /// # Errors
    /// Why they cannot.
    fn mend(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// Gives room up that is kept for facts where there is no other.
    fn release_reserve(&mut self) {}
}

/// Makes a snapshot; takes time in proportion to the state.
pub type MakeSnapshot<T> = Box<dyn FnOnce(Past) -> T + Send>;

/// A store in memory, for tests and measurements.
#[derive(Debug, Default)]
pub struct MemoryStore(MemoryLog);

impl Log for MemoryStore {
    fn append(&mut self, batch: &[(Time, Event)]) -> Result<(), LogError> {
        self.0.append(batch)
    }
}

impl Store for MemoryStore {
    type Snapshot = ();

    fn length(&self) -> u64 {
        self.0.0.len() as u64
    }

    fn keep_row(&mut self, _: &JobRow) {}

    fn drop_row(&mut self, _: JobId) {}

    fn archive(&mut self, _: &RunReport) {}

    fn is_archived(&self, _: JobId) -> bool {
        true
    }

    fn due_snapshot(&self) -> Option<MakeSnapshot<()>> {
        None
    }

    fn put_snapshot(&mut self, (): ()) {}
}
