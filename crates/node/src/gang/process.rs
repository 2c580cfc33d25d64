//! The process of one rank, and how its end is learned.

use std::os::fd::OwnedFd;

use het_core::{Millis, Time};

use crate::launch::GangSpec;
use crate::poller::Poller;
use crate::process::{ExecStatus, Exit, Started, exit_status};

/// How often and how long the exit log of the restarter is read for the end of a process.
const EXIT_LOG_EVERY: Millis = Millis(5);
const EXIT_LOG_LIMIT: Millis = Millis(1_000);

/// The first process of a rank, which leads a session and a process group.
#[derive(Debug)]
pub(crate) struct Process {
    pub(super) rank: u32,
    pub(super) pid: i32,
    /// Readable when it has ended; none for one that was gone before it was adopted.
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) origin: Origin,
    /// Whether its program began, as far as this engine started it.
    pub(super) exec: ExecStatus,
    pub(super) exit: Option<Exit>,
    /// Processor time when it ended.
    pub(super) cpu: Millis,
    /// It has ended, but the restarter has not recorded how: when to read the log again, and when
    /// to take the end as unknown.
    pub(super) read_exit_log_at: Option<Time>,
    give_up_at: Option<Time>,
}

/// Who started a process, which decides how its end is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// This engine: the system reports the end of its child.
    Child,
    /// A supervisor that died: the restarter collects and records the end.
    Adopted,
}

impl Process {
    pub(super) fn started(rank: u32, started: Started) -> Self {
        let Started { pid, pidfd, exec } = started;
        Self { exec, ..Self::new(rank, pid, Some(pidfd), Origin::Child) }
    }

    /// A process of a supervisor that died.
    pub(crate) fn adopted(rank: u32, pid: i32, pidfd: Option<OwnedFd>) -> Self {
        Self::new(rank, pid, pidfd, Origin::Adopted)
    }

    fn new(rank: u32, pid: i32, pidfd: Option<OwnedFd>, origin: Origin) -> Self {
        Self {
            rank,
            pid,
            pidfd,
            origin,
            exec: ExecStatus::default(),
            exit: None,
            cpu: Millis::ZERO,
            read_exit_log_at: None,
            give_up_at: None,
        }
    }

    /// It is a child of this engine that has ended.
    pub(super) fn is_zombie(&self) -> bool {
        self.origin == Origin::Child && self.exit.is_some()
    }

    pub(super) fn is_running_child(&self) -> bool {
        self.origin == Origin::Child && self.exit.is_none()
    }

    /// Its id is not reused: that of an adopted process that ended, which the restarter has
    /// collected, may be another's now.
    pub(super) fn is_pid_valid(&self) -> bool {
        self.origin == Origin::Child || self.pidfd.is_some()
    }

    /// Learns how it ended; `None` where that is not known yet.
    pub(super) fn observe_exit(
        &mut self,
        now: Time,
        spec: &GangSpec,
        poller: &Poller,
    ) -> Option<Exit> {
        let ended = match self.origin {
            Origin::Child => exit_status(self.pid).unwrap_or(Some((Exit::Unknown, Millis(0)))),
            Origin::Adopted => {
                poller.remove(self.pidfd.take());
                let give_up_at = *self.give_up_at.get_or_insert(now + EXIT_LOG_LIMIT);
                self.read_exit_log_at = (now < give_up_at).then_some(now + EXIT_LOG_EVERY);
                let known = spec.orphan_exit(self.pid);
                let exit = known.or_else(|| (now >= give_up_at).then_some(Exit::Unknown));
                exit.map(|exit| (exit, Millis(0)))
            }
        };
        let (exit, cpu) = ended?;
        self.exit = Some(exit);
        self.cpu = cpu;
        poller.remove(self.pidfd.take());
        self.read_exit_log_at = None;
        Some(exit)
    }
}
