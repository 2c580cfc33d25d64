//! The file of a record, and files of ended leases to be written again: to make and remove one
//! costs ten times as much as to rename and overwrite it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Longest file that is used again: what is within a page is there whole or not at all, also where
/// its writer is killed.
const LENGTH_MAX: usize = 4_096;
/// Files that are kept for the next lease.
const SPARE_MAX: usize = 64;
/// Longest note of a process: two numbers.
const NOTE_MAX: usize = 24;
/// Instead of the first byte of a record that means nothing any more. What is not JSON is none.
const BLANK: u8 = b' ';

#[derive(Debug)]
pub(crate) struct Slip {
    file: File,
    path: PathBuf,
    /// What may have been written to it.
    length: usize,
}

impl Slip {
    /// A new file.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create_new(true).write(true).open(path)?;
        Ok(Self { file, path: path.to_owned(), length: 0 })
    }

    /// Gives it another name, under which nothing is yet.
    fn rename(&mut self, path: &Path) -> io::Result<()> {
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::rename(&self.path, path)?;
        self.path = path.to_owned();
        Ok(())
    }

    /// Writes a record of so many processes at its beginning. Each process then writes where the
    /// one before it ended, over blanks: a note that is cut short is not a whole line.
    pub(crate) fn write(&mut self, record: &str, processes: usize) -> io::Result<()> {
        let mut text = record.as_bytes().to_vec();
        text.resize(text.len().max(self.length), BLANK);
        self.length = text.len().max(record.len() + processes * NOTE_MAX);
        self.file.write_all_at(&text, 0)?;
        self.file.seek(SeekFrom::Start(record.len() as u64)).map(drop)
    }

    fn blank(&self) -> io::Result<()> {
        self.file.write_all_at(&[BLANK], 0)
    }
}

impl AsFd for Slip {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Files that are no lease's. They go with the engine; those of one that was killed, with the next.
#[derive(Debug, Default)]
pub(crate) struct Spares(Vec<Slip>);

impl Spares {
    /// A file with this name.
    pub(crate) fn take(&mut self, path: &Path) -> io::Result<Slip> {
        let Some(mut slip) = self.0.pop() else { return Slip::create(path) };
        match slip.rename(path) {
            Ok(()) => Ok(slip),
            Err(error) => {
                self.0.push(slip);
                Err(error)
            }
        }
    }

    /// The file of a lease that is over, whose record means nothing from here on.
    pub(crate) fn keep(&mut self, slip: Slip) {
        let usable = self.0.len() < SPARE_MAX && slip.length <= LENGTH_MAX;
        if usable && slip.blank().is_ok() {
            self.0.push(slip);
        } else {
            let _ = fs::remove_file(&slip.path);
        }
    }

    pub(crate) fn remove(&mut self) {
        self.0.drain(..).for_each(|slip| drop(fs::remove_file(slip.path)));
    }
}

/// Whether a file was kept by an engine that was killed.
pub(crate) fn is_blank(path: &Path) -> bool {
    let mut first = [0];
    let read = File::open(path).and_then(|file| file.read_at(&mut first, 0));
    read.is_ok() && first == [BLANK]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_a_file_before_is_not_read_again() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = |name: &str| dir.path().join(name);
        let mut spares = Spares::default();
        let mut first = spares.take(&path("a")).expect("a file can be made");
        first.write("{\"long\": \"record\"}\n", 1).expect("it can be written");
        io::Write::write_all(&mut first.file, b"0 17\n").expect("a process notes itself");
        spares.keep(first);
        assert!(is_blank(&path("a")));
        let mut next = spares.take(&path("b")).expect("it can be renamed");
        assert!(!path("a").exists());
        next.write("{}\n", 1).expect("it can be written");
        io::Write::write_all(&mut next.file, b"0 18\n").expect("a process notes itself");
        let text = fs::read_to_string(path("b")).expect("it can be read");
        assert_eq!(text.trim_end_matches(' '), "{}\n0 18\n");
        spares.keep(next);
        spares.remove();
        assert!(!path("b").exists());
    }

    #[test]
    fn nothing_is_renamed_over_another_record() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = |name: &str| dir.path().join(name);
        let mut spares = Spares::default();
        spares.keep(Slip::create(&path("a")).expect("a file can be made"));
        fs::write(path("b"), "{}").expect("a file can be written");
        let taken = spares.take(&path("b")).map_err(|error| error.kind());
        assert_eq!(taken.err(), Some(io::ErrorKind::AlreadyExists));
        assert!(spares.take(&path("c")).is_ok());
    }
}
