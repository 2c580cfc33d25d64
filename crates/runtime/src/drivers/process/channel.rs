//! Channels: direct connections from one worker to another, over which contents go that would
//! otherwise pass through the program.
//!
//! A channel has one direction and a number. The program tells its second end to expect it and its
//! first end where the second listens, and then which contents go over it; what is not awaited yet
//! waits in the socket. Either end may give a channel up, which it says, and the second end's word
//! is the last: nothing is stored after it, so that the program may have the rest come another way.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use super::super::cpu::{caught, write};
use super::Portable;
use super::protocol::{Assembly, ChannelId, Door, RemoteCopy, Report, chunks};
use super::socket::{ConnectError, Frames, Home, Listener, Pending, ReadError, Socket};
use super::worker::{OWN, Worker};
use crate::{HandleId, MEMORIES_MAX, TransferId};

/// Connections that are asked at a time which channel they bring.
const GREETINGS_MAX: usize = 2 * MEMORIES_MAX;

/// Before a system is asked again that had no room for another connection.
const PAUSE: Duration = Duration::from_millis(50);

/// How often the program hears that a large content goes on.
const PROGRESS: Duration = Duration::from_secs(1);

/// Where this worker listens to others, and the channels that end here.
#[derive(Debug)]
pub struct Incoming {
    listener: Listener,
    state: Mutex<State>,
    /// What the state says is another thing.
    changed: Condvar,
    greetings: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    has_ended: bool,
    channels: BTreeMap<ChannelId, Channel>,
}

/// One that the program has this worker expect, until either gives it up.
#[derive(Debug, Default)]
struct Channel {
    /// Once its first end has come.
    socket: Option<Socket>,
    awaited: BTreeMap<TransferId, Awaited>,
}

#[derive(Debug, Clone, Copy)]
struct Awaited {
    handle: HandleId,
    bytes: u64,
}

impl Incoming {
    /// Listens; with it what others have to be told to come. Where nobody can come all goes
    /// through the program.
    pub fn open(home: &Home) -> Option<(Self, Door)> {
        let (listener, door) = home.listen().ok()?;
        let (state, changed, greetings) = Default::default();
        Some((Self { listener, state, changed, greetings }, door))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn expect(&self, channel: ChannelId) {
        self.state().channels.entry(channel).or_default();
        self.changed.notify_all();
    }

    /// Of a channel that was given up nothing is awaited: the program hears of that.
    pub fn await_copy(
        &self,
        channel: ChannelId,
        RemoteCopy { transfer, handle, bytes }: RemoteCopy,
    ) {
        if let Some(channel) = self.state().channels.get_mut(&channel) {
            channel.awaited.insert(transfer, Awaited { handle, bytes });
        }
        self.changed.notify_all();
    }

    /// Nobody comes any more, and nothing.
    pub fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        state.channels.values().filter_map(|own| own.socket.as_ref()).for_each(Socket::shutdown);
        drop(state);
        self.changed.notify_all();
        self.listener.shutdown();
    }

