//! Channels: direct connections from one worker to another, over which contents go that would
//! otherwise pass through the program.
//!
//! A channel has one direction, a number and a token of its own. The program tells its second end
//! to expect it and its first end where the second listens, and then which contents go over it;
//! what is not awaited yet waits in the socket. Either end may give a channel up, which it says,
//! and the second end's word is the last: nothing is stored after it, so that the program may have
//! the rest come another way.
//!
//! Each connection has a thread of its own, which nobody waits for: it ends when the connection is
//! shut down, at the latest with the process.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::super::super::cpu::{caught, write};
use super::super::protocol::{Assembly, ChannelId, RemoteCopy, Report, TOKEN, chunks};
use super::super::socket::{ConnectError, Frames, Home, Listener, Pending, Socket, Token};
use super::super::{Limits, Portable};
use super::{OWN, Worker};
use crate::{HandleId, MEMORIES_MAX, TransferId};

/// Connections that are asked at a time which channel they bring.
const GREETINGS_MAX: usize = 2 * MEMORIES_MAX;

/// Before a system is asked again that had no room for another connection.
const PAUSE: Duration = Duration::from_millis(50);

/// How often the program hears that a large content goes on.
const PROGRESS: Duration = Duration::from_secs(1);

/// A worker's connections to others, and where it listens to them.
#[derive(Debug)]
pub struct Channels {
    home: Home,
    /// `None` where others can't come: all that is for this worker passes through the program.
    listener: Option<Listener>,
    limits: Limits,
    state: Mutex<State>,
    /// What the state says is another thing.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    has_ended: bool,
    incoming: BTreeMap<ChannelId, Incoming>,
    outgoing: BTreeMap<ChannelId, Outgoing>,
    /// Connections of which it is not known yet what they bring.
    greetings: BTreeMap<u64, Socket>,
    next: u64,
    /// What the program is to hear, in this order, and nobody has sent yet.
    reports: Vec<u8>,
}

/// A channel that ends here, from when the program has this worker expect it until either gives it
/// up.
#[derive(Debug)]
struct Incoming {
    token: Token,
    /// Once its first end has come.
    socket: Option<Socket>,
    awaited: BTreeMap<TransferId, Awaited>,
}

#[derive(Debug, Clone, Copy)]
struct Awaited {
    handle: HandleId,
    bytes: u64,
}

/// A channel that begins here, until either gives it up.
#[derive(Debug)]
struct Outgoing {
    copies: Sender<RemoteCopy>,
    /// Once it is connected.
    socket: Option<Socket>,
}

impl Channels {
    /// Listens where it can; with it what others have to be told to come.
    pub fn open(home: Home, limits: Limits) -> (Self, Option<String>) {
        let (listener, place) = home.listen().ok().unzip();
        let (state, changed) = Default::default();
        (Self { home, listener, limits, state, changed }, place)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was reported and is not sent. Whoever takes it sends it before others take more.
    pub fn take_reports(&self) -> Vec<u8> {
        std::mem::take(&mut self.state().reports)
    }

    pub fn expect(&self, channel: ChannelId, token: [u8; TOKEN]) {
        let incoming = || Incoming { token: Token(token), socket: None, awaited: BTreeMap::new() };
        self.state().incoming.entry(channel).or_insert_with(incoming);
        self.changed.notify_all();
    }

    /// Of a channel that was given up nothing is awaited: the program hears of that.
    pub fn await_copy(&self, channel: ChannelId, copy: RemoteCopy) {
        let RemoteCopy { transfer, handle, bytes } = copy;
        if let Some(channel) = self.state().incoming.get_mut(&channel) {
            channel.awaited.insert(transfer, Awaited { handle, bytes });
        }
        self.changed.notify_all();
    }

    /// Over a channel that was given up nothing goes: the program hears of that, too.
    pub fn send(&self, channel: ChannelId, copy: RemoteCopy) {
        if let Some(Outgoing { copies, .. }) = self.state().outgoing.get(&channel) {
            // Whoever takes them ends where the channel does.
            let _ = copies.send(copy);
        }
    }

    /// Nobody comes any more, and nothing goes on.
    pub fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        let incoming = std::mem::take(&mut state.incoming).into_values();
        let outgoing = std::mem::take(&mut state.outgoing).into_values();
        let open = incoming.filter_map(|own| own.socket);
        let open = open.chain(outgoing.filter_map(|own| own.socket));
        open.chain(std::mem::take(&mut state.greetings).into_values())
            .for_each(|socket| socket.shutdown());
        drop(state);
        self.changed.notify_all();
        self.listener.iter().for_each(Listener::shutdown);
    }

