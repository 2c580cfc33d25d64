//! What all gangs of an engine share.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use het_core::{Event, LeaseId, Millis, Outcome, Time};

use crate::cgroup::CgroupPool;
use crate::checkpoint::DirectoryWatch;
use crate::clock::Clock;
use crate::device_holds::HoldDevices;
use crate::poller::Poller;
use crate::process::{Environments, Launcher, Orphans, ShimConnection, procfs};
use crate::progress::ProgressWatch;
use crate::recovery::{RecordFile, RecordFiles};
use crate::remover::Remover;
use crate::run_dir::lease_files;

/// Reading the kernel's count is the most expensive part of a start, so it is cached this long.
const OOM_KILLS_AGE_MAX: Millis = Millis(1_000);

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) clock: Clock,
    pub(crate) poller: Poller,
    pub(crate) orphans: Orphans,
    /// Shims that died before their gangs ended, which is how orphans come.
    pub(crate) lost_shims: u64,
    /// `/dev/null`, for reading and writing.
    pub(crate) null: OwnedFd,
    pub(crate) launcher: Launcher,
    pub(crate) device_holds: Option<Arc<dyn HoldDevices>>,
    /// Variables of submitters.
    pub(crate) environments: Environments,
    /// None where progress files cannot be watched: they are read at the end then.
    pub(crate) progress_watch: Option<ProgressWatch>,
    /// None where checkpoints are not looked for.
    pub(crate) directory_watch: Option<DirectoryWatch>,
    pub(crate) oom_kills: OomKills,
    pub(crate) cgroups: CgroupPool,
    pub(crate) run_dir: PathBuf,
    pub(crate) remover: Remover,
    /// Of leases whose end is durable.
    pub(crate) cleanups: Vec<Cleanup>,
    pub(crate) record_files: RecordFiles,
    /// Events that the engine has not returned yet.
    pub(crate) events: VecDeque<QueuedEvent>,
}

/// The kernel's count of OOM kills when it was last read.
#[derive(Debug, Default)]
pub(crate) struct OomKills {
    count: Option<u64>,
    read_again_at: Time,
}

#[derive(Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) at: Time,
    pub(crate) event: Event,
    /// For the end of a lease.
    pub(crate) cleanup: Option<Cleanup>,
}

/// What is kept of a gang until its end is durable. After a crash in between, the next supervisor
/// finds from it how the gang ended.
#[derive(Debug)]
pub(crate) struct Cleanup {
    /// Beside which there may be files; none where there is only a record.
    pub(crate) lease_dir: Option<PathBuf>,
    pub(crate) record: RecordCleanup,
    pub(crate) shim: ShimCleanup,
}

/// What happens to a shim.
#[derive(Debug)]
pub(crate) enum ShimCleanup {
    /// It is gone, or another engine's.
    None,
    /// It collects its ranks and ends.
    Close(ShimConnection),
    /// The shim with this id collects its ranks and waits for another gang.
    Release(ShimConnection, i32),
}

/// What happens to the file of a record.
#[derive(Debug)]
pub(crate) enum RecordCleanup {
    None,
    /// The record of another lease is written to it.
    Reuse(RecordFile),
    Discard(RecordFile),
}

impl Context {
    /// How many processes the kernel has killed for lack of memory, about when a gang starts.
    pub(crate) fn oom_kills(&mut self) -> Option<u64> {
        let now = self.clock.now();
        if now >= self.oom_kills.read_again_at {
            let count = procfs::oom_kills();
            self.oom_kills = OomKills { count, read_again_at: now + OOM_KILLS_AGE_MAX };
        }
        self.oom_kills.count
    }

    pub(crate) fn emit(&mut self, event: Event) {
        let at = self.clock.now();
        self.events.push_back(QueuedEvent { at, event, cleanup: None });
    }

    /// Emits the end of a lease. Its ranks stay zombies until that is durable.
    pub(crate) fn emit_end(&mut self, lease: LeaseId, outcome: Outcome, cleanup: Cleanup) {
        let (at, event) = (self.clock.now(), Event::StageEnded { lease, outcome });
        self.events.push_back(QueuedEvent { at, event, cleanup: Some(cleanup) });
    }

    /// Whether a shim or a launcher has died: what they had left came to this process.
    pub(crate) fn may_have_orphans(&self) -> bool {
        self.lost_shims > 0 || self.launcher.was_replaced()
    }

    /// Removes what is left of leases whose end is durable; gives whether there was any.
    pub(crate) fn clean_up(&mut self) -> bool {
        let is_due = !self.cleanups.is_empty();
        for Cleanup { lease_dir, record, shim } in self.cleanups.drain(..) {
            // The record goes last: a crash in between leaves something to find.
            for path in lease_dir.as_deref().into_iter().flat_map(lease_files) {
                self.remover.remove(&self.run_dir, &path);
            }
            match record {
                RecordCleanup::None => {}
                RecordCleanup::Reuse(file) => self.record_files.reuse(file),
                RecordCleanup::Discard(file) => file.discard(),
            }
            match shim {
                ShimCleanup::None => {}
                ShimCleanup::Close(shim) => drop(shim),
                ShimCleanup::Release(shim, pid) => self.launcher.release(shim, pid),
            }
        }
        is_due
    }
}
