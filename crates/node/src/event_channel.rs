//! How facts reach whoever waits for the next one.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use het_core::{Event, Time};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::clock::Clock;

/// Facts that wait to be taken; whoever reports one more waits.
const FACTS_MAX: usize = 16_384;

/// Where facts of others arrive.
#[derive(Debug)]
pub(crate) struct Inbox {
    facts: Receiver<(Time, Event)>,
    sender: SyncSender<(Time, Event)>,
    wake_fd: Arc<WakeFd>,
}

/// Readable while somebody wants to be heard.
#[derive(Debug)]
pub(crate) struct WakeFd {
    fd: EventFd,
    /// So that waking one that is awake costs nothing.
    rings: AtomicBool,
}

impl WakeFd {
    fn ring(&self) {
        if !self.rings.swap(true, Ordering::SeqCst) {
            // A counter that is full is readable as well.
            let _ = self.fd.write(1);
        }
    }
}

impl Inbox {
    pub(crate) fn new() -> Result<Self, Errno> {
        let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (sender, facts) = sync_channel(FACTS_MAX);
        Ok(Self { facts, sender, wake_fd: Arc::new(WakeFd { fd, rings: AtomicBool::new(false) }) })
    }

    pub(crate) fn port(&self, clock: Clock) -> Port {
        Port { clock, sender: self.sender.clone(), wake_fd: Arc::clone(&self.wake_fd) }
    }

    /// What was reported so far. Whoever rings from now on rings anew.
    pub(crate) fn empty(&self) -> impl Iterator<Item = (Time, Event)> + '_ {
        // Only resets the counter; it was readable.
        let _ = self.wake_fd.fd.read();
        self.wake_fd.rings.store(false, Ordering::SeqCst);
        self.facts.try_iter()
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.fd.as_fd()
    }
}

/// Lets others put facts among the engine's own: a submitted job, Ctrl-C. Cheap to clone; while
/// one exists, [`het_engine::Engine::next_event`] without a limit has something to wait for.
#[derive(Debug, Clone)]
pub struct EventSender(pub(crate) Arc<Port>);

#[derive(Debug)]
pub(crate) struct Port {
    clock: Clock,
    sender: SyncSender<(Time, Event)>,
    wake_fd: Arc<WakeFd>,
}

impl EventSender {
    /// Reports a fact as of now and wakes [`het_engine::Engine::next_event`]. Waits where the queue
    /// is full; without effect once the engine is gone.
    pub fn send(&self, event: Event) {
        let fact = (self.0.clock.now(), event);
        if let Err(TrySendError::Full(fact)) = self.0.sender.try_send(fact) {
            self.wake();
            let _ = self.0.sender.send(fact);
        }
        self.wake();
    }

    /// Makes [`het_engine::Engine::next_event`] return at once, without a fact if there is none.
    pub fn wake(&self) {
        self.0.wake_fd.ring();
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // Whoever waits for facts of others waits in vain from now on.
        self.wake_fd.ring();
    }
}
