//! Devices of declared speeds, memories and links in virtual time: nothing is computed, and time
//! goes on to the next completion whenever one is waited for.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use crate::machine::{Interval, Reservations};
use crate::{
    ClassId, Completion, CopyOrder, DeviceId, Driver, HandleId, KernelId, Launch, Machine,
    MemoryId, Nanos, TaskId, Wait,
};

/// What a kernel takes on a class: a part whatever the size, and one by the byte.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Speed {
    pub nanos: f64,
    pub nanos_per_byte: f64,
}

impl Speed {
    pub fn of(self, bytes: u64) -> f64 {
        self.nanos + self.nanos_per_byte * bytes as f64
    }
}

/// How far durations are from what is declared: each is multiplied by a number from a normal
/// distribution of mean 1, at least [`Noise::LEAST`]. It follows from the seed, the task's place in
/// the order of submission and the class, so that every scheduler meets the same durations.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Noise {
    /// Standard deviation.
    pub deviation: f64,
    pub seed: u64,
}

impl Noise {
    /// No task is faster than this part of what is declared.
    pub const LEAST: f64 = 0.05;

    /// A number between 0 and 1 that follows from the seed and a place in its sequence.
    pub fn unit(self, place: u64) -> f64 {
        let bits = mixed(mixed(self.seed) ^ mixed(place));
        ((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    pub fn factor(self, sequence: u64, class: ClassId) -> f64 {
        if self.deviation <= 0.0 {
            return 1.0;
        }
        let place = sequence ^ u64::from(class.0) << 48;
        let (radius, angle) = (self.unit(place), self.unit(place ^ 1 << 63));
        // Box and Muller 1958, "A note on the generation of random normal deviates".
        let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        (1.0 + self.deviation * normal).max(Self::LEAST)
    }
}

/// The finalizer of `SplitMix64`.
fn mixed(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// What is true of the devices, whatever a model believes.
#[derive(Debug, Clone, Default)]
pub struct Truth {
    /// Of each kernel, class by class; `None` where the class does not have it.
    pub speeds: Vec<Vec<Option<Speed>>>,
    pub noise: Noise,
}

impl Truth {
    /// What is declared, in nanoseconds.
    pub fn declared(&self, kernel: KernelId, class: ClassId, bytes: u64) -> Option<f64> {
        Some((*self.speeds.get(kernel.row())?.get(class.row())?)?.of(bytes))
    }

    /// What the task takes.
    pub fn duration(
        &self,
        sequence: u64,
        (kernel, class): (KernelId, ClassId),
        bytes: u64,
    ) -> Nanos {
        let declared = self.declared(kernel, class, bytes).unwrap_or(0.0);
        (declared * self.noise.factor(sequence, class)).round() as Nanos
    }
}

/// What a device did from when to when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub device: DeviceId,
    pub kernel: KernelId,
    pub sequence: u64,
    pub start: Nanos,
    pub end: Nanos,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Nanos,
    order: u64,
}

#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Launch>,
    /// The task that runs, and since when.
    running: Option<(TaskId, Nanos)>,
    is_lost: bool,
}

#[derive(Debug)]
enum Happening {
    Ended(DeviceId, TaskId),
    Reported(Completion),
}

#[derive(Debug)]
pub struct Dummy {
    machine: Arc<Machine>,
    truth: Truth,
    /// Bytes of each handle, by row.
    bytes: Vec<u64>,
    clock: Nanos,
    lanes: Vec<Lane>,
    links: Reservations,
    due: BinaryHeap<Reverse<Due>>,
    happenings: Vec<Option<Happening>>,
    spans: Vec<Span>,
}

impl Dummy {
    pub fn new(machine: Arc<Machine>, truth: Truth) -> Self {
        Self {
            links: Reservations::new(&machine),
            lanes: machine.devices().iter().map(|_| Lane::default()).collect(),
            machine,
            truth,
            bytes: Vec::new(),
            clock: 0,
            due: BinaryHeap::new(),
            happenings: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Durations follow from the bytes of a task's handles.
    pub fn declare(&mut self, handle: HandleId, bytes: u64) {
        if self.bytes.len() <= handle.row() {
            self.bytes.resize(handle.row() + 1, 0);
        }
        self.bytes[handle.row()] = bytes;
    }

    /// The memory is lost at this time, with its devices.
    pub fn lose_memory(&mut self, memory: MemoryId, at: Nanos) {
        let reason = "so it was declared".to_owned();
        self.happens(at, Happening::Reported(Completion::MemoryLost { memory, reason }));
    }

    /// The devices of a memory that was lost take tasks again.
    pub fn restore_memory(&mut self, memory: MemoryId) {
        for device in self.machine.device_ids() {
            if self.machine.memory_of(device) == memory {
                self.lanes[device.row()].is_lost = false;
            }
        }
    }

    /// What was done, in the order in which it ended.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    fn happens(&mut self, at: Nanos, happening: Happening) {
        let order = self.happenings.len() as u64;
        self.happenings.push(Some(happening));
        self.due.push(Reverse(Due { at: at.max(self.clock), order }));
    }

    fn start(&mut self, device: DeviceId) {
        let lane = &mut self.lanes[device.row()];
        if lane.running.is_some() || lane.is_lost {
            return;
        }
        let Some(launch) = lane.waiting.pop_front() else { return };
        let begins = self.clock;
        lane.running = Some((launch.task, begins));
        let sizes = launch.accesses.iter().map(|access| self.bytes.get(access.handle.row()));
        let bytes = sizes.flatten().sum();
        let took = self.truth.duration(launch.sequence, (launch.kernel, launch.class), bytes);
        let end = begins + took;
        let Launch { kernel, sequence, task, .. } = launch;
        self.spans.push(Span { device, kernel, sequence, start: begins, end });
        self.happens(end, Happening::Ended(device, task));
    }

    fn lose(&mut self, device: DeviceId) {
        if let Some(lane) = self.lanes.get_mut(device.row()) {
            *lane = Lane { is_lost: true, ..Lane::default() };
        }
    }

    /// What is due first, told as it is seen from outside.
    fn next(&mut self) -> Option<Completion> {
        loop {
            let Reverse(Due { at, order }) = self.due.pop()?;
            self.clock = self.clock.max(at);
            let happening = self.happenings.get_mut(order as usize).and_then(Option::take)?;
            match happening {
                Happening::Ended(device, task) => {
                    let lane = &mut self.lanes[device.row()];
                    let ran = lane.running.take_if(|(running, _)| *running == task);
                    // What a lost device was doing never ends.
                    let Some((_, since)) = ran else { continue };
                    self.start(device);
                    let ran = Interval { start: since, end: at };
                    return Some(Completion::Ended { task, ran });
                }
                Happening::Reported(completion) => {
                    match &completion {
                        Completion::DeviceLost { device, .. } => self.lose(*device),
                        Completion::MemoryLost { memory, .. } => {
                            let machine = Arc::clone(&self.machine);
                            let own = machine.device_ids();
                            own.filter(|device| machine.memory_of(*device) == *memory)
                                .for_each(|device| self.lose(device));
                        }
                        _ => {}
                    }
                    return Some(completion);
                }
            }
        }
    }
}

impl Driver for Dummy {
    fn now(&self) -> Nanos {
        self.clock
    }

    fn launch(&mut self, launch: Launch) {
        let device = launch.device;
        self.lanes[device.row()].waiting.push_back(launch);
        self.start(device);
    }

    fn copy(&mut self, CopyOrder { transfer, from, to, bytes, .. }: CopyOrder) {
        let taken = self.links.reserve(&self.machine, (from, to), bytes, self.clock);
        let now = Interval { start: self.clock, end: self.clock };
        let ran = taken.unwrap_or(now);
        self.happens(ran.end, Happening::Reported(Completion::Copied { transfer, ran }));
    }

    fn drop_buffer(&mut self, _handle: HandleId, _memory: MemoryId) {}

    fn flush(&mut self) {}

    /// All that ends at the same time is reported together.
    fn completions(&mut self, wait: Wait, into: &mut Vec<Completion>) {
        if wait == Wait::No {
            return;
        }
        into.extend(self.next());
        while self.due.peek().is_some_and(|Reverse(due)| due.at <= self.clock) {
            into.extend(self.next());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_the_mean_and_deviation_that_it_was_asked_for() {
        let noise = Noise { deviation: 0.2, seed: 3 };
        let factors: Vec<f64> = (0..20_000).map(|task| noise.factor(task, ClassId(1))).collect();
        let mean = factors.iter().sum::<f64>() / factors.len() as f64;
        let variance = factors.iter().map(|factor| (factor - mean).powi(2)).sum::<f64>();
        let deviation = (variance / factors.len() as f64).sqrt();
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!((deviation - 0.2).abs() < 0.01, "{deviation}");
    }
}
