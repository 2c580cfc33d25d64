//! One watch on the run directory for all gangs: it tells each that its progress file has changed.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use het_core::LeaseId;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::order::lease_of_progress;

/// After it has told of changes it lets more of them gather: a program that writes all the time
/// costs no more than one that writes now and then.
const PAUSE: Duration = Duration::from_millis(5);

/// What one gang hears.
#[derive(Debug, Clone)]
pub(crate) struct Ear {
    heard: Arc<AtomicBool>,
    waker: Arc<EventFd>,
}

impl Ear {
    pub(crate) fn new(waker: Arc<EventFd>) -> Self {
        Self { heard: Arc::default(), waker }
    }

    /// Whether the file changed since this was asked last.
    pub(crate) fn take(&self) -> bool {
        self.heard.swap(false, Ordering::SeqCst)
    }

    fn hear(&self) {
        if !self.heard.swap(true, Ordering::SeqCst) {
            // A counter that is full wakes as well.
            let _ = self.waker.write(1);
        }
    }
}

type Ears = Arc<Mutex<BTreeMap<LeaseId, Ear>>>;

/// The thread that listens; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    ears: Ears,
    end: Arc<EventFd>,
}

impl Listener {
    /// # Errors
    /// When the directory cannot be watched.
    pub(crate) fn start(run_dir: &Path) -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let written = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO;
        inotify.add_watch(run_dir, written)?;
        let end = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (ears, end) = (Ears::default(), Arc::new(end));
        let (their_ears, their_end) = (Arc::clone(&ears), Arc::clone(&end));
        let thread = thread::Builder::new().name("progress".to_owned());
        let started = thread.spawn(move || listen(&inotify, &their_ears, &their_end));
        started.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))?;
        Ok(Self { ears, end })
    }

    pub(crate) fn enter(&self, lease: LeaseId, ear: Ear) {
        lock(&self.ears).insert(lease, ear);
    }

    pub(crate) fn leave(&self, lease: LeaseId) {
        lock(&self.ears).remove(&lease);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.end.write(1);
    }
}

fn lock(ears: &Ears) -> std::sync::MutexGuard<'_, BTreeMap<LeaseId, Ear>> {
    ears.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(inotify: &Inotify, ears: &Ears, end: &EventFd) {
    loop {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = [readable(inotify.as_fd()), readable(end.as_fd())];
        if poll(&mut fds, PollTimeout::NONE).is_ok() && fds[1].any().unwrap_or(true) {
            return;
        }
        let Ok(events) = inotify.read_events() else { continue };
        for event in events {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                lock(ears).values().for_each(Ear::hear);
                continue;
            }
            let lease = event.name.as_ref().and_then(|name| lease_of_progress(name.to_str()?));
            if let Some(ear) = lease.and_then(|lease| lock(ears).get(&lease).cloned()) {
                ear.hear();
            }
        }
        thread::sleep(PAUSE);
    }
}
