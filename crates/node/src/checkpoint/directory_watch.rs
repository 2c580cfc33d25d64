//! One inotify instance for the directories of all gangs in which checkpoints may appear: a user
//! has 128 instances by default.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use het_core::{LeaseId, Millis, Time};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

/// Pause after changes were read, in which further ones accumulate: a program that writes all the
/// time costs no more than one that writes rarely.
const PAUSE: Millis = Millis(200);
/// Most reads of the kernel's queue in one call.
const READS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct DirectoryWatch {
    inotify: Inotify,
    /// Who watches each directory.
    watched: BTreeMap<WatchDescriptor, BTreeSet<LeaseId>>,
    /// Where each gang works, and whether others work there as well.
    places: BTreeMap<LeaseId, Place>,
    /// Changes are not read before.
    pub(crate) paused_until: Option<Time>,
}

#[derive(Debug)]
struct Place {
    roots: Vec<PathBuf>,
    is_shared: bool,
}

/// The changed directories, by gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChangedDirectories {
    Of(BTreeMap<LeaseId, BTreeSet<WatchDescriptor>>),
    /// Unknown: the kernel dropped events.
    Any,
}

impl DirectoryWatch {
    /// # Errors
    /// When inotify cannot be used.
    pub(crate) fn new() -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let (watched, places) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { inotify, watched, places, paused_until: None })
    }

    /// A gang works below these directories from now on.
    pub(crate) fn enter(&mut self, lease: LeaseId, roots: Vec<PathBuf>) {
        let mut is_shared = false;
        for place in self.places.values_mut() {
            if overlap(&place.roots, &roots) {
                place.is_shared = true;
                is_shared = true;
            }
        }
        self.places.insert(lease, Place { roots, is_shared });
    }

    /// Another gang works or worked beside it: what appears there may be of either.
    pub(super) fn is_shared(&self, lease: LeaseId) -> bool {
        self.places.get(&lease).is_some_and(|place| place.is_shared)
    }

    /// Watches a directory for a gang.
    pub(super) fn add(&mut self, lease: LeaseId, dir: &Path) -> Result<WatchDescriptor, Errno> {
        let complete = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO;
        let flags = AddWatchFlags::IN_CREATE | complete | AddWatchFlags::IN_ONLYDIR;
        let descriptor = self.inotify.add_watch(dir, flags)?;
        self.watched.entry(descriptor).or_default().insert(lease);
        Ok(descriptor)
    }

    /// Ends watching a directory for a gang.
    pub(super) fn remove(&mut self, lease: LeaseId, descriptor: WatchDescriptor) {
        let Some(leases) = self.watched.get_mut(&descriptor) else { return };
        leases.remove(&lease);
        if leases.is_empty() {
            self.watched.remove(&descriptor);
            // It is gone already if the directory was deleted.
            let _ = self.inotify.rm_watch(descriptor);
        }
    }

    /// A gang has ended.
    pub(crate) fn leave(&mut self, lease: LeaseId) {
        self.places.remove(&lease);
    }

    /// The changes since the last call.
    pub(crate) fn read(&mut self, now: Time) -> ChangedDirectories {
        self.paused_until = Some(now + PAUSE);
        let mut changed: BTreeMap<LeaseId, BTreeSet<WatchDescriptor>> = BTreeMap::new();
        for _ in 0..READS_MAX {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EINTR) => continue,
                Err(_) => break,
            };
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    return ChangedDirectories::Any;
                }
                if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                    self.watched.remove(&event.wd);
                    continue;
                }
                for &lease in self.watched.get(&event.wd).into_iter().flatten() {
                    changed.entry(lease).or_default().insert(event.wd);
                }
            }
        }
        ChangedDirectories::Of(changed)
    }
}

impl AsFd for DirectoryWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// One lies in the other.
fn overlap(some: &[PathBuf], others: &[PathBuf]) -> bool {
    let is_within =
        |one: &PathBuf, other: &PathBuf| one.starts_with(other) || other.starts_with(one);
    some.iter().any(|one| others.iter().any(|other| is_within(one, other)))
}
