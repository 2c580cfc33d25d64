//! What all gangs of an engine share.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use het_core::{Event, Outcome, Time};

use crate::clock::Clock;
use crate::exit::KilledBy;
use crate::leaders::Leaders;
use crate::listener::Listener;
use crate::order::Order;
use crate::poller::Poller;
use crate::procfs;

#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) clock: Clock,
    pub(crate) poller: Poller,
    pub(crate) leaders: Leaders,
    /// `/dev/null`, to read and to write.
    pub(crate) null: OwnedFd,
    /// None where progress files cannot be watched: they are read at the end then.
    pub(crate) listener: Option<Listener>,
    /// As it was counted last.
    pub(crate) memory_kills: Option<u64>,
    /// What nobody has taken yet.
    pub(crate) facts: VecDeque<Fact>,
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
    pub(crate) record: PathBuf,
    /// Zombies.
    pub(crate) children: Vec<i32>,
}

impl Site {
    /// Who sent a SIGKILL, by whether the kernel has killed for want of memory since this was asked
    /// last.
    pub(crate) fn who_killed(&mut self) -> KilledBy {
        let before = std::mem::replace(&mut self.memory_kills, procfs::memory_kills());
        match (before, self.memory_kills) {
            (Some(before), Some(now)) if now > before => KilledBy::Kernel,
            (Some(_), Some(_)) => KilledBy::Somebody,
            _ => KilledBy::Unknown,
        }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        let at = self.clock.now();
        self.facts.push_back(Fact { at, event, remains: None });
    }

    /// The gang is gone; its children stay zombies until the end is durable.
    pub(crate) fn end(&mut self, order: &Order, outcome: Outcome, children: Vec<i32>) {
        let at = self.clock.now();
        let event = Event::StageEnded { lease: order.lease, outcome };
        let remains = Some(Remains { record: order.record(), children });
        self.facts.push_back(Fact { at, event, remains });
    }
}
