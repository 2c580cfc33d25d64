//! Where the files of a lease lie, and how its processes are marked by one of them.
//!
//! ```text
//! RUN_DIR/record-N           what the lease is and what was chosen for it, written before its
//!                            processes start; then the id of each, written by itself before its
//!                            program begins, and how it ended, written by their shim
//!                            (`process::slots`); reused by another lease after the end
//!                            (`recovery::record_file`)
//! RUN_DIR/launcher           locked by whoever may still begin something: the launcher, and shims
//!                            that have not noted themselves
//! RUN_DIR/lease-N/           what its programs share, also in containers, where nothing else of
//!                            the run directory is visible; made on demand, at the start where
//!                            ranks may need to agree on a stop or run in containers
//!     notice                 that it is to stop, once it is
//!     devices-RANK           which devices a rank has that was started before it had any
//!     copies                 which copies of inputs it was told of
//!     notice.agreed          after which step, as its ranks agreed (`python/heterosis`) through
//!                            `.asked` and `.steps` beside it
//! RUN_DIR/lease-N.containers/RANK   the container of a rank
//! RUN_DIR/lease-N.sick-RANK  that the health check of a rank failed
//! RUN_DIR/progress/lease-N   what its program reports
//! RUN_DIR/removed-N-M        what is being removed
//! ```
//!
//! None of it is valid after a reboot, which the record reveals by the id of the boot.

use std::io;
use std::path::{Path, PathBuf};

use het_core::LeaseId;
use het_files::remove_tree;

/// The variable that names the notice file. Its value also marks every process of a lease, see
/// [`crate::process::procfs::members`].
pub(crate) const NOTICE: &str = "HET_NOTICE";

/// The directory that the programs of a lease share. Its other files lie beside it.
pub(crate) fn lease_path(run_dir: &Path, lease: LeaseId) -> PathBuf {
    run_dir.join(format!("lease-{lease}"))
}

pub(crate) fn notice_path(lease_dir: &Path) -> PathBuf {
    lease_dir.join("notice")
}

/// What a rank waits for that was started before it had devices.
pub(crate) fn grant_path(lease_dir: &Path, rank: u32) -> PathBuf {
    lease_dir.join(format!("devices-{rank}"))
}

/// Which copies of inputs a lease holds.
pub(crate) fn copies_path(lease_dir: &Path) -> PathBuf {
    lease_dir.join("copies")
}

/// The directory that names the containers of a lease, by rank. Its programs may not write there.
pub(crate) fn containers_path(lease_dir: &Path) -> PathBuf {
    lease_dir.with_extension("containers")
}

/// The file that exists once the health check of a rank has failed.
pub(crate) fn unhealthy_path(lease_dir: &Path, rank: u32) -> PathBuf {
    lease_dir.with_extension(format!("sick-{rank}"))
}

/// The directory of all progress files. It is watched, so nothing else is written there.
pub(crate) fn progress_dir(run_dir: &Path) -> PathBuf {
    run_dir.join("progress")
}

pub(crate) fn progress_path(lease_dir: &Path) -> PathBuf {
    let run_dir = lease_dir.parent().unwrap_or(lease_dir);
    progress_dir(run_dir).join(lease_dir.file_name().unwrap_or_default())
}

/// The lease whose progress file has this name.
pub(crate) fn lease_of_progress(name: &str) -> Option<LeaseId> {
    name.strip_prefix("lease-")?.parse().ok().map(LeaseId)
}

/// `NAME=VALUE` that only processes of this lease have in their environment.
pub(crate) fn marker_variable(lease_dir: &Path) -> String {
    [NOTICE, "=", &notice_path(lease_dir).to_string_lossy()].concat()
}

/// Removes all files of a lease but its record; gives the result for each path.
pub(crate) fn remove_lease_files(
    lease_dir: &Path,
) -> impl Iterator<Item = (PathBuf, io::Result<()>)> {
    let paths = lease_files(lease_dir).into_iter();
    paths.map(|path| {
        let removed = remove_tree(&path);
        (path, removed)
    })
}

/// What a lease has in the run directory but its record.
pub(crate) fn lease_files(lease_dir: &Path) -> [PathBuf; 3] {
    [lease_dir.to_owned(), containers_path(lease_dir), progress_path(lease_dir)]
}

/// Removes all files of a lease that is over but its record, as far as possible.
pub(crate) fn discard_lease_files(lease_dir: &Path) {
    // Each is tried: at this point they do not depend on each other.
    remove_lease_files(lease_dir).for_each(drop);
}
