//! What an engine waits for, in one epoll(7) set.

use std::os::fd::AsFd;
use std::time::Duration;

use het_core::{LeaseId, Millis};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Sources that one wait gives; the others are given by the next.
const BATCH: usize = 64;

/// Bits of a source's number that say what it is, and which of a lease's.
const KIND_BITS: u32 = 3;
const INDEX_BITS: u32 = 16;

/// What has something to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Others reported facts or ask for a look.
    Inbox,
    /// Progress files changed.
    Progress,
    /// A rank's process ended.
    Rank(LeaseId, u16),
    /// Another process ended that the lease waits for.
    Other(LeaseId, u16),
    /// Something changed in a lease's checkpoint directory.
    Saves(LeaseId),
    /// A lease that others follow wrote something.
    Output(LeaseId),
}

/// How long a source is listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Closed,
    /// Until it was given once; [`Poller::listen_again`] goes on.
    Heard,
}

#[derive(Debug)]
pub(crate) struct Poller(Epoll);

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Self)
    }

    /// Listens to a descriptor until [`Self::stop`], or until nobody has it any more.
    pub(crate) fn listen(&self, fd: impl AsFd, source: Source, until: Until) -> Result<(), Errno> {
        self.0.add(fd, event(source, until))
    }

    /// Listens to it no more, and closes it. To close it alone is not enough while a child that has
    /// just been born has it as well: what is ready would be given again and again.
    pub(crate) fn stop(&self, fd: Option<impl AsFd>) {
        if let Some(fd) = fd {
            // What is not in the set is not listened to.
            let _ = self.0.delete(fd);
        }
    }

    pub(crate) fn listen_again(&self, fd: impl AsFd, source: Source) {
        // It was in the set once: nothing is allocated that could be missing.
        let _ = self.0.modify(fd, &mut event(source, Until::Heard));
    }

    /// Waits until something is ready, for ever where there is no limit; gives nothing at the limit
    /// and where a signal came first.
    pub(crate) fn wait(&self, limit: Option<Millis>) -> Vec<Source> {
        let timeout = limit.map_or(EpollTimeout::NONE, |limit| {
            EpollTimeout::try_from(Duration::from_millis(limit.0)).unwrap_or(EpollTimeout::MAX)
        });
        let mut ready = [EpollEvent::empty(); BATCH];
        let found = self.0.wait(&mut ready, timeout).unwrap_or(0);
        ready[..found].iter().filter_map(|event| Source::from_number(event.data())).collect()
    }
}

fn event(source: Source, until: Until) -> EpollEvent {
    let flags = match until {
        Until::Closed => EpollFlags::EPOLLIN,
        Until::Heard => EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT,
    };
    EpollEvent::new(flags, source.number())
}

impl Source {
    /// `LEASE INDEX KIND`, from the high bits to the low ones.
    fn number(self) -> u64 {
        let (kind, lease, index) = match self {
            Self::Inbox => (0, LeaseId(0), 0),
            Self::Progress => (1, LeaseId(0), 0),
            Self::Rank(lease, index) => (2, lease, index),
            Self::Other(lease, index) => (3, lease, index),
            Self::Saves(lease) => (4, lease, 0),
            Self::Output(lease) => (5, lease, 0),
        };
        lease.0 << (INDEX_BITS + KIND_BITS) | u64::from(index) << KIND_BITS | kind
    }

    fn from_number(number: u64) -> Option<Self> {
        let index = (number >> KIND_BITS) as u16;
        let lease = LeaseId(number >> (INDEX_BITS + KIND_BITS));
        Some(match number & ((1 << KIND_BITS) - 1) {
            0 => Self::Inbox,
            1 => Self::Progress,
            2 => Self::Rank(lease, index),
            3 => Self::Other(lease, index),
            4 => Self::Saves(lease),
            5 => Self::Output(lease),
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
            Source::Inbox,
            Source::Progress,
            Source::Rank(LeaseId(1), 0),
            Source::Rank(lease, u16::MAX),
            Source::Other(lease, 7),
            Source::Saves(lease),
            Source::Output(lease),
        ];
        for source in all {
            assert_eq!(Source::from_number(source.number()), Some(source));
        }
    }
}
