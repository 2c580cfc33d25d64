//! The event log in redb: one transaction a batch, one sync a transaction, each record chained to
//! the one before it by its hash; snapshots of what it adds up to; and which events stay beside
//! them.
//!
//! ```text
//! events   sequence number → hash of this and all before it, then one record as JSON
//! gaps     sequence number → hash of the event before, where that one was removed
//! rows     job id → its last line of a list, once the job has left the state
//! snapshots   number of the first event not in it → checksum, then the number of its parts
//! snapshot_parts   that number, part → a piece of its JSON
//! head     `topology`: that before the first event · `format`: of this file
//! ```

mod backup;
mod check;
mod copy;
mod database;
mod mend;
mod recovery;
mod removal;
mod snapshot;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use het_control::{Log, LogError, Retention};
use het_core::{DeviceId, Event, JobId, Time, Topology, TopologyError};
use het_wire::api::{ChainStart, EventRow, JobRow};
use het_wire::record::{Record, RecordError, TopologyRecord, read_topology, write_topology};
use redb::{
    Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    WriteTransaction,
};
use sha2::{Digest, Sha256};
use thiserror::Error;

pub use backup::KeptFile;
use check::{Chain, guarded};
pub use check::{Checked, store_check};
use copy::Copy;
use database::{SharedDatabase, Source};
pub use mend::{Lost, Mended, Opened, open_mending};
pub use recovery::Recovered;
use removal::Removal;
use snapshot::Writing;
pub use snapshot::{Draft, Mark, SnapshotFault};

const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");
const GAPS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("gaps");
const SNAPSHOTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("snapshots");
const PARTS: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("snapshot_parts");
const ROWS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");
const HEAD: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("head");

/// Of the file; a store of another format is refused, not guessed at.
const FORMAT: &[u8] = b"3";

/// The format before there were snapshots; such a file becomes one of this when it is opened.
const FORMAT_WITHOUT_SNAPSHOTS: &[u8] = b"2";

/// Of this program; the store says which one wrote it last.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Pages kept in memory: the log is written at its end and read once.
const CACHE_BYTES: usize = 16 << 20;

/// SHA-256 over the hash of the record before and this record.
type Hash = [u8; 32];

/// Before the first record.
const NO_HASH: Hash = [0; 32];

/// Why a store cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the event store is in use by another process")]
    InUse,
    #[error("the event store could not be read or written")]
    Redb(#[source] Box<redb::Error>),
    #[error("event {sequence} of the store cannot be read")]
    Record { sequence: u64, source: RecordError },
    #[error("event {sequence} of the store is not what was written: its hash does not fit")]
    Tampered { sequence: u64 },
    #[error("the store is damaged: {found}")]
    Damaged { found: String },
    #[error("the row of job {job} in the store cannot be read")]
    Row { job: JobId, source: serde_json::Error },
    #[error("the store holds something that is not JSON")]
    Json(#[from] serde_json::Error),
    #[error("`{}` is missing", path.display())]
    Missing { path: PathBuf },
    #[error("another file stands in the place of `{}`", path.display())]
    Replaced { path: PathBuf },
    #[error("`{}` was cut from {was} to {bytes} bytes", path.display())]
    Truncated { path: PathBuf, bytes: u64, was: u64 },
    #[error("the store ends before event {sequence}, which was written")]
    Behind { sequence: u64 },
    #[error("the store is not open")]
    Closed,
    #[error("the store has no head: it was never completely created")]
    NoHead,
    #[error(
        "the store was written by version {version} of Heterosis in format {found}, and this is \
         version {own} and reads formats 2 and 3",
        own = VERSION
    )]
    Format { found: String, version: String },
    #[error(
        "the store was written by version {version} of Heterosis, and this is version {own}, \
         which cannot read it",
        own = VERSION
    )]
    Newer { version: String, source: Box<StoreError> },
    #[error("the topology in the store does not fit together")]
    Topology(#[from] TopologyError),
    #[error("the snapshot before event {sequence} cannot be used")]
    Snapshot { sequence: u64, source: SnapshotFault },
    #[error("no snapshot of the store can be used, and events before number {sequence} are gone")]
    NothingToGoOnFrom { sequence: u64 },
}

