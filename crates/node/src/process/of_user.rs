//! All processes that run for one user.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};

use super::kill::wait_for_end;
use super::procfs;
use super::sys::pidfd_open;
use crate::cgroup::UserCgroup;

/// How long processes that were killed may take to be gone: one that waits for a device or a disk
/// stays until that answers.
const LIMIT: Duration = Duration::from_secs(15);

/// Kills the processes of a user that are in this cgroup or descend from the calling process;
/// whether all are gone. What the user runs elsewhere is not looked at.
pub fn kill_processes_of(user: Uid, cgroup: &UserCgroup) -> bool {
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut found = procfs::descendants(std::process::id() as i32);
        found.extend(cgroup.members());
        found.retain(|&process| {
            let runs = procfs::stat(process).is_some_and(|stat| !stat.is_gone());
            runs && procfs::user(process) == Some(user.as_raw())
        });
        if found.is_empty() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        cgroup.kill();
        for &process in &found {
            let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
        }
        let ended: Vec<OwnedFd> = found.iter().filter_map(|&pid| pidfd_open(pid).ok()).collect();
        ended.iter().for_each(|process| wait_for_end(process, deadline));
    }
}
