//! The parent process of a supervisor, which restarts a supervisor that dies.
//!
//! Children of a dead process go to the nearest ancestor that is a subreaper: those of the
//! supervisor to the restarter, which collects them. How ranks ended is for their shims to note.

use std::io;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::cgroup::leave_job;
use crate::process::become_subreaper;

/// Consecutive deaths early in its work, after which it is not restarted.
const FAILED_STARTS_MAX: u32 = 100;
/// How long a supervisor works at least whose next death has nothing to do with its start.
const LASTED: Duration = Duration::from_secs(60);
/// With which a program of Rust ends by a panic.
const PANICKED: i32 = 101;
/// Pause before it is restarted after the first of them, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Runs a supervisor until it exits by itself; gives its exit status. One that is killed by a
/// signal, or panics, is restarted while `is_wanted`. `was_ready` tells whether the supervisor with
/// this process id had begun its work: one that dies earlier, or panics soon, is restarted after
/// longer and longer pauses.
///
/// Other children that somebody stops go on where they are to keep running.
///
/// # Errors
/// When the supervisor cannot be started.
pub fn run_restarter(
    mut start: impl FnMut() -> io::Result<Child>,
    was_ready: impl Fn(u32) -> bool,
    is_wanted: impl Fn() -> bool,
    keeps_running: impl Fn(u32) -> bool,
) -> io::Result<ExitStatus> {
    become_subreaper()?;
    leave_job();
    let mut failed_starts = 0;
    loop {
        let (mut supervisor, since) = (start()?, Instant::now());
        collect_until_end(supervisor.id() as i32, &keeps_running)?;
        let status = supervisor.wait()?;
        let has_panicked = status.code() == Some(PANICKED);
        if status.code().is_some() && !has_panicked || !is_wanted() {
            // It exited by itself: a restart would not change that.
            return Ok(status);
        }
        let has_begun = was_ready(supervisor.id()) && !(has_panicked && since.elapsed() < LASTED);
        failed_starts = if has_begun { 0 } else { failed_starts + 1 };
        if failed_starts >= FAILED_STARTS_MAX {
            return Ok(status);
        }
        thread::sleep((PAUSE * failed_starts).min(PAUSE_MAX));
    }
}

/// Collects children as they end, until this one does. It stays a zombie. Where somebody stops it,
/// it goes on: a job may have.
fn collect_until_end(supervisor: i32, keeps_running: &impl Fn(u32) -> bool) -> io::Result<()> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT;
    loop {
        match waitid(Id::All, look) {
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) => {
                if pid.as_raw() == supervisor {
                    return Ok(());
                }
                waitid(Id::Pid(pid), WaitPidFlag::WEXITED)?;
            }
            Ok(WaitStatus::Stopped(pid, _)) => {
                // Of one that was killed or went on meanwhile there is no stop any more (ECHILD,
                // or a wait for the next); what became of it is seen next.
                let _ = waitid(Id::Pid(pid), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG);
                if pid.as_raw() == supervisor || keeps_running(pid.as_raw() as u32) {
                    let _ = kill(pid, Signal::SIGCONT);
                }
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::ECHILD) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Forwards a signal to the supervisor that a restarter started.
pub fn forward_signal(supervisor: u32, signal: Signal) {
    // It may have ended.
    let _ = kill(Pid::from_raw(supervisor as i32), signal);
}
