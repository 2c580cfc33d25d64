//! What changes in a gang's checkpoint directory, by inotify.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use crate::checkpoint::tracker::step_of;

/// What Hugging Face `Trainer` writes last into a checkpoint.
pub(crate) const STATE_FILE: &str = "trainer_state.json";
/// How often one call reads the kernel's queue, so that a busy writer cannot hold it.
const READS_MAX: usize = 64;

/// A change that may matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sign {
    /// A checkpoint directory was created in place, or renamed into it.
    Created(u64),
    MovedIn(u64),
    /// A checkpoint's `trainer_state.json` was closed or renamed into place.
    StateWritten(u64),
    /// The kernel dropped some signs.
    Missed,
}

#[derive(Debug)]
pub(crate) struct Watch {
    inotify: Inotify,
    saves: (WatchDescriptor, PathBuf),
    inside: BTreeMap<WatchDescriptor, u64>,
}

impl Watch {
    /// Watches the directory of checkpoints.
    pub(crate) fn new(saves: &Path) -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let appeared = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        let descriptor = inotify.add_watch(saves, appeared | AddWatchFlags::IN_ONLYDIR)?;
        Ok(Self { inotify, saves: (descriptor, saves.to_owned()), inside: BTreeMap::new() })
    }

    /// Also looks for `trainer_state.json` inside this checkpoint.
    pub(crate) fn look_inside(&mut self, step: u64) {
        let (_, dir) = &self.saves;
        let closed = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO;
        let inside = dir.join(format!("checkpoint-{step}"));
        // A directory that is gone again needs no look.
        if let Ok(descriptor) = self.inotify.add_watch(&inside, closed) {
            self.inside.insert(descriptor, step);
        }
    }

    pub(crate) fn stop_looking(&mut self, step: u64) {
        let gone = self.inside.iter().find(|&(_, &other)| other == step).map(|(&wd, _)| wd);
        if let Some(descriptor) = gone {
            self.inside.remove(&descriptor);
            // The watch went with the directory if that was deleted.
            let _ = self.inotify.rm_watch(descriptor);
        }
    }

    /// What happened since the last call, in order.
    pub(crate) fn read(&self) -> Vec<Sign> {
        let mut signs = Vec::new();
        for _ in 0..READS_MAX {
            match self.inotify.read_events() {
                Ok(events) => signs.extend(events.iter().filter_map(|event| self.sign(event))),
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        signs.dedup();
        signs
    }

    fn sign(&self, event: &InotifyEvent) -> Option<Sign> {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return Some(Sign::Missed);
        }
        let name = event.name.as_ref()?.to_str()?;
        if let Some(&step) = self.inside.get(&event.wd) {
            return (name == STATE_FILE).then_some(Sign::StateWritten(step));
        }
        if event.wd != self.saves.0 || !event.mask.contains(AddWatchFlags::IN_ISDIR) {
            return None;
        }
        let step = step_of(name)?;
        let moved = event.mask.contains(AddWatchFlags::IN_MOVED_TO);
        Some(if moved { Sign::MovedIn(step) } else { Sign::Created(step) })
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
