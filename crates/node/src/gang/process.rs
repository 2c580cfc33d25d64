//! The process of one rank, and how its end is learned.

use std::os::fd::OwnedFd;

use het_core::{Millis, Time};

use crate::poller::Poller;
use crate::process::{EndNote, Exit, Slots, exit_status};

/// How often and how long a record is read for the end of a process whose shim lives.
const READ_EVERY: Millis = Millis(5);
const READ_LIMIT: Millis = Millis(1_000);

/// The first process of a rank, which leads a session and a process group.
#[derive(Debug)]
pub(crate) struct Process {
    pub(super) rank: u32,
    /// None until it has noted its id, before its program began.
    pub(super) pid: Option<i32>,
    /// Readable when it has ended; none for one that the shim of this engine holds, and for one
    /// that was gone before it was watched.
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) parent: Parent,
    pub(super) exit: Option<Exit>,
    /// Processor time when it ended.
    pub(super) cpu: Millis,
    /// It has ended, but its shim has not noted how: when to read the record again, and when to
    /// take the end as unseen.
    pub(super) read_record_at: Option<Time>,
    give_up_at: Option<Time>,
}

/// Whose child a process is, which decides how its end is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parent {
    /// The shim that this engine asked for: it tells the end, and keeps the zombie.
    Shim,
    /// The shim of an engine that died, which notes the end.
    OtherShim,
    /// Its shim died: this engine, where it adopts orphans, or nobody that would tell.
    Orphan,
}

/// What is known of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Observed {
    Ended(EndNote),
    Runs,
    /// Nobody has seen how, or said so yet.
    Unseen,
}

impl Process {
    /// One that a shim is told to start.
    pub(super) fn requested(rank: u32) -> Self {
        Self {
            rank,
            pid: None,
            pidfd: None,
            parent: Parent::Shim,
            exit: None,
            cpu: Millis::ZERO,
            read_record_at: None,
            give_up_at: None,
        }
    }

    /// A process of an engine that died.
    pub(crate) fn adopted(rank: u32, pid: i32, pidfd: Option<OwnedFd>) -> Self {
        Self { pid: Some(pid), pidfd, parent: Parent::OtherShim, ..Self::requested(rank) }
    }

    /// It has ended, and its shim keeps its id from being reused.
    pub(super) fn is_zombie(&self) -> bool {
        self.parent == Parent::Shim && self.exit.is_some()
    }

    /// The shim of this engine tells its end.
    pub(super) fn is_told_by_shim(&self) -> bool {
        self.parent == Parent::Shim
    }

    /// Its id, where that cannot be another's now.
    pub(super) fn valid_pid(&self) -> Option<i32> {
        let is_held = self.parent == Parent::Shim || self.pidfd.is_some();
        self.pid.filter(|_| is_held)
    }

    /// The shim of this engine told how it ended.
    pub(super) fn ended(&mut self, pid: i32, EndNote { exit, cpu }: EndNote) {
        self.pid = Some(pid);
        self.exit = Some(exit);
        self.cpu = cpu;
    }

    /// Learns how it ended, of one that no shim of this engine holds; `None` where that is not
    /// known yet. `slots` is what was noted in its record.
    pub(super) fn observe_exit(
        &mut self,
        now: Time,
        slots: &Slots,
        poller: &Poller,
    ) -> Option<Exit> {
        let EndNote { exit, cpu } = match self.look(slots) {
            Observed::Ended(end) => end,
            Observed::Runs => return None,
            Observed::Unseen => {
                poller.remove(self.pidfd.take());
                let give_up_at = *self.give_up_at.get_or_insert(now + READ_LIMIT);
                // A rank of a shim that is just dying is not this engine's child yet.
                if now < give_up_at {
                    self.read_record_at = Some(now + READ_EVERY);
                    return None;
                }
                EndNote { exit: Exit::Unknown, cpu: Millis::ZERO }
            }
        };
        self.exit = Some(exit);
        self.cpu = cpu;
        poller.remove(self.pidfd.take());
        self.read_record_at = None;
        Some(exit)
    }

    fn look(&self, slots: &Slots) -> Observed {
        if let Some(&end) = slots.ends.get(&self.rank) {
            return Observed::Ended(end);
        }
        let child = (self.parent == Parent::Orphan).then_some(self.pid).flatten();
        match child.map(exit_status) {
            Some(Ok(Some((exit, cpu)))) => Observed::Ended(EndNote { exit, cpu }),
            Some(Ok(None)) => Observed::Runs,
            Some(Err(_)) | None => Observed::Unseen,
        }
    }
}
