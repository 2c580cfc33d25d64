//! What the tasks run on: devices, memories, and the links that join the memories.

use het_core::Bytes;
use thiserror::Error;

use crate::{ClassId, DeviceId, MemoryId};

/// Nanoseconds since the driver began, or of a duration.
pub type Nanos = u64;

/// Sets of memories are bits of a word.
pub const MEMORIES_MAX: usize = 64;

/// Sets of device classes are bits of a word.
pub const CLASSES_MAX: usize = 64;

/// The size for which routes are chosen: large enough that bandwidth counts, small enough that
/// latency does.
const ROUTED_BYTES: f64 = 1e6;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    /// Devices of the same class run a kernel in the same time.
    pub class: String,
    pub memory: MemoryId,
    /// What it takes an idle device to begin: waking a thread, launching a kernel.
    pub wake: Nanos,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    pub name: String,
    pub capacity: Bytes,
}

/// One direction of a link. Ends are memories by their rows, and after them switches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    pub from: usize,
    pub to: usize,
    pub bytes_per_s: f64,
    pub latency: Nanos,
}

impl Link {
    /// Both directions of a full-duplex link.
    pub fn both(a: usize, b: usize, bytes_per_s: f64, latency: Nanos) -> [Self; 2] {
        [(a, b), (b, a)].map(|(from, to)| Self { from, to, bytes_per_s, latency })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MachineError {
    #[error("the machine has no devices")]
    NoDevices,
    #[error("the machine has {0} memories: {MEMORIES_MAX} at most are supported")]
    Memories(usize),
    #[error("the machine has {0} device classes: {CLASSES_MAX} at most are supported")]
    Classes(usize),
    #[error("the machine has {0} devices: {max} at most are supported", max = u16::MAX)]
    Devices(usize),
    #[error("device `{device}` has memory {memory}, and there are {count}")]
    NoMemory { device: String, memory: usize, count: usize },
    #[error("link {row} leads from {from} to {to}, and there are {count} memories and switches")]
    NoEnd { row: usize, from: usize, to: usize, count: usize },
    #[error("no links lead from memory `{from}` to `{to}`: data could never get there")]
    NoRoute { from: String, to: String },
    #[error("link {row} has a bandwidth of {told} bytes/s: it must be a number above zero")]
    Bandwidth { row: usize, told: String },
}

/// The links from one memory to another.
#[derive(Debug, Clone, PartialEq)]
struct Route {
    links: Box<[u32]>,
    latency: Nanos,
    /// Of its slowest link.
    bytes_per_s: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    devices: Vec<Device>,
    /// Class of each device.
    class_of: Vec<ClassId>,
    classes: Vec<String>,
    memories: Vec<Memory>,
    links: Vec<Link>,
    /// From each memory to each, row by row.
    routes: Vec<Option<Route>>,
}

impl Machine {
    /// # Errors
    /// What does not fit together, by the name or row of the first such thing.
    pub fn new(
        devices: Vec<Device>,
        memories: Vec<Memory>,
        switches: usize,
        links: Vec<Link>,
    ) -> Result<Self, MachineError> {
        let count = memories.len();
        let mut classes: Vec<String> = Vec::new();
        let mut class_of = Vec::with_capacity(devices.len());
        for device in &devices {
            if device.memory.row() >= count {
                let (device, memory) = (device.name.clone(), device.memory.row());
                return Err(MachineError::NoMemory { device, memory, count });
            }
            let known = classes.iter().position(|class| *class == device.class);
            let class = known.unwrap_or(classes.len());
            if known.is_none() {
                classes.push(device.class.clone());
            }
            class_of.push(class);
        }
        if devices.is_empty() {
            return Err(MachineError::NoDevices);
        }
        if devices.len() > usize::from(u16::MAX) {
            return Err(MachineError::Devices(devices.len()));
        }
        if count > MEMORIES_MAX {
            return Err(MachineError::Memories(count));
        }
        if classes.len() > CLASSES_MAX {
            return Err(MachineError::Classes(classes.len()));
        }
        let ends = count + switches;
        for (row, link) in links.iter().enumerate() {
            let Link { from, to, bytes_per_s, .. } = *link;
            if from >= ends || to >= ends {
                return Err(MachineError::NoEnd { row, from, to, count: ends });
            }
            if !(bytes_per_s.is_finite() && bytes_per_s > 0.0) {
                return Err(MachineError::Bandwidth { row, told: bytes_per_s.to_string() });
            }
        }
        let routes: Vec<Option<Route>> =
            (0..count).flat_map(|from| routes_from(from, count, ends, &links)).collect();
        let pairs = routes.iter().enumerate().map(|(at, route)| (at / count, at % count, route));
        let mut apart = pairs.filter(|(from, to, route)| from != to && route.is_none());
        if let Some((from, to, _)) = apart.next() {
            let name = |memory: usize| memories[memory].name.clone();
            return Err(MachineError::NoRoute { from: name(from), to: name(to) });
        }
        let class_of = class_of.into_iter().map(|class| ClassId(class as u16)).collect();
        Ok(Self { devices, class_of, classes, memories, links, routes })
    }

    /// The same with a link of another rate, in bytes a second, wherever `rate` knows one by its
    /// row. Routes lead over the same links.
    pub fn with_rates(&self, rate: impl Fn(usize) -> Option<f64>) -> Self {
        let mut own = self.clone();
        for (row, link) in own.links.iter_mut().enumerate() {
            link.bytes_per_s = rate(row).unwrap_or(link.bytes_per_s);
        }
        for route in own.routes.iter_mut().flatten() {
            let rates = route.links.iter().map(|link| own.links[*link as usize].bytes_per_s);
            route.bytes_per_s = rates.fold(f64::INFINITY, f64::min);
        }
        own
    }

    /// The same where what goes from one memory to the other has to be handed on by a third.
    pub fn with_relay(mut self, (from, to): (MemoryId, MemoryId), by: MemoryId) -> Self {
        if let (Some(first), Some(second)) = (self.route(from, by), self.route(by, to)) {
            let links = first.links.iter().chain(&second.links).copied().collect();
            let latency = first.latency + second.latency;
            let bytes_per_s = first.bytes_per_s.min(second.bytes_per_s);
            let row = from.row() * self.memories.len() + to.row();
            self.routes[row] = Some(Route { links, latency, bytes_per_s });
        }
        self
    }

    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.devices.len() as u16).map(DeviceId)
    }

