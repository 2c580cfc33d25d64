//! The program's end of a worker: a thread that sends, a thread that receives, and what of that
//! which was sent has no answer yet.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Write};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::super::cpu::lane::Lane;
use super::super::cpu::{Shared, caught, read, write};
use super::protocol::{Assembly, CHUNK, Chunk, Order, RemoteLaunch, Report};
use super::socket::{Frames, ReadError, Socket, is_timeout};
use super::{Limits, Portable};
use crate::machine::Interval;
use crate::{Completion, CopyOrder, HandleId, Launch, MemoryId, Nanos, TaskId, TransferId};

/// What the sending thread is given.
#[derive(Debug)]
pub enum Sent {
    Launch(Launch),
    Store(CopyOrder),
    Fetch(CopyOrder),
    /// What came from another worker, on to this one.
    Forward(CopyOrder, Vec<u8>),
    Drop(HandleId),
}

/// A copy that has not ended.
#[derive(Debug)]
struct Copying {
    order: CopyOrder,
    began: Option<Nanos>,
    stage: CopyStage,
}

#[derive(Debug)]
enum CopyStage {
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
    /// In the order in which they run.
    tasks: VecDeque<TaskId>,
    copies: BTreeMap<TransferId, Copying>,
    /// When the first task became the first.
    first_since: Instant,
    /// When a copy went on last.
    copied: Instant,
    heard: Instant,
    /// From the worker's time to the driver's: the least seen is the nearest.
    offset: Option<i64>,
    /// Of the last task.
    end: Nanos,
}

pub struct Line<B> {
    memory: MemoryId,
    limits: Limits,
    host: Arc<Shared<B>>,
    lane: Lane<Sent>,
    state: Mutex<State>,
    socket: Socket,
    /// Workers by memory.
    others: OnceLock<Vec<Option<Weak<Line<B>>>>>,
}

impl<B: Portable> Line<B> {
    /// Answers the worker and begins to listen to it.
    pub fn start(
        (memory, kernels): (MemoryId, &[String]),
        frames: Frames,
        host: Arc<Shared<B>>,
        limits: Limits,
    ) -> std::io::Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let mut socket = frames.socket().try_clone()?;
        let mut frame = Vec::new();
        let silence_ms = limits.silence.as_millis() as u64;
        Order::Welcome { silence_ms, kernels: kernels.to_vec() }.write(&mut frame);
        socket.set_timeouts(Some(limits.tick()), Some(limits.taking))?;
        socket.write_all(&frame)?;
        let now = Instant::now();
        let state = State {
            is_lost: false,
            tasks: VecDeque::new(),
            copies: BTreeMap::new(),
            first_since: now,
            copied: now,
            heard: now,
            offset: None,
            end: 0,
        };
        let line = Arc::new(Self {
            memory,
            limits,
            host,
            lane: Lane::default(),
            state: Mutex::new(state),
            socket: socket.try_clone()?,
            others: OnceLock::new(),
        });
        let named = |what: &str| thread::Builder::new().name(format!("{what} {}", memory.0));
        let own = Arc::clone(&line);
        let sender = named("send").spawn(move || own.send(socket))?;
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

