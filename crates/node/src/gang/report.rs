//! Everything a gang reports while it runs, gathered from its files.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use het_core::{Checkpoint, LeaseId, Progress};
use het_wire::progress::Tally;
use nix::sys::inotify::WatchDescriptor;

use crate::checkpoint::{
    CheckpointFollower, CheckpointSearch, DirectoryWatch, Look, Orderly, SearchRoots, verify,
};
use crate::progress::ProgressFile;

/// The message to the user where inotify cannot be used.
const UNWATCHED: &str = "progress is read only at the end: inotify cannot be used, \
                         hint: raise `fs.inotify.max_user_instances`";

/// The message to the user where not every directory is looked into.
const INCOMPLETE: &str = "checkpoints may be overlooked: there are too many files where it works, \
                          hint: name their directory with `checkpoint: { dir: … }`";

/// Whether changes of the progress file are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    Yes,
    No,
}

/// New progress, and checkpoints that are complete.
pub(crate) type News = (Option<Progress>, Vec<Checkpoint>);

/// Reads the progress file and the checkpoint directory of one gang.
#[derive(Debug)]
pub(crate) struct Report {
    progress: ProgressFile,
    tally: Tally,
    checkpoints: CheckpointFollower,
    /// None where directories cannot be watched.
    search: Option<CheckpointSearch>,
    looks: Look,
    /// Base of the programs' relative paths.
    cwd: PathBuf,
}

impl Report {
    /// Without inotify everything is read at the end, and a message says so.
    pub(crate) fn new(
        progress: PathBuf,
        checkpoint_dir: Option<PathBuf>,
        cwd: PathBuf,
        watched: Watched,
    ) -> Self {
        let (checkpoints, watch) = CheckpointFollower::new(checkpoint_dir);
        let mut tally = Tally::default();
        if watch.is_err() || watched == Watched::No {
            tally.suggest(&message(UNWATCHED));
        }
        let (progress, looks) = (ProgressFile::new(progress), Look::First);
        Self { progress, tally, checkpoints, search: None, looks, cwd }
    }

    /// Looks for checkpoints from now on. What is older than `since` is of earlier attempts.
    pub(super) fn search(
        &mut self,
        lease: LeaseId,
        (roots, since): (SearchRoots, SystemTime),
        is_watched: Watched,
    ) {
        if is_watched == Watched::No {
            return;
        }
        self.search = Some(CheckpointSearch::begin(lease, roots, since));
        self.looks = Look::First;
    }

    /// Finds checkpoints that appeared after this time, while nobody watched.
    pub(super) fn catch_up(&mut self, since: SystemTime) {
        self.checkpoints.catch_up(since);
    }

    /// These directories may have changed in which it is looked for checkpoints; none for all.
    pub(super) fn directories_changed(&mut self, which: Option<&BTreeSet<WatchDescriptor>>) {
        match (&mut self.search, which) {
            (Some(search), Some(which)) => search.changed(which),
            (Some(search), None) => search.any_changed(),
            (None, _) => {}
        }
    }

    /// Readable after changes in the checkpoint directory.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
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
    pub(crate) fn read(&mut self, watch: Option<&mut DirectoryWatch>) -> News {
        self.checkpoints.read();
        self.progress.read(&mut self.tally);
        self.take(watch)
    }

    /// As [`Self::read`], after every process has ended: reads all that is left.
    pub(crate) fn finish(
        &mut self,
        orderly: Orderly,
        mut watch: Option<&mut DirectoryWatch>,
    ) -> News {
        self.checkpoints.read_all();
        self.progress.finish(&mut self.tally);
        self.checkpoints.ended(orderly);
        self.directories_changed(None);
        let news = self.take(watch.as_deref_mut());
        if let (Some(mut search), Some(watch)) = (self.search.take(), watch) {
            search.end(watch);
        }
        news
    }

    fn take(&mut self, watch: Option<&mut DirectoryWatch>) -> News {
        let (mut found, mut states) = self.checkpoints.take();
        if let (Some(search), Some(watch)) = (&mut self.search, watch) {
            let look = std::mem::replace(&mut self.looks, Look::Again);
            let (also_found, also_states) = search.read(look, watch);
            found.extend(also_found);
            states.extend(also_states);
            if search.take_incomplete() {
                self.tally.suggest(&message(INCOMPLETE));
            }
        }
        states.iter().for_each(|progress| self.tally.suggest(progress));
        let (progress, mut reported) = self.tally.take();
        for checkpoint in &mut reported {
            let path = self.cwd.join(&checkpoint.path);
            checkpoint.path = path.to_string_lossy().into_owned();
        }
        found.extend(reported);
        found.sort_by_key(|checkpoint| checkpoint.step);
        // Before it is known which are new: one that is saved again may be whole then.
        let (mut found, progress) = retain_whole(found, progress);
        found.retain(|checkpoint| self.checkpoints.is_new(checkpoint));
        (progress, found)
    }
}

/// What does not read back is told instead of reported. What is gone again is for others to find
/// out: a program may keep only the newest.
fn retain_whole(
    mut found: Vec<Checkpoint>,
    mut progress: Option<Progress>,
) -> (Vec<Checkpoint>, Option<Progress>) {
    found.retain(|checkpoint| {
        let path = Path::new(&checkpoint.path);
        let Some(damage) = verify(path).err().filter(|_| path.exists()) else { return true };
        let text = format!("the checkpoint of step {} does not count: {damage}", checkpoint.step);
        progress.get_or_insert_default().message.get_or_insert(text);
        false
    });
    (found, progress)
}

fn message(text: &str) -> Progress {
    Progress { message: Some(text.to_owned()), ..Progress::default() }
}
