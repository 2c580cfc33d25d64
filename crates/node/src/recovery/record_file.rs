//! The files of records, which are reused: making and removing one costs ten times as much as
//! overwriting it.
//!
//! ```text
//! one line         the record; its first byte is blank once it is void
//! slots            what the processes of the lease have noted (`process::slots`)
//! the rest         blanks
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use het_files::Links;
use nix::libc;

use crate::process::{Slots, slots_bytes};

/// Longest file that is reused: a write within one page is complete or absent, even if its writer
/// is killed.
const LENGTH_MAX: usize = 4_096;
/// Longest record of a gang of the most ranks.
const FILE_BYTES_MAX: u64 = 64 << 20;
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
    /// Where the slots begin, after the record's line, and their length.
    slots_at: u64,
    slots_bytes: usize,
}

impl RecordFile {
    fn new(file: File, path: PathBuf) -> Self {
        Self { file, path, length: 0, slots_at: 0, slots_bytes: 0 }
    }

    /// One of another supervisor.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        let bytes = het_files::read(path, Links::Refused, FILE_BYTES_MAX)?;
        let end = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| end + 1);
        let (length, slots_bytes) = (bytes.len(), bytes.len() - end);
        Ok(Self { length, slots_bytes, slots_at: end as u64, ..Self::new(file, path.to_owned()) })
    }

    /// Removes it, because a process may still write to it.
    pub(crate) fn discard(self) {
        let _ = fs::remove_file(self.path);
    }

    /// Writes the record of a lease with this number of processes.
    fn write(&mut self, mut record: String, processes: usize) -> io::Result<()> {
        record.push('\n');
        self.slots_at = record.len() as u64;
        self.slots_bytes = slots_bytes(processes);
        let mut text = record.into_bytes();
        // Notes of an earlier record must not be read as those of this one.
        text.resize((text.len() + self.slots_bytes).max(self.length), BLANK);
        self.length = text.len();
        self.file.write_all_at(&text, 0)
    }

    /// The file, and where the slots begin in it.
    pub(crate) fn slots_in_file(&self) -> (BorrowedFd<'_>, u64) {
        (self.file.as_fd(), self.slots_at)
    }

    /// What the processes of the lease have noted so far.
    pub(crate) fn slots(&self) -> Slots {
        let mut bytes = vec![BLANK; self.slots_bytes];
        // What cannot be read is not noted.
        let _ = self.file.read_exact_at(&mut bytes, self.slots_at);
        Slots::parse(&bytes)
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
            match OpenOptions::new().create_new(true).read(true).write(true).open(&path) {
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
    Record(String, Slots),
}

/// Reads a record file.
pub(super) fn read(path: &Path) -> io::Result<Contents> {
    let bytes = het_files::read(path, Links::Refused, FILE_BYTES_MAX)?;
    if bytes.first().is_none_or(|&byte| byte == BLANK) {
        return Ok(Contents::Blank);
    }
    let (record, slots) = match bytes.iter().position(|&byte| byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (&bytes[..], &[][..]),
    };
    let text = String::from_utf8_lossy(record).into_owned();
    Ok(Contents::Record(text, Slots::parse(slots)))
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

    /// A shim notes its id.
    fn note(file: &RecordFile, pid: i32) {
        let (_, at) = file.slots_in_file();
        let text = format!("{:<23}\n", format!("shim {pid}"));
        file.file.write_all_at(text.as_bytes(), at).expect("a process notes its id");
    }

    #[test]
    fn earlier_contents_of_a_file_are_not_read_again() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut files = RecordFiles::new(dir.path());
        let mut write = |record: &str, processes: usize, shim: Option<i32>| {
            let file = files.write(record.to_owned(), processes).expect("it can be written");
            shim.iter().for_each(|&pid| note(&file, pid));
            let expected = Slots { shim, ..Slots::default() };
            assert_eq!(file.slots(), expected);
            let path = file.path.clone();
            let found = read(&path).expect("it can be read");
            assert_eq!(found, Contents::Record(record.to_owned(), expected));
            files.reuse(file);
            assert_eq!(read(&path).expect("it can be read"), Contents::Blank);
            path
        };
        // Slots of the one lie where slots of the other would.
        let first = write(&format!("{{\"a\": \"{}\"}}", "b".repeat(48)), 3, Some(30));
        let next = write("{\"a\": \"\"}", 1, Some(10));
        assert_eq!(first, next);
        write("{\"a\": \"\"}", 1, None);
        files.remove();
        assert!(!next.exists());
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