    pub fn memories(&self) -> &[Memory] {
        &self.memories
    }

    pub fn memory_ids(&self) -> impl Iterator<Item = MemoryId> + use<> {
        (0..self.memories.len() as u16).map(MemoryId)
    }

    /// Names of device classes, in the order in which devices name them first.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    pub fn class_of(&self, device: DeviceId) -> ClassId {
        self.class_of[device.row()]
    }

    pub fn memory_of(&self, device: DeviceId) -> MemoryId {
        self.devices[device.row()].memory
    }

    /// Bytes of the memory that a device computes in.
    pub fn capacity_of(&self, device: DeviceId) -> u64 {
        self.memories[self.memory_of(device).row()].capacity.0
    }

    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// How long so many bytes take where nothing else is under way; `None` where no links lead.
    pub fn transfer_time(&self, from: MemoryId, to: MemoryId, bytes: u64) -> Option<Nanos> {
        let route = self.route(from, to)?;
        Some(route.latency + nanos(bytes, route.bytes_per_s))
    }

    /// Rows of the links that a transfer takes.
    pub fn links_between(&self, from: MemoryId, to: MemoryId) -> impl Iterator<Item = usize> + '_ {
        let links = self.route(from, to).into_iter().flat_map(|route| route.links.iter());
        links.map(|link| *link as usize)
    }

    /// Whether links lead from one memory to another without a third that would have to hand on
    /// what is copied.
    pub fn is_direct(&self, from: MemoryId, to: MemoryId) -> bool {
        let Some(route) = self.route(from, to) else { return from == to };
        let between = route.links.iter().rev().skip(1);
        between.into_iter().all(|link| self.links[*link as usize].to >= self.memories.len())
    }

    /// How long so many bytes occupy one link.
    pub fn link_time(&self, link: usize, bytes: u64) -> Nanos {
        self.links.get(link).map_or(0, |link| nanos(bytes, link.bytes_per_s))
    }

    fn route(&self, from: MemoryId, to: MemoryId) -> Option<&Route> {
        self.routes[from.row() * self.memories.len() + to.row()].as_ref()
    }
}

