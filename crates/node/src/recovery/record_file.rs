//! The files of records, which are written again and again: to make and remove one costs ten times
//! as much as to overwrite it.
//!
//! ```text
//! one line         the record; a blank instead of its first byte where it means nothing any more
//! NOTE_BYTES each  blanks, until the process of a rank has noted itself: `RANK PID`, blanks, and
//!                  an end of line
//! the rest         blanks
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Longest file that is used again: what is within a page is there whole or not at all, also where
/// its writer is killed.
const LENGTH_MAX: usize = 4_096;
/// Files that are kept for the next lease.
const SPARE_MAX: usize = 64;
/// Length of the note of a process: two numbers, and what ends them.
pub(crate) const NOTE_BYTES: usize = 24;
/// Instead of the first byte of a record that means nothing any more. What is not JSON is none.
const BLANK: u8 = b' ';

const PREFIX: &str = "record-";

#[derive(Debug)]
pub(crate) struct RecordFile {
    file: File,
    path: PathBuf,
    /// How much of it was ever written.
    length: usize,
    /// Behind the record's line.
    notes_at: u64,
}

/// Where the process of a rank notes itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Note<'a> {
    pub(crate) file: BorrowedFd<'a>,
    pub(crate) offset: u64,
}

impl RecordFile {
    fn new(file: File, path: PathBuf) -> Self {
        Self { file, path, length: 0, notes_at: 0 }
    }

    /// One that a supervisor left.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(path)?;
        let length = file.metadata()?.len() as usize;
        Ok(Self { length, ..Self::new(file, path.to_owned()) })
    }

    /// Removes it; for one that somebody may still write to.
    pub(crate) fn discard(self) {
        let _ = fs::remove_file(self.path);
    }

    /// Writes a record of so many processes.
    fn write(&mut self, mut record: String, processes: usize) -> io::Result<()> {
        record.push('\n');
        self.notes_at = record.len() as u64;
        let mut text = record.into_bytes();
        // Notes of an earlier record would be read as this one's.
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

/// Files that are no lease's. They go with the engine; those of one that was killed, with the next.
#[derive(Debug)]
pub(crate) struct Spares {
    run_dir: PathBuf,
    /// Of the next file.
    number: u64,
    slips: Vec<RecordFile>,
}

impl Spares {
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self { run_dir: run_dir.to_owned(), number: 1, slips: Vec::new() }
    }

    /// Writes a record of so many processes. Where that fails there is none.
    pub(crate) fn write(&mut self, record: String, processes: usize) -> io::Result<RecordFile> {
        let mut record_file = match self.slips.pop() {
            Some(record_file) => record_file,
            None => self.create()?,
        };
        match record_file.write(record, processes) {
            Ok(()) => Ok(record_file),
            Err(error) => {
                record_file.discard();
                Err(error)
            }
        }
    }

    fn create(&mut self) -> io::Result<RecordFile> {
        loop {
            let path = self.run_dir.join(format!("{PREFIX}{}", self.number));
            self.number += 1;
            match OpenOptions::new().create_new(true).write(true).open(&path) {
                // Of an engine that died, whose leases may live.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => return file.map(|file| RecordFile::new(file, path)),
            }
        }
    }

    /// The file of a lease that is over, whose record means nothing from here on.
    pub(crate) fn keep(&mut self, record_file: RecordFile) {
        let usable = self.slips.len() < SPARE_MAX && record_file.length <= LENGTH_MAX;
        if usable && record_file.blank().is_ok() {
            self.slips.push(record_file);
        } else {
            record_file.discard();
        }
    }

    pub(crate) fn remove(&mut self) {
        self.slips.drain(..).for_each(RecordFile::discard);
    }
}

/// What a file says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Text {
    /// It was kept by an engine that was killed.
    Blank,
    Record(String, Notes),
}

/// Processes by rank, as they noted it.
pub(crate) type Notes = BTreeMap<u32, i32>;

/// Reads a file of a record.
pub(crate) fn read(path: &Path) -> io::Result<Text> {
    let bytes = fs::read(path)?;
    if bytes.first().is_none_or(|&byte| byte == BLANK) {
        return Ok(Text::Blank);
    }
    let (record, notes) = match bytes.iter().position(|&byte| byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (&bytes[..], &[][..]),
    };
    let notes = notes.chunks(NOTE_BYTES).filter_map(noted).collect();
    Ok(Text::Record(String::from_utf8_lossy(record).into_owned(), notes))
}

/// A note that is cut short was not finished: its program had not begun.
fn noted(note: &[u8]) -> Option<(u32, i32)> {
    let text = std::str::from_utf8(note).ok().filter(|text| text.len() == NOTE_BYTES)?;
    let (rank, pid) = text.strip_suffix('\n')?.trim_end().split_once(' ')?;
    Some((rank.parse().ok()?, pid.parse().ok()?))
}

/// The files of records in a run directory.
pub(crate) fn files(run_dir: &Path) -> io::Result<Vec<PathBuf>> {
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

    fn note(record_file: &RecordFile, rank: u32, text: &str) {
        let offset = record_file.note(rank).offset;
        record_file.file.write_all_at(text.as_bytes(), offset).expect("a process notes itself");
    }

    fn record(text: &str, notes: &[(u32, i32)]) -> Text {
        Text::Record(text.to_owned(), notes.iter().copied().collect())
    }

    #[test]
    fn what_was_in_a_file_before_is_not_read_again() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut spares = Spares::new(dir.path());
        let mut write = |record: &str, processes: u32| {
            let record_file = spares.write(record.to_owned(), processes as usize);
            let record_file = record_file.expect("it can be written");
            for rank in 0..processes {
                note(&record_file, rank, &format!("{rank} {:<21}\n", 10 * processes + rank));
            }
            let path = record_file.path.clone();
            let text = read(&path).expect("it can be read");
            spares.keep(record_file);
            assert_eq!(read(&path).expect("it can be read"), Text::Blank);
            (path, text)
        };
        // Notes of the one lie where notes of the other would.
        let long = format!("{{\"a\": \"{}\"}}", "b".repeat(NOTE_BYTES));
        let (first, text) = write(&long, 3);
        assert_eq!(text, record(&long, &[(0, 30), (1, 31), (2, 32)]));
        let (next, text) = write("{\"a\": \"\"}", 1);
        assert_eq!(first, next);
        assert_eq!(text, record("{\"a\": \"\"}", &[(0, 10)]));
        spares.remove();
        assert!(!next.exists());
    }

    #[test]
    fn a_note_that_is_cut_short_is_nobody() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let record_file =
            Spares::new(dir.path()).write("{}".to_owned(), 3).expect("it can be written");
        note(&record_file, 0, "0 17                   \n");
        note(&record_file, 1, "1 1");
        note(&record_file, 2, "2 18                   \n");
        let text = read(&record_file.path).expect("it can be read");
        assert_eq!(text, record("{}", &[(0, 17), (2, 18)]));
    }

    #[test]
    fn nothing_is_written_over_the_record_of_another_engine() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let other = Spares::new(dir.path()).write("{}".to_owned(), 1).expect("it can be written");
        let own = Spares::new(dir.path()).write("{}".to_owned(), 1).expect("it can be written");
        assert_ne!(other.path, own.path);
        assert_eq!(files(dir.path()).expect("it can be listed").len(), 2);
    }
}
