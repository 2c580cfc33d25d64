//! Workers in processes of their own, on this machine or another: one device and one memory each.
//!
//! A worker runs kernels that it knows by name over its own buffers; bytes cross only by copies. A
//! worker that ends, says nothing, or says what can't be is cut off with a reason, and its memory
//! is lost: its tasks run elsewhere, and data with copies elsewhere survives. Devices of the
//! program itself are threads beside them. What goes from one worker to another goes over a channel
//! between the two where each can reach the other, and through the program otherwise.

mod line;
mod protocol;
mod socket;
mod worker;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;

use super::cpu::{Buffer, Code, Cpu, Shared};
use crate::{
    Completion, CopyOrder, DeviceId, Driver, HandleId, KernelInfo, Launch, Machine, MemoryId,
    Nanos, Wait,
};

use line::{Line, Network, Sent, Stage};
use protocol::ChannelId;
use socket::Neighbour;

pub use protocol::FrameError;
pub use socket::{ConnectError, Connection, Listener, Peer, ReadError, Token};
pub use worker::{WorkerError, serve};

/// Content that can go to another process: as many bytes as its handle was registered with.
pub trait Portable: Buffer {
    fn to_bytes(&self) -> Vec<u8>;

    /// # Errors
    /// In words, bytes that are no content.
    fn from_bytes(bytes: Vec<u8>) -> Result<Self, String>;
}

impl Portable for Vec<u8> {
    fn to_bytes(&self) -> Vec<u8> {
        self.clone()
    }

    fn from_bytes(bytes: Vec<u8>) -> Result<Self, String> {
        Ok(bytes)
    }
}

impl Portable for Vec<f32> {
    fn to_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: Vec<u8>) -> Result<Self, String> {
        let (values, rest) = bytes.as_chunks();
        match rest.len() {
            0 => Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect()),
            _ => Err(format!("{} bytes are no whole number of values", bytes.len())),
        }
    }
}

/// What a worker has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub device: String,
    /// Devices of the same class run a kernel in the same time.
    pub class: String,
    /// Bytes of its memory.
    pub capacity: u64,
    /// Kernels by name.
    pub kernels: Vec<String>,
}

/// How long a worker may take for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From when it came until it has said who it is; as long may pass before it comes.
    pub handshake: Duration,
    /// Without a sign of life.
    pub silence: Duration,
    /// Without taking any of what it is sent.
    pub taking: Duration,
    /// For one task, once those before it have ended.
    pub task: Duration,
    /// Without a part of any of its copies going on.
    pub copy: Duration,
}

impl Default for Limits {
    /// Generous ones: a worker that is cut off is work that is done again.
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            silence: Duration::from_secs(10),
            taking: Duration::from_secs(10),
            task: Duration::from_secs(600),
            copy: Duration::from_secs(60),
        }
    }
}

impl Limits {
    /// How often the limits are looked at, and a worker gives a sign of life.
    fn tick(&self) -> Duration {
        let least = self.handshake.min(self.silence).min(self.task).min(self.copy);
        (least / 4).max(Duration::from_millis(1))
    }

    /// Whether what takes so long at most took so much longer that this program was not let run:
    /// it was stopped, frozen or debugged.
    fn is_late(&self, waited: Duration, most: Duration) -> bool {
        waited > most + self.tick()
    }
}

