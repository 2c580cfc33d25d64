//! The epoll(7) set of an engine.

use std::os::fd::AsFd;
use std::time::Duration;

use het_core::{LeaseId, Millis};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Most sources that one wait returns; the next returns the others.
const BATCH: usize = 64;

/// Bits of a source's number for its kind, and for its index within a lease.
const KIND_BITS: u32 = 3;
const INDEX_BITS: u32 = 16;

/// What became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Others sent events or ask for a wakeup.
    Channel,
    /// Progress files changed.
    Progress,
    /// The shim of a lease told something, or is gone.
    Shim(LeaseId),
    /// The process of a rank ended, which no shim of this engine holds.
    Rank(LeaseId, u16),
    /// Another process ended that the lease waits for.
    Other(LeaseId, u16),
    /// The checkpoint directory of a lease changed.
    Checkpoints(LeaseId),
    /// Directories changed in which gangs may save.
    Directories,
    /// A lease whose output is streamed wrote to it.
    Output(LeaseId),
}

/// How often a source is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// While it is readable.
    Level,
    /// Once; [`Poller::rearm`] reports it again.
    OneShot,
}

#[derive(Debug)]
pub(crate) struct Poller(Epoll);

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Self)
    }

    /// Watches a descriptor until [`Self::remove`], or until every copy is closed.
    pub(crate) fn add(&self, fd: impl AsFd, source: Source, trigger: Trigger) -> Result<(), Errno> {
        self.0.add(fd, event(source, trigger))
    }

    /// Stops watching a descriptor, and closes it. Closing alone is not enough while a child that
    /// was just started has a copy: it would be reported again and again.
    pub(crate) fn remove(&self, fd: Option<impl AsFd>) {
        if let Some(fd) = fd {
            // It is not an error if it is not in the set.
            let _ = self.0.delete(fd);
        }
    }

    /// Stops watching a descriptor that stays open.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        let _ = self.0.delete(fd);
    }

    pub(crate) fn rearm(&self, fd: impl AsFd, source: Source) {
        // It is in the set, so no allocation can fail.
        let _ = self.0.modify(fd, &mut event(source, Trigger::OneShot));
    }

    /// Waits until a source is ready, forever without a limit; empty at the limit and when a signal
    /// came first.
    pub(crate) fn wait(&self, limit: Option<Millis>) -> Vec<Source> {
        let timeout = limit.map_or(EpollTimeout::NONE, |limit| {
            EpollTimeout::try_from(Duration::from_millis(limit.0)).unwrap_or(EpollTimeout::MAX)
        });
        let mut ready = [EpollEvent::empty(); BATCH];
        let found = self.0.wait(&mut ready, timeout).unwrap_or(0);
        ready[..found].iter().filter_map(|event| Source::from_number(event.data())).collect()
    }
}

fn event(source: Source, trigger: Trigger) -> EpollEvent {
    let flags = match trigger {
        Trigger::Level => EpollFlags::EPOLLIN,
        Trigger::OneShot => EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT,
    };
    EpollEvent::new(flags, source.number())
}

impl Source {
    /// `LEASE INDEX KIND`, from the high bits to the low ones.
    fn number(self) -> u64 {
        let (kind, lease, index) = match self {
            Self::Channel => (0, LeaseId(0), 0),
            Self::Progress => (1, LeaseId(0), 0),
            Self::Rank(lease, index) => (2, lease, index),
            Self::Other(lease, index) => (3, lease, index),
            Self::Checkpoints(lease) => (4, lease, 0),
            Self::Output(lease) => (5, lease, 0),
            Self::Directories => (6, LeaseId(0), 0),
            Self::Shim(lease) => (7, lease, 0),
        };
        lease.0 << (INDEX_BITS + KIND_BITS) | u64::from(index) << KIND_BITS | kind
    }

    fn from_number(number: u64) -> Option<Self> {
        let index = (number >> KIND_BITS) as u16;
        let lease = LeaseId(number >> (INDEX_BITS + KIND_BITS));
        Some(match number & ((1 << KIND_BITS) - 1) {
            0 => Self::Channel,
            1 => Self::Progress,
            2 => Self::Rank(lease, index),
            3 => Self::Other(lease, index),
            4 => Self::Checkpoints(lease),
            5 => Self::Output(lease),
            6 => Self::Directories,
            7 => Self::Shim(lease),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_its_number() {
        let lease = LeaseId((1 << 45) - 1);
        let all = [
            Source::Channel,
            Source::Progress,
            Source::Rank(LeaseId(1), 0),
            Source::Rank(lease, u16::MAX),
            Source::Other(lease, 7),
            Source::Checkpoints(lease),
            Source::Output(lease),
            Source::Directories,
            Source::Shim(lease),
        ];
        for source in all {
            assert_eq!(Source::from_number(source.number()), Some(source));
        }
    }
}
