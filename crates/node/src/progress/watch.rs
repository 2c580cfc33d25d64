//! One watch on the run directory for all gangs: whose progress file has changed.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use het_core::{LeaseId, Millis, Time};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::launch::spec::lease_of_progress;

/// After it has told of changes it lets more of them gather: a program that writes all the time
/// costs no more than one that writes now and then.
const PAUSE: Millis = Millis(5);

#[derive(Debug)]
pub(crate) struct Listener {
    inotify: Inotify,
    /// Changes are not listened to before.
    pub(crate) deaf_until: Option<Time>,
}

/// Whose files changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    Of(Vec<LeaseId>),
    /// The kernel dropped some signs.
    Any,
}

impl Listener {
    /// # Errors
    /// When the directory cannot be watched.
    pub(crate) fn start(run_dir: &Path) -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(run_dir, AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO)?;
        Ok(Self { inotify, deaf_until: None })
    }

    /// What gathered since this was asked last.
    pub(crate) fn changed(&mut self, now: Time) -> Changed {
        self.deaf_until = Some(now + PAUSE);
        let Ok(events) = self.inotify.read_events() else { return Changed::Of(Vec::new()) };
        if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)) {
            return Changed::Any;
        }
        let names = events.iter().filter_map(|event| event.name.as_ref()?.to_str());
        Changed::Of(names.filter_map(lease_of_progress).collect())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
