//! The program's end of a worker: a thread that sends, a thread that receives, and what of that
//! which was sent has no answer yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Error, ErrorKind, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::super::cpu::lane::Lane;
use super::super::cpu::{Shared, caught, read, write};
use super::network::{Channel, Network, Stage};
use super::protocol::{
    Assembly, CHUNK, ChannelId, Chunk, Order, RemoteCopy, RemoteLaunch, Report, TOKEN,
};
use super::socket::{Frames, ReadError, Socket, is_timeout};
use super::{Limits, Portable};
use crate::machine::Interval;
use crate::{
    Completion, CopyOrder, HandleId, KernelId, Launch, MemoryId, Nanos, TaskId, TransferId,
};

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

/// A copy that has not ended. From one worker to another both lines have it, and what becomes of it
/// is reported by that of the second, or for it; over a channel only the second has it.
#[derive(Debug)]
struct Copying {
    order: CopyOrder,
    began: Option<Nanos>,
    stage: CopyStage,
}

#[derive(Debug)]
enum CopyStage {
    /// Another worker has not sent all of it.
    Awaited,
    /// It comes over a channel.
    Direct {
        channel: ChannelId,
        is_closing: bool,
    },
    /// It is here, and nothing of it is sent.
    Queued,
    Sending,
    /// All of it is sent, and the worker has to say that it is there.
    Sent,
    Fetching(Assembly),
    /// All of it is here and is made a buffer.
    Fetched,
}

#[derive(Debug)]
struct State {
    is_lost: bool,
    /// In the order in which they run, and when they were handed over.
    tasks: VecDeque<(TaskId, Nanos)>,
    copies: BTreeMap<TransferId, Copying>,
    /// Copies over channels that nobody waits for any more, and that may have been made.
    forgotten: BTreeMap<TransferId, ChannelId>,
    /// When something came last over a channel over which something is to come, or was to begin to.
    brought: BTreeMap<ChannelId, Instant>,
    /// When the first task became the first.
    first_since: Instant,
    /// When a copy went on last.
    copied: Instant,
    heard: Instant,
    /// When the limits were looked at last.
    looked: Instant,
    clock: Clock,
    /// Of the last task.
    end: Nanos,
}

/// Clocks drift apart: what was seen longer ago than twice this does not count.
const CLOCK_KEPT: Nanos = 10_000_000_000;

/// From the worker's time to the driver's: the least difference that was seen of late is the
/// nearest.
#[derive(Debug, Default)]
struct Clock {
    /// The least of the time before `since`, and of the time after it.
    least: [Option<i64>; 2],
    since: Nanos,
}

impl Clock {
    /// Takes in a difference seen now. Returns the one that counts.
    fn see(&mut self, difference: i64, now: Nanos) -> i64 {
        let age = now.saturating_sub(self.since);
        if age >= CLOCK_KEPT {
            let before = self.least[1].filter(|_| age < 2 * CLOCK_KEPT);
            *self = Self { least: [before, None], since: now };
        }
        let recent = self.least[1].map_or(difference, |least| least.min(difference));
        self.least[1] = Some(recent);
        self.least[0].map_or(recent, |before| before.min(recent))
    }
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

impl Copying {
    /// Whether it goes on by what this worker does.
    fn is_its_own(&self) -> bool {
        !matches!(self.stage, CopyStage::Awaited | CopyStage::Direct { is_closing: false, .. })
    }
}

impl State {
    fn new(now: Instant) -> Self {
        Self {
            is_lost: false,
            tasks: VecDeque::new(),
            copies: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            brought: BTreeMap::new(),
            first_since: now,
            copied: now,
            heard: now,
            looked: now,
            clock: Clock::default(),
            end: 0,
        }
    }