fn nanos(bytes: u64, bytes_per_s: f64) -> Nanos {
    (bytes as f64 / bytes_per_s * 1e9) as Nanos
}

/// The fastest route to each memory, by Bellman and Ford's relaxation.
fn routes_from(start: usize, count: usize, ends: usize, links: &[Link]) -> Vec<Option<Route>> {
    let seconds = |link: &Link| link.latency as f64 / 1e9 + ROUTED_BYTES / link.bytes_per_s;
    let mut cost = vec![f64::INFINITY; ends];
    let mut last: Vec<Option<usize>> = vec![None; ends];
    cost[start] = 0.0;
    for _ in 1..ends {
        let mut changed = false;
        for (row, link) in links.iter().enumerate() {
            let through = cost[link.from] + seconds(link);
            if through < cost[link.to] {
                (cost[link.to], last[link.to], changed) = (through, Some(row), true);
            }
        }
        if !changed {
            break;
        }
    }
    let route = |to: usize| {
        let mut path = Vec::new();
        let mut at = to;
        while at != start {
            let row = last[at]?;
            path.push(row as u32);
            at = links[row].from;
        }
        path.reverse();
        let of = |row: &u32| links[*row as usize];
        Some(Route {
            latency: path.iter().map(|row| of(row).latency).sum(),
            bytes_per_s: path.iter().map(|row| of(row).bytes_per_s).fold(f64::INFINITY, f64::min),
            links: path.into(),
        })
    };
    (0..count).map(route).collect()
}

/// What is reserved on the links. A transfer has every link of its route from when the last of them
/// is free, each for as long as its bytes take there, as queues of copy engines do it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservations {
    free_at: Vec<Nanos>,
}

/// From when to when something is under way: the last byte of a transfer is there at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    pub start: Nanos,
    pub end: Nanos,
}

impl Interval {
    pub fn length(self) -> Nanos {
        self.end.saturating_sub(self.start)
    }
}

impl Reservations {
    pub fn new(machine: &Machine) -> Self {
        Self { free_at: vec![0; machine.links.len()] }
    }

    /// When each link is free, by its row.
    pub fn free_at(&self) -> &[Nanos] {
        &self.free_at
    }

    /// What a transfer would get if it were asked for now; `None` where no links lead.
    pub fn offer(
        &self,
        machine: &Machine,
        (from, to): (MemoryId, MemoryId),
        bytes: u64,
        earliest: Nanos,
    ) -> Option<Interval> {
        if from == to {
            return Some(Interval { start: earliest, end: earliest });
        }
        let route = machine.route(from, to)?;
        let free = route.links.iter().map(|link| self.free_at[*link as usize]);
        let start = free.fold(earliest, Nanos::max);
        Some(Interval { start, end: start + route.latency + nanos(bytes, route.bytes_per_s) })
    }

