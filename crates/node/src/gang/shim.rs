//! The shim of a gang as its engine sees it, and what it tells.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use het_core::{LeaseId, Millis, Time};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Gang;
use super::shutdown::Shutdown;
use crate::context::{Context, ShimCleanup};
use crate::poller::{Poller, Source, Trigger};
use crate::process::{Others, Report, ShimConnection, StartupNote, Told, read_report};

/// How long a shim may take to tell the ends of ranks that were killed. One that somebody stopped
/// tells nothing.
const KILL_LIMIT: Millis = Millis(2_000);

#[derive(Debug)]
pub(crate) enum Shim {
    /// Of this engine: readable when it tells something, closed when it is gone.
    Own(ShimConnection),
    /// Of an engine that died: a descriptor that is readable when it is gone, and its id.
    Other(OwnedFd, i32),
    /// None is asked for yet, or it is gone.
    None,
}

/// Whether a shim told the ends of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndsTold {
    All,
    NotAll,
}

/// Requests for one gang that may come to nothing because the launcher died.
const LOST_REQUESTS_MAX: u32 = 8;

/// The shim, and what it told.
#[derive(Debug)]
pub(super) struct ShimWatch {
    shim: Shim,
    pid: Option<i32>,
    /// Whether it had other children when the last rank ended.
    pub(super) others: Others,
    /// When it is killed, because the ends of killed ranks are not told.
    kill_at: Option<Time>,
}

impl ShimWatch {
    pub(super) fn new() -> Self {
        Self { shim: Shim::None, pid: None, others: Others::Perhaps, kill_at: None }
    }

    /// Watches a shim.
    pub(super) fn watch(&mut self, shim: Shim, lease: LeaseId, poller: &Poller) {
        let fd = match &shim {
            Shim::Own(connection) => {
                self.pid = connection.shim().map(|shim| shim.pid);
                connection.as_fd()
            }
            Shim::Other(fd, pid) => {
                self.pid = Some(*pid);
                fd.as_fd()
            }
            Shim::None => return,
        };
        // Without a watch its ends are read at the next deadline.
        let _ = poller.add(fd, Source::Shim(lease), Trigger::Level);
        self.shim = shim;
    }

    /// The connection to a shim of this engine.
    pub(super) fn connection(&self) -> Option<BorrowedFd<'_>> {
        match &self.shim {
            Shim::Own(fd) => Some(fd.as_fd()),
            Shim::Other(..) | Shim::None => None,
        }
    }

    pub(super) fn is_there(&self) -> bool {
        !matches!(self.shim, Shim::None)
    }

    /// It has noted its id.
    pub(super) fn noted(&mut self, pid: Option<i32>) {
        self.pid = self.pid.or(pid);
    }

    pub(super) fn pid(&self) -> Option<i32> {
        self.pid
    }

    pub(super) fn gone(&mut self, poller: &Poller) {
        match std::mem::replace(&mut self.shim, Shim::None) {
            Shim::Own(connection) => poller.remove(Some(connection)),
            Shim::Other(fd, _) => poller.remove(Some(fd)),
            Shim::None => {}
        }
        self.kill_at = None;
    }

    /// The gang has ended. A shim that told every end of its ranks can have another one.
    pub(super) fn release(&mut self, told: EndsTold, poller: &Poller) -> ShimCleanup {
        match std::mem::replace(&mut self.shim, Shim::None) {
            Shim::Own(connection) => {
                poller.forget(&connection);
                match self.pid.filter(|_| told == EndsTold::All) {
                    Some(pid) => ShimCleanup::Release(connection, pid),
                    None => ShimCleanup::Close(connection),
                }
            }
            Shim::Other(fd, _) => {
                poller.remove(Some(fd));
                ShimCleanup::None
            }
            Shim::None => ShimCleanup::None,
        }
    }

    /// Its ranks were killed.
    pub(super) fn expect_ends(&mut self, now: Time) {
        if self.is_there() {
            self.kill_at.get_or_insert(now + KILL_LIMIT);
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.kill_at
    }

    /// Kills it where it does not tell how killed ranks ended.
    pub(super) fn kill_if_due(&mut self, now: Time) {
        if self.kill_at.take_if(|at| *at <= now).is_some()
            && let Some(pid) = self.pid
        {
            // Its connection or its descriptor says that it is there.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

impl Gang {
    /// Takes in what the shim told.
    pub(super) fn hear_shim(&mut self, context: &mut Context) {
        loop {
            let told = self.shim.connection().map_or(Told::Gone, read_report);
            match told {
                Told::Nothing => return,
                Told::Gone => return self.shim_gone(context),
                Told::Report(Report::Failed { rank, errno }) => {
                    self.cannot_begin(rank, errno, context);
                }
                Told::Report(Report::Ended { rank, pid, end, others }) => {
                    // It tells a program that cannot begin before any end.
                    self.begun(context);
                    self.shim.others = others;
                    if let Some(process) = self.processes.of_rank(rank) {
                        process.ended(pid, end);
                        self.exited(rank, pid, end.exit, context);
                    }
                }
            }
        }
    }

    /// The shim is gone: either nothing began, or how the others end is for this engine to see.
    fn shim_gone(&mut self, context: &mut Context) {
        self.shim.gone(&context.poller);
        context.lost_shims += 1;
        self.shim.others = Others::Perhaps;
        self.learn_ids();
        if self.startup.is_pending() && self.slots().shim.is_none() {
            self.lost_requests += 1;
            let is_wanted = self.shutdown == Shutdown::Running;
            if is_wanted
                && self.lost_requests <= LOST_REQUESTS_MAX
                && self.request(None, context).is_ok()
            {
                return;
            }
        }
        if self.startup.is_pending() {
            match self.slots().startup {
                Some(StartupNote::Failed { rank, errno }) => {
                    self.cannot_begin(rank, errno, context);
                }
                Some(StartupNote::Begun) => self.begun(context),
                None => self.startup.give_up(),
            }
        }
        self.processes.orphaned(self.spec.lease, &context.poller);
        let now = context.clock.now();
        for index in 0..self.processes.len() {
            self.process_ended(index, now, context);
        }
    }
}
