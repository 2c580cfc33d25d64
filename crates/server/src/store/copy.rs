//! A second copy of the log's tail, in files beside the database: snapshots, and a line for each
//! event since the older of them. What a disk spoils in one of the two is restored from the other.
//!
//! ```text
//! topology-1    that before the first event: its SHA-256 and its JSON; and the same as topology-2
//! N.snapshot    its SHA-256 and its JSON: what the events before number N add up to
//! N.events      from number N on: sequence number, hash of this and all before it, record; a line
//!               each
//! ```
//!
//! Lines are written after their batch is durable, and reach the disk when the kernel writes them:
//! the copy is there for damage, the database for losses of power.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use het_files::{Links, list, read, replace_private};

use super::{EVENTS, EventStore, Hash, Mark, StoreError, digits, snapshot, split};

/// Snapshots that are kept, as in the database.
const SNAPSHOTS_KEPT: usize = 2;
/// Longest file that is read of it.
const BYTES_MAX: u64 = 4 << 30;
const EVENTS_ENDING: &str = "events";
const SNAPSHOT_ENDING: &str = "snapshot";
const TOPOLOGIES: [&str; 2] = ["topology-1", "topology-2"];

/// The copy of an open store.
#[derive(Debug)]
pub(super) struct Copy {
    dir: PathBuf,
    /// Lines go there. None after a failure, until the next snapshot or start.
    events: Option<File>,
    /// Of the batch that is being written.
    lines: Vec<u8>,
    /// Where lines go on in a file of their own, once the next batch is written.
    next_file: bool,
}

/// One event as the copy or the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) sequence: u64,
    pub(super) hash: Hash,
    pub(super) record: Vec<u8>,
}

/// What can be read of a copy. Nothing of it is verified but the checksums of snapshots.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) topology: Option<Vec<u8>>,
    /// By the number of the first event not in it.
    pub(super) snapshots: Vec<(u64, Vec<u8>)>,
    pub(super) lines: Vec<Line>,
}

impl Copy {
    /// Adds a line of the batch that is being written.
    pub(super) fn add(&mut self, sequence: u64, hash: &Hash, record: &str) {
        push_line(&mut self.lines, sequence, hash, record.as_bytes());
    }

    /// The batch is to be written anew, or never was.
    pub(super) fn clear(&mut self) {
        self.lines.clear();
    }

    /// The batch from event `first` on is durable. A copy that cannot be written holds nothing up.
    pub(super) fn committed(&mut self, first: u64) {
        if std::mem::take(&mut self.next_file) {
            self.events = create(&self.dir, first).ok();
        }
        let Self { events, lines, .. } = self;
        if events.as_mut().is_some_and(|file| file.write_all(lines).is_err()) {
            *events = None;
        }
        lines.clear();
    }

    /// Copies a snapshot of the database, on a thread of its own. Lines go on in another file, so
    /// that those before can be removed as a whole.
    pub(super) fn put_snapshot(&mut self, sequence: u64, json: Arc<Vec<u8>>) {
        let dir = self.dir.clone();
        self.next_file = true;
        let write = move || {
            if write_snapshot(&dir, sequence, &json).is_ok() {
                remove_old(&dir);
            }
        };
        // Without it the one before and the lines since stand in.
        let _ = thread::Builder::new().name("copy".to_owned()).spawn(write);
    }
}

