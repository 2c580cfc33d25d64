//! How large disks are, and what is free on them.

use std::io;
use std::path::Path;

use het_core::Bytes;
use nix::sys::statvfs::{Statvfs, statvfs};

/// All that the disk of a path holds, whether or not it is written yet.
///
/// # Errors
/// When there is no such path.
pub fn disk_size(path: &Path) -> io::Result<Bytes> {
    let disk = statvfs(path)?;
    Ok(Bytes(disk.blocks().saturating_mul(disk.fragment_size())))
}

/// What programs may still write to the disk of a path.
///
/// # Errors
/// When there is no such path.
pub fn free_space(path: &Path) -> io::Result<Bytes> {
    Ok(available(&statvfs(path)?))
}

pub(crate) fn available(disk: &Statvfs) -> Bytes {
    Bytes(disk.blocks_available().saturating_mul(disk.fragment_size()))
}