    /// Remembers a connection until it is known what it brings; `None` where there are too many.
    fn greet(&self, socket: Socket) -> Option<u64> {
        let mut state = self.state();
        if state.has_ended || state.greetings.len() >= GREETINGS_MAX {
            return None;
        }
        state.next += 1;
        let key = state.next;
        state.greetings.insert(key, socket);
        Some(key)
    }

    /// Gives a channel the connection of whoever came with it, once the program has said that
    /// somebody would; false of a stranger, and where the program does not say so in time.
    fn join(&self, channel: ChannelId, token: [u8; TOKEN], socket: Socket) -> bool {
        let by = Instant::now() + self.limits.handshake;
        let mut state = self.state();
        while !state.has_ended {
            if let Some(found) = state.incoming.get_mut(&channel) {
                let is_it = found.socket.is_none() && found.token.is(&token);
                if is_it {
                    found.socket = Some(socket);
                }
                return is_it;
            }
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// What is to come next, once the program has said so; `None` once the channel is given up.
    fn awaited(&self, channel: ChannelId, transfer: TransferId) -> Option<Awaited> {
        let mut state = self.state();
        loop {
            if let Some(awaited) = state.incoming.get(&channel)?.awaited.get(&transfer) {
                return Some(*awaited);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<B: Portable> Worker<B> {
    /// Lets other workers in until this one ends.
    pub fn let_in(self: Arc<Self>) {
        let Channels { listener: Some(listener), limits, .. } = &self.channels else { return };
        loop {
            match listener.pending(limits) {
                Ok(pending) => self.greet(pending),
                Err(_) if self.channels.state().has_ended => return,
                Err(ConnectError::Nobody(_)) => {}
                // Such as too many open files: there may be room later.
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    /// One for whom there is no room, or no thread, is let go: what it would bring comes another
    /// way.
    fn greet(self: &Arc<Self>, pending: Pending) {
        let Ok(socket) = pending.socket() else { return };
        let Some(key) = self.channels.greet(socket) else { return };
        let own = Arc::clone(self);
        let thread = thread::Builder::new().name("channel in".to_owned());
        if thread.spawn(move || own.take_in(key, pending)).is_err() {
            self.channels.state().greetings.remove(&key);
        }
    }

    /// The second end of a channel.
    fn take_in(&self, key: u64, pending: Pending) {
        let greeted = pending.greeting(&self.channels.limits).ok();
        let joined = greeted.and_then(|(frames, channel, token)| {
            let clone = || frames.socket().try_clone().ok();
            let (socket, kept) = clone().zip(clone())?;
            self.channels.join(channel, token, kept).then_some((frames, socket, channel))
        });
        self.channels.state().greetings.remove(&key);
        let Some((frames, mut socket, channel)) = joined else { return };
        let mut opened = Vec::new();
        Report::Opened(channel).write(&mut opened);
        let received = socket.write_all(&opened).map_err(|error| error.to_string());
        let received = received.and_then(|()| self.receive_contents(frames, channel));
        if let Err(reason) = received {
            self.close_incoming(channel, reason);
        }
    }

    /// Takes what comes over a channel, until it is given up.
    ///
    /// # Errors
    /// In words, why this end gives it up.
    fn receive_contents(&self, mut frames: Frames, channel: ChannelId) -> Result<(), String> {
        let mut coming: Option<(TransferId, Awaited, Assembly)> = None;
        let mut told = Instant::now();
        loop {
            let frame = frames.next(|_| match self.channels.state().incoming.get(&channel) {
                Some(_) => Ok(()),
                None => Err("it is closed".to_owned()),
            });
            let chunk = match Report::read(frame.map_err(|error| error.to_string())?) {
                Ok(Report::Content(chunk)) => chunk,
                Ok(_) => return Err("it sent something else than a content".to_owned()),
                Err(error) => return Err(format!("it sent {error}")),
            };
            let transfer = chunk.transfer;
            let (awaited, mut assembly) = match coming.take() {
                Some((of, awaited, assembly)) if of == transfer => (awaited, assembly),
                Some(_) => return Err("it sent contents in each other".to_owned()),
                None => {
                    let Some(awaited) = self.channels.awaited(channel, transfer) else {
                        return Ok(());
                    };
                    (awaited, Assembly::new(awaited.bytes))
                }
            };
            match assembly.add(&chunk).map_err(|error| format!("it sent {error}"))? {
                Some(content) => self.store_from(channel, (transfer, awaited), content),
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
        channel: ChannelId,
        (transfer, awaited): (TransferId, Awaited),
        content: Vec<u8>,
    ) {
        let made = caught(|| B::from_bytes(content));
        let mut state = self.channels.state();
        let found = state.incoming.get_mut(&channel);
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
        report.write(&mut state.reports);
        drop(state);
        self.send_reports();
        // What it replaces may take long to end, or panic.
        let _ = caught(|| {
            drop(old);
            Ok(())
        });
    }

    /// Gives up a channel that ends here, and says so; of one that is given up already nothing is
    /// left to say.
    pub fn close_incoming(&self, channel: ChannelId, reason: String) {
        let mut state = self.channels.state();
        let Some(Incoming { socket, .. }) = state.incoming.remove(&channel) else { return };
        Report::Closed { channel, reason }.write(&mut state.reports);
        drop(state);
        self.send_reports();
        socket.iter().for_each(Socket::shutdown);
        self.channels.changed.notify_all();
    }

    /// Begins to open a channel to another worker.
    pub fn open_outgoing(self: &Arc<Self>, channel: ChannelId, place: String, token: [u8; TOKEN]) {
        let (copies, sent) = mpsc::channel();
        let outgoing = Outgoing { copies, socket: None };
        self.channels.state().outgoing.insert(channel, outgoing);
        let own = Arc::clone(self);
        let send = move || {
            if let Err(reason) = own.send_over(channel, (&place, token), sent) {
                own.close_outgoing(channel);
                own.report(&Report::Closed { channel, reason });
            }
        };
        let thread = thread::Builder::new().name("channel out".to_owned());
        if let Err(error) = thread.spawn(send) {
            self.close_outgoing(channel);
            self.report(&Report::Closed { channel, reason: error.to_string() });
        }
    }

    pub fn close_outgoing(&self, channel: ChannelId) {
        let found = self.channels.state().outgoing.remove(&channel);
        found.and_then(|own| own.socket).iter().for_each(Socket::shutdown);
    }

    /// The first end of a channel: goes to another worker and sends it what it is told to.
    ///
    /// # Errors
    /// In words, why this end gives it up.
    fn send_over(
        &self,
        channel: ChannelId,
        (place, token): (&str, [u8; TOKEN]),
        copies: Receiver<RemoteCopy>,
    ) -> Result<(), String> {
        let Channels { home, limits, .. } = &self.channels;
        let mut socket = home.connect(place, limits).map_err(|error| match error {
            ConnectError::Socket(error) => format!("`{place}` can't be reached: {error}"),
            error => error.to_string(),
        })?;
        let kept = socket.try_clone().map_err(|error| error.to_string())?;
        match self.channels.state().outgoing.get_mut(&channel) {
            Some(own) => own.socket = Some(kept),
            None => return Err("it is closed".to_owned()),
        }
        self.introduce(channel, token, &mut socket)?;
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
    }

    /// # Errors
    /// In words, another worker that does not let this one in.
    fn introduce(
        &self,
        channel: ChannelId,
        token: [u8; TOKEN],
        socket: &mut Socket,
    ) -> Result<(), String> {
        // The other end waits as long for the program to say that somebody comes.
        let by = Instant::now() + 2 * self.channels.limits.handshake;
        let mut greeting = Vec::new();
        Report::Greeting { token, channel }.write(&mut greeting);
        socket.write_all(&greeting).map_err(|error| error.to_string())?;
        let mut frames = Frames::new(socket.try_clone().map_err(|error| error.to_string())?);
        let frame = frames.next(|_| match Instant::now() < by {
            true => Ok(()),
            false => Err("it did not let this worker in in time".to_owned()),
        });
        match Report::read(frame.map_err(|error| error.to_string())?) {
            Ok(Report::Opened(opened)) if opened == channel => Ok(()),
            _ => Err("it did not let this worker in".to_owned()),
        }
    }
}
