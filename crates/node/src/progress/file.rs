//! Reads the progress file of one gang, as its program appends to it.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use het_files::{Links, open};
use het_wire::progress::Tally;

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// Most that is read at a time while the program runs, and at its end: a program that writes more
/// is heard of the newest part.
const RUNNING_BYTES_MAX: u64 = 4 << 20;
const ENDED_BYTES_MAX: u64 = 64 << 20;
/// Longest line that is read; longer ones are skipped as malformed.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// A progress file, and how far it was read.
#[derive(Debug)]
pub(crate) struct ProgressFile {
    path: PathBuf,
    offset: u64,
    /// 0 until it exists.
    inode: u64,
    lines: LineBuffer,
}

impl ProgressFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, inode: 0, lines: LineBuffer::default() }
    }

    /// The file existed when it was read.
    pub(crate) fn was_found(&self) -> bool {
        self.inode != 0
    }

    /// Reads to the present end of the file, from its start if it was replaced or truncated.
    pub(crate) fn read(&mut self, tally: &mut Tally) {
        self.read_newest(RUNNING_BYTES_MAX, tally);
    }

    fn read_newest(&mut self, bytes_max: u64, tally: &mut Tally) {
        let Ok(mut file) = open(&self.path, Links::Refused) else { return };
        let Ok(metadata) = file.metadata() else { return };
        if metadata.ino() != self.inode || metadata.len() < self.offset {
            self.inode = metadata.ino();
            self.offset = 0;
            self.lines.reset();
        }
        if metadata.len() - self.offset > bytes_max {
            self.lines.skip(tally);
            self.offset = metadata.len() - bytes_max;
        }
        if file.seek(SeekFrom::Start(self.offset)).is_err() {
            return;
        }
        let mut rest = file.take(metadata.len() - self.offset);
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(length @ 1..) = rest.read(&mut chunk) {
            self.offset += length as u64;
            self.lines.feed(&chunk[..length], tally);
        }
    }

    /// As [`Self::read`], for the last time: a line without an end counts.
    pub(crate) fn finish(&mut self, tally: &mut Tally) {
        self.read_newest(ENDED_BYTES_MAX, tally);
        self.lines.finish(tally);
    }
}

/// Cuts a stream of bytes into lines of at most [`LINE_BYTES_MAX`].
#[derive(Debug, Default)]
struct LineBuffer {
    partial: Vec<u8>,
    skipping: bool,
}

impl LineBuffer {
    fn feed(&mut self, mut bytes: &[u8], tally: &mut Tally) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.append(&bytes[..end], tally);
            self.finish(tally);
            bytes = &bytes[end + 1..];
        }
        self.append(bytes, tally);
    }

    /// The stream ends here, or a line does.
    fn finish(&mut self, tally: &mut Tally) {
        if !std::mem::take(&mut self.skipping) {
            tally.line(&self.partial);
        }
        self.partial.clear();
    }

    /// What follows is not what comes next in the file: the rest of a line, of an unknown one.
    fn skip(&mut self, tally: &mut Tally) {
        tally.skipped(b"more than can be read at a time");
        self.partial.clear();
        self.skipping = true;
    }

    /// The file was replaced or truncated.
    fn reset(&mut self) {
        *self = Self::default();
    }

    fn append(&mut self, bytes: &[u8], tally: &mut Tally) {
        if self.skipping {
            return;
        }
        if self.partial.len() + bytes.len() > LINE_BYTES_MAX {
            tally.skipped(&self.partial);
            self.partial.clear();
            self.skipping = true;
            return;
        }
        self.partial.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn of_a_file_without_end_the_newest_part_is_read() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("lease-1");
        let file = fs::File::create(&path).expect("it can be made");
        file.set_len(1 << 40).expect("it takes no space");
        let (mut progress, mut tally) = (ProgressFile::new(path.clone()), Tally::default());
        progress.read(&mut tally);
        let mut file = fs::OpenOptions::new().append(true).open(&path).expect("it is there");
        std::io::Write::write_all(&mut file, b"\n{\"step\":7}\n").expect("it can be written");
        progress.read(&mut tally);
        assert_eq!(tally.take().0.expect("a step is reported").step, Some(7));
    }

    #[test]
    fn a_line_over_the_limit_is_skipped_to_its_end() {
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        let text = format!("{{\"step\":1}}\n{long}\n{{\"step\":2}}\n");
        let (mut lines, mut whole) = (LineBuffer::default(), Tally::default());
        for chunk in text.as_bytes().chunks(1_000) {
            lines.feed(chunk, &mut whole);
        }
        let progress = whole.take().0.expect("steps are reported");
        assert_eq!(progress.step, Some(2));
        let message = progress.message.expect("the line is reported");
        assert!(message.starts_with("1 progress line(s)"), "{message}");
    }
}
