//! A store that is damaged, made anew from what is sound in it and in its second copy; what is
//! sound in neither is named.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use het_core::{Event, JobId, State, Topology};
use het_wire::record::{Record, Snapshot};
use redb::{Database, ReadableTable};

use super::check::guarded;
use super::copy::{Found, Line};
use super::{
    EVENTS, EventStore, FORMAT, GAPS, HEAD, Hash, Mark, ROWS, Recovered, StoreError, builder,
    open_tables, snapshot, topology, unused_beside,
};

/// What could not be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// Events from one number up to before another, in both copies.
    Events { from: u64, to: u64 },
    /// A job that those events submitted, or that left a directory and is in no event any more.
    Job { job: JobId, name: Option<String> },
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Events { from, to } => write!(f, "events {from} to {} are lost", to - 1),
            Self::Job { job, name: Some(name) } => write!(f, "job {job} `{name}` is lost"),
            Self::Job { job, name: None } => write!(f, "nothing is known of job {job} any more"),
        }
    }
}

/// A store that was made anew.
#[derive(Debug)]
pub struct Mended {
    /// The damaged file, as it was.
    pub aside: PathBuf,
    pub lost: Vec<Lost>,
}

/// Where the events of a new store begin.
struct Base {
    mark: Mark,
    /// None at the beginning of all events.
    snapshot: Option<Vec<u8>>,
}

/// What is there of a store, verified event by event.
struct Salvage {
    topology: Vec<u8>,
    /// Those that can be used, oldest first.
    bases: Vec<Base>,
    lines: BTreeMap<u64, Vec<Line>>,
    rows: Vec<(u64, Vec<u8>)>,
}

/// A store that a loop can go on from.
#[derive(Debug)]
pub struct Opened {
    pub store: EventStore,
    pub recovered: Recovered,
    /// Events that the database had lost and its copy had.
    pub taken_over: u64,
    /// Where it was damaged.
    pub mended: Option<Mended>,
}

/// Opens the store at `path`, which has its second copy in a directory; where it is damaged, it is
/// mended first. `jobs` left directories.
///
/// # Errors
/// As [`EventStore::open`] and [`EventStore::recover`], where it cannot be mended.
pub fn open_mending(path: &Path, copy: &Path, jobs: &[u64]) -> Result<Opened, StoreError> {
    match open(path, copy) {
        Err(error) if error.is_damage() => {
            let mended = mend(path, copy, jobs).map_err(|_| error)?;
            Ok(Opened { mended: Some(mended), ..open(path, copy)? })
        }
        opened => opened,
    }
}

fn open(path: &Path, copy: &Path) -> Result<Opened, StoreError> {
    let mut store = EventStore::open(path)?;
    let taken_over = guarded(|| store.take_over(copy))?;
    // What is whole and cannot be read is not damaged: a later version wrote it.
    let recovered = store.recover().map_err(|error| match error {
        StoreError::Record { .. } => {
            let version = store.reader().version().unwrap_or_default();
            StoreError::Newer { version, source: Box::new(error) }
        }
        error => error,
    })?;
    guarded(|| store.claim_version())?;
    guarded(|| store.keep_copy(copy))?;
    Ok(Opened { store, recovered, taken_over, mended: None })
}

/// Makes the store at `path` anew from what is sound in it and in its copy; `jobs` left
/// directories. The file as it was stays beside it.
///
/// # Errors
/// When there is nothing to begin with in either, or when it cannot be written.
fn mend(path: &Path, copy: &Path, jobs: &[u64]) -> Result<Mended, StoreError> {
    let damaged = EventStore::open(path).ok();
    let salvage = Salvage::of(damaged.as_ref(), Found::read(copy))?;
    drop(damaged);
    let draft = path.with_extension("mended");
    if draft.exists() {
        fs::remove_file(&draft)?;
    }
    let lost = guarded(|| salvage.write(&builder().create(&draft)?, jobs))?;
    let aside = unused_beside(path, "damaged");
    fs::rename(path, &aside).and_then(|()| fs::rename(&draft, path))?;
    Ok(Mended { aside, lost })
}

