//! What a gang does to disks: what its files take up, which may be limited, and what it reads.
//! Directories are walked on a thread of their own: a walk may take minutes, or never end on a file
//! system that hangs.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Instant;

use het_core::{Bytes, HostResources, Millis, Time};
use het_files::usage;

use super::processes::Processes;
use crate::launch::GangSpec;

/// Between two walks where there is a limit.
const WALK_EVERY: Millis = Millis(10_000);
/// The first where there is none, and between two looks at what was read.
const MEASURE_EVERY: Millis = Millis(60_000);
/// Between later walks where there is none.
const WALK_SELDOM: Millis = Millis(300_000);
/// A walk that takes long is followed by so many times as long without one.
const REST_FACTOR: u64 = 20;
/// A walk takes less where there are fewer files than this; those beyond are not counted.
const FILES_MAX: u64 = 10_000_000;
/// How often it is looked whether a walk is over.
const LOOK_EVERY: Millis = Millis(1_000);
/// Less of it, a rank, is nothing that anybody has to reserve.
const SCRATCH_MIN: Bytes = Bytes::gib(1);
/// The same a second.
const READ_MIN: Bytes = Bytes(100_000_000);

/// What is known of one gang.
#[derive(Debug)]
pub(super) struct DiskUse {
    limit: Option<Bytes>,
    ranks: u32,
    dirs: Vec<PathBuf>,
    walk: Option<Receiver<Walked>>,
    due: Time,
    /// What its files took up at the first walk, and the most since.
    taken: Option<(Bytes, Bytes)>,
    reading: Reading,
}

/// What a walk found, and how long it took.
#[derive(Debug)]
struct Walked {
    used: Bytes,
    took: Millis,
}

/// What programs read from the disk, by the kernel's count; what was in memory is none of it.
#[derive(Debug)]
struct Reading {
    due: Time,
    before: Option<(Time, u64)>,
    /// Bytes a second in the span in which it was most. The first is its start, and does not count.
    most: Option<Bytes>,
}

impl DiskUse {
    pub(super) fn begin(spec: &GangSpec, now: Time) -> Self {
        let ranks = spec.world().max(1);
        let limit = spec.launch.scratch;
        let limit = limit.map(|limit| Bytes(limit.0.saturating_mul(u64::from(ranks))));
        let first = if limit.is_some() { LOOK_EVERY } else { MEASURE_EVERY };
        Self {
            limit,
            ranks,
            dirs: apart(spec.written_dirs()),
            walk: None,
            due: now + first,
            taken: None,
            reading: Reading { due: now + MEASURE_EVERY, before: None, most: None },
        }
    }

    /// When [`Self::look`] has something to do.
    pub(super) fn deadline(&self) -> Time {
        self.due.min(self.reading.due)
    }

    /// What a rank needs of the disk, as far as anybody has to know.
    pub(super) fn demand(&self) -> HostResources {
        let of_rank = |bytes: Bytes| Bytes(bytes.0 / u64::from(self.ranks));
        // What was there before is not its own.
        let taken = self.taken.map_or(Bytes::ZERO, |(first, most)| most.saturating_sub(first));
        let (scratch, read) = (of_rank(taken), of_rank(self.reading.most.unwrap_or_default()));
        HostResources {
            scratch: if scratch >= SCRATCH_MIN { scratch } else { Bytes::ZERO },
            read: if read >= READ_MIN { read } else { Bytes::ZERO },
            ..HostResources::NONE
        }
    }

    /// Looks at what is due; what the files take up and may take up, where that is too much.
    pub(super) fn look(&mut self, now: Time, processes: &Processes) -> Option<(Bytes, Bytes)> {
        self.reading.look(now, processes);
        if now < self.due {
            return None;
        }
        let every = if self.limit.is_some() { WALK_EVERY } else { WALK_SELDOM };
        let Some(walk) = &self.walk else {
            self.walk = begin_walk(self.dirs.clone());
            self.due = now + if self.walk.is_some() { LOOK_EVERY } else { every };
            return None;
        };
        match walk.try_recv() {
            Ok(Walked { used, took }) => {
                self.walk = None;
                self.due = now + every.max(Millis(took.0.saturating_mul(REST_FACTOR)));
                let (first, most) = self.taken.unwrap_or((used, used));
                self.taken = Some((first, most.max(used)));
                self.limit.filter(|limit| used > *limit).map(|limit| (used, limit))
            }
            Err(TryRecvError::Empty) => {
                self.due = now + LOOK_EVERY;
                None
            }
            Err(TryRecvError::Disconnected) => {
                self.walk = None;
                self.due = now + every;
                None
            }
        }
    }
}

impl Reading {
    fn look(&mut self, now: Time, processes: &Processes) {
        if now >= self.due {
            self.due = now + MEASURE_EVERY;
            self.take_in(now, processes.read_bytes());
        }
    }

    fn take_in(&mut self, now: Time, sum: u64) {
        let Some((at, before)) = self.before.replace((now, sum)) else { return };
        // Of a process that ended nothing is known any more.
        let read = sum.saturating_sub(before) as f64;
        let a_second = Bytes((read / now.since(at).as_seconds().max(1e-3)) as u64);
        self.most = Some(self.most.map_or(a_second, |most| most.max(a_second)));
    }
}

/// Without those that lie in another.
fn apart(mut dirs: Vec<PathBuf>) -> Vec<PathBuf> {
    dirs.sort();
    dirs.dedup_by(|later, earlier| later.starts_with(earlier));
    dirs
}

/// None where there is no thread for it.
fn begin_walk(dirs: Vec<PathBuf>) -> Option<Receiver<Walked>> {
    let (sender, receiver) = channel();
    let walk = move || {
        let begun = Instant::now();
        let used = Bytes(usage(dirs, FILES_MAX).bytes);
        let took = Millis(begun.elapsed().as_millis() as u64);
        // Nobody listens where the gang has ended meanwhile.
        let _ = sender.send(Walked { used, took });
    };
    thread::Builder::new().name("scratch".to_owned()).spawn(walk).ok()?;
    Some(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_in_others_are_walked_once() {
        let dirs = ["/w/train/checkpoints", "/w/train", "/w/trained", "/w/logs/train", "/w/train"];
        let expected = ["/w/logs/train", "/w/train", "/w/trained"].map(PathBuf::from);
        assert_eq!(apart(dirs.map(PathBuf::from).to_vec()), expected);
    }

    #[test]
    fn the_busiest_span_after_the_start_is_what_is_read() {
        let mut reading = Reading { due: Time::ZERO, before: None, most: None };
        let looks = [(60, 9_000), (120, 9_600), (180, 15_600), (240, 3_000)];
        let most = looks.map(|(seconds, sum)| {
            reading.take_in(Time(seconds * 1_000), sum);
            reading.most.map(|most| most.0)
        });
        assert_eq!(most, [None, Some(10), Some(100), Some(100)]);
    }
}
