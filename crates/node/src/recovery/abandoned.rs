//! The leases in a run directory: live ones, and those whose supervisor died.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use het_core::LeaseId;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::record::{Record, RecordHead};

use super::record_file::{self, Contents};
use crate::error::NodeError;
use crate::process::{Slots, pidfd_open};
use crate::run_dir::{discard_lease_files, grant_path, lease_path};

/// A record in a run directory whose supervisor may have died.
#[derive(Debug)]
pub(crate) struct AbandonedLease {
    pub(crate) path: PathBuf,
    pub(crate) record: Record,
    /// What its processes noted.
    pub(crate) slots: Slots,
}

impl AbandonedLease {
    /// # Errors
    /// When the file cannot be read. `None` for one that is not a record.
    fn read(path: &Path) -> io::Result<Option<Self>> {
        let Contents::Record(text, slots) = record_file::read(path)? else { return Ok(None) };
        RecordHead::of(&text).check()?;
        let record = serde_json::from_str(&text).ok();
        Ok(record.map(|record| Self { path: path.to_owned(), record, slots }))
    }

    /// Reads it again, for notes that were missing.
    pub(crate) fn reread(self) -> Self {
        let lease = self.record.lease;
        let again = Self::read(&self.path).ok().flatten();
        again.filter(|found| found.record.lease == lease).unwrap_or(self)
    }

    pub(crate) fn lease(&self) -> LeaseId {
        LeaseId(self.record.lease)
    }

    pub(crate) fn lease_dir(&self) -> PathBuf {
        lease_path(self.path.parent().unwrap_or(&self.path), self.lease())
    }

    /// It was started before it had devices, and never had any.
    pub(crate) fn awaits_devices(&self) -> bool {
        self.record.warm && !grant_path(&self.lease_dir(), 0).exists()
    }

    /// The processes of its ranks that run.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = i32> + '_ {
        self.slots.ranks.values().copied().filter(|&pid| self.record.is_of_lease(pid))
    }

    /// The shim, if it runs.
    pub(crate) fn shim(&self) -> Option<i32> {
        let noted = self.slots.shim.filter(|&pid| self.record.is_of_lease(pid));
        let recorded = self.record.shim.filter(|shim| shim.is_running());
        noted.or(recorded.map(|shim| shim.pid))
    }

    /// A shim was told of it, or may have been.
    pub(crate) fn had_shim(&self) -> bool {
        self.slots.shim.is_some() || self.record.shim.is_some()
    }

    /// None of its programs began, and none will: its shim is gone, or never was.
    pub(crate) fn never_began(&self) -> bool {
        let is_blank = self.slots.ranks.is_empty() && self.slots.startup.is_none();
        self.record.is_of_this_boot() && is_blank && self.shim().is_none()
    }

    /// Kills its shim, if it runs, and waits until it starts nothing more.
    pub(crate) fn kill_shim(&self) {
        let Some(pid) = self.shim() else { return };
        // Opened first: the id cannot be reused between the two.
        if let Ok(shim) = pidfd_open(pid) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            let _ = poll(&mut [PollFd::new(shim.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        }
    }

    /// Removes the files of the lease, as far as possible. A later engine removes the others.
    pub(crate) fn discard(&self) {
        discard_lease_files(&self.lease_dir());
        let _ = fs::remove_file(&self.path);
    }
}

/// The records of a run directory, in order of their leases.
pub(super) fn all(run_dir: &Path) -> io::Result<Vec<AbandonedLease>> {
    let (mut records, unread) = readable(run_dir);
    records.sort_by_key(AbandonedLease::lease);
    unread.into_iter().next().map_or(Ok(records), Err)
}

/// The records that can be read, and the errors of others.
pub(crate) fn readable(run_dir: &Path) -> (Vec<AbandonedLease>, Vec<io::Error>) {
    let (mut records, mut unread) = (Vec::new(), Vec::new());
    let paths = record_file::list(run_dir).unwrap_or_else(|error| {
        unread.push(error);
        Vec::new()
    });
    for path in paths {
        match AbandonedLease::read(&path) {
            Ok(found) => records.extend(found),
            Err(error) => unread.push(error),
        }
    }
    (records, unread)
}

/// The leases of this boot whose end is not durable yet, as far as they can be read.
pub(super) fn live(run_dir: &Path) -> Vec<AbandonedLease> {
    let (records, _) = readable(run_dir);
    records.into_iter().filter(|found| found.record.is_of_this_boot()).collect()
}

/// # Errors
/// Where a later version of this program left leases whose programs may run.
pub(crate) fn refuse_later_records(run_dir: &Path) -> Result<(), NodeError> {
    for path in record_file::list(run_dir).unwrap_or_default() {
        if let Err(source) = AbandonedLease::read(&path)
            && source.kind() == io::ErrorKind::Unsupported
        {
            return Err(NodeError::Record { path, source });
        }
    }
    Ok(())
}

/// Removes files without a record, which a killed engine kept for its next leases or was writing.
/// They have no processes.
pub(crate) fn remove_blank_files(run_dir: &Path) {
    for path in record_file::list(run_dir).unwrap_or_default() {
        if matches!(AbandonedLease::read(&path), Ok(None)) {
            let _ = fs::remove_file(path);
        }
    }
}