    /// Takes what [`Reservations::offer`] says.
    pub fn reserve(
        &mut self,
        machine: &Machine,
        (from, to): (MemoryId, MemoryId),
        bytes: u64,
        earliest: Nanos,
    ) -> Option<Interval> {
        let interval = self.offer(machine, (from, to), bytes, earliest)?;
        if let Some(route) = machine.route(from, to) {
            for link in &route.links {
                let own = nanos(bytes, machine.links[*link as usize].bytes_per_s);
                self.free_at[*link as usize] = interval.start + own;
            }
        }
        Some(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB_S: f64 = 1e9;

    fn memory(name: &str) -> Memory {
        Memory { name: name.to_owned(), capacity: Bytes(u64::MAX) }
    }

    fn device(name: &str, memory: u16) -> Device {
        let name = name.to_owned();
        Device { class: name.clone(), name, memory: MemoryId(memory), wake: 0 }
    }

    /// Two accelerators behind one switch below the host.
    fn switched() -> Machine {
        let memories = vec![memory("host"), memory("a"), memory("b")];
        let devices = vec![device("a", 1), device("b", 2)];
        let links = [(0, 3, 10.0), (3, 1, 20.0), (3, 2, 20.0)];
        let links = links.into_iter().flat_map(|(a, b, rate)| Link::both(a, b, rate * GB_S, 1_000));
        Machine::new(devices, memories, 1, links.collect()).expect("a machine")
    }

    #[test]
    fn transfers_over_a_shared_link_wait_for_it() {
        let machine = switched();
        let mut reserved = Reservations::new(&machine);
        let [host, a, b] = [0, 1, 2].map(MemoryId);
        let first = reserved.reserve(&machine, (host, a), 10_000_000, 0).expect("a route");
        assert_eq!(first, Interval { start: 0, end: 1_002_000 });
        let second = reserved.reserve(&machine, (host, b), 10_000_000, 0).expect("a route");
        assert_eq!(second, Interval { start: 1_000_000, end: 2_002_000 });
    }

    #[test]
    fn transfers_of_other_links_or_the_other_direction_do_not() {
        let machine = switched();
        let mut reserved = Reservations::new(&machine);
        let [host, a, b] = [0, 1, 2].map(MemoryId);
        reserved.reserve(&machine, (host, a), 10_000_000, 0).expect("a route");
        let back = reserved.reserve(&machine, (a, b), 10_000_000, 0).expect("a route");
        assert_eq!(back, Interval { start: 0, end: 502_000 });
    }

    #[test]
    fn a_link_of_another_rate_is_that_of_all_routes_over_it() {
        let measured = switched().with_rates(|row| (row < 2).then_some(0.1 * GB_S));
        let [host, a, b] = [0, 1, 2].map(MemoryId);
        let nanos = |from, to| measured.transfer_time(from, to, 10_000_000);
        assert_eq!(nanos(host, a), Some(100_002_000));
        assert_eq!(nanos(host, b), nanos(host, a));
        assert_eq!(nanos(a, b), Some(502_000));
    }

    #[test]
    fn what_is_handed_on_takes_both_ways() {
        let [host, a, b] = [0, 1, 2].map(MemoryId);
        let relayed = switched().with_relay((a, b), host);
        assert!(!relayed.is_direct(a, b) && relayed.is_direct(b, a));
        assert_eq!(relayed.links_between(a, b).count(), 4);
        assert_eq!(relayed.transfer_time(a, b, 10_000_000), Some(1_004_000));
    }

    #[test]
    fn a_memory_without_links_is_refused() {
        let memories = vec![memory("host"), memory("a")];
        let apart = Machine::new(vec![device("a", 1)], memories, 0, Vec::new());
        let (from, to) = ("host".to_owned(), "a".to_owned());
        assert_eq!(apart.err(), Some(MachineError::NoRoute { from, to }));
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        let wrong = Machine::new(vec![device("a", 7)], vec![memory("host")], 0, vec![]);
        assert_eq!(
            wrong.expect_err("no such memory").to_string(),
            "device `a` has memory 7, and there are 1"
        );
        let link = Link { from: 0, to: 0, bytes_per_s: f64::NAN, latency: 0 };
        let wrong = Machine::new(vec![device("a", 0)], vec![memory("host")], 0, vec![link]);
        assert_eq!(
            wrong.expect_err("no bandwidth").to_string(),
            "link 0 has a bandwidth of NaN bytes/s: it must be a number above zero"
        );
    }
}