    /// Gives a channel the connection of whoever came with it, once the program has said that
    /// somebody would; `None` where it does not in so long, or somebody is there already.
    fn join(&self, channel: ChannelId, socket: Socket, most: Duration) -> Option<()> {
        let by = Instant::now() + most;
        let mut state = self.state();
        while !state.has_ended {
            if let Some(found) = state.channels.get_mut(&channel) {
                let is_first = found.socket.is_none();
                found.socket.get_or_insert(socket);
                return is_first.then_some(());
            }
            let left = Some(by.saturating_duration_since(Instant::now()));
            let waited = self.changed.wait_timeout(state, left.filter(|left| !left.is_zero())?);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    /// What is to come next, once the program has said so; `None` once the channel is given up.
    fn awaited(&self, channel: ChannelId, transfer: TransferId) -> Option<Awaited> {
        let mut state = self.state();
        loop {
            let found = state.channels.get(&channel).filter(|_| !state.has_ended)?;
            if let Some(awaited) = found.awaited.get(&transfer) {
                return Some(*awaited);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<B: Portable> Worker<B> {
    /// Lets other workers in, each in a thread of its own, until this one ends.
    pub fn let_in<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let Some(incoming) = &self.incoming else { return };
        loop {
            match incoming.listener.pending(&self.limits) {
                Ok(pending) => {
                    if incoming.greetings.fetch_add(1, Ordering::SeqCst) >= GREETINGS_MAX {
                        incoming.greetings.fetch_sub(1, Ordering::SeqCst);
                        continue;
                    }
                    scope.spawn(move || self.take_in(incoming, pending));
                }
                Err(_) if incoming.state().has_ended => return,
                Err(ConnectError::Nobody(_)) => {}
                // Such as too many open files: there may be room later.
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    /// The second end of a channel.
    fn take_in(&self, incoming: &Incoming, pending: Pending) {
        let greeted = pending.greeting(&self.limits);
        let taken = greeted.ok().and_then(|(frames, channel)| {
            let clone = || frames.socket().try_clone().ok();
            let (socket, kept) = clone().zip(clone())?;
            incoming.join(channel, kept, self.limits.handshake)?;
            Some((frames, socket, channel))
        });
        incoming.greetings.fetch_sub(1, Ordering::SeqCst);
        let Some((frames, mut socket, channel)) = taken else { return };
        let mut opened = Vec::new();
        Report::Opened(channel).write(&mut opened);
        let received = socket.write_all(&opened).map_err(|error| error.to_string());
        let received = received.and_then(|()| self.receive_contents(incoming, frames, channel));
        if let Err(reason) = received {
            self.close_incoming(channel, reason);
        }
    }

    /// Takes what comes over a channel, until it is given up.
    ///
    /// # Errors
    /// In words, why this end gives it up.
    fn receive_contents(
        &self,
        incoming: &Incoming,
        mut frames: Frames,
        channel: ChannelId,
    ) -> Result<(), String> {
        let mut coming: Option<(TransferId, Awaited, Assembly)> = None;
        let mut told = Instant::now();
        loop {
            let frame = frames.next(|_| match incoming.state().channels.contains_key(&channel) {
                true => Ok(()),
                false => Err("it is closed".to_owned()),
            });
            let frame = frame.map_err(|error: ReadError| error.to_string())?;
            let chunk = match Report::read(frame) {
                Ok(Report::Content(chunk)) => chunk,
                Ok(_) => return Err("it sent something else than a content".to_owned()),
                Err(error) => return Err(format!("it sent {error}")),
            };
            let transfer = chunk.transfer;
            let (awaited, mut assembly) = match coming.take() {
                Some((of, awaited, assembly)) if of == transfer => (awaited, assembly),
                Some(_) => return Err("it sent contents in each other".to_owned()),
                None => {
                    let Some(awaited) = incoming.awaited(channel, transfer) else { return Ok(()) };
                    (awaited, Assembly::new(awaited.bytes))
                }
            };
            match assembly.add(&chunk).map_err(|error| format!("it sent {error}"))? {
                Some(content) => self.store_from(incoming, channel, (transfer, awaited), content),
                None => coming = Some((transfer, awaited, assembly)),
            }
            if told.elapsed() >= PROGRESS {
                told = Instant::now();
                self.report(&Report::Progress(channel));
            }
        }
    }

    /// Stores a content that came over a channel, unless that was given up meanwhile: the buffer
    /// may be filled from elsewhere then.
    fn store_from(
        &self,
        incoming: &Incoming,
        channel: ChannelId,
        (transfer, awaited): (TransferId, Awaited),
        content: Vec<u8>,
    ) {
        let made = caught(|| B::from_bytes(content));
        let mut state = incoming.state();
        let found = state.channels.get_mut(&channel);
        if found.is_none_or(|own| own.awaited.remove(&transfer).is_none()) {
            return;
        }
        let (old, report) = match made {
            Ok(content) => {
                let buffer = self.shared.buffer(awaited.handle, OWN);
                let old = std::mem::replace(&mut *write(&buffer), content);
                (Some(old), Report::Stored { transfer })
            }
            Err(reason) => (None, Report::CopyFailed { transfer, reason }),
        };
        // With the lock: what is said of the channel later is heard later.
        self.report(&report);
        drop(state);
        // What it replaces may take long to end, or panic.
        let _ = caught(|| {
            drop(old);
            Ok(())
        });
    }

    /// Gives up a channel that ends here, and says so; of one that is given up already nothing is
    /// left to say.
    pub fn close_incoming(&self, channel: ChannelId, reason: String) {
        let Some(incoming) = &self.incoming else { return };
        let mut state = incoming.state();
        let Some(Channel { socket, .. }) = state.channels.remove(&channel) else { return };
        self.report(&Report::Closed { channel, reason });
        drop(state);
        socket.iter().for_each(Socket::shutdown);
        incoming.changed.notify_all();
    }

    /// The first end of a channel: goes to another worker and sends it what it is told to, until
    /// there is nothing more to come.
    pub fn send_over(&self, channel: ChannelId, door: &Door, copies: Receiver<RemoteCopy>) {
        let sent = self.open_channel(channel, door).and_then(|mut socket| {
            self.report(&Report::Opened(channel));
            let mut frame = Vec::new();
            copies.into_iter().try_for_each(|copy| {
                let content = self.content(&copy)?;
                chunks(copy.transfer, &content).try_for_each(|chunk| {
                    frame.clear();
                    Report::Content(chunk).write(&mut frame);
                    socket.write_all(&frame).map_err(|error| error.to_string())
                })
            })
        });
        if let Err(reason) = sent {
            self.report(&Report::Closed { channel, reason });
        }
    }

    /// # Errors
    /// In words, another worker that can't be reached or does not let this one in.
    fn open_channel(
        &self,
        channel: ChannelId,
        Door { place, token }: &Door,
    ) -> Result<Socket, String> {
        let by = Instant::now() + 2 * self.limits.handshake;
        let mut socket = self.home.connect(place, &self.limits).map_err(|error| match error {
            ConnectError::Socket(error) => format!("`{place}` can't be reached: {error}"),
            error => error.to_string(),
        })?;
        let mut greeting = Vec::new();
        Report::Greeting { token: *token, channel }.write(&mut greeting);
        socket.write_all(&greeting).map_err(|error| error.to_string())?;
        let mut frames = Frames::new(socket);
        let frame = frames.next(|_| match Instant::now() < by {
            true => Ok(()),
            false => Err("it did not let this worker in in time".to_owned()),
        });
        match Report::read(frame.map_err(|error| error.to_string())?) {
            Ok(Report::Opened(opened)) if opened == channel => {}
            _ => return Err("it did not let this worker in".to_owned()),
        }
        frames.socket().try_clone().map_err(|error| error.to_string())
    }
}
