//! Changes in the checkpoint directory of a gang, by inotify.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use super::tracker::step_of;
use super::trainer_state::STATE_FILE;

/// Most reads of the kernel's queue in one call, so that a busy writer cannot hold it up.
const READS_MAX: usize = 64;

/// A change in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A checkpoint directory was created in place.
    Created(u64),
    /// A checkpoint directory was renamed into place.
    MovedIn(u64),
    /// A checkpoint's `trainer_state.json` was closed or renamed into place.
    StateWritten(u64),
    /// The kernel dropped events.
    Missed,
}

#[derive(Debug)]
pub(super) struct CheckpointWatch {
    inotify: Inotify,
    dir: (WatchDescriptor, PathBuf),
    inside: BTreeMap<WatchDescriptor, u64>,
}

impl CheckpointWatch {
    /// Watches the directory of checkpoints.
    pub(super) fn new(dir: &Path) -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let appeared = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        let descriptor = inotify.add_watch(dir, appeared | AddWatchFlags::IN_ONLYDIR)?;
        Ok(Self { inotify, dir: (descriptor, dir.to_owned()), inside: BTreeMap::new() })
    }

    /// Also watches for `trainer_state.json` inside this checkpoint.
    pub(super) fn watch_inside(&mut self, step: u64) {
        let (_, dir) = &self.dir;
        let closed = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO;
        let inside = dir.join(format!("checkpoint-{step}"));
        // A directory that was deleted again needs no watch.
        if let Ok(descriptor) = self.inotify.add_watch(&inside, closed) {
            self.inside.insert(descriptor, step);
        }
    }

    pub(super) fn stop_watching_inside(&mut self, step: u64) {
        let gone = self.inside.iter().find(|&(_, &other)| other == step).map(|(&wd, _)| wd);
        if let Some(descriptor) = gone {
            self.inside.remove(&descriptor);
            // The watch is gone if the directory was deleted.
            let _ = self.inotify.rm_watch(descriptor);
        }
    }

    /// The changes since the last call, in order.
    pub(super) fn read(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for _ in 0..READS_MAX {
            match self.inotify.read_events() {
                Ok(events) => changes.extend(events.iter().filter_map(|event| self.change(event))),
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        changes.dedup();
        changes
    }

    fn change(&self, event: &InotifyEvent) -> Option<Change> {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return Some(Change::Missed);
        }
        let name = event.name.as_ref()?.to_str()?;
        if let Some(&step) = self.inside.get(&event.wd) {
            return (name == STATE_FILE).then_some(Change::StateWritten(step));
        }
        if event.wd != self.dir.0 || !event.mask.contains(AddWatchFlags::IN_ISDIR) {
            return None;
        }
        let step = step_of(name)?;
        let moved = event.mask.contains(AddWatchFlags::IN_MOVED_TO);
        Some(if moved { Change::MovedIn(step) } else { Change::Created(step) })
    }
}

impl AsFd for CheckpointWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
