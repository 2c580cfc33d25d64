//! Cuts the beginning off logs that grow too long, while their programs write to the end. A line in
//! the log's place of the cut says how much is not there.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use het_core::{Millis, Time};
use het_files::{Links, modify};
use nix::fcntl::{FallocateFlags, fallocate};

/// Longest log of a rank; one that exceeds it is cut to half of that.
const LOG_BYTES_MAX: u64 = 256 << 20;

/// File systems can remove multiples of this.
const BLOCK_BYTES: u64 = 1 << 20;

/// What a line begins with that stands for bytes that were cut off.
const NOTE: &[u8] = b"[het: ";

/// So much after a cut is looked at for the end of a line.
const NOTE_LINE_BYTES: usize = 4 << 10;

/// Unit of a file's allocated space (stat(2)).
const BLOCK_UNIT_BYTES: u64 = 512;

/// Intervals between two checks.
const CHECK_MIN: Millis = Millis(1_000);
const CHECK_MAX: Millis = Millis::seconds(600);
/// Soon: nothing is known yet of how fast a log grows.
const CHECK_FIRST: Millis = Millis::seconds(1);

/// When to check the logs of a gang.
#[derive(Debug)]
pub(crate) struct LogRotation {
    pub(crate) check_at: Time,
    checked_at: Time,
    /// Space of each on disk after the last check, in bytes.
    kept: Vec<u64>,
}

impl LogRotation {
    pub(crate) fn begin(now: Time) -> Self {
        Self { check_at: now + CHECK_FIRST, checked_at: now, kept: Vec::new() }
    }

    /// Cuts logs that are too long. The next check is when the one that grows fastest may have used
    /// half of its remaining space.
    pub(crate) fn check(&mut self, now: Time, logs: impl Iterator<Item = impl AsRef<Path>>) {
        let span = now.since(self.checked_at).0.max(1);
        let cuts = logs.map(|log| cut(log.as_ref(), LOG_BYTES_MAX).unwrap_or_default());
        let cuts: Vec<Cut> = cuts.collect();
        let before = std::mem::take(&mut self.kept).into_iter().chain(std::iter::repeat(0));
        let wait = |(cut, before): (&Cut, u64)| {
            let grown = cut.found.saturating_sub(before).max(1);
            let room = LOG_BYTES_MAX.saturating_sub(cut.kept);
            Millis((room / 2).saturating_mul(span) / grown)
        };
        let wait = cuts.iter().zip(before).map(wait).min().unwrap_or(CHECK_MAX);
        self.kept = cuts.iter().map(|cut| cut.kept).collect();
        self.checked_at = now;
        self.check_at = now + wait.clamp(CHECK_MIN, CHECK_MAX);
    }
}

/// Space of a log on disk before and after a check, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Cut {
    found: u64,
    kept: u64,
}

/// Cuts the beginning off a log that occupies more than `limit` bytes. Nothing that is written
/// meanwhile is lost. Where the file system cannot remove the beginning of a file, its space is
/// freed, and it reads as zeros.
fn cut(path: &Path, limit: u64) -> io::Result<Cut> {
    let file = modify(path, Links::Followed)?;
    let metadata = file.metadata()?;
    let length = metadata.len();
    // Holes occupy no space.
    let found = length.min(metadata.blocks() * BLOCK_UNIT_BYTES);
    if found <= limit {
        return Ok(Cut { found, kept: found });
    }
    let off = (length - limit / 2) / BLOCK_BYTES * BLOCK_BYTES;
    let range = i64::try_from(off).map_err(io::Error::other)?;
    let before = noted(&file);
    if fallocate(&file, FallocateFlags::FALLOC_FL_COLLAPSE_RANGE, 0, range).is_ok() {
        note(&file, 0, before + off)?;
    } else {
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&file, hole, 0, range)?;
        // The zeros before it are those that were there.
        note(&file, off, off)?;
    }
    Ok(Cut { found, kept: length - off })
}

