//! One inotify watch for all gangs: which progress files have changed.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use het_core::{LeaseId, Millis, Time};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::run_dir::lease_of_progress;

/// Pause after changes were read, in which further ones accumulate: a program that writes all the
/// time costs no more than one that writes rarely.
const PAUSE: Millis = Millis(5);

#[derive(Debug)]
pub(crate) struct ProgressWatch {
    inotify: Inotify,
    /// Changes are not read before.
    pub(crate) paused_until: Option<Time>,
}

/// The leases whose files changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    Of(Vec<LeaseId>),
    /// Unknown: the kernel dropped events.
    Any,
}

impl ProgressWatch {
    /// # Errors
    /// When the directory cannot be watched.
    pub(crate) fn start(progress_dir: &Path) -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(progress_dir, AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO)?;
        Ok(Self { inotify, paused_until: None })
    }

    /// The changes since the last call.
    pub(crate) fn changed(&mut self, now: Time) -> Changed {
        self.paused_until = Some(now + PAUSE);
        let Ok(events) = self.inotify.read_events() else { return Changed::Of(Vec::new()) };
        if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)) {
            return Changed::Any;
        }
        let names = events.iter().filter_map(|event| event.name.as_ref()?.to_str());
        Changed::Of(names.filter_map(lease_of_progress).collect())
    }
}

impl AsFd for ProgressWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