    /// Those to which contents may have to go on.
    pub fn meet(&self, others: Vec<Option<Weak<Self>>>) {
        let _ = self.others.set(others);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The program's code, which might panic, is not called with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is to be done. What comes after a loss is dropped: the coordinator hears of it.
    pub fn hand_over(&self, orders: &mut Vec<Sent>) {
        let mut state = self.state();
        if state.is_lost {
            orders.clear();
            return;
        }
        let now = Instant::now();
        let mut expected = 0;
        for order in orders.iter() {
            match order {
                Sent::Launch(launch) => {
                    if state.tasks.is_empty() {
                        state.first_since = now;
                    }
                    state.tasks.push_back(launch.task);
                }
                Sent::Store(copy) | Sent::Forward(copy, _) => {
                    state.begin(*copy, None, CopyStage::Sending);
                }
                Sent::Fetch(copy) => {
                    let stage = CopyStage::Fetching(Assembly::new(copy.bytes));
                    state.begin(*copy, Some(self.host.now()), stage);
                }
                Sent::Drop(_) => continue,
            }
            expected += 1;
        }
        self.host.reports.expect(expected);
        drop(state);
        self.lane.add(orders);
    }

    /// The other end is gone, and so is what it had.
    fn cut(&self, reason: String) {
        let mut state = self.state();
        if std::mem::replace(&mut state.is_lost, true) {
            return;
        }
        let open = state.tasks.len() + state.copies.len();
        state.tasks.clear();
        state.copies.clear();
        self.host.reports.give_up(open);
        self.host.reports.expect(1);
        let lost = Completion::MemoryLost { memory: self.memory, reason };
        self.host.reports.add(&mut vec![lost]);
        drop(state);
        self.close();
    }

    /// Ends both threads.
    pub fn close(&self) {
        self.socket.shutdown();
        self.lane.close();
    }

    fn report(&self, completion: Completion) {
        self.host.reports.add(&mut vec![completion]);
    }

    fn send(&self, mut socket: Socket) {
        let mut orders = Vec::new();
        let mut frames = Vec::new();
        // Contents that wait until there is nothing shorter to send.
        let mut contents: VecDeque<Content> = VecDeque::new();
        loop {
            let is_open = match contents.is_empty() {
                true => self.lane.take(&mut orders),
                false => self.lane.poll(&mut orders),
            };
            if !is_open {
                return;
            }
            for order in orders.drain(..) {
                match order {
                    Sent::Launch(launch) => remote(launch).write(&mut frames),
                    Sent::Fetch(CopyOrder { transfer, handle, bytes, .. }) => {
                        Order::Fetch { transfer, handle, bytes }.write(&mut frames);
                    }
                    Sent::Drop(handle) => Order::Drop(handle).write(&mut frames),
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
            if let Err(error) = socket.write_all(&frames) {
                let reason = match error.kind() {
                    _ if is_timeout(&error) => {
                        format!("it took nothing for {:?}", self.limits.taking)
                    }
                    // As the receiving thread says, whichever hears of it first.
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                        ReadError::Closed.to_string()
                    }
                    _ => format!("the connection broke: {error}"),
                };
                return self.cut(reason);
            }
            frames.clear();
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
            if is_last {
                copying.stage = CopyStage::Sent;
            }
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
        let mut state = self.state();
        let Limits { silence, task, copy, .. } = self.limits;
        let now = Instant::now();
        if bytes > 0 {
            state.heard = now;
        }
        if now - state.heard > silence {
            return Err(format!("it gave no sign of life for {silence:?}"));
        }
        if !state.tasks.is_empty() && now - state.first_since > task {
            return Err(format!("it has had the same task for {task:?}"));
        }
        if !state.copies.is_empty() && now - state.copied > copy {
            return Err(format!("no copy went on for {copy:?}"));
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
                let is_sent = |copying: &&Copying| matches!(copying.stage, CopyStage::Sent);
                if state.copies.get(&transfer).filter(is_sent).is_none() {
                    return Err("it has a content that it was not sent".to_owned());
                }
                self.copied(&mut state, transfer);
            }
            Report::CopyFailed { transfer, reason } => {
                let mut state = self.state();
                if state.copies.remove(&transfer).is_none() {
                    return Err("it failed at a copy that it was not asked for".to_owned());
                }
                state.copied = Instant::now();
                self.report(Completion::CopyFailed { transfer, reason });
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
            Report::Hello(_) => return Err("it said who it is a second time".to_owned()),
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
        let others = self.others.get().into_iter().flatten();
        if let Some(other) = others.flatten().filter_map(Weak::upgrade).find(|one| one.memory == to)
        {
            let copying = self.state().copies.remove(&transfer);
            if let Some(Copying { began, .. }) = copying {
                other.forward(order, began, content);
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

    /// Takes over the second half of a copy from another worker.
    fn forward(&self, order: CopyOrder, began: Option<Nanos>, content: Vec<u8>) {
        let mut state = self.state();
        if state.is_lost {
            self.host.reports.give_up(1);
            return;
        }
        state.begin(order, began, CopyStage::Sending);
        drop(state);
        self.lane.add(&mut vec![Sent::Forward(order, content)]);
    }
}

impl State {
    fn begin(&mut self, order: CopyOrder, began: Option<Nanos>, stage: CopyStage) {
        if self.copies.is_empty() {
            self.copied = Instant::now();
        }
        self.copies.insert(order.transfer, Copying { order, began, stage });
    }

    /// When it ran, in the driver's time.
    ///
    /// # Errors
    /// In words, a task that is not the first of those that it has.
    fn task_ended(&mut self, task: TaskId, ran: Interval, now: Nanos) -> Result<Interval, String> {
        if self.tasks.front() != Some(&task) {
            return Err("it ended a task that is not the next of those that it was given".into());
        }
        self.tasks.pop_front();
        self.first_since = Instant::now();
        let latest = (now as i64).saturating_sub_unsigned(ran.end);
        let offset = self.offset.map_or(latest, |offset| offset.min(latest));
        self.offset = Some(offset);
        let moved = |at: Nanos| at.saturating_add_signed(offset).clamp(self.end, now.max(self.end));
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

fn remote(launch: Launch) -> Order<'static> {
    let Launch { task, kernel, parameter, sequence, accesses, .. } = launch;
    Order::Launch(RemoteLaunch { task, kernel: kernel.0, parameter, sequence, accesses })
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