impl StoreError {
    /// Whether it says that what was written is not there any more, rather than that it cannot be
    /// reached or is of another version.
    fn is_damage(&self) -> bool {
        match self {
            Self::InUse
            | Self::Format { .. }
            | Self::Newer { .. }
            | Self::Record { .. }
            | Self::Missing { .. }
            | Self::Replaced { .. }
            | Self::Truncated { .. }
            | Self::Closed => false,
            Self::Redb(error) => match &**error {
                redb::Error::Io(error) => error.raw_os_error().is_none(),
                redb::Error::UpgradeRequired(_) => false,
                _ => true,
            },
            _ => true,
        }
    }
}

/// When a snapshot is taken, and what stays beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keeping {
    /// Events from one snapshot to the next.
    pub snapshot_every: u64,
    /// Newest events that stay, whatever they are about.
    pub events: u64,
    /// Jobs that ended last whose lines stay.
    pub jobs: usize,
}

impl Default for Keeping {
    fn default() -> Self {
        Self { snapshot_every: 10_000, events: 100_000, jobs: 100_000 }
    }
}

/// Ended jobs that stay in the state; of older ones the last row and the report are kept.
const ENDED_KEPT: usize = 1_000;

impl Keeping {
    pub(crate) fn retention(&self) -> Retention {
        Retention::Newest(ENDED_KEPT.min(self.jobs))
    }
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

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::Redb(Box::new(redb::Error::Io(error)))
    }
}

from_redb!(DatabaseError TransactionError TableError StorageError CommitError);

/// A path beside this one at which nothing is: where a store goes that another takes the place of.
pub(crate) fn unused_beside(path: &Path, word: &str) -> PathBuf {
    let numbered = |number| path.with_extension(format!("{word}-{number}"));
    let mut number = 1_u32;
    while numbered(number).exists() {
        number += 1;
    }
    numbered(number)
}

/// An open event store.
#[derive(Debug)]
pub struct EventStore {
    database: SharedDatabase,
    source: Source,
    copy: Option<Copy>,
    health: Health,
    next: u64,
    /// Of the newest record.
    hash: Hash,
    /// To be written with the next batch, or removed where there is none.
    rows: Vec<(JobId, Option<Vec<u8>>)>,
    keeping: Keeping,
    /// Whole and sound as far as anybody knows, oldest first.
    snapshots: Vec<u64>,
    /// Those of which something is to be removed with the next batch.
    stale: Vec<u64>,
    /// The one that is being written, part by part with the batches.
    writing: Option<Writing>,
    /// The same of events that are not needed any more.
    removal: Option<Removal>,
}

/// Whether the last batch could be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Sound,
    /// The database is opened again before the next batch. What it holds beyond what is known was
    /// never acknowledged, and is removed.
    Failed,
    /// It was opened again, and nothing was written since.
    Reopened,
}

/// Reads a store while somebody else writes it.
#[derive(Debug, Clone)]
pub struct StoreReader(SharedDatabase);

impl EventStore {
    /// Makes a new store for a cluster that has this topology before the first event.
    ///
    /// # Errors
    /// When the file cannot be made or written.
    pub fn create(path: &Path, topology: &Topology) -> Result<Self, StoreError> {
        // Under its name only when it is complete: a death in between leaves a draft to overwrite.
        let draft = path.with_extension("draft");
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let database = Self::begin(builder().create(&draft)?, topology)?;
        fs::rename(&draft, path)?;
        Ok(Self::at(database, Source::file(path)?, Mark::BEGINNING))
    }