    /// After so many bytes came, or none in a while.
    ///
    /// # Errors
    /// In words, the limit that the worker is beyond.
    fn look(&mut self, limits: &Limits, bytes: usize, now: Instant) -> Result<(), String> {
        let gap = now - std::mem::replace(&mut self.looked, now);
        if limits.is_late(gap, limits.tick()) {
            // This program stood still, and that is not the worker's time.
            let own = [&mut self.first_since, &mut self.copied, &mut self.heard];
            for since in own.into_iter().chain(self.brought.values_mut()) {
                *since = (*since + gap).min(now);
            }
        }
        if bytes > 0 {
            self.heard = now;
        }
        let Limits { silence, task, copy, .. } = *limits;
        if now - self.heard > silence {
            return Err(format!("it gave no sign of life for {silence:?}"));
        }
        if !self.tasks.is_empty() && now - self.first_since > task {
            return Err(format!("it has had the same task for {task:?}"));
        }
        if self.copies.values().any(Copying::is_its_own) && now - self.copied > copy {
            return Err(format!("no copy went on for {copy:?}"));
        }
        Ok(())
    }

    /// Something came over a channel, of which more is to come.
    fn went_on(&mut self, id: ChannelId) {
        if let Some(brought) = self.brought.get_mut(&id) {
            *brought = Instant::now();
        }
    }

    /// Channels over which nothing came for too long. It is not known at which end that is, so that
    /// neither is cut off.
    fn stalled(&mut self, limits: &Limits, now: Instant) -> Vec<ChannelId> {
        if self.brought.is_empty() {
            return Vec::new();
        }
        let mut awaited = BTreeSet::new();
        for Copying { stage, .. } in self.copies.values() {
            if let CopyStage::Direct { channel, is_closing: false } = stage {
                awaited.insert(*channel);
            }
        }
        self.brought.retain(|channel, _| awaited.contains(channel));
        let late = self.brought.iter().filter(|(_, brought)| now - **brought > limits.copy);
        late.map(|(channel, _)| *channel).collect()
    }

    /// From now on the worker has to say that a channel is closed, and in time.
    fn begin_close(&mut self, id: ChannelId) {
        self.copied = Instant::now();
        for Copying { stage, .. } in self.copies.values_mut() {
            if let CopyStage::Direct { channel, is_closing } = stage
                && *channel == id
            {
                *is_closing = true;
            }
        }
    }

    /// A channel is closed: what was to come over it has to come another way.
    fn end_close(&mut self, id: ChannelId) -> Vec<CopyOrder> {
        self.forgotten.retain(|_, channel| *channel != id);
        let is_of_it = |copying: &&mut Copying| matches!(copying.stage, CopyStage::Direct { channel, .. } if channel == id);
        let of_it = self.copies.values_mut().filter(is_of_it);
        let again = of_it.map(|copying| {
            copying.stage = CopyStage::Awaited;
            copying.order
        });
        again.collect()
    }

    /// The buffer of a handle is dropped: what was to come into it does not come. Of what is half
    /// sent the rest is, before the buffer is dropped. Returns how many there were.
    fn forget(&mut self, handle: HandleId) -> usize {
        let before = self.copies.len();
        let Self { copies, forgotten, .. } = self;
        copies.retain(|transfer, Copying { order, stage, .. }| {
            if order.handle != handle {
                return true;
            }
            match stage {
                CopyStage::Direct { channel, .. } => {
                    forgotten.insert(*transfer, *channel);
                    false
                }
                stage => !matches!(stage, CopyStage::Awaited | CopyStage::Queued),
            }
        });
        before - self.copies.len()
    }

    /// Whether somebody still waits for what is stored.
    ///
    /// # Errors
    /// In words, a copy that a worker can't have.
    fn is_stored(&mut self, transfer: TransferId) -> Result<bool, String> {
        if self.forgotten.remove(&transfer).is_some() {
            return Ok(false);
        }
        match self.copies.get(&transfer).map(|copying| &copying.stage) {
            Some(CopyStage::Sent | CopyStage::Direct { .. }) => Ok(true),
            _ => Err("it has a content that it was not sent".to_owned()),
        }
    }

    /// What failed, where somebody still waits for it.
    ///
    /// # Errors
    /// In words, a copy at which a worker can't fail.
    fn fail(&mut self, transfer: TransferId) -> Result<Option<CopyOrder>, String> {
        if self.forgotten.remove(&transfer).is_some() {
            return Ok(None);
        }
        let copying = self.copies.get(&transfer);
        let order = match copying.map(|copying| (&copying.stage, copying.order)) {
            Some((CopyStage::Sent | CopyStage::Fetching(_) | CopyStage::Direct { .. }, order)) => {
                order
            }
            _ => return Err("it failed at a copy that it was not asked for".to_owned()),
        };
        self.copies.remove(&transfer);
        self.copied = Instant::now();
        Ok(Some(order))
    }

