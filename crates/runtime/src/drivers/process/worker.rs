//! The worker's end: buffers of its own, and kernels that it knows by name.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use thiserror::Error;

use super::super::cpu::lane::WAKE;
use super::super::cpu::{Code, Shared, caught, read, run, write};
use super::channel::Incoming;
use super::protocol::{
    Assembly, ChannelId, FrameError, Hello, Order, RemoteCopy, RemoteLaunch, Report, chunks,
};
use super::socket::{Connection, Frames, Home, ReadError, Socket};
use super::{Limits, Portable};
use crate::machine::Interval;
use crate::{ClassId, DeviceId, HandleId, KernelId, Launch, MemoryId, Nanos, TransferId};

/// The one memory of a worker.
pub const OWN: MemoryId = MemoryId(0);

/// A kernel that the worker does not have: there are fewer.
const ABSENT: KernelId = KernelId(u16::MAX);

#[derive(Debug, Error)]
pub enum WorkerError {
    #[error("the connection broke")]
    Socket(#[from] std::io::Error),
    #[error("the program sent what a worker can't do: {0}")]
    Protocol(String),
    #[error("the program is gone, or has given this worker up")]
    Gone,
    #[error("the program did not let the worker in: {0}")]
    Refused(String),
}

impl From<FrameError> for WorkerError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// What all threads of a worker have.
pub struct Worker<B> {
    pub shared: Shared<B>,
    /// The worker's kernel for each of the program's.
    kernels: Vec<KernelId>,
    socket: Mutex<Socket>,
    /// Where it meets other workers.
    pub home: Home,
    /// `None` where they can't come.
    pub incoming: Option<Incoming>,
    pub limits: Limits,
}

/// What the receiving thread hands to others.
struct Handed {
    launches: Sender<RemoteLaunch>,
    fetches: Sender<RemoteCopy>,
    /// Channels that begin here.
    outgoing: BTreeMap<ChannelId, Sender<RemoteCopy>>,
}

/// Serves a program until it says that there is nothing more to do. One thread runs kernels, one
/// sends contents, one gives signs of life; one lets other workers in, and each channel from or to
/// one has its own.
///
/// # Errors
/// A program that does not let the worker in, ends the connection without a word, or sends what
/// can't be.
pub fn serve<B: Portable>(
    connection: Connection,
    (device, class, capacity): (&str, &str, u64),
    kernels: Vec<(String, Code<B>)>,
) -> Result<(), WorkerError> {
    let Connection { socket, token, home } = connection;
    let (incoming, door) = Incoming::open(&home).unzip();
    let (names, code): (Vec<String>, Vec<Code<B>>) = kernels.into_iter().unzip();
    let mut frame = Vec::new();
    let hello = Hello {
        token,
        device: device.to_owned(),
        class: class.to_owned(),
        capacity,
        kernels: names.clone(),
        door,
    };
    Report::Hello(hello).write(&mut frame);
    let mut writer = socket.try_clone()?;
    writer.write_all(&frame)?;
    let mut frames = Frames::new(socket);
    let refused = |error: ReadError| WorkerError::Refused(error.to_string());
    let welcome = frames.next(|_| Ok(())).map_err(refused)?;
    let Order::Welcome { silence_ms, kernels } = Order::read(welcome)? else {
        return Err(WorkerError::Protocol("an order before the welcome".to_owned()));
    };
    let own = |name: &String| {
        let place = names.iter().position(|own| own == name);
        place.map_or(ABSENT, |row| KernelId(row as u16))
    };
    let silence = Duration::from_millis(silence_ms);
    let worker = Worker {
        shared: Shared::new(code, 1),
        kernels: kernels.iter().map(own).collect(),
        socket: Mutex::new(writer),
        home,
        incoming,
        limits: Limits { silence, ..Limits::default() },
    };
    thread::scope(|scope| {
        let (launches, launched) = mpsc::channel();
        let (fetches, fetched) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        scope.spawn(|| worker.compute(launched));
        scope.spawn(|| worker.send_contents(fetched));
        scope.spawn(|| worker.give_signs(ends));
        scope.spawn(|| worker.let_in(scope));
        // The others end with these.
        let handed = Handed { launches, fetches, outgoing: BTreeMap::new() };
        let ended = worker.receive(scope, frames, handed);
        drop(end);
        worker.incoming.iter().for_each(Incoming::end);
        ended
    })
}

impl<B: Portable> Worker<B> {
    fn send(&self, frames: &[u8]) {
        if frames.is_empty() {
            return;
        }
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        // A connection that is gone ends the receiving thread, and with it the others.
        let _ = socket.write_all(frames);
    }

    pub fn report(&self, report: &Report<'_>) {
        let mut frame = Vec::new();
        report.write(&mut frame);
        self.send(&frame);
    }

