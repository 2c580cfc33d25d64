//! Threads that run kernels of this program over buffers in its memory.
//!
//! A device is a thread. Where there are several memories, which is so in tests and on machines
//! that bind memory to sockets, one more thread copies between them.

pub(super) mod lane;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::{
    Access, Completion, CopyOrder, DeviceId, Driver, HandleId, Launch, Machine, MemoryId, Mode,
    Nanos, Wait,
};

use crate::machine::Interval;

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

pub(super) struct Shared<B> {
    kernels: Vec<Code<B>>,
    memories: Vec<Buffers<B>>,
    began: Instant,
    pub reports: Reports,
}

impl<B: Buffer> Shared<B> {
    pub fn new(kernels: Vec<Code<B>>, memories: usize) -> Self {
        Self {
            kernels,
            memories: (0..memories).map(|_| Buffers::default()).collect(),
            began: Instant::now(),
            reports: Reports::default(),
        }
    }

    pub fn buffer(&self, handle: HandleId, memory: MemoryId) -> Arc<RwLock<B>> {
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

    pub fn now(&self) -> Nanos {
        self.began.elapsed().as_nanos() as Nanos
    }
}

/// Of a kernel that panicked the content is undefined, which the coordinator knows.
pub(super) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
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

    /// The buffers of all accesses, for a kernel that computes on several at once.
    pub fn hold(&self) -> Held<B> {
        let accesses = self.launch.accesses.iter();
        let buffer =
            |access: &Access| (self.shared.buffer(access.handle, self.launch.memory), access.mode);
        Held { buffers: accesses.map(buffer).collect() }
    }
}

/// The buffers of a task's accesses, by their rows.
#[derive(Debug)]
pub struct Held<B> {
    buffers: Vec<(Arc<RwLock<B>>, Mode)>,
}

impl<B> Held<B> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.buffers.len()
    }

    fn buffer(&self, row: usize) -> Result<&(Arc<RwLock<B>>, Mode), String> {
        self.buffers.get(row).ok_or_else(|| format!("the task has no access {row}"))
    }

    /// The buffer of an access.
    ///
    /// # Errors
    /// An access that the task does not have.
    pub fn read(&self, row: usize) -> Result<RwLockReadGuard<'_, B>, String> {
        Ok(read(&self.buffer(row)?.0))
    }

    /// The same to change it.
    ///
    /// # Errors
    /// An access that the task does not have, or only reads.
    pub fn write(&self, row: usize) -> Result<RwLockWriteGuard<'_, B>, String> {
        match self.buffer(row)? {
            (_, Mode::Read) => Err(format!("access {row} of the task only reads")),
            (buffer, _) => Ok(write(buffer)),
        }
    }
}

/// What a lane of the driver does.
#[derive(Debug)]
enum Order {
    Run(Launch),
    Copy(CopyOrder),
}

impl Order {
    /// Whether it is known to take less than it takes to report it.
    fn is_short(&self) -> bool {
        matches!(self, Self::Run(launch) if launch.expected < lane::WAKE)
    }
}

/// One thread a device, from when it is made until it is dropped.
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
    /// A thread that the system does not give, and a device whose name no thread can have.
    pub fn new(machine: &Machine, kernels: Vec<Code<B>>) -> std::io::Result<Self> {
        Self::for_devices(machine, kernels, |_| true)
    }

    /// The same for some devices of the machine: the others are driven by somebody else.
    ///
    /// # Errors
    /// See [`Cpu::new`].
    pub(super) fn for_devices(
        machine: &Machine,
        kernels: Vec<Code<B>>,
        is_own: impl Fn(DeviceId) -> bool,
    ) -> std::io::Result<Self> {
        let devices = machine.devices().len();
        let memories = machine.memories().len();
        let copies = (memories > 1).then_some(devices);
        let lanes = devices + usize::from(copies.is_some());
        let mut one = Self {
            shared: Arc::new(Shared::new(kernels, memories)),
            lanes: (0..lanes).map(|_| Arc::default()).collect(),
            orders: (0..lanes).map(|_| Vec::new()).collect(),
            copies,
            threads: Vec::new(),
        };
        for (row, lane) in one.lanes.iter().enumerate() {
            if row < devices && !is_own(DeviceId(row as u16)) {
                continue;
            }
            let (lane, shared) = (Arc::clone(lane), Arc::clone(&one.shared));
            let name = match machine.devices().get(row) {
                Some(device) => device.name.clone(),
                None => "copies".to_owned(),
            };
            if name.contains('\0') {
                return Err(std::io::Error::new(
                    std::io::ErrorKind::InvalidInput,
                    format!("device `{}` has a zero byte in its name", name.escape_default()),
                ));
            }
            let served = Arc::clone(&lane);
            let thread = std::thread::Builder::new().name(name).spawn(move || work(&lane, &shared));
            let thread = thread?;
            // At once: where the next one fails this one is woken to end.
            served.served_by(thread.thread().clone());
            one.threads.push(thread);
        }
        Ok(one)
    }

    pub(super) fn shared(&self) -> Arc<Shared<B>> {
        Arc::clone(&self.shared)
    }

    /// Puts content into the memory of a handle that no task uses, and returns what was there.
    pub fn put(&self, handle: HandleId, memory: MemoryId, content: B) -> B {
        std::mem::replace(&mut *write(&self.shared.buffer(handle, memory)), content)
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
            // Nobody's report waits for what may take long.
            if !order.is_short() {
                shared.reports.add(&mut reports);
                reported = at;
            }
            match order {
                Order::Run(launch) => {
                    let result = run(&launch, shared);
                    let end = shared.now();
                    let ran = Interval { start: std::mem::replace(&mut at, end), end };
                    let task = launch.task;
                    reports.push(match result {
                        Ok(()) => Completion::Ended { task, ran },
                        Err(reason) => Completion::Failed { task, ran, reason },
                    });
                }
                Order::Copy(copy) => {
                    let copied = caught(|| {
                        let content = read(&shared.buffer(copy.handle, copy.from)).clone();
                        *write(&shared.buffer(copy.handle, copy.to)) = content;
                        Ok(())
                    });
                    let end = shared.now();
                    let ran = Interval { start: std::mem::replace(&mut at, end), end };
                    let transfer = copy.transfer;
                    reports.push(match copied {
                        Ok(()) => Completion::Copied { transfer, ran },
                        Err(reason) => Completion::CopyFailed { transfer, reason },
                    });
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

pub(super) fn run<B: Buffer>(launch: &Launch, shared: &Shared<B>) -> Result<(), String> {
    let Some(kernel) = shared.kernels.get(launch.kernel.row()) else {
        return Err(format!("the driver has no kernel {}", launch.kernel.row()));
    };
    let arguments = Arguments { launch, shared };
    caught(|| kernel(&arguments))
}

/// A panic of the program's code as an error.
pub(super) fn caught<R>(run: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
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
            // Panics of the program's code are caught: there is nothing to hear of.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