    fn begin(&mut self, order: CopyOrder, began: Option<Nanos>, stage: CopyStage) {
        if !self.copies.values().any(Copying::is_its_own) {
            self.copied = Instant::now();
        }
        if let CopyStage::Direct { channel, .. } = stage {
            self.brought.entry(channel).or_insert_with(Instant::now);
        }
        self.copies.insert(order.transfer, Copying { order, began, stage });
    }

    /// When it ran, in the driver's time.
    ///
    /// # Errors
    /// In words, a task that is not the first of those that it has.
    fn task_ended(&mut self, task: TaskId, ran: Interval, now: Nanos) -> Result<Interval, String> {
        let Some((_, handed_over)) = self.tasks.pop_front_if(|(first, _)| *first == task) else {
            return Err("it ended a task that is not the next of those that it was given".into());
        };
        self.first_since = Instant::now();
        let difference = (now as i64).saturating_sub_unsigned(ran.end);
        let offset = self.clock.see(difference, now);
        // Not before the end of the one before it, nor before the worker had it.
        let least = self.end.max(handed_over);
        let moved = |at: Nanos| at.saturating_add_signed(offset).clamp(least, now.max(least));
        let ran = Interval { start: moved(ran.start), end: moved(ran.end) };
        self.end = ran.end;
        Ok(ran)
    }

    /// Takes a part of a content. Where it is the last, the order and the content; the copy stays
    /// until the content is where it has to be.
    fn add(&mut self, chunk: &Chunk<'_>) -> Result<Option<(CopyOrder, Vec<u8>)>, String> {
        self.copied = Instant::now();
        let copying = self.copies.get_mut(&chunk.transfer);
        let Some(Copying { order, stage, .. }) = copying else {
            return Err("it sent a content that it was not asked for".to_owned());
        };
        let CopyStage::Fetching(assembly) = stage else {
            return Err("it sent more of a content than there is".to_owned());
        };
        let whole = assembly.add(chunk).map_err(|error| format!("it sent {error}"))?;
        Ok(whole.map(|content| {
            *stage = CopyStage::Fetched;
            (*order, content)
        }))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TASK: TaskId = TaskId { row: 0, generation: 0 };

    #[test]
    fn what_this_program_stands_still_is_not_the_time_of_a_worker() {
        let limits = Limits::default();
        let mut now = Instant::now();
        let mut state = State::new(now);
        state.tasks.push_back((TASK, 0));
        now += Duration::from_secs(3_600);
        assert_eq!(state.look(&limits, 0, now), Ok(()), "it was stopped");
        let mut looks = 0;
        while state.look(&limits, 0, now).is_ok() {
            now += limits.tick();
            looks += 1;
        }
        // The limit is four ticks.
        assert_eq!(looks, 5, "a worker that says nothing is cut off all the same");
    }

    #[test]
    fn intervals_do_not_drift_and_begin_where_the_worker_had_the_task() {
        let mut state = State::new(Instant::now());
        let hour = 3_600_000_000_000;
        for round in 1..=24 {
            // The worker's clock loses a millisecond an hour, and its first report was fast.
            let now = round * hour;
            let theirs = now - round * 1_000_000;
            state.tasks.push_back((TASK, now - 500));
            let ran = Interval { start: theirs - 1_000, end: theirs };
            let ran = state.task_ended(TASK, ran, now).expect("it is the next");
            assert_eq!((ran.start, ran.end), (now - 500, now), "round {round}");
        }
    }

    #[test]
    fn the_fastest_report_of_late_tells_the_difference() {
        let mut clock = Clock::default();
        let second = 1_000_000_000;
        assert_eq!(clock.see(70, second), 70);
        assert_eq!(clock.see(90, 2 * second), 70);
        assert_eq!(clock.see(80, CLOCK_KEPT + second), 70, "it is kept for as long again");
        assert_eq!(clock.see(85, 2 * CLOCK_KEPT + second), 80);
        assert_eq!(clock.see(95, 9 * CLOCK_KEPT), 95);
    }
}
