//! The event log as the loop sees it.

use het_core::{Event, Time};
use thiserror::Error;

/// Why a batch did not become durable.
#[derive(Debug, Error)]
#[error("the event log could not be written")]
pub struct LogError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// An append-only log. A batch is durable as a whole, or not there at all, when `append` returns:
/// group commit is the caller's batch.
pub trait Log {
    /// # Errors
    /// When the batch is not durable; nothing of it may be acted on.
    fn append(&mut self, batch: &[(Time, Event)]) -> Result<(), LogError>;
}

/// A log in memory, for simulations and tests.
#[derive(Debug, Default, Clone)]
pub struct MemoryLog(pub Vec<(Time, Event)>);

impl Log for MemoryLog {
    fn append(&mut self, batch: &[(Time, Event)]) -> Result<(), LogError> {
        self.0.extend_from_slice(batch);
        Ok(())
    }
}

/// For runs that only need their final state.
impl Log for () {
    fn append(&mut self, _: &[(Time, Event)]) -> Result<(), LogError> {
        Ok(())
    }
}
