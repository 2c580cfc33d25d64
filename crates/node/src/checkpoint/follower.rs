//! Follows the checkpoint directory of one gang.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::SystemTime;

use het_core::{Checkpoint, Progress};
use het_files::{Kind, is_directory, kind, list};
use nix::errno::Errno;

use super::tracker::{CheckpointTracker, step_of};
use super::trainer_state::TrainerState;
use super::watch::{Change, CheckpointWatch};

/// Most entries of the directory that are looked at.
const ENTRIES_MAX: usize = 10_000;

/// Whether every process exited as its program wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Orderly {
    Yes,
    No,
}

/// A checkpoint directory, and what appeared in it.
#[derive(Debug)]
pub(crate) struct CheckpointFollower {
    /// None for a program that saves nothing.
    dir: Option<PathBuf>,
    tracker: CheckpointTracker,
    /// Checkpoints that were handled, or are of earlier attempts.
    seen: BTreeSet<u64>,
    watch: Option<CheckpointWatch>,
}

impl CheckpointFollower {
    /// Follows a directory from now on. Without inotify, whose error is given too, checkpoints are
    /// found at the end.
    pub(crate) fn new(dir: Option<PathBuf>) -> (Self, Result<(), Errno>) {
        let watch = dir.as_deref().map(CheckpointWatch::new).transpose();
        let (watch, watched) = match watch {
            Ok(watch) => (watch, Ok(())),
            Err(errno) => (None, Err(errno)),
        };
        let tracker = CheckpointTracker::default();
        let mut follower = Self { dir, tracker, seen: BTreeSet::new(), watch };
        follower.seen = follower.steps_on_disk();
        (follower, watched)
    }

    /// Readable after changes; `None` where they cannot be watched.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Finds what appeared after this time, while nobody watched.
    pub(crate) fn catch_up(&mut self, since: SystemTime) {
        let dir = self.dir.clone();
        let is_old = |step: &u64| {
            let path = dir.as_ref().map(|dir| dir.join(format!("checkpoint-{step}")));
            let changed = path.and_then(|path| kind(&path).ok()?.1.modified().ok());
            changed.is_none_or(|changed| changed < since)
        };
        self.seen.retain(is_old);
        self.apply(Change::Missed);
    }

    /// Reads the changes since the last call.
    pub(crate) fn read(&mut self) {
        let changes = self.watch.as_ref().map(CheckpointWatch::read).unwrap_or_default();
        for change in changes {
            self.apply(change);
        }
    }

    /// As [`Self::read`], and looks at the directory itself.
    pub(crate) fn read_all(&mut self) {
        self.read();
        self.apply(Change::Missed);
    }

    /// All processes have ended.
    pub(crate) fn ended(&mut self, orderly: Orderly) {
        if orderly == Orderly::Yes {
            self.tracker.exited_orderly();
        }
    }

    /// Checkpoints that became complete since the last call, and the progress in their state files.
    pub(crate) fn take(&mut self) -> (Vec<Checkpoint>, Vec<Progress>) {
        let (mut found, mut progress) = (Vec::new(), Vec::new());
        for step in self.tracker.take() {
            if let Some(watch) = &mut self.watch {
                watch.stop_watching_inside(step);
            }
            progress.extend(self.state(step).map(|state| state.progress()));
            // A program that keeps only the newest may have deleted it again.
            if let Some(path) = self.path(step).filter(|path| is_directory(path)) {
                found.push(Checkpoint { step, path: path.to_string_lossy().into_owned() });
            }
        }
        (found, progress)
    }

    /// Whether this is reported for the first time.
    pub(crate) fn is_new(&mut self, checkpoint: &Checkpoint) -> bool {
        self.tracker.is_new(checkpoint)
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Created(step) => self.created(step),
            Change::MovedIn(step) => {
                self.seen.insert(step);
                self.tracker.moved_in(step);
            }
            Change::StateWritten(step) => self.state_written(step),
            Change::Missed => {
                let steps: Vec<u64> =
                    self.steps_on_disk().difference(&self.seen).copied().collect();
                for step in steps {
                    if !self.tracker.is_open(step) {
                        self.created(step);
                    }
                }
            }
        }
    }

    fn created(&mut self, step: u64) {
        self.seen.insert(step);
        self.tracker.created(step);
        if let Some(watch) = &mut self.watch {
            watch.watch_inside(step);
        }
        // The state may have been written before the watch began.
        self.state_written(step);
    }

    /// After half a file, another change follows with the rest.
    fn state_written(&mut self, step: u64) {
        if self.state(step).is_some() {
            self.tracker.state_written(step);
        }
    }

    fn state(&self, step: u64) -> Option<TrainerState> {
        TrainerState::read(&self.path(step)?)
    }

    fn path(&self, step: u64) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join(format!("checkpoint-{step}")))
    }

    fn steps_on_disk(&self) -> BTreeSet<u64> {
        let listing = self.dir.as_ref().map(|dir| list(dir, ENTRIES_MAX)).unwrap_or_default();
        let directories = listing.entries.into_iter().filter(|it| it.kind == Kind::Directory);
        directories.filter_map(|entry| step_of(entry.name.to_str()?)).collect()
    }
}