#[derive(Debug, Error)]
pub enum StartError {
    #[error("a thread or a clone of a socket can't be had")]
    System(#[from] std::io::Error),
    #[error("there is no memory {0}")]
    NoMemory(usize),
    #[error("memory `{memory}` has {devices} devices, and a worker is one")]
    Devices { memory: String, devices: usize },
    #[error("memory `{memory}` is of {told} bytes, and its worker offers {offered}")]
    Capacity { memory: String, told: u64, offered: u64 },
    #[error("memory `{0}` is of two workers")]
    Twice(String),
    #[error("the worker of memory `{memory}` is of another version: it has no kernel `{kernel}`")]
    Kernel { memory: String, kernel: String },
}

/// A worker, and what it is to do since the last flush.
struct Link<B: Portable> {
    line: Arc<Line<B>>,
    /// Where other workers may come to.
    neighbour: Option<Neighbour>,
    orders: Vec<Sent>,
    /// Contents that it is asked for, after that.
    fetches: Vec<Sent>,
    threads: Vec<JoinHandle<()>>,
}

/// Threads of this process for devices that no worker has, two more for each worker.
pub struct Process<B: Portable> {
    host: Cpu<B>,
    /// By memory; `None` for those of this process.
    links: Vec<Option<Link<B>>>,
    network: Arc<Network<B>>,
    kernels: Vec<KernelInfo>,
    limits: Limits,
}

impl<B: Portable> Link<B> {
    fn start(
        (memory, kernels): (MemoryId, &[KernelInfo]),
        Peer { frames, neighbour, .. }: Peer,
        shared: (Arc<Shared<B>>, Arc<Network<B>>),
        limits: Limits,
    ) -> Result<Self, StartError> {
        let names: Vec<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
        let (line, threads) = Line::start((memory, names), frames, shared, limits)?;
        Ok(Self { line, neighbour, orders: Vec::new(), fetches: Vec::new(), threads })
    }
}

impl<B: Portable> std::fmt::Debug for Process<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let workers = self.links.iter().flatten().count();
        formatter.debug_struct("Process").field("workers", &workers).finish_non_exhaustive()
    }
}

impl<B: Portable> Process<B> {
    /// `code` is of the devices of this process, in the order of kernels; it may be shorter where
    /// only workers have the rest. Each worker has the memory beside it, and its one device.
    ///
    /// # Errors
    /// What the machine says otherwise than a worker, and threads that can't be had.
    pub fn new(
        machine: &Machine,
        (kernels, code): (&[KernelInfo], Vec<Code<B>>),
        workers: Vec<(MemoryId, Peer)>,
        limits: Limits,
    ) -> Result<Self, StartError> {
        for (memory, Peer { offer, .. }) in &workers {
            check(machine, *memory, offer, kernels)?;
        }
        let mut links: Vec<Option<Link<B>>> = machine.memories().iter().map(|_| None).collect();
        let is_remote = |memory: MemoryId| workers.iter().any(|(of, _)| *of == memory);
        let host = Cpu::for_devices(machine, code, |id| !is_remote(machine.memory_of(id)))?;
        let network = Arc::new(Network::default());
        for (memory, peer) in workers {
            let link = &mut links[memory.row()];
            if link.is_some() {
                return Err(StartError::Twice(machine.memories()[memory.row()].name.clone()));
            }
            let shared = (host.shared(), Arc::clone(&network));
            *link = Some(Link::start((memory, kernels), peer, shared, limits)?);
        }
        let own = Self { host, links, network, kernels: kernels.to_vec(), limits };
        own.introduce();
        Ok(own)
    }

    /// Another worker for a memory whose own one was lost, after the coordinator was told of the
    /// loss. See [`crate::Coordinator::restore_memory`].
    ///
    /// # Errors
    /// What the machine says otherwise than the worker, and threads that can't be had.
    pub fn replace(
        &mut self,
        machine: &Machine,
        memory: MemoryId,
        peer: Peer,
    ) -> Result<(), StartError> {
        check(machine, memory, &peer.offer, &self.kernels)?;
        let shared = (self.host.shared(), Arc::clone(&self.network));
        let link = Link::start((memory, &self.kernels), peer, shared, self.limits)?;
        // Those that were opened since the old one was lost, and before anybody knew of it.
        self.network.forget(memory);
        self.links[memory.row()] = Some(link);
        self.introduce();
        Ok(())
    }

    /// From which worker to which other one nothing goes but through this process, though each
    /// seemed to be where the other may come to.
    pub fn relayed(&self) -> Vec<(MemoryId, MemoryId)> {
        self.network.given_up()
    }

    /// Tells the workers' lines of each other.
    fn introduce(&self) {
        let lines = self.links.iter().map(|link| Some(Arc::downgrade(&link.as_ref()?.line)));
        self.network.set_lines(lines.collect());
    }

    /// The open channel from one worker to another. Where there never was one and each can reach
    /// the other, the two are told to open it.
    fn channel(&mut self, from: MemoryId, to: MemoryId) -> Option<ChannelId> {
        let [first, second] = [from, to].map(|memory| self.links[memory.row()].as_ref());
        let (first, second) = (first?.neighbour.as_ref(), second?.neighbour.as_ref());
        match self.network.between(from, to) {
            Some((id, Stage::Open)) => return Some(id),
            Some(_) => return None,
            None => {}
        }
        let place = second.filter(|second| first.is_some_and(|first| first.reaches(second)));
        let (place, token) = (place?.place.clone(), Token::random().ok()?.0);
        let id = self.network.open(from, to);
        self.link(to)?.orders.push(Sent::Expect(id, token));
        self.link(from)?.fetches.push(Sent::Open(id, place, token));
        None
    }

