//! One control loop in a state directory at a time; which devices are its own is for `devices`.
//!
//! A lock on a file, held by the process as long as it lives, so a crash frees it. The file says
//! who holds it.

mod devices;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::JobDir;

pub use devices::{
    Conflict, ControlLoopKind, DeviceChoice, DeviceHolder, DeviceLockError, DeviceLocks, Holder,
    lock_dir, lock_dir_name, share_lock_dir, take_devices, wait_for_device,
};

/// The control loop that has the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    pub pid: u32,
    /// 0 for a server, which has many.
    pub job: u64,
    pub name: String,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { pid, job: 0, .. } => write!(f, "a server (process {pid})"),
            Self { pid, job, name } => write!(f, "job {job} `{name}` (process {pid})"),
        }
    }
}

impl LockHolder {
    /// This process, running the job of a directory.
    pub fn here(dir: &JobDir, name: &str) -> Self {
        Self { pid: std::process::id(), job: dir.id, name: name.to_owned() }
    }

    /// This process, serving.
    pub fn server() -> Self {
        Self { pid: std::process::id(), job: 0, name: "server".to_owned() }
    }
}

/// The right to run jobs of a state directory on this machine, and on which devices; released when
/// dropped.
#[derive(Debug)]
pub struct MachineLock {
    lock: Flock<File>,
    devices: Option<DeviceLocks>,
}

impl MachineLock {
    /// Takes the lock, or returns who holds it.
    ///
    /// # Errors
    /// When the lock file cannot be used.
    pub fn try_acquire(path: &Path) -> io::Result<Result<Self, Option<LockHolder>>> {
        match Flock::lock(open(path)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Ok(Self { lock, devices: None })),
            Err((mut file, Errno::EAGAIN)) => Ok(Err(read(&mut file))),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// Waits until the lock is free.
    ///
    /// # Errors
    /// When the lock file cannot be used, or a signal came ([`io::ErrorKind::Interrupted`]).
    pub fn acquire(path: &Path) -> io::Result<Self> {
        match Flock::lock(open(path)?, FlockArg::LockExclusive) {
            Ok(lock) => Ok(Self { lock, devices: None }),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// Holds these devices as long.
    pub fn hold_devices(&mut self, devices: DeviceLocks) {
        self.devices = Some(devices);
    }

    /// Writes down who holds the lock.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn announce(&mut self, holder: &LockHolder) -> io::Result<()> {
        let text = serde_json::to_string(holder)?;
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        self.lock.write_all(text.as_bytes())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn read(file: &mut File) -> Option<LockHolder> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}
