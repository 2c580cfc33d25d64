//! Room on the disk that is kept for how things end: given up where there is no other.

use std::fs;
use std::io;
use std::path::PathBuf;

use het_files::create_private;
use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sys::statvfs::statvfs;

use crate::disk::available;

/// Ends of jobs take some hundred bytes each, and the pages that they change some kilobytes.
const RESERVE_BYTES: u64 = 4 << 20;
/// What has to be free beside it before changes are taken on again, in bytes and in files.
const FREE_BYTES_MIN: u64 = 1 << 20;
const FREE_FILES_MIN: u64 = 16;

/// A file that takes up room.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
}

impl Reserve {
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Takes the room up, unless it is taken up already.
    ///
    /// # Errors
    /// When there is none, or none beside it.
    pub fn keep(&self) -> io::Result<()> {
        let is_kept = fs::metadata(&self.path).is_ok_and(|found| found.len() == RESERVE_BYTES);
        if !is_kept {
            self.release();
            self.take_up().inspect_err(|_| drop(fs::remove_file(&self.path)))?;
        }
        let disk = statvfs(self.path.as_path())?;
        let free = available(&disk).0;
        // File systems without a table of files say that they have none.
        let has_files = disk.files() == 0 || disk.files_available() >= FREE_FILES_MIN;
        match free >= FREE_BYTES_MIN && has_files {
            true => Ok(()),
            false => Err(Errno::ENOSPC.into()),
        }
    }

    fn take_up(&self) -> io::Result<()> {
        let file = create_private(&self.path)?;
        Ok(posix_fallocate(&file, 0, RESERVE_BYTES as i64)?)
    }

    /// Gives the room up.
    pub fn release(&self) {
        // On a disk that cannot be written it stays.
        let _ = fs::remove_file(&self.path);
    }
}
