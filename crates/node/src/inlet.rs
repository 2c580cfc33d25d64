//! How facts reach whoever waits for the next one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use het_core::{Event, Time};

use crate::clock::Clock;

/// What lies in the queue of the engine.
#[derive(Debug)]
pub(crate) enum Message {
    Fact(Time, Event),
    /// The end of a lease.
    End(Time, Event, Remains),
    /// Whoever waits is to look again: somebody asks for it, or the last inlet is gone.
    Wake,
}

/// What is kept of a gang until its end is durable: what comes after a death in between has to find
/// how it ended.
#[derive(Debug)]
pub(crate) struct Remains {
    pub(crate) record: PathBuf,
    /// Zombies.
    pub(crate) children: Vec<i32>,
}

/// Lets others put facts among the engine's own: a submitted job, Ctrl-C. Cheap to clone; while
/// one exists, [`het_engine::Engine::next_event`] without a limit has something to wait for.
#[derive(Debug, Clone)]
pub struct Inlet(pub(crate) Arc<Port>);

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) clock: Clock,
    pub(crate) outbox: SyncSender<Message>,
}

impl Inlet {
    /// Reports a fact as of now and wakes [`het_engine::Engine::next_event`]. Waits where the queue
    /// is full; without effect once the engine is gone.
    pub fn send(&self, event: Event) {
        let _ = self.0.outbox.send(Message::Fact(self.0.clock.now(), event));
    }

    /// Makes [`het_engine::Engine::next_event`] return at once, without a fact if there is none.
    pub fn wake(&self) {
        // A full queue wakes whoever waits as well.
        let _ = self.0.outbox.try_send(Message::Wake);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // A full queue wakes whoever waits as well.
        let _ = self.outbox.try_send(Message::Wake);
    }
}