    /// Makes a new store on a disk that is not a file: tests put one there that fails.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create_on(
        disk: impl StorageBackend + Clone,
        topology: &Topology,
    ) -> Result<Self, StoreError> {
        let source = Source::disk(disk);
        Ok(Self::at(Self::begin(source.open()?, topology)?, source, Mark::BEGINNING))
    }

    fn begin(database: Database, topology: &Topology) -> Result<Database, StoreError> {
        let head = serde_json::to_vec(&write_topology(topology))?;
        let write = database.begin_write()?;
        {
            let mut table = write.open_table(HEAD)?;
            table.insert("topology", head.as_slice())?;
            table.insert("format", FORMAT)?;
            table.insert("version", VERSION.as_bytes())?;
        }
        open_tables(&write)?;
        write.commit()?;
        Ok(database)
    }

    fn at(database: Database, source: Source, Mark { sequence: next, hash }: Mark) -> Self {
        Self {
            database: SharedDatabase::new(database),
            source,
            copy: None,
            health: Health::Sound,
            next,
            hash,
            rows: Vec::new(),
            keeping: Keeping::default(),
            snapshots: Vec::new(),
            stale: Vec::new(),
            writing: None,
            removal: None,
        }
    }

    /// Takes snapshots and removes events by other rules.
    #[must_use]
    pub fn with_keeping(self, keeping: Keeping) -> Self {
        Self { keeping, ..self }
    }

    /// Opens a store that exists.
    ///
    /// # Errors
    /// [`StoreError::InUse`] while another process has it open, or when the file is not a store of
    /// this version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        guarded(|| Self::resume(Source::file(path)?))
    }

    /// Opens a store on a disk that is not a file.
    ///
    /// # Errors
    /// When the disk holds no store.
    pub fn open_on(disk: impl StorageBackend + Clone) -> Result<Self, StoreError> {
        guarded(|| Self::resume(Source::disk(disk)))
    }

    fn resume(source: Source) -> Result<Self, StoreError> {
        let database = source.open()?;
        if !is_of_this_format(&database)? {
            let write = database.begin_write()?;
            write.open_table(HEAD)?.insert("format", FORMAT)?;
            open_tables(&write)?;
            write.commit()?;
        }
        let read = database.begin_read()?;
        let events = read.open_table(EVENTS)?;
        let mark = match events.last()? {
            Some((sequence, value)) => {
                let sequence = sequence.value();
                let (hash, _) = split(sequence, value.value())?;
                Mark { sequence: sequence + 1, hash }
            }
            None => Mark::BEGINNING,
        };
        let (snapshots, stale) = snapshot::found(&read)?;
        drop((events, read));
        Ok(Self { snapshots, stale, ..Self::at(database, source, mark) })
    }

    /// Makes sure that the next batch can be tried: after a failure the database is opened again.
    ///
    /// # Errors
    /// When its file is not there, not the same, or cannot be opened.
    pub fn reopen(&mut self) -> Result<(), StoreError> {
        self.source.check()?;
        if self.health != Health::Failed {
            return Ok(());
        }
        self.database.close();
        let database = guarded(|| self.source.open())?;
        self.database.replace(database);
        self.source.written();
        let read = self.database.begin_read()?;
        if let Some(newest) = self.next.checked_sub(1) {
            let events = read.open_table(EVENTS)?;
            let found = events.get(newest)?.ok_or(StoreError::Behind { sequence: newest })?;
            if split(newest, found.value())?.0 != self.hash {
                return Err(StoreError::Tampered { sequence: newest });
            }
        }
        // What was on its way with the batch that failed begins anew.
        (self.snapshots, self.stale) = snapshot::found(&read)?;
        let next = self.next;
        let unknown = self.snapshots.extract_if(.., |sequence| *sequence > next);
        self.stale.extend(unknown);
        (self.writing, self.removal) = (None, None);
        self.health = Health::Reopened;
        Ok(())
    }

    /// Drops what [`StoreReader::gone`] says, once events say it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn forget_gone(&mut self) -> Result<(), StoreError> {
        let write = self.database.begin_write()?;
        write.open_table(HEAD)?.remove("gone")?;
        Ok(write.commit()?)
    }

    /// Says which version writes from now on. To be called once the store was read.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn claim_version(&self) -> Result<(), StoreError> {
        if self.reader().version()? == VERSION {
            return Ok(());
        }
        let write = self.database.begin_write()?;
        write.open_table(HEAD)?.insert("version", VERSION.as_bytes())?;
        Ok(write.commit()?)
    }

    /// How many events were ever written.
    pub fn length(&self) -> u64 {
        self.next
    }

    pub fn reader(&self) -> StoreReader {
        StoreReader(self.database.clone())
    }

    /// Writes the last row of a job together with the next batch.
    pub fn keep_row(&mut self, row: &JobRow) {
        let json = serde_json::to_vec(row).expect("texts and numbers always become JSON");
        self.rows.push((JobId(row.id), Some(json)));
    }

    /// Removes the last row of a job together with the next batch.
    pub fn drop_row(&mut self, job: JobId) {
        self.rows.push((job, None));
    }

    fn write(&mut self, batch: &[(Time, Event)]) -> Result<(), StoreError> {
        let write = self.database.begin_write()?;
        if let Some(copy) = &mut self.copy {
            copy.clear();
        }
        if self.health == Health::Reopened {
            write.open_table(EVENTS)?.retain_in(self.next.., |_, _| false)?;
        }
        let hash = self.insert(&write, batch)?;
        self.remove_stale(&write)?;
        self.write_parts(&write, batch.len())?;
        self.remove_events(&write, batch.len())?;
        write.commit()?;
        if let Some(copy) = &mut self.copy {
            copy.committed(self.next);
        }
        self.hash = hash;
        self.next += batch.len() as u64;
        self.rows.clear();
        self.health = Health::Sound;
        self.source.written();
        Ok(())
    }

    fn insert(
        &mut self,
        write: &WriteTransaction,
        batch: &[(Time, Event)],
    ) -> Result<Hash, StoreError> {
        let mut hash = self.hash;
        let mut table = write.open_table(EVENTS)?;
        let mut value = Vec::new();
        for (sequence, (at, event)) in (self.next..).zip(batch) {
            let record = Record::new(*at, event).to_json();
            hash = chained(&hash, record.as_bytes());
            value.clear();
            value.extend_from_slice(&hash);
            value.extend_from_slice(record.as_bytes());
            table.insert(sequence, value.as_slice())?;
            if let Some(copy) = &mut self.copy {
                copy.add(sequence, &hash, &record);
            }
        }
        if !self.rows.is_empty() {
            let mut table = write.open_table(ROWS)?;
            for (job, row) in &self.rows {
                match row {
                    Some(row) => table.insert(job.0, row.as_slice())?,
                    None => table.remove(job.0)?,
                };
            }
        }
        Ok(hash)
    }
}

