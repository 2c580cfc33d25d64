//! Reads the log of a rank while its program writes it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use het_files::{Links, open};
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// Longest piece that is read at once.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// As much of what was read last is looked for, to know the place again in a log that was cut.
const KNOWN_BYTES: usize = 256;

/// A log that grows too long loses a multiple of this at its beginning (`node::logs`).
const CUT_BYTES: u64 = 1 << 20;

/// What came to a log since the last look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Piece {
    pub bytes: Vec<u8>,
    /// Something before them was cut off before it was read.
    pub is_cut: bool,
}

/// A place in a log.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    file: Option<File>,
    next: u64,
    /// What stands before `next`, as far as it is known.
    known: Vec<u8>,
}

impl LogReader {
    /// Reads from `next` on.
    pub fn new(path: PathBuf, next: u64) -> Self {
        Self { path, file: None, next, known: Vec::new() }
    }

    /// What is new; nothing where there is no file yet.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn read(&mut self) -> io::Result<Piece> {
        let file = match &self.file {
            Some(file) => file,
            None => match open(&self.path, Links::Followed) {
                Ok(file) => self.file.insert(file),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Piece::default()),
                Err(error) => return Err(error),
            },
        };
        let length = file.metadata()?.len();
        if length == self.next {
            return Ok(Piece::default());
        }
        let (begin, is_cut) = place(file, length, (self.next, &self.known))?;
        let mut bytes = vec![0; PIECE_BYTES_MAX];
        let count = file.read_at(&mut bytes, begin)?;
        bytes.truncate(count);
        self.next = begin + count as u64;
        self.known.extend_from_slice(&bytes);
        self.known.drain(..self.known.len().saturating_sub(KNOWN_BYTES));
        Ok(Piece { bytes, is_cut })
    }
}

/// Where to read on after `next`, before which `known` stood, and whether something is lost between
/// the two.
fn place(file: &File, length: u64, (next, known): (u64, &[u8])) -> io::Result<(u64, bool)> {
    if next <= length && stands_before(file, next, known)? {
        let data = data_from(file, next)?;
        return Ok((data, data > next));
    }
    // The beginning was removed: everything moved.
    let mut moved = next;
    while let Some(earlier) = moved.checked_sub(CUT_BYTES) {
        moved = earlier;
        if moved <= length && stands_before(file, moved, known)? {
            return Ok((moved, false));
        }
    }
    // The beginning was replaced by a hole, where file systems can do no better.
    let known_from = next - known.len() as u64;
    if next <= length && data_from(file, known_from)? > known_from {
        let data = data_from(file, next)?;
        return Ok((data, data > next));
    }
    Ok((data_from(file, 0)?, true))
}

fn stands_before(file: &File, at: u64, known: &[u8]) -> io::Result<bool> {
    let Some(from) = at.checked_sub(known.len() as u64) else { return Ok(false) };
    let mut found = vec![0; known.len()];
    match file.read_exact_at(&mut found, from) {
        Ok(()) => Ok(found == known),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The first byte from `at` on that is in no hole.
fn data_from(file: &File, at: u64) -> io::Result<u64> {
    let offset = i64::try_from(at).map_err(io::Error::other)?;
    match lseek(file, offset, Whence::SeekData) {
        Ok(data) => u64::try_from(data).map_err(io::Error::other),
        // The rest is all hole.
        Err(Errno::ENXIO) => Ok(file.metadata()?.len().max(at)),
        // The file system knows no holes.
        Err(_) => Ok(at),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use nix::fcntl::{FallocateFlags, fallocate};

    use super::*;

    /// A log of numbered lines, `CUT_BYTES` and a half long.
    fn log(dir: &tempfile::TempDir) -> (PathBuf, Vec<u8>) {
        let path = dir.path().join("rank-0.log");
        let lines = (0..CUT_BYTES * 3 / 2 / 16).map(|number| format!("line {number:>10}\n"));
        let text = lines.collect::<String>().into_bytes();
        fs::write(&path, &text).expect("it can be written");
        (path, text)
    }

    fn append(path: &PathBuf, text: &[u8]) {
        let mut file = OpenOptions::new().append(true).open(path).expect("it is there");
        file.write_all(text).expect("it can be written");
    }

    fn rest(reader: &mut LogReader) -> (Vec<u8>, bool) {
        let (mut all, mut was_cut) = (Vec::new(), false);
        loop {
            let Piece { bytes, is_cut } = reader.read().expect("it can be read");
            was_cut |= is_cut;
            match bytes.is_empty() {
                true => return (all, was_cut),
                false => all.extend(bytes),
            }
        }
    }

    #[test]
    fn what_is_new_is_read_once() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("rank-0.log");
        let mut reader = LogReader::new(path.clone(), 0);
        assert_eq!(reader.read().expect("it is not there yet"), Piece::default());
        fs::write(&path, "one\n").expect("it can be written");
        assert_eq!(rest(&mut reader).0, b"one\n");
        append(&path, b"two");
        assert_eq!(rest(&mut reader).0, b"two");
        assert_eq!(rest(&mut reader).0, b"");
    }

    #[test]
    fn the_place_is_found_again_where_the_beginning_was_removed() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let (path, text) = log(&dir);
        let mut reader = LogReader::new(path.clone(), 0);
        rest(&mut reader);
        // As `collapse range` leaves it, on any file system.
        fs::write(&path, &text[CUT_BYTES as usize..]).expect("it can be written");
        append(&path, b"the end\n");
        assert_eq!(rest(&mut reader), (b"the end\n".to_vec(), false));
    }

    #[test]
    fn a_reader_that_is_behind_begins_with_what_is_left() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let (path, text) = log(&dir);
        let mut reader = LogReader::new(path.clone(), 0);
        let read = reader.read().expect("it can be read").bytes.len();
        assert!(read < CUT_BYTES as usize);
        let left = &text[CUT_BYTES as usize..];
        fs::write(&path, left).expect("it can be written");
        assert_eq!(rest(&mut reader), (left.to_vec(), true));
    }

    #[test]
    fn a_hole_is_passed_over() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let (path, text) = log(&dir);
        let mut behind = LogReader::new(path.clone(), 0);
        behind.read().expect("it can be read");
        let mut ahead = LogReader::new(path.clone(), 0);
        rest(&mut ahead);
        let file = OpenOptions::new().write(true).open(&path).expect("it is there");
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if fallocate(&file, hole, 0, CUT_BYTES as i64).is_err() {
            eprintln!("SKIPPED: this file system makes no holes");
            return;
        }
        append(&path, b"the end\n");
        assert_eq!(rest(&mut ahead), (b"the end\n".to_vec(), false));
        let left = [&text[CUT_BYTES as usize..], b"the end\n"].concat();
        assert_eq!(rest(&mut behind), (left, true));
    }
}
