//! The locked file in the run directory of an engine. Whoever may still begin something has it: the
//! launcher, and shims that have not noted themselves. It names the launcher.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::identity::Identity;
use crate::process::procfs;

pub(super) const NAME: &str = "launcher";

/// How often a lock is tried that somebody has.
const TRY_EVERY: Duration = Duration::from_millis(2);
/// Longest text of the file.
const HOLDER_BYTES_MAX: u64 = 256;

/// How long the lock is waited for that the launcher of a dead engine has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// After this time that launcher is killed.
    patience: Duration,
    /// When the wait is given up.
    limit: Duration,
}

pub(super) const AT_THE_START: Limits =
    Limits { patience: Duration::from_secs(2), limit: Duration::from_secs(10) };
/// They are not to wait.
pub(super) const WHILE_GANGS_RUN: Limits =
    Limits { patience: Duration::ZERO, limit: Duration::from_millis(500) };

/// Takes the lock when the launcher of a dead engine, and every shim that has not noted itself, has
/// let go of it.
pub(crate) fn settle(run_dir: &Path) -> io::Result<()> {
    take(&run_dir.join(NAME), AT_THE_START).map(drop)
}

pub(super) fn take(path: &Path, limits: Limits) -> io::Result<File> {
    let begun = Instant::now();
    loop {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => return Ok(file),
            // It was removed meanwhile.
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if begun.elapsed() > limits.limit => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(TryLockError::WouldBlock) => {
                if begun.elapsed() > limits.patience {
                    kill_holder(&file);
                }
                thread::sleep(TRY_EVERY);
            }
        }
    }
}

/// Removes the file, unless somebody has it.
pub(super) fn remove(path: &Path) {
    if let Ok(file) = open(path)
        && file.try_lock().is_ok()
        && is_at(&file, path)
    {
        let _ = fs::remove_file(path);
    }
}

/// Writes down which launcher has the lock: whoever waits for it may have to kill that one.
pub(super) fn name_holder(file: &File, pid: i32) -> io::Result<()> {
    let ticks = procfs::stat(pid).map_or(0, |stat| stat.start_ticks);
    file.set_len(0)?;
    file.write_all_at(format!("{} {pid} {ticks}\n", procfs::boot_id()).as_bytes(), 0)
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true);
    options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(path)
}

/// Whether this file is still the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    let there = path.symlink_metadata().map(|there| (there.dev(), there.ino()));
    let locked = file.metadata().map(|locked| (locked.dev(), locked.ino()));
    matches!((there, locked), (Ok(there), Ok(locked)) if there == locked)
}

/// Kills a launcher that somebody stopped, whose engine is dead.
fn kill_holder(mut file: &File) {
    let mut text = String::new();
    if file.rewind().is_err() || file.take(HOLDER_BYTES_MAX).read_to_string(&mut text).is_err() {
        return;
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let [boot, pid, ticks] = words[..] else { return };
    let (Ok(pid), Ok(start_ticks)) = (pid.parse(), ticks.parse()) else { return };
    if boot == procfs::boot_id() && (Identity { pid, start_ticks }).is_running() {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