impl StoreReader {
    /// Every event, in order.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn events(&self) -> Result<Vec<(Time, Event)>, StoreError> {
        let mut events = Vec::new();
        self.each(|at, event| events.push((at, event)))?;
        Ok(events)
    }

    /// Shows every event that is there, in order, after checking that it is the one that was
    /// written.
    ///
    /// # Errors
    /// When a record cannot be read or was changed.
    pub fn each(&self, see: impl FnMut(Time, Event)) -> Result<(), StoreError> {
        self.each_from(Mark::BEGINNING, see)
    }

    /// The same from a place on.
    fn each_from(&self, from: Mark, mut see: impl FnMut(Time, Event)) -> Result<(), StoreError> {
        guarded(|| {
            let read = self.0.begin_read()?;
            let (table, gaps) = (read.open_table(EVENTS)?, read.open_table(GAPS)?);
            let mut chain = Chain::from(from);
            for row in table.range(from.sequence..)? {
                let (key, value) = row?;
                let (at, event) = chain.event(key.value(), value.value(), &gaps)?;
                see(at, event);
            }
            Ok(())
        })
    }

    /// Events from this number on, as they were written.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn page(&self, from: u64, limit: usize) -> Result<Vec<EventRow>, StoreError> {
        guarded(|| {
            let read = self.0.begin_read()?;
            let (table, gaps) = (read.open_table(EVENTS)?, read.open_table(GAPS)?);
            let mut rows = Vec::new();
            for row in table.range(from..)?.take(limit) {
                let (key, value) = row?;
                let sequence = key.value();
                let (hash, record) = split(sequence, value.value())?;
                let record = serde_json::from_slice(record)?;
                let before = gaps.get(sequence)?.map(|before| digits(before.value()));
                rows.push(EventRow { sequence, record, hash: digits(&hash), before });
            }
            Ok(rows)
        })
    }

    /// From where on no event is missing.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn chain(&self) -> Result<ChainStart, StoreError> {
        let gaps = self.0.begin_read()?.open_table(GAPS)?;
        Ok(match gaps.last()? {
            Some((sequence, before)) => {
                ChainStart { sequence: sequence.value(), before: digits(before.value()) }
            }
            None => ChainStart { sequence: 0, before: digits(&NO_HASH) },
        })
    }

    /// The last lines of jobs that have left the state, oldest first.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub fn rows(&self) -> Result<Vec<JobRow>, StoreError> {
        guarded(|| {
            let table = self.0.begin_read()?.open_table(ROWS)?;
            let mut rows = Vec::new();
            for row in table.iter()? {
                rows.push(serde_json::from_slice(row?.1.value())?);
            }
            Ok(rows)
        })
    }

    /// What the first event found: empty where nodes join by events.
    ///
    /// # Errors
    /// When the head is missing or does not fit together.
    pub fn topology(&self) -> Result<Topology, StoreError> {
        topology(&self.topology_json()?)
    }

    fn topology_json(&self) -> Result<Vec<u8>, StoreError> {
        let table = self.0.begin_read()?.open_table(HEAD)?;
        let head = table.get("topology")?.ok_or(StoreError::NoHead)?;
        Ok(head.value().to_vec())
    }

    /// The version that wrote it last, as far as that is known.
    fn version(&self) -> Result<String, StoreError> {
        let table = self.0.begin_read()?.open_table(HEAD)?;
        Ok(version_in(&table)?)
    }

    /// Devices that version 0.1 took out of service because they were gone, and remembered beside
    /// its events.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn gone(&self) -> Result<BTreeSet<DeviceId>, StoreError> {
        let table = self.0.begin_read()?.open_table(HEAD)?;
        let Some(ids) = table.get("gone")? else { return Ok(BTreeSet::new()) };
        let ids: Vec<u32> = serde_json::from_slice(ids.value())?;
        Ok(ids.into_iter().map(DeviceId).collect())
    }
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

