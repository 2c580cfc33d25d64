//! The worker's end: buffers of its own, and kernels that it knows by name.

mod channels;

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use super::super::cpu::lane::WAKE;
use super::super::cpu::{Code, Shared, caught, read, run, write};
use super::protocol::{
    Assembly, FrameError, Hello, Order, RemoteCopy, RemoteLaunch, Report, chunks,
};
use super::socket::{Connection, Frames, ReadError, Socket};
use super::{Limits, Portable};
use crate::machine::Interval;
use crate::{ClassId, DeviceId, HandleId, KernelId, Launch, MemoryId, Nanos, TransferId};

use channels::Channels;

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
    pub channels: Channels,
}

/// Serves a program until it says that there is nothing more to do. One thread runs kernels, one
/// sends contents, one gives signs of life; one lets other workers in, and each channel has its
/// own.
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
    let (channels, door) = Channels::open(home, Limits::default());
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
    let worker = Arc::new(Worker {
        shared: Shared::new(code, 1),
        kernels: kernels.iter().map(own).collect(),
        socket: Mutex::new(writer),
        channels,
    });
    let own = Arc::clone(&worker);
    let doorkeeper = thread::Builder::new().name("channels".to_owned());
    let doorkeeper = doorkeeper.spawn(move || own.let_in())?;
    let ended = thread::scope(|scope| {
        let (launches, launched) = channel();
        let (fetches, fetched) = channel();
        let (end, ends) = channel::<()>();
        scope.spawn(|| worker.compute(launched));
        scope.spawn(|| worker.send_contents(fetched));
        scope.spawn(|| worker.give_signs(ends, Duration::from_millis(silence_ms)));
        let ended = worker.receive(frames, &launches, &fetches);
        // The others end with these.
        drop((launches, fetches, end));
        ended
    });
    worker.channels.end();
    // What it panics with would be known by now.
    let _ = doorkeeper.join();
    ended
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

    /// Sends what was reported of channels, in its order.
    pub fn send_reports(&self) {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = socket.write_all(&self.channels.take_reports());
    }

    fn receive(
        self: &Arc<Self>,
        mut frames: Frames,
        launches: &Sender<RemoteLaunch>,
        fetches: &Sender<RemoteCopy>,
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
                Order::Expect(channel, token) => self.channels.expect(channel, token),
                Order::Await(channel, copy) => self.channels.await_copy(channel, copy),
                Order::Open(channel, place, token) => self.open_outgoing(channel, place, token),
                Order::Send(channel, copy) => self.channels.send(channel, copy),
                Order::Close(channel) => {
                    self.close_outgoing(channel);
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

    fn give_signs(&self, ends: Receiver<()>, silence: Duration) {
        let every = Limits { silence, ..Limits::default() }.tick();
        while ends.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            self.report(&Report::Alive);
        }
    }
}
