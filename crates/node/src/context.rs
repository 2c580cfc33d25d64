//! What all gangs of an engine share.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use het_core::{Event, LeaseId, Millis, Outcome, Time};

use crate::cgroup::Hierarchy;
use crate::clock::Clock;
use crate::poller::Poller;
use crate::process::procfs;
use crate::process::ranks::Leaders;
use crate::process::sys::Spawner;
use crate::progress::watch::Listener;
use crate::recovery::record;
use crate::recovery::record_file::{RecordFile, Spares};

/// A look at the kernel's count costs more than all else at a start.
const COUNT_EVERY: Millis = Millis(1_000);

#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) clock: Clock,
    pub(crate) poller: Poller,
    pub(crate) leaders: Leaders,
    /// `/dev/null`, to read and to write.
    pub(crate) null: OwnedFd,
    pub(crate) spawner: Spawner,
    /// None where progress files cannot be watched: they are read at the end then.
    pub(crate) listener: Option<Listener>,
    pub(crate) memory_kills: MemoryKills,
    pub(crate) hierarchy: Hierarchy,
    /// Of leases whose end is durable.
    pub(crate) durable: Vec<Remains>,
    /// Where the next leases are recorded.
    pub(crate) spares: Spares,
    /// What nobody has taken yet.
    pub(crate) facts: VecDeque<Fact>,
}

/// The kernel's count, as it was looked at last.
#[derive(Debug, Default)]
pub(crate) struct MemoryKills {
    count: Option<u64>,
    look_again_at: Time,
}

#[derive(Debug)]
pub(crate) struct Fact {
    pub(crate) at: Time,
    pub(crate) event: Event,
    pub(crate) remains: Option<Remains>,
}

/// What is kept of a gang until its end is durable: what comes after a death in between has to find
/// how it ended.
#[derive(Debug)]
pub(crate) struct Remains {
    /// Beside which it may have left files; none where it has only its record.
    pub(crate) lease_dir: Option<PathBuf>,
    pub(crate) record: LastOf,
    /// Zombies.
    pub(crate) children: Vec<i32>,
}

/// What becomes of the file of a record.
#[derive(Debug)]
pub(crate) enum LastOf {
    Nothing,
    /// Another lease's record is written to it.
    Kept(RecordFile),
    Discarded(RecordFile),
}

impl Site {
    /// How often the kernel has killed for want of memory, as far as is known at the start of a
    /// gang.
    pub(crate) fn memory_kills(&mut self) -> Option<u64> {
        let now = self.clock.now();
        if now >= self.memory_kills.look_again_at {
            let count = procfs::memory_kills();
            self.memory_kills = MemoryKills { count, look_again_at: now + COUNT_EVERY };
        }
        self.memory_kills.count
    }

    pub(crate) fn tell(&mut self, event: Event) {
        let at = self.clock.now();
        self.facts.push_back(Fact { at, event, remains: None });
    }

    /// Removes what is needed no more.
    pub(crate) fn forget(&mut self) {
        for Remains { lease_dir, record, children } in self.durable.drain(..) {
            // The record last: a death in between leaves something to find.
            lease_dir.as_deref().into_iter().for_each(record::forget_rest);
            match record {
                LastOf::Nothing => {}
                LastOf::Kept(record_file) => self.spares.keep(record_file),
                LastOf::Discarded(record_file) => record_file.discard(),
            }
            children.into_iter().for_each(|pid| self.leaders.collect(pid));
        }
    }

    /// The gang is gone; its children stay zombies until the end is durable.
    pub(crate) fn end(&mut self, lease: LeaseId, outcome: Outcome, remains: Remains) {
        let (at, event) = (self.clock.now(), Event::StageEnded { lease, outcome });
        self.facts.push_back(Fact { at, event, remains: Some(remains) });
    }
}
