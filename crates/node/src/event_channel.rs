//! The channel through which other threads send events to an engine.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use het_core::{Event, Time};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::clock::Clock;

/// Most events in the queue; further senders block.
const EVENTS_MAX: usize = 16_384;

/// The engine's end. Its descriptor is readable while there is something to receive.
#[derive(Debug)]
pub(crate) struct EventReceiver {
    events: Receiver<(Time, Event)>,
    sender: SyncSender<(Time, Event)>,
    waker: Arc<Waker>,
}

/// Readable after a wakeup.
#[derive(Debug)]
struct Waker {
    fd: EventFd,
    /// So that further wakeups make no system call.
    is_woken: AtomicBool,
}

impl Waker {
    fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::SeqCst) {
            // A full counter is readable as well.
            let _ = self.fd.write(1);
        }
    }
}

impl EventReceiver {
    pub(crate) fn new() -> Result<Self, Errno> {
        let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (sender, events) = sync_channel(EVENTS_MAX);
        let waker = Arc::new(Waker { fd, is_woken: AtomicBool::new(false) });
        Ok(Self { events, sender, waker })
    }

    pub(crate) fn channel(&self, clock: Clock) -> Channel {
        Channel { clock, sender: self.sender.clone(), waker: Arc::clone(&self.waker) }
    }

    /// Wakes the engine, and is nothing that it waits for.
    pub(crate) fn silent_waker(&self) -> het_engine::Waker {
        let waker = Arc::clone(&self.waker);
        het_engine::Waker::new(move || waker.wake())
    }

    /// The events so far. Later senders wake the engine again.
    pub(crate) fn drain(&self) -> impl Iterator<Item = (Time, Event)> + '_ {
        // Only resets the counter.
        let _ = self.waker.fd.read();
        self.waker.is_woken.store(false, Ordering::SeqCst);
        self.events.try_iter()
    }
}

impl AsFd for EventReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.fd.as_fd()
    }
}

/// Adds events to those of the engine: a submitted job, Ctrl-C. Cheap to clone; while one exists,
/// [`het_engine::Engine::next_event`] without a limit has something to wait for.
#[derive(Debug, Clone)]
pub struct EventSender(pub(crate) Arc<Channel>);

/// What all senders of an engine share.
#[derive(Debug)]
pub(crate) struct Channel {
    clock: Clock,
    sender: SyncSender<(Time, Event)>,
    waker: Arc<Waker>,
}

impl EventSender {
    /// Sends an event with the current time and wakes [`het_engine::Engine::next_event`]. Blocks
    /// while the queue is full; without effect once the engine is gone.
    pub fn send(&self, event: Event) {
        let event = (self.0.clock.now(), event);
        if let Err(TrySendError::Full(event)) = self.0.sender.try_send(event) {
            self.wake();
            let _ = self.0.sender.send(event);
        }
        self.wake();
    }

    /// Makes [`het_engine::Engine::next_event`] return at once, without an event if there is none.
    pub fn wake(&self) {
        self.0.waker.wake();
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // An engine that waits only for events of others would wait forever.
        self.waker.wake();
    }
}
