//! Killing every process of a gang and waiting until it is gone.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::cgroup::Group;
use crate::process::procfs;
use crate::process::sys::pidfd_open;

/// How often new processes are looked for: each round kills all of a gang that lives, so only one
/// that forks faster than it is killed needs more than two.
const ROUNDS_MAX: usize = 256;

/// Sends a signal to whole process groups. A group that is gone is what was wanted.
pub(crate) fn signal_groups(groups: &BTreeSet<i32>, signal: Signal) {
    for &group in groups {
        let _ = killpg(Pid::from_raw(group), signal);
    }
}

/// By what the processes of a lease are told from all others.
#[derive(Debug)]
pub(crate) struct Marks<'a> {
    /// Process groups and sessions that its ranks lead.
    pub(crate) groups: BTreeSet<i32>,
    /// `NAME=VALUE` in their environment.
    pub(crate) mark: String,
    pub(crate) cgroups: &'a [Group],
}

impl Marks<'_> {
    /// Who bears any of them and lives.
    fn members(&self) -> Vec<i32> {
        let mut found = procfs::members(&self.groups, &self.mark);
        let lives = |pid: &i32| procfs::stat(*pid).is_some_and(|stat| !stat.is_gone());
        found.extend(self.cgroups.iter().flat_map(Group::members).filter(lives));
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Kills all processes with these marks, without waiting; gives their ids.
pub(crate) fn kill_all(marks: &Marks<'_>) -> Vec<i32> {
    let found = marks.members();
    // The groups at once, so that their members cannot fork in between; then who left them.
    marks.cgroups.iter().for_each(Group::kill);
    signal_groups(&marks.groups, Signal::SIGKILL);
    for &pid in &found {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    found
}

/// Kills all processes with these marks and waits until they are gone: for ever,
/// or until the limit. Gives the ids that were killed and those that still live.
pub(crate) fn sweep(marks: &Marks<'_>, limit: Option<Duration>) -> (BTreeSet<i32>, Vec<i32>) {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut killed = BTreeSet::new();
    for _ in 0..ROUNDS_MAX {
        let found = kill_all(marks);
        if found.is_empty() {
            return (killed, found);
        }
        killed.extend(&found);
        // Without a descriptor the process is gone already.
        let waiting: Vec<OwnedFd> = found.iter().filter_map(|&pid| pidfd_open(pid).ok()).collect();
        for fd in waiting {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if wait(&fd, left) == Waited::InVain {
                return (killed, found);
            }
        }
    }
    let left = marks.members();
    (killed, left)
}

#[derive(PartialEq, Eq)]
enum Waited {
    Gone,
    InVain,
}

fn wait(fd: &OwnedFd, limit: Option<Duration>) -> Waited {
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
    });
    loop {
        match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Waited::InVain,
            Err(nix::errno::Errno::EINTR) => {}
            // A descriptor that cannot be waited on has nothing behind it.
            Ok(_) | Err(_) => return Waited::Gone,
        }
    }
}