impl EventStore {
    /// Keeps a second copy of the log's tail in a directory: goes on with the one that is there, or
    /// begins anew. To be called once the database is known to be sound.
    ///
    /// # Errors
    /// When the database or the directory cannot be read or written.
    pub fn keep_copy(&mut self, dir: &Path) -> Result<(), StoreError> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let found = Found::read(dir);
        let newest = found.lines.last().map(|line| line.sequence + 1);
        let is_known =
            |line: &Line| self.hash_of(line.sequence).is_ok_and(|it| it == Some(line.hash));
        let goes_on = found.topology.is_some()
            && found.is_contiguous()
            && found.lines.last().is_some_and(is_known);
        let mut text = Vec::new();
        let from = match newest {
            Some(newest) if goes_on => newest,
            _ => self.begin_copy(dir)?,
        };
        for line in self.lines_from(from)? {
            push_line(&mut text, line.sequence, &line.hash, &line.record);
        }
        let mut file = create(dir, from)?;
        file.write_all(&text)?;
        let (events, lines) = (Some(file), Vec::new());
        self.copy = Some(Copy { dir: dir.to_owned(), events, lines, next_file: false });
        Ok(())
    }

    /// Begins a copy anew with the newest snapshot; the number of the first event to follow.
    fn begin_copy(&self, dir: &Path) -> Result<u64, StoreError> {
        for entry in list(dir, usize::MAX).entries {
            fs::remove_file(entry.path)?;
        }
        let reader = self.reader();
        let topology = reader.topology_json()?;
        for name in TOPOLOGIES {
            replace_private(&dir.join(name), &summed(&topology))?;
        }
        let read = self.database.begin_read()?;
        for &sequence in self.snapshots.iter().rev() {
            if let Ok(json) = snapshot::read_json(&read, sequence) {
                write_snapshot(dir, sequence, &json)?;
                return Ok(sequence);
            }
        }
        Ok(reader.chain()?.sequence)
    }

    /// Appends what follows the newest event in the copy: the database has gone back to what it
    /// was before. Returns how many events there were.
    ///
    /// # Errors
    /// When the database cannot be read or written.
    pub(super) fn take_over(&mut self, copy: &Path) -> Result<u64, StoreError> {
        let found = Found::read(copy);
        let (mut mark, mut lines) = (self.mark(), Vec::new());
        for line in found.lines.iter().filter(|line| line.sequence >= self.next) {
            if !line.follows(&mark) {
                break;
            }
            mark = Mark { sequence: line.sequence + 1, hash: line.hash };
            lines.push(line.clone());
        }
        if lines.is_empty() {
            return Ok(0);
        }
        let write = self.database.begin_write()?;
        {
            let mut table = write.open_table(EVENTS)?;
            for line in &lines {
                table.insert(line.sequence, line.value().as_slice())?;
            }
        }
        write.commit()?;
        (self.next, self.hash) = (mark.sequence, mark.hash);
        self.source.written();
        Ok(lines.len() as u64)
    }

    fn hash_of(&self, sequence: u64) -> Result<Option<Hash>, StoreError> {
        let events = self.database.begin_read()?.open_table(EVENTS)?;
        let event = events.get(sequence)?;
        event.map(|event| Ok(split(sequence, event.value())?.0)).transpose()
    }

    /// As the database has them, from a number on.
    pub(super) fn lines_from(&self, from: u64) -> Result<Vec<Line>, StoreError> {
        let events = self.database.begin_read()?.open_table(EVENTS)?;
        let mut lines = Vec::new();
        for row in events.range(from..)? {
            let (key, value) = row?;
            let sequence = key.value();
            let (hash, record) = split(sequence, value.value())?;
            lines.push(Line { sequence, hash, record: record.to_vec() });
        }
        Ok(lines)
    }

    /// One of them.
    pub(super) fn line(&self, sequence: u64) -> Result<Option<Line>, StoreError> {
        let events = self.database.begin_read()?.open_table(EVENTS)?;
        let Some(value) = events.get(sequence)? else { return Ok(None) };
        let (hash, record) = split(sequence, value.value())?;
        Ok(Some(Line { sequence, hash, record: record.to_vec() }))
    }
}

impl Line {
    /// Whether it is the next one of a chain, and what was written.
    pub(super) fn follows(&self, mark: &Mark) -> bool {
        self.sequence == mark.sequence && super::chained(&mark.hash, &self.record) == self.hash
    }

    /// As the database keeps it.
    pub(super) fn value(&self) -> Vec<u8> {
        [self.hash.as_slice(), &self.record].concat()
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let mut parts = line.splitn(3, |byte| *byte == b' ');
        let sequence = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let hash = hash(parts.next()?)?;
        Some(Self { sequence, hash, record: parts.next()?.to_vec() })
    }
}

