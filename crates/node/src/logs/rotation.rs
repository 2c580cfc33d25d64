//! Cuts the beginning off logs that grow too long, while their programs write to the end.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use het_core::{Millis, Time};
use het_files::{Links, modify};
use nix::fcntl::{FallocateFlags, fallocate};

/// Longest log of a rank; one that exceeds it is cut to half of that.
const LOG_BYTES_MAX: u64 = 256 << 20;

/// File systems can remove multiples of this.
const BLOCK_BYTES: u64 = 1 << 20;

/// Unit of a file's allocated space (stat(2)).
const BLOCK_UNIT_BYTES: u64 = 512;

/// Intervals between two checks.
const CHECK_MIN: Millis = Millis(1_000);
const CHECK_MAX: Millis = Millis::seconds(600);
const CHECK_FIRST: Millis = Millis::seconds(10);

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
    if fallocate(&file, FallocateFlags::FALLOC_FL_COLLAPSE_RANGE, 0, range).is_err() {
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&file, hole, 0, range)?;
    }
    Ok(Cut { found, kept: length - off })
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
