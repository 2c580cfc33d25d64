//! Logs that grow without end lose their beginning while their program writes to their end.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use het_core::{Millis, Time};
use nix::fcntl::{FallocateFlags, fallocate};

/// Longest log of a rank; what is cut off it then leaves half of that.
const LOG_BYTES_MAX: u64 = 256 << 20;

/// What a file system can cut off is a multiple of this.
const BLOCK_BYTES: u64 = 1 << 20;

/// Times between two looks.
const LOOK_MIN: Millis = Millis(1_000);
const LOOK_MAX: Millis = Millis::seconds(600);
const LOOK_FIRST: Millis = Millis::seconds(10);

/// When to look at the logs of a gang again.
#[derive(Debug)]
pub(crate) struct Trim {
    pub(crate) look_at: Time,
    looked_at: Time,
    longest: u64,
}

impl Trim {
    pub(crate) fn begin(now: Time) -> Self {
        Self { look_at: now + LOOK_FIRST, looked_at: now, longest: 0 }
    }

    /// Cuts what is too long; looks again before a log can have become so, at the speed of now.
    pub(crate) fn look(&mut self, now: Time, logs: impl Iterator<Item = impl AsRef<Path>>) {
        let longest = logs.filter_map(|log| cut(log.as_ref(), LOG_BYTES_MAX).ok()).max();
        let longest = longest.unwrap_or_default();
        let grown = longest.saturating_sub(self.longest);
        let span = now.since(self.looked_at).0.max(1);
        let room = LOG_BYTES_MAX.saturating_sub(longest);
        // Half of the time until it is full.
        let wait = Millis((room / 2).saturating_mul(span) / grown.max(1));
        (self.looked_at, self.longest) = (now, longest);
        self.look_at = now + wait.clamp(LOOK_MIN, LOOK_MAX);
    }
}

/// Cuts the beginning off a log that is longer than `limit`; gives how long it is then. Nothing
/// that is written meanwhile is lost. Where the file system cannot shorten a file at its beginning,
/// the space is freed, and reads as zeros.
fn cut(path: &Path, limit: u64) -> io::Result<u64> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    if length <= limit {
        return Ok(length);
    }
    let off = (length - limit / 2) / BLOCK_BYTES * BLOCK_BYTES;
    let range = i64::try_from(off).map_err(io::Error::other)?;
    let shortened = fallocate(&file, FallocateFlags::FALLOC_FL_COLLAPSE_RANGE, 0, range);
    if shortened.is_ok() {
        return Ok(length - off);
    }
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, hole, 0, range)?;
    Ok(limit / 2)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    const LIMIT: u64 = 4 * BLOCK_BYTES;

    #[test]
    fn the_end_of_a_long_log_stays_and_goes_on() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("rank-0.log");
        let mut writer = OpenOptions::new().create(true).append(true).open(&path).expect("a file");
        let line = [b'x'; 1023].into_iter().chain([b'\n']).collect::<Vec<u8>>();
        (0..5 * 1024).for_each(|_| writer.write_all(&line).expect("it can be written"));
        assert_eq!(cut(&path, 5 * BLOCK_BYTES).expect("it is short enough"), 5 * BLOCK_BYTES);
        assert_eq!(cut(&path, LIMIT).expect("it can be cut"), LIMIT / 2);
        writer.write_all(b"the end\n").expect("it goes on");
        let text = fs::read(&path).expect("it can be read");
        assert!(text.ends_with(b"x\nthe end\n"));
        let kept = text.iter().filter(|byte| **byte != 0).count() as u64;
        assert_eq!(kept, LIMIT / 2 + 8);
    }

    #[test]
    fn a_quiet_log_is_looked_at_seldom_and_a_loud_one_in_time() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("rank-0.log");
        fs::write(&path, "quiet").expect("it can be written");
        let mut trim = Trim::begin(Time::ZERO);
        trim.look(Time(10_000), [&path].into_iter());
        assert_eq!(trim.look_at, Time(10_000) + LOOK_MAX);
        let file = OpenOptions::new().write(true).open(&path).expect("it is there");
        file.set_len(128 << 20).expect("a hole can be made");
        trim.look(Time(20_000), [&path].into_iter());
        let next = trim.look_at.since(Time(20_000));
        assert!(next <= Millis(5_001), "{next:?}: it grew by half of all in ten seconds");
    }
}