    fn receive<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        mut frames: Frames,
        Handed { launches, fetches, mut outgoing }: Handed,
    ) -> Result<(), WorkerError> {
        let mut storing: Option<(TransferId, Assembly)> = None;
        loop {
            let frame = match frames.next(|_| Ok(())) {
                Ok(frame) => frame,
                Err(ReadError::Closed) => return Err(WorkerError::Gone),
                Err(ReadError::Broken(error)) => return Err(error.into()),
                Err(error) => return Err(WorkerError::Protocol(error.to_string())),
            };
            match Order::read(frame)? {
                // Threads that take these end after this one.
                Order::Launch(launch) => {
                    let _ = launches.send(launch);
                }
                Order::Fetch(copy) => {
                    let _ = fetches.send(copy);
                }
                Order::Store(handle, chunk) => {
                    let transfer = chunk.transfer;
                    let (of, mut assembly) =
                        storing.take().unwrap_or_else(|| (transfer, Assembly::new(chunk.total)));
                    if of != transfer {
                        return Err(WorkerError::Protocol("contents in each other".to_owned()));
                    }
                    match assembly.add(&chunk).map_err(WorkerError::Protocol)? {
                        Some(content) => self.store(transfer, handle, content),
                        None => storing = Some((of, assembly)),
                    }
                }
                Order::Drop(handle) => self.drop_buffer(handle),
                Order::Expect(channel) => match &self.incoming {
                    Some(incoming) => incoming.expect(channel),
                    None => return Err(WorkerError::Protocol("nobody can come".to_owned())),
                },
                Order::Await(channel, copy) => {
                    self.incoming.iter().for_each(|own| own.await_copy(channel, copy));
                }
                Order::Open(channel, door) => {
                    let (copies, sent) = mpsc::channel();
                    outgoing.insert(channel, copies);
                    scope.spawn(move || self.send_over(channel, &door, sent));
                }
                Order::Send(channel, copy) => {
                    // One that is given up is awaited no more.
                    let _ = outgoing.get(&channel).map(|copies| copies.send(copy));
                }
                Order::Close(channel) => {
                    outgoing.remove(&channel);
                    self.close_incoming(channel, "the program closed it".to_owned());
                }
                Order::End => return Ok(()),
                Order::Welcome { .. } => {
                    return Err(WorkerError::Protocol("a second welcome".to_owned()));
                }
            }
        }
    }

    fn drop_buffer(&self, handle: HandleId) {
        let buffer = self.shared.buffer(handle, OWN);
        // A buffer whose end panics is gone all the same.
        let _ = caught(|| {
            *write(&buffer) = B::default();
            Ok(())
        });
    }

    fn store(&self, transfer: TransferId, handle: HandleId, content: Vec<u8>) {
        let stored = caught(|| {
            let content = B::from_bytes(content)?;
            *write(&self.shared.buffer(handle, OWN)) = content;
            Ok(())
        });
        self.report(&match stored {
            Ok(()) => Report::Stored { transfer },
            Err(reason) => Report::CopyFailed { transfer, reason },
        });
    }

    /// Runs kernels in the order in which they come. What is short is reported together.
    fn compute(&self, launches: Receiver<RemoteLaunch>) {
        let mut reports = Vec::new();
        while let Ok(first) = launches.recv() {
            let mut start = self.shared.now();
            let mut reported = start;
            let mut next = Some(first);
            while let Some(launch) = next {
                // Nobody's report waits for what may take long.
                if launch.expected >= WAKE {
                    self.send(&reports);
                    reports.clear();
                    reported = start;
                }
                let end = self.run(launch, start, &mut reports);
                start = end;
                if end - reported > WAKE {
                    self.send(&reports);
                    reports.clear();
                    reported = end;
                }
                next = launches.try_recv().ok();
            }
            self.send(&reports);
            reports.clear();
        }
    }

    /// When it ended, where the next one begins.
    fn run(&self, launch: RemoteLaunch, start: Nanos, reports: &mut Vec<u8>) -> Nanos {
        let RemoteLaunch { task, kernel, parameter, sequence, expected, accesses } = launch;
        let own = self.kernels.get(usize::from(kernel)).copied().unwrap_or(ABSENT);
        let launch = Launch {
            task,
            device: DeviceId(0),
            class: ClassId(0),
            memory: OWN,
            kernel: own,
            parameter,
            sequence,
            expected,
            accesses,
        };
        let result = match own {
            ABSENT => Err(format!("the worker has no kernel for the program's {kernel}")),
            _ => run(&launch, &self.shared),
        };
        let end = self.shared.now();
        let ran = Interval { start, end };
        match result {
            Ok(()) => Report::Ended { task, ran }.write(reports),
            Err(reason) => Report::Failed { task, ran, reason }.write(reports),
        }
        end
    }

    /// # Errors
    /// In words, why there is no such content.
    pub fn content(
        &self,
        RemoteCopy { handle, bytes, .. }: &RemoteCopy,
    ) -> Result<Vec<u8>, String> {
        let content = caught(|| Ok(read(&self.shared.buffer(*handle, OWN)).to_bytes()))?;
        match content.len() as u64 {
            found if found == *bytes => Ok(content),
            found => Err(format!("its content has {found} bytes, and the handle {bytes}")),
        }
    }

    fn send_contents(&self, fetches: Receiver<RemoteCopy>) {
        for copy @ RemoteCopy { transfer, .. } in fetches {
            match self.content(&copy) {
                Ok(content) => {
                    let chunks = chunks(transfer, &content);
                    chunks.for_each(|chunk| self.report(&Report::Content(chunk)));
                }
                Err(reason) => self.report(&Report::CopyFailed { transfer, reason }),
            }
        }
    }

    fn give_signs(&self, ends: Receiver<()>) {
        let every = self.limits.tick();
        while ends.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            self.report(&Report::Alive);
        }
    }
}
