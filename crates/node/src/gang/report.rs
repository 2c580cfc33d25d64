//! Everything a gang reports while it runs, gathered from its files.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::SystemTime;

use het_core::{Checkpoint, Progress};

use crate::checkpoint::{CheckpointFollower, Orderly};
use crate::progress::{ProgressFile, Tally};

/// The message to the user where inotify cannot be used.
const UNWATCHED: &str = "progress is read only at the end: inotify cannot be used, \
                         hint: raise `fs.inotify.max_user_instances`";

/// Whether changes of the progress file are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    Yes,
    No,
}

/// Reads the progress file and the checkpoint directory of one gang.
#[derive(Debug)]
pub(super) struct Report {
    progress: ProgressFile,
    tally: Tally,
    checkpoints: CheckpointFollower,
    /// Base of the programs' relative paths.
    cwd: PathBuf,
}

impl Report {
    /// Without inotify everything is read at the end, and a message says so.
    pub(super) fn new(
        progress: PathBuf,
        checkpoint_dir: Option<PathBuf>,
        cwd: PathBuf,
        watched: Watched,
    ) -> Self {
        let (checkpoints, watch) = CheckpointFollower::new(checkpoint_dir);
        let mut tally = Tally::default();
        if watch.is_err() || watched == Watched::No {
            tally.suggest(&Progress { message: Some(UNWATCHED.to_owned()), ..Progress::default() });
        }
        Self { progress: ProgressFile::new(progress), tally, checkpoints, cwd }
    }

    /// Finds checkpoints that appeared after this time, while nobody watched.
    pub(super) fn catch_up(&mut self, since: SystemTime) {
        self.checkpoints.catch_up(since);
    }

    /// Readable after changes in the checkpoint directory.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.checkpoints.fd()
    }

    pub(super) fn is_done(&self) -> bool {
        self.tally.is_done()
    }

    /// A progress file existed.
    pub(super) fn has_read(&self) -> bool {
        self.progress.was_found()
    }

    /// Reads and gives what is new: progress, then checkpoints.
    pub(super) fn read(&mut self) -> (Option<Progress>, Vec<Checkpoint>) {
        self.checkpoints.read();
        self.progress.read(&mut self.tally);
        self.take()
    }

    /// As [`Self::read`], after every process has ended: reads all that is left.
    pub(super) fn finish(&mut self, orderly: Orderly) -> (Option<Progress>, Vec<Checkpoint>) {
        self.checkpoints.read_all();
        self.progress.finish(&mut self.tally);
        self.checkpoints.ended(orderly);
        self.take()
    }

    fn take(&mut self) -> (Option<Progress>, Vec<Checkpoint>) {
        let (mut found, states) = self.checkpoints.take();
        states.iter().for_each(|progress| self.tally.suggest(progress));
        let (progress, mut reported) = self.tally.take();
        for checkpoint in &mut reported {
            let path = self.cwd.join(&checkpoint.path);
            checkpoint.path = path.to_string_lossy().into_owned();
        }
        found.extend(reported);
        found.sort_by_key(|checkpoint| checkpoint.step);
        found.retain(|checkpoint| self.checkpoints.is_new(&checkpoint.path));
        (progress, found)
    }
}