    fn link(&mut self, memory: MemoryId) -> Option<&mut Link<B>> {
        self.links[memory.row()].as_mut()
    }

    /// Puts content into a memory of this process, for a handle that no task uses, and returns what
    /// was there.
    pub fn put(&self, handle: HandleId, memory: MemoryId, content: B) -> B {
        self.host.put(handle, memory, content)
    }

    /// Takes a look at a buffer in a memory of this process that no task writes.
    pub fn look<R>(&self, handle: HandleId, memory: MemoryId, look: impl FnOnce(&B) -> R) -> R {
        self.host.look(handle, memory, look)
    }
}

fn check(
    machine: &Machine,
    memory: MemoryId,
    offer: &Offer,
    kernels: &[KernelInfo],
) -> Result<(), StartError> {
    let Some(told) = machine.memories().get(memory.row()) else {
        return Err(StartError::NoMemory(memory.row()));
    };
    let own = machine.device_ids().filter(|device| machine.memory_of(*device) == memory);
    let own: Vec<DeviceId> = own.collect();
    let memory = told.name.clone();
    let &[device] = &own[..] else {
        return Err(StartError::Devices { memory, devices: own.len() });
    };
    let class = &machine.devices()[device.row()].class;
    let is_of_it = |kernel: &&KernelInfo| {
        kernel.classes.is_empty() || kernel.classes.iter().any(|own| own == class)
    };
    let missing = kernels.iter().filter(is_of_it).find(|own| !offer.kernels.contains(&own.name));
    if let Some(KernelInfo { name, .. }) = missing {
        return Err(StartError::Kernel { memory, kernel: name.clone() });
    }
    let (told, offered) = (told.capacity.0, offer.capacity);
    if told > offered {
        return Err(StartError::Capacity { memory, told, offered });
    }
    Ok(())
}

impl<B: Portable> Driver for Process<B> {
    fn now(&self) -> Nanos {
        self.host.now()
    }

    fn launch(&mut self, launch: Launch) {
        match self.link(launch.memory) {
            Some(link) => link.orders.push(Sent::Launch(launch)),
            None => self.host.launch(launch),
        }
    }

    fn copy(&mut self, copy: CopyOrder) {
        if let Some(channel) = self.channel(copy.from, copy.to) {
            let second = self.link(copy.to);
            second.into_iter().for_each(|own| own.orders.push(Sent::AwaitOver(channel, copy)));
            let first = self.link(copy.from);
            first.into_iter().for_each(|own| own.fetches.push(Sent::SendOver(channel, copy)));
            return;
        }
        let is_fetched = match self.link(copy.from) {
            Some(link) => {
                link.fetches.push(Sent::Fetch(copy));
                true
            }
            None => false,
        };
        match (self.link(copy.to), is_fetched) {
            (Some(link), true) => link.orders.push(Sent::Await(copy)),
            (Some(link), false) => link.orders.push(Sent::Store(copy)),
            (None, true) => {}
            (None, false) => self.host.copy(copy),
        }
    }

    fn drop_buffer(&mut self, handle: HandleId, memory: MemoryId) {
        match self.link(memory) {
            Some(link) => link.orders.push(Sent::Drop(handle)),
            None => self.host.drop_buffer(handle, memory),
        }
    }

    fn flush(&mut self) {
        self.host.flush();
        for link in self.links.iter_mut().flatten() {
            link.line.hand_over(&mut link.orders);
        }
        // Whoever awaits a content of another worker knows of it by now, and has dropped what was
        // in its place.
        for link in self.links.iter_mut().flatten() {
            link.line.hand_over(&mut link.fetches);
        }
    }

    fn completions(&mut self, wait: Wait, into: &mut Vec<Completion>) {
        self.host.completions(wait, into);
    }
}

impl<B: Portable> Drop for Link<B> {
    fn drop(&mut self) {
        self.line.end();
        for thread in self.threads.drain(..) {
            // What the program's code panics with in it is caught.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
