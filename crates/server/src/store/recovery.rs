//! From what is in the store to what a loop goes on from: the newest snapshot that can be used and
//! the events after it, or all events.

use std::sync::Arc;

use het_control::Past;
use het_core::{Event, State, Time, Topology};
use het_perf::Rates;
use het_wire::record::SnapshotError;
use redb::ReadableTable;

use super::{
    EVENTS, EventStore, GAPS, Mark, SnapshotFault, StoreError, StoreReader, guarded, snapshot,
    split,
};

/// What a loop goes on from, and what could not be used for it.
#[derive(Debug)]
pub struct Recovered {
    pub past: Past,
    /// Snapshots that are damaged; nothing is lost by them.
    pub refused: Vec<StoreError>,
}

impl EventStore {
    /// What the log adds up to, for a loop to go on from. Snapshots that are refused are removed
    /// with the next batch.
    ///
    /// # Errors
    /// When a record cannot be read or was changed, or when events are gone that no snapshot stands
    /// for.
    pub fn recover(&mut self) -> Result<Recovered, StoreError> {
        let (past, refused) = guarded(|| self.past())?;
        let (damaged, refused): (Vec<u64>, Vec<StoreError>) = refused.into_iter().unzip();
        self.snapshots.retain(|sequence| !damaged.contains(sequence));
        self.stale.extend(damaged);
        Ok(Recovered { past, refused })
    }

    /// The state alone: law 13 is that this equals the live one.
    ///
    /// # Errors
    /// As [`EventStore::recover`].
    pub fn replay(&self) -> Result<State, StoreError> {
        Ok(guarded(|| self.past())?.0.state)
    }

    /// All that is kept, from the oldest snapshot that can be used: what went before, and the
    /// events since then.
    ///
    /// # Errors
    /// As [`EventStore::recover`].
    pub fn history(&self) -> Result<(Past, Vec<(Time, Event)>), StoreError> {
        guarded(|| {
            let reader = self.reader();
            let topology = Arc::new(reader.topology()?);
            let first = reader.first_of_chain()?;
            let (mark, past) = match first {
                0 => (Mark::BEGINNING, Past::new(topology)),
                _ => {
                    let followed = self.snapshots.iter().filter(|&&at| at >= first);
                    let mut usable = followed.filter_map(|&at| reader.snapshot(at, &topology).ok());
                    usable.next().ok_or(StoreError::NothingToGoOnFrom { sequence: first })?
                }
            };
            let mut events = Vec::new();
            reader.each_from(mark, |at, event| events.push((at, event)))?;
            Ok((past, events))
        })
    }

    fn past(&self) -> Result<(Past, Vec<(u64, StoreError)>), StoreError> {
        let reader = self.reader();
        let topology = Arc::new(reader.topology()?);
        let mut refused = Vec::new();
        let first = reader.first_of_chain()?;
        let followed = self.snapshots.iter().filter(|&&sequence| sequence >= first);
        for &sequence in followed.rev() {
            match reader.snapshot(sequence, &topology) {
                Ok((mark, past)) => return Ok((reader.after(mark, past)?, refused)),
                Err(fault @ StoreError::Snapshot { .. }) => refused.push((sequence, fault)),
                Err(error) => return Err(error),
            }
        }
        let is_newer = |(_, fault): &(u64, StoreError)| {
            let unreadable = SnapshotFault::is_of_a_later_version;
            matches!(fault, StoreError::Snapshot { source, .. } if unreadable(source))
        };
        if first > 0
            && let Some(place) = refused.iter().position(is_newer)
        {
            let version = reader.version().unwrap_or_default();
            let source = Box::new(refused.swap_remove(place).1);
            return Err(StoreError::Newer { version, source });
        }
        if first > 0 {
            return Err(StoreError::NothingToGoOnFrom { sequence: first });
        }
        Ok((reader.after(Mark::BEGINNING, Past::new(topology))?, refused))
    }
}

impl StoreReader {
    /// What a snapshot says, and where the events go on.
    pub(super) fn snapshot(
        &self,
        sequence: u64,
        topology: &Arc<Topology>,
    ) -> Result<(Mark, Past), StoreError> {
        let read = self.0.begin_read()?;
        let snapshot = snapshot::read(&read, sequence, topology)?;
        let fault = |source| StoreError::Snapshot { sequence, source };
        let events = read.open_table(EVENTS)?;
        if let Some(before) = sequence.checked_sub(1)
            && let Some(event) = events.get(before)?
            && split(before, event.value())?.0 != snapshot.hash
        {
            return Err(fault(SnapshotFault::OtherChain));
        }
        let state = State::from_parts(snapshot.state);
        let state = state.map_err(|error| fault(error.into()))?;
        let learned = snapshot::read_learned(&snapshot.learned);
        let learned = learned.map_err(|error| fault(SnapshotError::from(error).into()))?;
        let rates = Rates::from_learned(learned);
        Ok((Mark { sequence, hash: snapshot.hash }, Past { state, rates }))
    }

    /// What there is after the events from a mark on.
    fn after(&self, mark: Mark, mut past: Past) -> Result<Past, StoreError> {
        self.each_from(mark, |at, event| past.apply(at, &event))?;
        Ok(past)
    }

    /// The event after which none is missing.
    fn first_of_chain(&self) -> Result<u64, StoreError> {
        let gaps = self.0.begin_read()?.open_table(GAPS)?;
        Ok(gaps.last()?.map_or(0, |(sequence, _)| sequence.value()))
    }
}
