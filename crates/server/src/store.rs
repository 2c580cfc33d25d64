//! The event log in redb: one transaction a batch, one sync a transaction.

use std::path::Path;
use std::sync::Arc;

use het_control::{Log, LogError};
use het_core::{Event, State, Time, Topology, TopologyError};
use het_wire::record::{Record, RecordError, TopologyRecord, read_topology, write_topology};
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use thiserror::Error;

/// Sequence number → one record as JSON.
const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");

/// `topology` → the cluster that the ids of all events refer to.
const HEAD: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("head");

/// Why a store cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the event store is in use by another process")]
    InUse,
    #[error("the event store could not be read or written")]
    Redb(#[source] Box<redb::Error>),
    #[error("event {sequence} of the store cannot be read")]
    Record { sequence: u64, source: RecordError },
    #[error("the head of the store is not JSON")]
    Head(#[source] serde_json::Error),
    #[error("the store has no head: it was never completely created")]
    NoHead,
    #[error("the topology in the store does not fit together")]
    Topology(#[from] TopologyError),
}

/// redb has one error type a kind of call; to an operator they are one.
macro_rules! from_redb {
    ($($kind:ident)*) => {
        $(impl From<redb::$kind> for StoreError {
            fn from(error: redb::$kind) -> Self {
                match redb::Error::from(error) {
                    redb::Error::DatabaseAlreadyOpen => Self::InUse,
                    other => Self::Redb(Box::new(other)),
                }
            }
        })*
    };
}

from_redb!(DatabaseError TransactionError TableError StorageError CommitError);

/// An open event store.
#[derive(Debug)]
pub struct EventStore {
    database: Database,
    next: u64,
}

impl EventStore {
    /// Makes a new store for a cluster.
    ///
    /// # Errors
    /// When the file cannot be made or written.
    pub fn create(path: &Path, topology: &Topology) -> Result<Self, StoreError> {
        let database = Database::create(path)?;
        let head = serde_json::to_vec(&write_topology(topology)).map_err(StoreError::Head)?;
        let write = database.begin_write()?;
        write.open_table(HEAD)?.insert("topology", head.as_slice())?;
        write.open_table(EVENTS)?;
        write.commit()?;
        Ok(Self { database, next: 0 })
    }

    /// Opens a store that exists.
    ///
    /// # Errors
    /// [`StoreError::InUse`] while another process has it open, or when the file is not a store.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let database = Database::open(path)?;
        let read = database.begin_read()?;
        let next = read.open_table(EVENTS)?.len()?;
        drop(read);
        Ok(Self { database, next })
    }

    /// Every event, in order, applied to a fresh state: law 13 is that this equals the live one.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn replay(&self) -> Result<State, StoreError> {
        let mut state = State::new(Arc::new(self.topology()?));
        for (at, event) in self.events()? {
            state.apply(at, &event);
        }
        Ok(state)
    }

    /// Every event, in order.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn events(&self) -> Result<Vec<(Time, Event)>, StoreError> {
        let read = self.database.begin_read()?;
        let table = read.open_table(EVENTS)?;
        let mut events = Vec::new();
        for row in table.iter()? {
            let (key, value) = row?;
            let sequence = key.value();
            let text = String::from_utf8_lossy(value.value());
            let record = Record::from_json(&text).and_then(|record| record.read());
            events.push(record.map_err(|source| StoreError::Record { sequence, source })?);
        }
        Ok(events)
    }

    fn topology(&self) -> Result<Topology, StoreError> {
        let read = self.database.begin_read()?;
        let table = read.open_table(HEAD)?;
        let head = table.get("topology")?.ok_or(StoreError::NoHead)?;
        let record: TopologyRecord =
            serde_json::from_slice(head.value()).map_err(StoreError::Head)?;
        Ok(read_topology(&record)?)
    }

    fn write(&mut self, batch: &[(Time, Event)]) -> Result<(), StoreError> {
        let write = self.database.begin_write()?;
        {
            let mut table = write.open_table(EVENTS)?;
            for (index, (at, event)) in batch.iter().enumerate() {
                let line = Record::new(*at, event).to_json();
                table.insert(self.next + index as u64, line.as_bytes())?;
            }
        }
        write.commit()?;
        self.next += batch.len() as u64;
        Ok(())
    }
}

impl Log for EventStore {
    fn append(&mut self, batch: &[(Time, Event)]) -> Result<(), LogError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.write(batch).map_err(|error| LogError(Box::new(error)))
    }
}
