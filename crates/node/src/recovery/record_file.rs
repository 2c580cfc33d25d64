//! The files of records, which are reused: making and removing one costs ten times as much as
//! overwriting it.
//!
//! ```text
//! one line         the record; its first byte is blank once it is void
//! NOTE_BYTES each  blanks, until the process of a rank has noted its id: `RANK PID`, blanks, and
//!                  an end of line
//! the rest         blanks
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::process::{NOTE_BYTES, Note};

/// Longest file that is reused: a write within one page is complete or absent, even if its writer
/// is killed.
const LENGTH_MAX: usize = 4_096;
/// Most files that are kept for the next leases.
const SPARE_MAX: usize = 64;
/// First byte of a record that is void, which makes it invalid JSON.
const BLANK: u8 = b' ';

const PREFIX: &str = "record-";

/// The file of one record.
#[derive(Debug)]
pub(crate) struct RecordFile {
    file: File,
    path: PathBuf,
    /// Bytes of it that were ever written.
    length: usize,
    /// Where the notes begin, after the record's line.
    notes_at: u64,
}

impl RecordFile {
    fn new(file: File, path: PathBuf) -> Self {
        Self { file, path, length: 0, notes_at: 0 }
    }

    /// One of another supervisor.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(path)?;
        let length = file.metadata()?.len() as usize;
        Ok(Self { length, ..Self::new(file, path.to_owned()) })
    }

    /// Removes it, because a process may still write to it.
    pub(crate) fn discard(self) {
        let _ = fs::remove_file(self.path);
    }

    /// Writes the record of a lease with this number of processes.
    fn write(&mut self, mut record: String, processes: usize) -> io::Result<()> {
        record.push('\n');
        self.notes_at = record.len() as u64;
        let mut text = record.into_bytes();
        // Notes of an earlier record must not be read as those of this one.
        text.resize((text.len() + processes * NOTE_BYTES).max(self.length), BLANK);
        self.length = text.len();
        self.file.write_all_at(&text, 0)
    }

    pub(crate) fn note(&self, rank: u32) -> Note<'_> {
        let offset = self.notes_at + u64::from(rank) * NOTE_BYTES as u64;
        Note { file: self.file.as_fd(), offset }
    }

    fn blank(&self) -> io::Result<()> {
        self.file.write_all_at(&[BLANK], 0)
    }
}

/// Makes record files, and reuses those of leases that are over. The spare ones are removed with
/// the engine; those of one that was killed, by the next.
#[derive(Debug)]
pub(crate) struct RecordFiles {
    run_dir: PathBuf,
    /// Of the next file.
    number: u64,
    spares: Vec<RecordFile>,
}

impl RecordFiles {
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self { run_dir: run_dir.to_owned(), number: 1, spares: Vec::new() }
    }

    /// Writes the record of a lease with this number of processes. There is none where that fails.
    pub(super) fn write(&mut self, record: String, processes: usize) -> io::Result<RecordFile> {
        let mut file = match self.spares.pop() {
            Some(file) => file,
            None => self.create()?,
        };
        match file.write(record, processes) {
            Ok(()) => Ok(file),
            Err(error) => {
                file.discard();
                Err(error)
            }
        }
    }

    fn create(&mut self) -> io::Result<RecordFile> {
        loop {
            let path = self.run_dir.join(format!("{PREFIX}{}", self.number));
            self.number += 1;
            match OpenOptions::new().create_new(true).write(true).open(&path) {
                // One of an engine that died, whose leases may run.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => return file.map(|file| RecordFile::new(file, path)),
            }
        }
    }

    /// Voids the record of a lease that is over, and keeps its file.
    pub(crate) fn reuse(&mut self, file: RecordFile) {
        let usable = self.spares.len() < SPARE_MAX && file.length <= LENGTH_MAX;
        if usable && file.blank().is_ok() {
            self.spares.push(file);
        } else {
            file.discard();
        }
    }

    pub(crate) fn remove(&mut self) {
        self.spares.drain(..).for_each(RecordFile::discard);
    }
}

/// What a record file contains.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// No valid record.
    Blank,
    Record(String, Notes),
}

/// Process ids by rank, as the processes noted them.
pub(crate) type Notes = BTreeMap<u32, i32>;

/// Reads a record file.
pub(super) fn read(path: &Path) -> io::Result<Contents> {
    let bytes = fs::read(path)?;
    if bytes.first().is_none_or(|&byte| byte == BLANK) {
        return Ok(Contents::Blank);
    }
    let (record, notes) = match bytes.iter().position(|&byte| byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (&bytes[..], &[][..]),
    };
    let notes = notes.chunks(NOTE_BYTES).filter_map(parse_note).collect();
    Ok(Contents::Record(String::from_utf8_lossy(record).into_owned(), notes))
}

/// A truncated note was not finished: its program had not begun.
fn parse_note(note: &[u8]) -> Option<(u32, i32)> {
    let text = std::str::from_utf8(note).ok().filter(|text| text.len() == NOTE_BYTES)?;
    let (rank, pid) = text.strip_suffix('\n')?.trim_end().split_once(' ')?;
    Some((rank.parse().ok()?, pid.parse().ok()?))
}

/// The record files of a run directory.
pub(super) fn list(run_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(run_dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with(PREFIX)) {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(file: &RecordFile, rank: u32, text: &str) {
        let offset = file.note(rank).offset;
        file.file.write_all_at(text.as_bytes(), offset).expect("a process notes its id");
    }

    fn record(text: &str, notes: &[(u32, i32)]) -> Contents {
        Contents::Record(text.to_owned(), notes.iter().copied().collect())
    }

    #[test]
    fn earlier_contents_of_a_file_are_not_read_again() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut files = RecordFiles::new(dir.path());
        let mut write = |record: &str, processes: u32| {
            let file = files.write(record.to_owned(), processes as usize);
            let file = file.expect("it can be written");
            for rank in 0..processes {
                note(&file, rank, &format!("{rank} {:<21}\n", 10 * processes + rank));
            }
            let path = file.path.clone();
            let text = read(&path).expect("it can be read");
            files.reuse(file);
            assert_eq!(read(&path).expect("it can be read"), Contents::Blank);
            (path, text)
        };
        // Notes of the one lie where notes of the other would.
        let long = format!("{{\"a\": \"{}\"}}", "b".repeat(NOTE_BYTES));
        let (first, text) = write(&long, 3);
        assert_eq!(text, record(&long, &[(0, 30), (1, 31), (2, 32)]));
        let (next, text) = write("{\"a\": \"\"}", 1);
        assert_eq!(first, next);
        assert_eq!(text, record("{\"a\": \"\"}", &[(0, 10)]));
        files.remove();
        assert!(!next.exists());
    }

    #[test]
    fn a_truncated_note_is_ignored() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let file =
            RecordFiles::new(dir.path()).write("{}".to_owned(), 3).expect("it can be written");
        note(&file, 0, "0 17                   \n");
        note(&file, 1, "1 1");
        note(&file, 2, "2 18                   \n");
        let text = read(&file.path).expect("it can be read");
        assert_eq!(text, record("{}", &[(0, 17), (2, 18)]));
    }

    #[test]
    fn nothing_is_written_over_the_record_of_another_engine() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let other =
            RecordFiles::new(dir.path()).write("{}".to_owned(), 1).expect("it can be written");
        let own =
            RecordFiles::new(dir.path()).write("{}".to_owned(), 1).expect("it can be written");
        assert_ne!(other.path, own.path);
        assert_eq!(list(dir.path()).expect("it can be listed").len(), 2);
    }
}
