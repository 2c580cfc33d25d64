//! The process above a supervisor: it starts it again when it dies, and collects what the
//! supervisor's children end with meanwhile, so that nobody's exit code is lost.
//!
//! Children of a dead process go to the nearest ancestor that adopts orphans: to the supervisor
//! those of its ranks, to the keeper those of the supervisor.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::cgroup::leave_job;
use crate::gang::verdict::Exit;
use crate::process::procfs;
use crate::process::sys::adopt_orphans;

/// Deaths in a row before it was of use, after which it is not started again.
const USELESS_MAX: u32 = 100;
/// Wait before it is started again after the first of them, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Runs a supervisor until it ends by itself, and stays as long as children are left; gives how it
/// ended. `exits` is where the ends of orphans are written to; `was_of_use` says whether the
/// supervisor with this id had come as far as doing its work: one that dies before that is started
/// again more and more slowly. One that is not wanted any more is not started again.
///
/// # Errors
/// When the supervisor cannot be started or the file cannot be written.
pub fn keep(
    exits: &Path,
    mut start: impl FnMut() -> io::Result<Child>,
    was_of_use: impl Fn(u32) -> bool,
    is_wanted: impl Fn() -> bool,
) -> io::Result<ExitStatus> {
    adopt_orphans()?;
    leave_job();
    forget_earlier_boots(exits)?;
    let mut file = OpenOptions::new().create(true).append(true).open(exits)?;
    let mut useless = 0;
    loop {
        let mut supervisor = start()?;
        collect(&mut file, Until::Ends(supervisor.id() as i32))?;
        let status = supervisor.wait()?;
        // What ended with it has to be written down before the next one asks.
        collect(&mut file, Until::NobodyWaits)?;
        if status.code().is_some() || !is_wanted() {
            // It ended in its own way: it will not do otherwise if started again.
            collect(&mut file, Until::NobodyIsLeft)?;
            return Ok(status);
        }
        useless = if was_of_use(supervisor.id()) { 0 } else { useless + 1 };
        if useless >= USELESS_MAX {
            return Ok(status);
        }
        thread::sleep((PAUSE * useless).min(PAUSE_MAX));
    }
}

/// Process ids begin anew with every boot.
fn forget_earlier_boots(exits: &Path) -> io::Result<()> {
    let text = fs::read_to_string(exits).unwrap_or_default();
    let boot = procfs::boot_id();
    if text.lines().all(|line| line.starts_with(&boot)) {
        return Ok(());
    }
    File::create(exits).map(drop)
}

/// How long children are collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// This one ends; it stays a zombie.
    Ends(i32),
    /// Nobody who has ended is left to collect.
    NobodyWaits,
    /// There are no children.
    NobodyIsLeft,
}

/// Collects children as they end.
fn collect(file: &mut File, until: Until) -> io::Result<()> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    let look = if until == Until::NobodyWaits { look | WaitPidFlag::WNOHANG } else { look };
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
        let start_ticks = procfs::stat(pid.as_raw()).map_or(0, |stat| stat.start_ticks);
        let line = format!("{} {} {start_ticks} {}", procfs::boot_id(), pid.as_raw(), Word(exit));
        // A full disk must not end the keeper: without the line the program is begun again, from
        // its newest checkpoint.
        let _ = writeln!(file, "{line}");
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED)?;
    }
}

/// `code 3`, `signal 15`.
struct Word(Exit);

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Exit::Code(code) => write!(f, "code {code}"),
            Exit::Signal(signal) => write!(f, "signal {}", signal as i32),
            Exit::Unknown => f.write_str("unknown 0"),
        }
    }
}

/// The ends that a keeper wrote down.
#[derive(Debug, Clone)]
pub(crate) struct Exits(pub(crate) PathBuf);

impl Exits {
    /// How the process ended that had this id and was born no earlier; the latest one if there were
    /// several.
    pub(crate) fn of(&self, pid: i32, since_ticks: u64) -> Option<Exit> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let boot_now = procfs::boot_id();
        text.lines().rev().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [boot, id, start, kind, number] = words[..] else { return None };
            let fits = boot == boot_now
                && id.parse() == Ok(pid)
                && start.parse::<u64>().ok()? >= since_ticks;
            let number: i32 = number.parse().ok()?;
            let exit = match kind {
                "code" => Exit::Code(number),
                "signal" => Signal::try_from(number).map_or(Exit::Unknown, Exit::Signal),
                _ => Exit::Unknown,
            };
            fits.then_some(exit)
        })
    }
}

/// Passes a signal on to the supervisor that a keeper started.
pub fn pass_on(supervisor: u32, signal: Signal) {
    // It may just have ended.
    let _ = kill(Pid::from_raw(supervisor as i32), signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_end_of_an_id_counts() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("exits");
        let boot = procfs::boot_id();
        let lines = ["7 100 code 3", "8 100 signal 15", "7 500 code 0"];
        let text: String = lines.map(|line| format!("{boot} {line}\n")).concat();
        fs::write(&path, text + "another 9 900 code 0\n").expect("it can be made");
        let exits = Exits(path);
        assert_eq!(exits.of(7, 50), Some(Exit::Code(0)));
        assert_eq!(exits.of(8, 50), Some(Exit::Signal(Signal::SIGTERM)));
        assert_eq!(exits.of(8, 200), None, "an earlier process had the id");
        assert_eq!(exits.of(9, 0), None, "that was before the machine was started anew");
    }
}
