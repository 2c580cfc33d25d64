//! How the engine and the thread of a gang reach each other.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use het_core::{Event, Millis, Outcome};
use nix::sys::eventfd::EventFd;

use crate::clock::Clock;
use crate::inlet::{Message, Remains};
use crate::leaders::Leaders;
use crate::listener::Ear;
use crate::order::Order;

/// What the engine tells a gang.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Command {
    Stop {
        reason: &'static str,
        grace: Millis,
    },
    /// End it at once.
    Kill,
    /// Leave it alone: its processes go on without a supervisor.
    Detach,
}

/// How a gang is reached and whom it tells.
#[derive(Debug)]
pub(crate) struct Wires {
    pub(crate) clock: Clock,
    pub(crate) outbox: SyncSender<Message>,
    pub(crate) leaders: Arc<Leaders>,
    /// Hears of the progress file; none where it cannot be watched.
    pub(crate) ear: Option<Ear>,
    pub(crate) commands: Receiver<Command>,
    /// Written after every command.
    pub(crate) waker: Arc<EventFd>,
}

impl Wires {
    pub(crate) fn send(&self, event: Event) {
        // Nobody listens any more once the engine is gone.
        let _ = self.outbox.send(Message::Fact(self.clock.now(), event));
    }

    /// The gang is gone; its children stay zombies until the end is durable.
    pub(crate) fn end(&self, order: &Order, outcome: Outcome, children: Vec<i32>) {
        let event = Event::StageEnded { lease: order.lease, outcome };
        let remains = Remains { record: order.record(), children };
        // Nobody listens any more once the engine is gone.
        let _ = self.outbox.send(Message::End(self.clock.now(), event, remains));
    }
}