impl Salvage {
    fn of(damaged: Option<&EventStore>, copy: Found) -> Result<Self, StoreError> {
        let mut own = damaged.map(Found::of).unwrap_or_default();
        let known = [own.topology.take(), copy.topology].into_iter().flatten();
        let parsed = known.into_iter().find_map(|json| Some((topology(&json).ok()?, json)));
        let (parsed, topology) = parsed.ok_or(StoreError::NoHead)?;
        let rows = damaged.map(rows).unwrap_or_default();
        let mut lines: BTreeMap<u64, Vec<Line>> = BTreeMap::new();
        for line in own.lines.into_iter().chain(copy.lines) {
            lines.entry(line.sequence).or_default().push(line);
        }
        let mut snapshots: BTreeMap<u64, (Mark, Vec<u8>)> = BTreeMap::new();
        for (sequence, json) in own.snapshots.into_iter().chain(copy.snapshots) {
            if let Some(mark) = mark_of(&json, &Arc::new(parsed.clone())) {
                snapshots.insert(sequence, (mark, json));
            }
        }
        let beginning = Base { mark: Mark::BEGINNING, snapshot: None };
        let others =
            snapshots.into_values().map(|(mark, json)| Base { mark, snapshot: Some(json) });
        Ok(Self { topology, bases: [beginning].into_iter().chain(others).collect(), lines, rows })
    }

    /// The events from a mark on as far as they are sound in either copy, and where that ends.
    fn follow(&self, mut mark: Mark) -> (Vec<&Line>, Mark) {
        let mut followed = Vec::new();
        while let Some(line) = self.sound(&mark) {
            mark = Mark { sequence: line.sequence + 1, hash: line.hash };
            followed.push(line);
        }
        (followed, mark)
    }

    fn sound(&self, mark: &Mark) -> Option<&Line> {
        self.lines.get(&mark.sequence)?.iter().find(|line| line.follows(mark))
    }

    /// Writes a store from where the most is left; what is lost all the same.
    fn write(&self, database: &Database, jobs: &[u64]) -> Result<Vec<Lost>, StoreError> {
        // Of bases that come as far, the earliest: more of the history stays.
        let reach =
            |base: &&Base| (self.follow(base.mark).1.sequence, u64::MAX - base.mark.sequence);
        let base = self.bases.iter().max_by_key(reach).ok_or(StoreError::NoHead)?;
        let (lines, end) = self.follow(base.mark);
        if end.sequence == 0 && !jobs.is_empty() {
            return Err(StoreError::NothingToGoOnFrom { sequence: 0 });
        }
        let write = database.begin_write()?;
        open_tables(&write)?;
        {
            let mut head = write.open_table(HEAD)?;
            head.insert("topology", self.topology.as_slice())?;
            head.insert("format", FORMAT)?;
            if base.mark.sequence > 0 {
                let hash = base.mark.hash;
                write.open_table(GAPS)?.insert(base.mark.sequence, hash.as_slice())?;
            }
            let mut events = write.open_table(EVENTS)?;
            for line in &lines {
                events.insert(line.sequence, line.value().as_slice())?;
            }
            let mut rows = write.open_table(ROWS)?;
            for (job, row) in &self.rows {
                rows.insert(*job, row.as_slice())?;
            }
        }
        let within = base.mark.sequence..=end.sequence;
        for other in self.bases.iter().filter(|other| within.contains(&other.mark.sequence)) {
            if let Some(json) = &other.snapshot {
                snapshot::write_json(&write, other.mark.sequence, json)?;
            }
        }
        write.commit()?;
        Ok(self.lost(base, &lines, end, jobs))
    }