/// Bytes that earlier cuts took, by the line at the beginning. A program can write such a line: it
/// misleads nobody but its reader.
fn noted(file: &File) -> u64 {
    let mut bytes = [0; 64];
    let count = file.read_at(&mut bytes, 0).unwrap_or_default();
    let digits = bytes[..count].strip_prefix(NOTE).unwrap_or_default();
    let digits = digits.split(|byte| !byte.is_ascii_digit()).next().unwrap_or_default();
    let text = str::from_utf8(digits).unwrap_or_default();
    // No log of this machine has more than 2^48 bytes.
    text.parse::<u64>().map_or(0, |bytes| bytes.min(1 << 48))
}

/// Writes how many bytes are missing before `at`, over the line that was cut in two there.
fn note(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    let mut text =
        [NOTE, bytes.to_string().as_bytes(), b" bytes of this log were dropped]"].concat();
    let mut line = vec![0; NOTE_LINE_BYTES];
    let count = file.read_at(&mut line, at)?;
    let end = line[..count].iter().skip(text.len()).position(|byte| *byte == b'\n');
    // Spaces up to the end of that line: nothing of the next one is lost. Of lines longer than that
    // the rest follows.
    let padded = end.map_or(text.len(), |past| text.len() + past);
    text.resize(padded, b' ');
    text.push(b'\n');
    file.write_all_at(&text, at)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;

    const LIMIT: u64 = 4 * BLOCK_BYTES;

    #[test]
    fn the_end_of_a_long_log_is_kept() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("rank-0.log");
        let mut writer = OpenOptions::new().create(true).append(true).open(&path).expect("a file");
        let line = [b'x'; 1023].into_iter().chain([b'\n']).collect::<Vec<u8>>();
        (0..5 * 1024).for_each(|_| writer.write_all(&line).expect("it can be written"));
        let whole = cut(&path, 6 * BLOCK_BYTES).expect("it is short enough");
        assert_eq!(whole.kept, whole.found);
        assert_eq!(cut(&path, LIMIT).expect("it can be cut").kept, LIMIT / 2);
        writer.write_all(b"the end\n").expect("it goes on");
        let text = fs::read(&path).expect("it can be read");
        assert!(text.ends_with(b"x\nthe end\n"));
        let kept = text.iter().filter(|byte| **byte != 0).count() as u64;
        assert_eq!(kept, LIMIT / 2 + 8);
        let dropped = |text: &[u8]| {
            let rows = text.split(|byte| *byte == b'\n').map(String::from_utf8_lossy);
            let notes = rows.filter_map(|row| {
                let row = row.trim_matches(['\0', ' ']).to_owned();
                let count =
                    row.strip_prefix("[het: ")?.strip_suffix(" bytes of this log were dropped]")?;
                count.parse::<u64>().ok()
            });
            notes.collect::<Vec<_>>()
        };
        assert_eq!(dropped(&text), [3 * BLOCK_BYTES]);
        let whole_lines = text.split(|byte| *byte == b'\n').skip(1).filter(|row| row.len() == 1023);
        assert_eq!(whole_lines.count() as u64, LIMIT / 2 / 1024 - 1, "one line gave its place");
        (0..3 * 1024).for_each(|_| writer.write_all(&line).expect("it can be written"));
        cut(&path, LIMIT).expect("it can be cut");
        let text = fs::read(&path).expect("it can be read");
        assert_eq!(dropped(&text), [6 * BLOCK_BYTES], "of all cuts together");
    }

    #[test]
    fn a_slow_log_is_checked_rarely_and_a_fast_one_in_time() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("rank-0.log");
        fs::write(&path, "slow").expect("it can be written");
        let mut rotation = LogRotation::begin(Time::ZERO);
        rotation.check(Time(10_000), [&path].into_iter());
        assert_eq!(rotation.check_at, Time(10_000) + CHECK_MAX);
        let mut fast = OpenOptions::new().append(true).open(&path).expect("it is there");
        let write = |file: &mut fs::File| file.write_all(&vec![b'x'; 160 << 20]);
        write(&mut fast).expect("it can be written");
        rotation.check(Time(20_000), [&path].into_iter());
        assert!(rotation.check_at.since(Time(20_000)) <= Millis(3_100), "{rotation:?}");
        write(&mut fast).expect("it can be written");
        rotation.check(Time(30_000), [&path].into_iter());
        let wait = rotation.check_at.since(Time(30_000));
        assert!(wait <= Millis(5_000), "{rotation:?}: it was cut, and is as fast as ever");
    }
}
