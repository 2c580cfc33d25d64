//! Kills every process of a gang and waits until it is gone.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::cgroup::Group;
use crate::process::procfs;
use crate::process::sys::pidfd_open;

/// Most rounds of looking for new processes: each kills all that run, so only a gang that forks
/// faster than it is killed needs more than two.
const ROUNDS_MAX: usize = 256;

/// Sends a signal to whole process groups. Groups that are gone are ignored.
pub(crate) fn signal_groups(groups: &BTreeSet<i32>, signal: Signal) {
    for &group in groups {
        let _ = killpg(Pid::from_raw(group), signal);
    }
}

/// Selects the processes of a lease among all others. A process matches by any of these.
#[derive(Debug)]
pub(crate) struct ProcessSelector<'a> {
    /// Process groups and sessions that its ranks lead.
    pub(crate) groups: BTreeSet<i32>,
    /// `NAME=VALUE` in their environment.
    pub(crate) variable: String,
    pub(crate) cgroups: &'a [Group],
}

impl ProcessSelector<'_> {
    /// Matching processes that run.
    fn members(&self) -> Vec<i32> {
        let mut found = procfs::members(&self.groups, &self.variable);
        let runs = |pid: &i32| procfs::stat(*pid).is_some_and(|stat| !stat.is_gone());
        found.extend(self.cgroups.iter().flat_map(Group::members).filter(runs));
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Kills all matching processes without waiting; gives their ids.
pub(crate) fn kill_all(selector: &ProcessSelector<'_>) -> Vec<i32> {
    let found = selector.members();
    // Whole groups first, so that members cannot fork in between; then those that left them.
    selector.cgroups.iter().for_each(Group::kill);
    signal_groups(&selector.groups, Signal::SIGKILL);
    for &pid in &found {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    found
}

/// Kills all matching processes and waits until they are gone, forever or until the limit. Gives
/// the ids that were killed and those that still run.
pub(crate) fn kill_and_wait(
    selector: &ProcessSelector<'_>,
    limit: Option<Duration>,
) -> (BTreeSet<i32>, Vec<i32>) {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut killed = BTreeSet::new();
    for _ in 0..ROUNDS_MAX {
        let found = kill_all(selector);
        if found.is_empty() {
            return (killed, found);
        }
        killed.extend(&found);
        // Without a descriptor the process is gone already.
        let waiting: Vec<OwnedFd> = found.iter().filter_map(|&pid| pidfd_open(pid).ok()).collect();
        for fd in waiting {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if wait(&fd, left) == Waited::TimedOut {
                return (killed, found);
            }
        }
    }
    let left = selector.members();
    (killed, left)
}

/// Waits until a process is gone, or until then.
pub(crate) fn wait_for_end(process: &OwnedFd, deadline: Instant) {
    wait(process, Some(deadline.saturating_duration_since(Instant::now())));
}

#[derive(PartialEq, Eq)]
enum Waited {
    Gone,
    TimedOut,
}

fn wait(fd: &OwnedFd, limit: Option<Duration>) -> Waited {
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
    });
    loop {
        match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Waited::TimedOut,
            Err(nix::errno::Errno::EINTR) => {}
            // A descriptor that cannot be polled has no process behind it.
            Ok(_) | Err(_) => return Waited::Gone,
        }
    }
}
