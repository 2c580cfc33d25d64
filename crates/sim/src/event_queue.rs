//! What will happen, in order of time and then of entry: no two orders for the same inputs.

use std::collections::BTreeMap;

use het_core::{Event, LeaseId, Time};

use crate::Fault;

/// Something due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScheduledEvent {
    /// A fact that only needs to be reported.
    Emit(Box<Event>),
    InjectFault(Fault),
    /// The lease has stopped as asked, with or without a checkpoint.
    Stopped {
        lease: LeaseId,
        saved: bool,
    },
    /// The lease reaches its next checkpoint or its end. Void if the lease was rescheduled since.
    Milestone {
        lease: LeaseId,
        epoch: u32,
    },
}

#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    rows: BTreeMap<(Time, u64), ScheduledEvent>,
    entries: u64,
}

impl EventQueue {
    pub fn add(&mut self, at: Time, due: ScheduledEvent) {
        self.rows.insert((at, self.entries), due);
        self.entries += 1;
    }

    pub fn next_time(&self) -> Option<Time> {
        self.rows.keys().next().map(|&(at, _)| at)
    }

    /// Facts that are on their way.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.rows.values().filter_map(|due| match due {
            ScheduledEvent::Emit(event) => Some(event.as_ref()),
            _ => None,
        })
    }

    pub fn pop(&mut self) -> Option<(Time, ScheduledEvent)> {
        self.rows.pop_first().map(|((at, _), due)| (at, due))
    }
}
