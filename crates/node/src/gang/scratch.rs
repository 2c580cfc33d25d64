//! What the files of a gang take up of a disk, where that is limited. Directories are walked on a
//! thread of their own: a walk may take minutes, or never end on a file system that hangs.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Instant;

use het_core::{Bytes, Millis, Time};
use het_files::usage;

use crate::launch::GangSpec;

/// Between two walks.
const WALK_EVERY: Millis = Millis::seconds(10);
/// A walk that takes long is followed by so many times as long without one.
const REST_FACTOR: u64 = 20;
/// A walk takes less where there are fewer files than this; those beyond are not counted.
const FILES_MAX: u64 = 10_000_000;
/// How often it is looked whether a walk is over.
const LOOK_EVERY: Millis = Millis::seconds(1);

/// Watches that the files of one gang do not take up more than its limit.
#[derive(Debug)]
pub(super) struct ScratchWatch {
    limit: Bytes,
    dirs: Vec<PathBuf>,
    walk: Option<Receiver<Walked>>,
    due: Time,
}

/// What a walk found, and how long it took.
#[derive(Debug)]
struct Walked {
    used: Bytes,
    took: Millis,
}

impl ScratchWatch {
    /// None where there is no limit.
    pub(super) fn begin(spec: &GangSpec, now: Time) -> Option<Self> {
        let limit = spec.launch.scratch?;
        let limit = Bytes(limit.0.saturating_mul(u64::from(spec.world().max(1))));
        let dirs = apart(spec.written_dirs());
        Some(Self { limit, dirs, walk: None, due: now + LOOK_EVERY })
    }

    /// When [`Self::exceeded`] has something to do.
    pub(super) fn deadline(&self) -> Time {
        self.due
    }

    /// What the files take up and may take up, where that is too much.
    pub(super) fn exceeded(&mut self, now: Time) -> Option<(Bytes, Bytes)> {
        if now < self.due {
            return None;
        }
        let Some(walk) = &self.walk else {
            self.walk = begin_walk(self.dirs.clone());
            self.due = now + if self.walk.is_some() { LOOK_EVERY } else { WALK_EVERY };
            return None;
        };
        match walk.try_recv() {
            Ok(Walked { used, took }) => {
                self.walk = None;
                self.due = now + WALK_EVERY.max(Millis(took.0.saturating_mul(REST_FACTOR)));
                (used > self.limit).then_some((used, self.limit))
            }
            Err(TryRecvError::Empty) => {
                self.due = now + LOOK_EVERY;
                None
            }
            Err(TryRecvError::Disconnected) => {
                self.walk = None;
                self.due = now + WALK_EVERY;
                None
            }
        }
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
}
