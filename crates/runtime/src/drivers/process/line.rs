//! The program's end of a worker: a thread that sends, a thread that receives, and what of that
//! which was sent has no answer yet.

mod network;
mod state;

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::super::cpu::lane::Lane;
use super::super::cpu::{Shared, caught, read, write};
use super::protocol::{
    Assembly, CHUNK, ChannelId, Chunk, Order, RemoteCopy, RemoteLaunch, Report, TOKEN,
};
use super::socket::{Frames, ReadError, Socket, is_timeout};
use super::{Limits, Portable};
use crate::machine::Interval;
use crate::{Completion, CopyOrder, HandleId, KernelId, Launch, MemoryId, TransferId};

use network::Channel;
use state::{CopyStage, State};

pub use network::{Network, Stage};

/// What the sending thread is given.
#[derive(Debug)]
pub enum Sent {
    Launch(Launch),
    Store(CopyOrder),
    Fetch(CopyOrder),
    /// A copy from another worker is to come, and nothing is to be sent yet.
    Await(CopyOrder),
    /// What came from another worker, on to this one.
    Forward(CopyOrder, Vec<u8>),
    Drop(HandleId),
    /// Another worker is to come with a channel, and to show this.
    Expect(ChannelId, [u8; TOKEN]),
    /// A copy is to come over it.
    AwaitOver(ChannelId, CopyOrder),
    /// This worker is to open a channel to another, which is there.
    Open(ChannelId, String, [u8; TOKEN]),
    /// A copy is to go over it.
    SendOver(ChannelId, CopyOrder),
    Close(ChannelId),
}

pub struct Line<B> {
    memory: MemoryId,
    limits: Limits,
    host: Arc<Shared<B>>,
    lane: Lane<Sent>,
    state: Mutex<State>,
    socket: Socket,
    network: Arc<Network<B>>,
}