impl Found {
    pub(super) fn read(dir: &Path) -> Self {
        let topology = TOPOLOGIES.iter().find_map(|name| read_summed(&dir.join(name)));
        let mut found = Self { topology, ..Self::default() };
        for (sequence, path) in numbered(dir, SNAPSHOT_ENDING) {
            found.snapshots.extend(read_summed(&path).map(|json| (sequence, json)));
        }
        for (_, path) in numbered(dir, EVENTS_ENDING) {
            let text = bytes(&path).unwrap_or_default();
            found.lines.extend(text.split(|byte| *byte == b'\n').filter_map(Line::parse));
        }
        found
    }

    /// Whether its lines leave nothing out behind its older snapshot, and are all there were.
    fn is_contiguous(&self) -> bool {
        let from = self.snapshots.first().map_or(0, |(sequence, _)| *sequence);
        let mut lines = self.lines.iter().filter(|line| line.sequence >= from).zip(from..);
        lines.all(|(line, sequence)| line.sequence == sequence)
    }
}

/// Files of one kind by number, in order.
fn numbered(dir: &Path, ending: &str) -> Vec<(u64, PathBuf)> {
    let entries = list(dir, usize::MAX).entries.into_iter();
    let number = |path: &Path| path.file_stem()?.to_str()?.parse().ok();
    let of_kind = entries.filter(|entry| entry.path.extension().is_some_and(|it| it == ending));
    let mut files: Vec<(u64, PathBuf)> =
        of_kind.filter_map(|entry| Some((number(&entry.path)?, entry.path))).collect();
    files.sort_unstable();
    files
}

fn bytes(path: &Path) -> Option<Vec<u8>> {
    read(path, Links::Refused, BYTES_MAX).ok()
}

fn push_line(text: &mut Vec<u8>, sequence: u64, hash: &Hash, record: &[u8]) {
    text.extend_from_slice(sequence.to_string().as_bytes());
    text.push(b' ');
    text.extend_from_slice(digits(hash).as_bytes());
    text.push(b' ');
    text.extend_from_slice(record);
    text.push(b'\n');
}

/// From its hexadecimal digits.
fn hash(digits: &[u8]) -> Option<Hash> {
    let text = std::str::from_utf8(digits).ok().filter(|text| text.len() == 64)?;
    let mut hash = [0; 32];
    for (place, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(hash)
}

/// A file for lines from a number on. One that is there has the same lines, or none that count.
fn create(dir: &Path, first: u64) -> io::Result<File> {
    let path = dir.join(format!("{first}.{EVENTS_ENDING}"));
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600).open(path)
}

fn write_snapshot(dir: &Path, sequence: u64, json: &[u8]) -> io::Result<()> {
    replace_private(&dir.join(format!("{sequence}.{SNAPSHOT_ENDING}")), &summed(json))
}

/// With its SHA-256 before it.
fn summed(json: &[u8]) -> Vec<u8> {
    [digits(&snapshot::checksum(json)).as_bytes(), json].concat()
}

/// None where it is not what was written.
fn read_summed(path: &Path) -> Option<Vec<u8>> {
    let text = bytes(path)?;
    let (sum, json) = text.split_at_checked(64)?;
    (hash(sum) == Some(snapshot::checksum(json))).then(|| json.to_vec())
}

/// Removes all but the newest snapshots, and lines that all of these stand for.
fn remove_old(dir: &Path) {
    let snapshots = numbered(dir, SNAPSHOT_ENDING);
    let surplus = snapshots.len().saturating_sub(SNAPSHOTS_KEPT);
    // What cannot be removed is removed with the next.
    snapshots[..surplus].iter().for_each(|(_, path)| drop(fs::remove_file(path)));
    let Some((oldest, _)) = snapshots.get(surplus).filter(|_| snapshots.len() >= SNAPSHOTS_KEPT)
    else {
        return;
    };
    let events = numbered(dir, EVENTS_ENDING);
    for pair in events.windows(2) {
        if pair[1].0 <= *oldest {
            drop(fs::remove_file(&pair[0].1));
        }
    }
}
