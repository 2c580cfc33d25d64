//! The parent process of a supervisor. It restarts a supervisor that dies, and meanwhile collects
//! the exit codes of the supervisor's children, so that none is lost.
//!
//! Children of a dead process go to the nearest ancestor that is a subreaper: those of ranks to the
//! supervisor, those of the supervisor to the restarter.

use std::io;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::exit_log::ExitLogWriter;
use crate::cgroup::leave_job;
use crate::process::{Exit, become_subreaper};

/// Consecutive deaths before it was ready, after which it is not restarted.
const FAILED_STARTS_MAX: u32 = 100;
/// Pause before it is restarted after the first of them, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Runs a supervisor until it exits by itself, then waits for all remaining children; gives its
/// exit status. One that is killed by a signal is restarted while `is_wanted`. `exits` is the file
/// for the ends of orphans. `was_ready` tells whether the supervisor with this process id had begun
/// its work: one that dies earlier is restarted after longer and longer pauses.
///
/// # Errors
/// When the supervisor cannot be started or the file cannot be written.
pub fn run_restarter(
    exits: &Path,
    mut start: impl FnMut() -> io::Result<Child>,
    was_ready: impl Fn(u32) -> bool,
    is_wanted: impl Fn() -> bool,
) -> io::Result<ExitStatus> {
    become_subreaper()?;
    leave_job();
    let mut log = ExitLogWriter::open(exits)?;
    let mut failed_starts = 0;
    loop {
        let mut supervisor = start()?;
        collect(&mut log, Until::Ends(supervisor.id() as i32))?;
        let status = supervisor.wait()?;
        // What ended with it must be recorded before the next one asks.
        collect(&mut log, Until::NoZombies)?;
        if status.code().is_some() || !is_wanted() {
            // It exited by itself: a restart would not change that.
            collect(&mut log, Until::NoChildren)?;
            return Ok(status);
        }
        failed_starts = if was_ready(supervisor.id()) { 0 } else { failed_starts + 1 };
        if failed_starts >= FAILED_STARTS_MAX {
            return Ok(status);
        }
        thread::sleep((PAUSE * failed_starts).min(PAUSE_MAX));
    }
}

/// Until when children are collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Until this one ends. It stays a zombie.
    Ends(i32),
    /// Until no child that has ended is left.
    NoZombies,
    /// Until there are no children.
    NoChildren,
}

/// Collects children as they end, and records how.
fn collect(log: &mut ExitLogWriter, until: Until) -> io::Result<()> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    let look = if until == Until::NoZombies { look | WaitPidFlag::WNOHANG } else { look };
    loop {
        let (pid, exit) = match waitid(Id::All, look) {
            Ok(WaitStatus::StillAlive) => return Ok(()),
            Ok(WaitStatus::Exited(pid, code)) => (pid, Exit::Code(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Exit::Signal(signal)),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        if until == Until::Ends(pid.as_raw()) {
            return Ok(());
        }
        // A full disk must not end the restarter: without the line the program is restarted from
        // its newest checkpoint.
        let _ = log.append(pid.as_raw(), exit);
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED)?;
    }
}

/// Forwards a signal to the supervisor that a restarter started.
pub fn forward_signal(supervisor: u32, signal: Signal) {
    // It may have ended.
    let _ = kill(Pid::from_raw(supervisor as i32), signal);
}