impl<B: Portable> Line<B> {
    /// Answers the worker and begins to listen to it.
    pub fn start(
        (memory, kernels): (MemoryId, Vec<String>),
        frames: Frames,
        (host, network): (Arc<Shared<B>>, Arc<Network<B>>),
        limits: Limits,
    ) -> std::io::Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let socket = frames.socket().try_clone()?;
        let mut welcome = Vec::new();
        let silence_ms = limits.silence.as_millis() as u64;
        Order::Welcome { silence_ms, kernels }.write(&mut welcome);
        socket.set_timeouts(Some(limits.tick()), Some(limits.taking))?;
        let line = Arc::new(Self {
            memory,
            limits,
            host,
            lane: Lane::default(),
            state: Mutex::new(State::new(Instant::now())),
            socket: socket.try_clone()?,
            network,
        });
        let named = |what: &str| thread::Builder::new().name(format!("{what} {}", memory.0));
        let own = Arc::clone(&line);
        let sender = named("send").spawn(move || own.send(socket, welcome))?;
        line.lane.served_by(sender.thread().clone());
        let own = Arc::clone(&line);
        match named("receive").spawn(move || own.receive(frames)) {
            Ok(receiver) => Ok((line, vec![sender, receiver])),
            Err(error) => {
                line.close();
                let _ = sender.join();
                Err(error)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The program's code, which might panic, is not called with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what becomes of a copy is reported by this line.
    fn reports(&self, copy: &CopyOrder) -> bool {
        copy.to == self.memory || !self.network.is_workers(copy.to)
    }

    /// Takes what is to be done. What comes after a loss is dropped: the coordinator hears of it.
    ///
    /// A copy from another worker is awaited here before that one is asked for it. Where that one
    /// is lost, the buffer is dropped before it is used again, and the rest of the copy with it.
    pub fn hand_over(&self, orders: &mut Vec<Sent>) {
        if orders.is_empty() {
            return;
        }
        let mut state = self.state();
        if state.is_lost {
            orders.clear();
            return;
        }
        let now = self.host.now();
        let mut expected = 0;
        let mut again = Vec::new();
        for order in orders.iter() {
            match order {
                Sent::Launch(launch) => {
                    if state.tasks.is_empty() {
                        state.first_since = Instant::now();
                    }
                    state.tasks.push_back((launch.task, now));
                    expected += 1;
                }
                Sent::Store(copy) | Sent::Forward(copy, _) => {
                    state.begin(*copy, None, CopyStage::Queued);
                    expected += 1;
                }
                Sent::Await(copy) => {
                    state.begin(*copy, Some(now), CopyStage::Awaited);
                    expected += 1;
                }
                Sent::Fetch(copy) => {
                    let stage = CopyStage::Fetching(Assembly::new(copy.bytes));
                    state.begin(*copy, Some(now), stage);
                    expected += usize::from(self.reports(copy));
                }
                Sent::AwaitOver(channel, copy) => {
                    let stage = match self.network.stage(*channel) {
                        Stage::Closed => CopyStage::Awaited,
                        stage => {
                            let is_closing = stage == Stage::Closing;
                            CopyStage::Direct { channel: *channel, is_closing }
                        }
                    };
                    if matches!(stage, CopyStage::Awaited) {
                        again.push(*copy);
                    }
                    state.begin(*copy, Some(now), stage);
                    expected += 1;
                }
                Sent::Drop(handle) => self.host.reports.give_up(state.forget(*handle)),
                Sent::Expect(..) | Sent::Open(..) | Sent::SendOver(..) | Sent::Close(_) => {}
            }
        }
        self.host.reports.expect(expected);
        drop(state);
        self.lane.add(orders);
        self.fetch_again(again);
    }

    /// Has copies to this worker, whose channel was given up, come through the program. Of a worker
    /// that is lost nothing comes, and its copies are given up with their buffers.
    fn fetch_again(&self, copies: Vec<CopyOrder>) {
        for copy in copies {
            if let Some(other) = self.network.line(copy.from) {
                other.hand_over(&mut vec![Sent::Fetch(copy)]);
            }
        }
    }

    /// Gives up a channel: what was to come over it comes through the program, once its second end
    /// has said that none of it is stored any more.
    fn close_channel(&self, id: ChannelId, Channel { to, .. }: Channel) {
        if self.network.close(id)
            && let Some(second) = self.network.line(to)
        {
            second.state().begin_close(id);
        }
    }

    /// A channel of this worker is given up.
    pub fn hand_over_close(&self, id: ChannelId) {
        self.lane.add(&mut vec![Sent::Close(id)]);
    }

    /// The other end is gone, and so is what it had.
    fn cut(&self, reason: String) {
        if std::mem::replace(&mut self.state().is_lost, true) {
            return;
        }
        // Before anybody hears of it, and buffers are used again that its channels may fill.
        for (id, channel) in self.network.leave(self.memory) {
            self.close_channel(id, channel);
            if channel.to == self.memory {
                self.network.closed(id);
            }
        }
        let mut state = self.state();
        let copies = std::mem::take(&mut state.copies);
        let copies = copies.values().filter(|copying| self.reports(&copying.order)).count();
        let tasks = std::mem::take(&mut state.tasks).len();
        self.host.reports.expect(1);
        self.host.reports.give_up(tasks + copies);
        let lost = Completion::MemoryLost { memory: self.memory, reason };
        self.host.reports.add(&mut vec![lost]);
        drop(state);
        self.close();
    }

    /// Lets the worker go, and ends both threads.
    pub fn end(&self) {
        self.lane.close();
    }

    fn send_end(&self, socket: &mut Socket) {
        if !self.state().is_lost {
            let mut frame = Vec::new();
            Order::End.write(&mut frame);
            // To one that is gone, or takes nothing, there is nothing to say.
            let _ = self.write(socket, &frame);
        }
        self.socket.shutdown();
    }

    /// Ends both threads.
    fn close(&self) {
        self.socket.shutdown();
        self.lane.close();
    }

    fn report(&self, completion: Completion) {
        self.host.reports.add(&mut vec![completion]);
    }

    /// Sends the first frames and then what there is to do.
    fn send(&self, mut socket: Socket, mut frames: Vec<u8>) {
        let mut orders = Vec::new();
        // Contents that wait until there is nothing shorter to send.
        let mut contents: VecDeque<Content> = VecDeque::new();
        loop {
            if let Err(reason) = self.write(&mut socket, &frames) {
                return self.cut(reason);
            }
            frames.clear();
            let is_open = match contents.is_empty() {
                true => self.lane.take(&mut orders),
                false => self.lane.poll(&mut orders),
            };
            if !is_open {
                return self.send_end(&mut socket);
            }
            for order in orders.drain(..) {
                match order {
                    Sent::Launch(launch) => remote(launch).write(&mut frames),
                    Sent::Fetch(copy) => Order::Fetch(remote_copy(copy)).write(&mut frames),
                    Sent::Await(_) => {}
                    Sent::Expect(channel, token) => {
                        Order::Expect(channel, token).write(&mut frames);
                    }
                    Sent::AwaitOver(channel, copy) => {
                        Order::Await(channel, remote_copy(copy)).write(&mut frames);
                    }
                    Sent::Open(channel, place, token) => {
                        Order::Open(channel, place, token).write(&mut frames);
                    }
                    Sent::SendOver(channel, copy) => {
                        Order::Send(channel, remote_copy(copy)).write(&mut frames);
                    }
                    Sent::Close(channel) => Order::Close(channel).write(&mut frames),
                    Sent::Drop(handle) => {
                        // What is half sent ends before: nothing of it comes after.
                        contents.retain_mut(|content| {
                            let is_of_it = content.order.handle == handle;
                            while is_of_it && self.send_part(content, &mut frames) {}
                            !is_of_it
                        });
                        Order::Drop(handle).write(&mut frames);
                    }
                    Sent::Store(order) => contents.push_back(Content::new(order, None)),
                    Sent::Forward(order, bytes) => {
                        contents.push_back(Content::new(order, Some(bytes)));
                    }
                }
            }
            if let Some(content) = contents.front_mut()
                && !self.send_part(content, &mut frames)
            {
                contents.pop_front();
            }
        }
    }

    /// # Errors
    /// In words, why the worker has to be cut off.
    fn write(&self, socket: &mut Socket, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let began = Instant::now();
            match socket.write(bytes) {
                Ok(0) => return Err(ReadError::Closed.to_string()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // It was this program that stood still.
                Err(error)
                    if is_timeout(&error)
                        && self.limits.is_late(began.elapsed(), self.limits.taking) => {}
                Err(error) => return Err(self.told(&error)),
            }
        }
        Ok(())
    }

    fn told(&self, error: &Error) -> String {
        match error.kind() {
            _ if is_timeout(error) => format!("it took nothing for {:?}", self.limits.taking),
            // As the receiving thread says, whichever hears of it first.
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ReadError::Closed.to_string(),
            _ => format!("the connection broke: {error}"),
        }
    }

    /// Appends the next part of a content; false where that was the last.
    fn send_part(&self, content: &mut Content, frames: &mut Vec<u8>) -> bool {
        let CopyOrder { transfer, handle, from, bytes: total, .. } = content.order;
        if content.bytes.is_none() {
            let found = caught(|| Ok(read(&self.host.buffer(handle, from)).to_bytes()));
            let found = found.and_then(|bytes| match bytes.len() as u64 {
                found if found == total => Ok(bytes),
                found => Err(format!("its content has {found} bytes, and the handle {total}")),
            });
            match found {
                Ok(bytes) => content.bytes = Some(bytes),
                Err(reason) => {
                    let mut state = self.state();
                    if state.copies.remove(&transfer).is_some() {
                        self.report(Completion::CopyFailed { transfer, reason });
                    }
                    return false;
                }
            }
        }
        let Some(bytes) = &content.bytes else { return false };
        let end = bytes.len().min(content.at + CHUNK);
        let is_last = end == bytes.len();
        {
            let mut state = self.state();
            let Some(copying) = state.copies.get_mut(&transfer) else { return false };
            copying.began.get_or_insert_with(|| self.host.now());
            copying.stage = if is_last { CopyStage::Sent } else { CopyStage::Sending };
            state.copied = Instant::now();
        }
        let offset = content.at as u64;
        let chunk = Chunk { transfer, total, offset, bytes: &bytes[content.at..end] };
        Order::Store(handle, chunk).write(frames);
        content.at = end;
        !is_last
    }

    fn receive(&self, mut frames: Frames) {
        loop {
            let taken = match frames.next(|bytes| self.look_at_limits(bytes)) {
                Ok(frame) => Report::read(frame)
                    .map_err(|error| format!("it sent {error}"))
                    .and_then(|report| self.take(report)),
                Err(error) => Err(error.to_string()),
            };
            if let Err(reason) = taken {
                return self.cut(reason);
            }
        }
    }

    /// After so many bytes came, or none in a while.
    ///
    /// # Errors
    /// In words, the limit that the worker is beyond.
    fn look_at_limits(&self, bytes: usize) -> Result<(), String> {
        let now = Instant::now();
        let mut state = self.state();
        state.look(&self.limits, bytes, now)?;
        let stalled = state.stalled(&self.limits, now);
        drop(state);
        for id in stalled {
            if let Some(channel) = self.network.channel(id)? {
                self.close_channel(id, channel);
            }
        }
        Ok(())
    }

    /// # Errors
    /// In words, what no worker says that keeps to the protocol.
    fn take(&self, report: Report<'_>) -> Result<(), String> {
        match report {
            Report::Ended { task, ran } => {
                let mut state = self.state();
                let ran = state.task_ended(task, ran, self.host.now())?;
                self.report(Completion::Ended { task, ran });
            }
            Report::Failed { task, ran, reason } => {
                let mut state = self.state();
                let ran = state.task_ended(task, ran, self.host.now())?;
                self.report(Completion::Failed { task, ran, reason });
            }
            Report::Stored { transfer } => {
                let mut state = self.state();
                if state.is_stored(transfer)? {
                    self.copied(&mut state, transfer);
                }
            }
            Report::CopyFailed { transfer, reason } => {
                let mut state = self.state();
                let Some(order) = state.fail(transfer)? else { return Ok(()) };
                drop(state);
                // The one that it was to go to may be lost, or have no use for it any more.
                let is_reported = match self.reports(&order) {
                    true => true,
                    false => self
                        .network
                        .line(order.to)
                        .is_some_and(|other| other.state().copies.remove(&transfer).is_some()),
                };
                if is_reported {
                    self.report(Completion::CopyFailed { transfer, reason });
                }
            }
            Report::Content(chunk) => {
                let mut state = self.state();
                let fetched = state.add(&chunk)?;
                drop(state);
                if let Some((order, content)) = fetched {
                    self.fetched(order, content);
                }
            }
            Report::Alive => {}
            Report::Opened(id) => {
                if let Some(Channel { from, .. }) = self.network.channel(id)? {
                    self.check_own(from)?;
                    self.network.opened(id);
                }
            }
            Report::Progress(id) => {
                if let Some(Channel { to, .. }) = self.network.channel(id)? {
                    self.check_own(to)?;
                    self.state().went_on(id);
                }
            }
            Report::Closed { channel: id, .. } => match self.network.channel(id)? {
                Some(channel) => self.channel_closed(id, channel)?,
                // Of a worker in whose place another one is.
                None => {
                    let again = self.state().end_close(id);
                    self.fetch_again(again);
                }
            },
            Report::Hello(_) | Report::Greeting { .. } => {
                return Err("it said who it is a second time".to_owned());
            }
        }
        Ok(())
    }

    /// # Errors
    /// In words, an end of a channel that another worker is.
    fn check_own(&self, end: MemoryId) -> Result<(), String> {
        match end == self.memory {
            true => Ok(()),
            false => Err("it said something of a channel of others".to_owned()),
        }
    }

    /// The worker gave a channel up, or heard that it is given up.
    ///
    /// # Errors
    /// A channel of others.
    fn channel_closed(&self, id: ChannelId, channel: Channel) -> Result<(), String> {
        if channel.from != self.memory {
            self.check_own(channel.to)?;
        }
        self.close_channel(id, channel);
        if channel.to == self.memory {
            let mut state = self.state();
            // With the lock: what is handed over later does not wait for it.
            self.network.closed(id);
            let again = state.end_close(id);
            drop(state);
            self.fetch_again(again);
        }
        Ok(())
    }

    fn copied(&self, state: &mut State, transfer: TransferId) {
        let Some(copying) = state.copies.remove(&transfer) else { return };
        let end = self.host.now();
        let start = copying.began.map_or(end, |began| began.min(end));
        state.copied = Instant::now();
        self.report(Completion::Copied { transfer, ran: Interval { start, end } });
    }

    /// Puts a content where it was to go.
    fn fetched(&self, order: CopyOrder, content: Vec<u8>) {
        let CopyOrder { transfer, handle, to, .. } = order;
        if !self.reports(&order) {
            self.state().copies.remove(&transfer);
            if let Some(other) = self.network.line(to) {
                other.forward(transfer, content);
            }
            return;
        }
        let made = caught(|| B::from_bytes(content));
        let mut state = self.state();
        if !state.copies.contains_key(&transfer) {
            // It is lost meanwhile: the buffer may be another's by now.
            return;
        }
        // What it replaces is dropped without the lock of the state.
        let old = match made {
            Ok(content) => {
                let buffer = self.host.buffer(handle, to);
                let old = std::mem::replace(&mut *write(&buffer), content);
                self.copied(&mut state, transfer);
                Some(old)
            }
            Err(reason) => {
                state.copies.remove(&transfer);
                self.report(Completion::CopyFailed { transfer, reason });
                None
            }
        };
        drop(state);
        let _ = caught(|| {
            drop(old);
            Ok(())
        });
    }

    /// Takes over the second half of a copy from another worker, unless it is awaited no more.
    fn forward(&self, transfer: TransferId, content: Vec<u8>) {
        let mut state = self.state();
        let Some(copying) = state.copies.get_mut(&transfer) else { return };
        copying.stage = CopyStage::Queued;
        let order = copying.order;
        state.copied = Instant::now();
        drop(state);
        self.lane.add(&mut vec![Sent::Forward(order, content)]);
    }
}

fn remote_copy(CopyOrder { transfer, handle, bytes, .. }: CopyOrder) -> RemoteCopy {
    RemoteCopy { transfer, handle, bytes }
}

fn remote(launch: Launch) -> Order<'static> {
    let Launch { task, kernel: KernelId(kernel), parameter, sequence, expected, accesses, .. } =
        launch;
    Order::Launch(RemoteLaunch { task, kernel, parameter, sequence, expected, accesses })
}

/// A content on its way.
#[derive(Debug)]
struct Content {
    order: CopyOrder,
    /// Once it was looked at.
    bytes: Option<Vec<u8>>,
    /// How many of them are sent.
    at: usize,
}

impl Content {
    fn new(order: CopyOrder, bytes: Option<Vec<u8>>) -> Self {
        Self { order, bytes, at: 0 }
    }
}