fn open_tables(write: &WriteTransaction) -> Result<(), StoreError> {
    for table in [EVENTS, GAPS, SNAPSHOTS, ROWS] {
        write.open_table(table)?;
    }
    write.open_table(PARTS)?;
    Ok(())
}

/// Rather than of the one before.
fn is_of_this_format(database: &Database) -> Result<bool, StoreError> {
    let head = match database.begin_read()?.open_table(HEAD) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Err(StoreError::NoHead),
        head => head?,
    };
    let format = head.get("format")?.map(|format| format.value().to_vec()).unwrap_or_default();
    match format.as_slice() {
        FORMAT => Ok(true),
        FORMAT_WITHOUT_SNAPSHOTS => Ok(false),
        other => {
            let found = String::from_utf8_lossy(other).into_owned();
            Err(StoreError::Format { found, version: version_in(&head)? })
        }
    }
}

fn version_in(
    head: &impl ReadableTable<&'static str, &'static [u8]>,
) -> Result<String, redb::StorageError> {
    let version = head.get("version")?;
    Ok(version.map_or_else(
        || "0.1.0 or earlier".to_owned(),
        |version| String::from_utf8_lossy(version.value()).into_owned(),
    ))
}

fn topology(json: &[u8]) -> Result<Topology, StoreError> {
    let record: TopologyRecord = serde_json::from_slice(json)?;
    Ok(read_topology(&record)?)
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn chained(before: &Hash, record: &[u8]) -> Hash {
    Sha256::new().chain_update(before).chain_update(record).finalize().into()
}

/// The hash and the record of a stored value.
fn split(sequence: u64, value: &[u8]) -> Result<(Hash, &[u8]), StoreError> {
    let (hash, record) = value.split_first_chunk().ok_or(StoreError::Tampered { sequence })?;
    Ok((*hash, record))
}

impl Log for EventStore {
    fn append(&mut self, batch: &[(Time, Event)]) -> Result<(), LogError> {
        if batch.is_empty() && self.rows.is_empty() {
            return Ok(());
        }
        let written = self.reopen().and_then(|()| guarded(|| self.write(batch)));
        written.map_err(|error| {
            self.health = Health::Failed;
            LogError(Box::new(error))
        })
    }
}
