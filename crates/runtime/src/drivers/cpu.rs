//! Threads that run kernels of this program over buffers in its memory.
//!
//! A device is a thread. Where there are several memories, which is so in tests and on machines
//! that bind memory to sockets, one more thread copies between them.

mod lane;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::{
    Access, Completion, CopyOrder, Driver, HandleId, Launch, Machine, MemoryId, Mode, Nanos, Wait,
};

use lane::{Lane, Reports};

pub use lane::WAKE;

/// What a handle has in one memory: whatever a program's kernels compute on. A copy between
/// memories is a clone; a buffer that was never written is the default.
pub trait Buffer: Clone + Default + Send + Sync + 'static {}

impl<T: Clone + Default + Send + Sync + 'static> Buffer for T {}

/// A kernel's code. An error or a panic fails the task, not the program.
pub type Code<B> = Box<dyn Fn(&Arguments<'_, B>) -> Result<(), String> + Send + Sync>;

/// The buffers of a memory, by row of the handle.
type Buffers<B> = RwLock<Vec<Arc<RwLock<B>>>>;

struct Shared<B> {
    kernels: Vec<Code<B>>,
    memories: Vec<Buffers<B>>,
    began: Instant,
    reports: Reports,
}

impl<B: Buffer> Shared<B> {
    fn buffer(&self, handle: HandleId, memory: MemoryId) -> Arc<RwLock<B>> {
        let buffers = &self.memories[memory.row()];
        if let Some(buffer) = read(buffers).get(handle.row()) {
            return Arc::clone(buffer);
        }
        let mut buffers = write(buffers);
        while buffers.len() <= handle.row() {
            buffers.push(Arc::default());
        }
        Arc::clone(&buffers[handle.row()])
    }

    fn now(&self) -> Nanos {
        self.began.elapsed().as_nanos() as Nanos
    }
}

/// Of a kernel that panicked the content is undefined, which the coordinator knows.
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// What a kernel is run with.
pub struct Arguments<'a, B> {
    launch: &'a Launch,
    shared: &'a Shared<B>,
}

impl<B> std::fmt::Debug for Arguments<'_, B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Arguments").field("launch", &self.launch).finish_non_exhaustive()
    }
}

impl<B: Buffer> Arguments<'_, B> {
    pub fn parameter(&self) -> u64 {
        self.launch.parameter
    }

    /// How many accesses the task has.
    pub fn count(&self) -> usize {
        self.launch.accesses.len()
    }

    fn access(&self, row: usize) -> Result<Access, String> {
        let access = self.launch.accesses.get(row).copied();
        access.ok_or_else(|| format!("the task has no access {row}"))
    }

    /// Hands the buffer of an access to `look`.
    ///
    /// # Errors
    /// An access that the task does not have.
    pub fn read<R>(&self, row: usize, look: impl FnOnce(&B) -> R) -> Result<R, String> {
        let buffer = self.shared.buffer(self.access(row)?.handle, self.launch.memory);
        Ok(look(&read(&buffer)))
    }

    /// The same to change it.
    ///
    /// # Errors
    /// An access that the task does not have, or only reads.
    pub fn write<R>(&self, row: usize, change: impl FnOnce(&mut B) -> R) -> Result<R, String> {
        let Access { handle, mode } = self.access(row)?;
        if mode == Mode::Read {
            return Err(format!("access {row} of the task only reads"));
        }
        let buffer = self.shared.buffer(handle, self.launch.memory);
        Ok(change(&mut write(&buffer)))
    }

    /// The buffer of an access, to be locked for reading or writing by the kernel.
    ///
    /// # Errors
    /// An access that the task does not have.
    pub fn buffer(&self, row: usize) -> Result<Arc<RwLock<B>>, String> {
        Ok(self.shared.buffer(self.access(row)?.handle, self.launch.memory))
    }
}

/// What a lane of the driver does.
#[derive(Debug)]
enum Order {
    Run(Launch),
    Copy(CopyOrder),
}

/// One thread a device of the machine, from when it is made until it is dropped.
pub struct Cpu<B: Buffer> {
    shared: Arc<Shared<B>>,
    lanes: Vec<Arc<Lane<Order>>>,
    /// Orders of each lane since the last flush.
    orders: Vec<Vec<Order>>,
    /// The lane that copies, where there is more than one memory.
    copies: Option<usize>,
    threads: Vec<JoinHandle<()>>,
}

impl<B: Buffer> std::fmt::Debug for Cpu<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cpu").field("lanes", &self.lanes.len()).finish_non_exhaustive()
    }
}