    fn lost(&self, base: &Base, lines: &[&Line], end: Mark, jobs: &[u64]) -> Vec<Lost> {
        let mut lost = Vec::new();
        // One under a number that was damaged is there under its own.
        let before = self.lines.range(..end.sequence).flat_map(|(_, lines)| lines);
        let there: BTreeSet<Hash> = before.map(|line| line.hash).collect();
        let is_lost = |line: &Line| !there.contains(&line.hash);
        let mut beyond = self.lines.range(end.sequence..);
        let last = beyond.rfind(|(_, lines)| lines.iter().any(is_lost));
        let to = last.map_or(0, |(sequence, _)| sequence + 1);
        if to > end.sequence {
            lost.push(Lost::Events { from: end.sequence, to });
        }
        let mut known: BTreeSet<JobId> = self.rows.iter().map(|(job, _)| JobId(*job)).collect();
        known.extend(base.snapshot.iter().flat_map(|json| jobs_of(json, &self.topology)));
        known.extend(lines.iter().flat_map(|line| begun(&line.record)).map(|(job, _)| job));
        for line in self.lines.range(end.sequence..).flat_map(|(_, lines)| lines) {
            let begun = begun(&line.record).into_iter().filter(|(job, _)| known.insert(*job));
            lost.extend(begun.map(|(job, name)| Lost::Job { job, name: Some(name) }));
        }
        let unknown = jobs.iter().map(|job| JobId(*job)).filter(|job| known.insert(*job));
        lost.extend(unknown.map(|job| Lost::Job { job, name: None }));
        lost
    }
}

impl Found {
    /// What can be read of a database.
    fn of(store: &EventStore) -> Self {
        let reader = store.reader();
        let topology = guarded(|| reader.topology_json()).ok();
        let mut found = Self { topology, ..Self::default() };
        for &sequence in &store.snapshots {
            let read = store.database.begin_read();
            let json = guarded(|| snapshot::read_json(&read?, sequence));
            found.snapshots.extend(json.ok().map(|json| (sequence, json)));
        }
        // One by one where the whole cannot be read.
        found.lines = guarded(|| store.lines_from(0)).unwrap_or_else(|_| {
            let line = |sequence| guarded(|| store.line(sequence)).ok().flatten();
            (0..store.length()).filter_map(line).collect()
        });
        found
    }
}

/// The last lines of jobs that have left the state, as far as they can be read.
fn rows(store: &EventStore) -> Vec<(u64, Vec<u8>)> {
    let mut rows = Vec::new();
    // Those before the damage.
    let _ = guarded(|| {
        for row in store.database.begin_read()?.open_table(ROWS)?.iter()? {
            let (job, row) = row?;
            if serde_json::from_slice::<het_wire::api::JobRow>(row.value()).is_ok() {
                rows.push((job.value(), row.value().to_vec()));
            }
        }
        Ok(())
    });
    rows
}

/// The place of a snapshot that can be used.
fn mark_of(json: &[u8], topology: &Arc<Topology>) -> Option<Mark> {
    let snapshot = Snapshot::from_json(json, topology).ok()?;
    snapshot::read_learned(&snapshot.learned).ok()?;
    let mark = Mark { sequence: snapshot.sequence, hash: snapshot.hash };
    State::from_parts(snapshot.state).ok()?;
    Some(mark)
}

fn jobs_of(json: &[u8], head: &[u8]) -> Vec<JobId> {
    let state = topology(head).ok().and_then(|topology| {
        let snapshot = Snapshot::from_json(json, &Arc::new(topology)).ok()?;
        State::from_parts(snapshot.state).ok()
    });
    state.map(|state| state.jobs().keys().copied().collect()).unwrap_or_default()
}

/// The jobs that a record begins with, by name.
fn begun(record: &[u8]) -> Vec<(JobId, String)> {
    let record = Record::from_json(&String::from_utf8_lossy(record));
    match record.and_then(|record| record.read()) {
        Ok((_, Event::JobSubmitted { job, spec, .. })) => vec![(job, spec.name.to_string())],
        Ok((_, Event::JobsAdopted { adopted })) => {
            let jobs = adopted.jobs.iter();
            jobs.map(|(id, job)| (*id, job.spec.name.to_string())).collect()
        }
        _ => Vec::new(),
    }
}