impl<B: Buffer> Cpu<B> {
    /// Kernels in the order of their ids.
    ///
    /// # Errors
    /// A thread that the system does not give.
    pub fn new(machine: &Machine, kernels: Vec<Code<B>>) -> std::io::Result<Self> {
        let devices = machine.devices().len();
        let memories = machine.memories().len();
        let copies = (memories > 1).then_some(devices);
        let lanes = devices + usize::from(copies.is_some());
        let shared = Arc::new(Shared {
            kernels,
            memories: (0..memories).map(|_| Buffers::default()).collect(),
            began: Instant::now(),
            reports: Reports::default(),
        });
        let mut one = Self {
            shared,
            lanes: (0..lanes).map(|_| Arc::default()).collect(),
            orders: (0..lanes).map(|_| Vec::new()).collect(),
            copies,
            threads: Vec::new(),
        };
        for (row, lane) in one.lanes.iter().enumerate() {
            let (lane, shared) = (Arc::clone(lane), Arc::clone(&one.shared));
            let name = match machine.devices().get(row) {
                Some(device) => device.name.clone(),
                None => "copies".to_owned(),
            };
            let thread = std::thread::Builder::new().name(name).spawn(move || work(&lane, &shared));
            one.threads.push(thread?);
        }
        for (lane, thread) in one.lanes.iter().zip(&one.threads) {
            lane.served_by(thread.thread().clone());
        }
        Ok(one)
    }

    /// Puts content into the memory of a handle that no task uses.
    pub fn put(&self, handle: HandleId, memory: MemoryId, content: B) {
        *write(&self.shared.buffer(handle, memory)) = content;
    }

    /// Takes a look at a buffer that no task writes.
    pub fn look<R>(&self, handle: HandleId, memory: MemoryId, look: impl FnOnce(&B) -> R) -> R {
        look(&read(&self.shared.buffer(handle, memory)))
    }
}

fn work<B: Buffer>(lane: &Lane<Order>, shared: &Shared<B>) {
    let mut orders = Vec::new();
    let mut reports = Vec::new();
    while lane.take(&mut orders) {
        let mut at = shared.now();
        let mut reported = at;
        for order in orders.drain(..) {
            match order {
                Order::Run(launch) => {
                    let result = run(&launch, shared);
                    let end = shared.now();
                    let took = end - std::mem::replace(&mut at, end);
                    let task = launch.task;
                    reports.push(match result {
                        Ok(()) => Completion::Ended { task, took },
                        Err(reason) => Completion::Failed { task, reason },
                    });
                }
                Order::Copy(CopyOrder { transfer, handle, from, to, .. }) => {
                    let content = read(&shared.buffer(handle, from)).clone();
                    *write(&shared.buffer(handle, to)) = content;
                    at = shared.now();
                    reports.push(Completion::Copied(transfer));
                }
            }
            // Short ones are reported together, others at once.
            if at - reported > lane::WAKE {
                shared.reports.add(&mut reports);
                reported = at;
            }
        }
        shared.reports.add(&mut reports);
    }
}

fn run<B: Buffer>(launch: &Launch, shared: &Shared<B>) -> Result<(), String> {
    let Some(kernel) = shared.kernels.get(launch.kernel.row()) else {
        return Err(format!("the driver has no kernel {}", launch.kernel.row()));
    };
    let arguments = Arguments { launch, shared };
    let run = catch_unwind(AssertUnwindSafe(|| kernel(&arguments)));
    run.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("it panicked: {}", text.unwrap_or_else(|| "without a word".to_owned())))
    })
}

impl<B: Buffer> Driver for Cpu<B> {
    fn now(&self) -> Nanos {
        self.shared.now()
    }

    fn launch(&mut self, launch: Launch) {
        self.orders[launch.device.row()].push(Order::Run(launch));
    }

    fn copy(&mut self, copy: CopyOrder) {
        if let Some(row) = self.copies {
            self.orders[row].push(Order::Copy(copy));
        }
    }

    fn drop_buffer(&mut self, handle: HandleId, memory: MemoryId) {
        *write(&self.shared.buffer(handle, memory)) = B::default();
    }

    fn flush(&mut self) {
        for (lane, orders) in self.lanes.iter().zip(&mut self.orders) {
            self.shared.reports.expect(orders.len());
            lane.add(orders);
        }
    }

    fn completions(&mut self, wait: Wait, into: &mut Vec<Completion>) {
        self.shared.reports.take(wait, into);
    }
}

impl<B: Buffer> Drop for Cpu<B> {
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.close();
        }
        for thread in self.threads.drain(..) {
            // Kernels' panics are caught: there is nothing to hear of.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
