//! Laws of coherence under random tasks, memories that are too small, and devices that are lost:
//! every reader sees what the last writer before it in the order of submission wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use het_core::Bytes;
use het_runtime::schedulers::SCHEDULERS;
use het_runtime::{
    Access, Action, ClassId, Completion, Coordinator, CopyOrder, Device, DeviceId, HandleId,
    Interval, KernelId, KernelInfo, Launch, Link, Machine, Memory, MemoryId, Mode, Model, Task,
};
use proptest::prelude::*;

/// Numbers that follow from a seed (`xorshift64*`).
#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    }
}

/// What a task writes follows from what it is and what it read.
fn computed(sequence: u64, read: &[u64]) -> u64 {
    read.iter().fold(sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, |all, value| {
        (all ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(17)
    })
}

/// One host that nothing is lost of, and accelerators with little memory: each with links of its
/// own to the host, or all on one switch that is so slow that copies are handed on.
fn machine(accelerators: u16, capacity: u64, is_switched: bool) -> Arc<Machine> {
    let device = |row: u16| Device {
        name: format!("device{row}"),
        class: if row == 0 { "cpu" } else { "gpu" }.to_owned(),
        memory: MemoryId(row),
        wake: if row.is_multiple_of(2) { 20_000 } else { 0 },
    };
    let memory = |row: u16| Memory {
        name: format!("memory{row}"),
        capacity: Bytes(if row == 0 { 1 << 40 } else { capacity }),
    };
    let count = usize::from(accelerators) + 1;
    let links: Vec<Link> = match is_switched {
        true => (0..count).flat_map(|row| Link::both(row, count, 1e3, 1_000)).collect(),
        false => (1..count).flat_map(|row| Link::both(0, row, 1e9, 1_000)).collect(),
    };
    let devices = (0..=accelerators).map(device).collect();
    let memories = (0..=accelerators).map(memory).collect();
    Arc::new(Machine::new(devices, memories, 1, links).expect("a machine"))
}

/// A driver that ends what is under way in any order that streams allow, and keeps what buffers
/// hold.
struct World {
    coordinator: Coordinator,
    /// Tasks take microseconds, or a hundred times as long, which is worth planning.
    pace: u64,
    dice: Dice,
    now: u64,
    buffers: BTreeMap<(HandleId, MemoryId), u64>,
    streams: Vec<Vec<Launch>>,
    copies: Vec<CopyOrder>,
    /// By the order of submission, of each handle.
    truth: BTreeMap<HandleId, u64>,
    /// What each task has to read, by its place in that order.
    expected: Vec<Vec<u64>>,
    ran: usize,
}

impl World {
    fn new(scheduler: usize, accelerators: u16, capacity: u64, seed: u64) -> Self {
        let machine = machine(accelerators, capacity, seed % 2 == 1);
        let kernel = |name: &str, classes: &[&str]| KernelInfo {
            name: name.to_owned(),
            classes: classes.iter().map(|class| (*class).to_owned()).collect(),
        };
        let kernels = vec![kernel("any", &[]), kernel("gpu", &["gpu"])];
        let pace = if seed.is_multiple_of(2) { 1 } else { 100 };
        let names = kernels.iter().map(|kernel| kernel.name.clone()).collect();
        let prior = move |kernel: KernelId, class: ClassId, _| {
            let micros = f64::from(1 + kernel.0) * 50.0 / f64::from(1 + 2 * class.0);
            Some(micros * 1e3 * pace as f64)
        };
        let model = Model::new(names, machine.classes().to_vec()).with_prior(Box::new(prior));
        let made = (SCHEDULERS[scheduler].make)();
        let streams = vec![Vec::new(); machine.devices().len()];
        Self {
            coordinator: Coordinator::new(machine, kernels, model, made),
            pace,
            dice: Dice(seed | 1),
            now: 0,
            buffers: BTreeMap::new(),
            streams,
            copies: Vec::new(),
            truth: BTreeMap::new(),
            expected: Vec::new(),
            ran: 0,
        }
    }

    fn register(&mut self, bytes: u64) -> HandleId {
        let mut actions = Vec::new();
        let host = Some(MemoryId(0));
        let handle = self.coordinator.register(bytes, host, &mut actions).expect("room");
        self.buffers.insert((handle, MemoryId(0)), u64::from(handle.row() as u32));
        self.truth.insert(handle, u64::from(handle.row() as u32));
        handle
    }

    fn submit(&mut self, handles: &[HandleId]) {
        let count = 1 + self.dice.roll(3);
        let mut accesses: Vec<(HandleId, Mode)> = Vec::new();
        for _ in 0..count {
            let handle = handles[self.dice.roll(handles.len())];
            let mode = [Mode::Read, Mode::Read, Mode::Write, Mode::ReadWrite][self.dice.roll(4)];
            if accesses.iter().all(|(other, _)| *other != handle) {
                accesses.push((handle, mode));
            }
        }
        let kernel = KernelId(u16::from(self.dice.roll(4) == 0));
        let priority = self.dice.roll(3) as i32;
        let read = accesses.iter().filter(|(_, mode)| mode.reads());
        let read: Vec<u64> = read.map(|(handle, _)| self.truth[handle]).collect();
        let sequence = self.expected.len() as u64;
        let value = computed(sequence, &read);
        for (handle, _) in accesses.iter().filter(|(_, mode)| mode.writes()) {
            self.truth.insert(*handle, value);
        }
        self.expected.push(read);
        let task = Task::new(kernel, accesses).priority(priority);
        self.coordinator.submit(task).expect("a task that can run");
    }

    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Launch(launch) => self.streams[launch.device.row()].push(launch),
                Action::Copy(copy) => {
                    assert_ne!(copy.from, copy.to);
                    self.copies.push(copy);
                }
                Action::Drop { handle, memory } => {
                    self.buffers.remove(&(handle, memory));
                }
            }
        }
    }

    /// Something that is under way ends; false where nothing is.
    fn step(&mut self) -> bool {
        let mut actions = Vec::new();
        self.now += (1 + self.dice.roll(100_000) as u64) * self.pace;
        self.coordinator.advance(self.now, &mut actions);
        self.take(std::mem::take(&mut actions));
        let busy: Vec<usize> =
            (0..self.streams.len()).filter(|row| !self.streams[*row].is_empty()).collect();
        let choice = self.dice.roll(busy.len() + self.copies.len());
        if let Some(row) = busy.get(choice) {
            let launch = self.streams[*row].remove(0);
            self.run(&launch);
            let took = (20_000 + self.dice.roll(60_000) as u64) * self.pace;
            let ended =
                Completion::Ended { task: launch.task, ran: Interval { start: 0, end: took } };
            self.coordinator.completed(ended, &mut actions);
        } else if let Some(at) = choice.checked_sub(busy.len()).filter(|_| !self.copies.is_empty())
        {
            let copy = self.copies.remove(at);
            if let Some(value) = self.buffers.get(&(copy.handle, copy.from)).copied() {
                self.buffers.insert((copy.handle, copy.to), value);
            }
            let ran = Interval { start: 0, end: 0 };
            let copied = Completion::Copied { transfer: copy.transfer, ran };
            self.coordinator.completed(copied, &mut actions);
        } else {
            return false;
        }
        self.take(actions);
        true
    }

    fn run(&mut self, launch: &Launch) {
        let read = launch.accesses.iter().filter(|access| access.mode.reads());
        let read: Vec<u64> = read
            .map(|access| {
                let buffer = (access.handle, launch.memory);
                *self.buffers.get(&buffer).expect("what a task reads is there")
            })
            .collect();
        let row = launch.sequence as usize;
        assert_eq!(read, self.expected[row], "task {row} reads the newest values");
        let value = computed(launch.sequence, &read);
        for Access { handle, .. } in launch.accesses.iter().filter(|access| access.mode.writes()) {
            self.buffers.insert((*handle, launch.memory), value);
        }
        self.ran += 1;
    }

    fn check(&self) {
        self.coordinator.check();
        let handles = self.truth.keys();
        let mut held: BTreeMap<MemoryId, u64> = BTreeMap::new();
        for handle in handles {
            let copies: BTreeSet<MemoryId> = self.coordinator.data().copies(*handle).collect();
            let bytes = self.coordinator.data().bytes(*handle);
            for memory in &copies {
                *held.entry(*memory).or_default() += bytes;
            }
            let values: BTreeSet<_> =
                copies.iter().map(|memory| self.buffers.get(&(*handle, *memory))).collect();
            assert!(values.len() <= 1 || self.is_written(*handle), "copies are alike");
        }
        for (memory, bytes) in held {
            let capacity = self.coordinator.machine().memories()[memory.row()].capacity.0;
            assert!(bytes <= capacity, "{memory:?} holds {bytes} of {capacity}");
        }
    }

    /// Whether a task that was launched writes it: it may have begun.
    fn is_written(&self, handle: HandleId) -> bool {
        let launched = self.streams.iter().flatten();
        launched
            .flat_map(|launch| &launch.accesses)
            .any(|access| access.handle == handle && access.mode.writes())
    }

    /// Ends all that is left, then copies that nobody waits for. Neither goes on for ever.
    fn finish(&mut self) {
        let mut left = 100 * (self.coordinator.unfinished() + self.copies.len() + 10);
        while self.coordinator.unfinished() > 0 || !self.copies.is_empty() {
            assert!(self.step(), "{} tasks are left", self.coordinator.unfinished());
            left -= 1;
            assert!(left > 0, "{} tasks do not end", self.coordinator.unfinished());
        }
    }

    fn lose(&mut self, device: DeviceId) {
        let memory = self.coordinator.machine().memory_of(device);
        self.streams[device.row()].clear();
        self.copies.retain(|copy| copy.from != memory && copy.to != memory);
        self.buffers.retain(|(_, other), _| *other != memory);
        let mut actions = Vec::new();
        let lost = Completion::MemoryLost { memory, reason: "it is gone".to_owned() };
        self.coordinator.completed(lost, &mut actions);
        self.take(actions);
    }

    fn restore(&mut self, device: DeviceId) {
        let memory = self.coordinator.machine().memory_of(device);
        assert!(self.coordinator.restore_memory(memory));
    }
}

fn handles(world: &mut World, count: usize) -> Vec<HandleId> {
    (0..count)
        .map(|_| 64 + 16 * world.dice.roll(8) as u64)
        .collect::<Vec<_>>()
        .into_iter()
        .map(|bytes| world.register(bytes))
        .collect()
}

/// Random tasks on a few handles; what they read is checked as they run. Returns how often
/// something was evicted.
fn play(scheduler: usize, seed: u64, tasks: usize, capacity: u64) -> u64 {
    let mut world = World::new(scheduler, 3, capacity, seed);
    let handles = handles(&mut world, 24);
    for round in 0..tasks {
        world.submit(&handles);
        for _ in 0..world.dice.roll(5) {
            world.step();
        }
        if round.is_multiple_of(97) {
            world.check();
        }
    }
    world.finish();
    world.check();
    assert_eq!(world.ran, tasks);
    for (handle, value) in world.truth.clone() {
        let memory = world.coordinator.data().copies(handle).next().expect("nothing is lost");
        assert_eq!(world.buffers[&(handle, memory)], value);
    }
    world.coordinator.data().traffic().evictions
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn readers_see_the_newest_values(
        scheduler in 0..SCHEDULERS.len(),
        seed in any::<u64>(),
        capacity in 600_u64..3_000,
    ) {
        play(scheduler, seed, 300, capacity);
    }

    #[test]
    fn what_a_lost_device_leaves_is_true(
        scheduler in 0..SCHEDULERS.len(),
        seed in any::<u64>(),
        lost_at in 0_usize..150,
    ) {
        play_with_loss(scheduler, seed, lost_at);
    }
}

/// A device and its memory are lost in the middle, and are there again some time later. What is
/// cancelled is what depended on what is gone; all else reads the newest values, and what was not
/// lost has its value.
fn play_with_loss(scheduler: usize, seed: u64, lost_at: usize) {
    let mut world = World::new(scheduler, 3, 2_000, seed);
    let handles = handles(&mut world, 16);
    let device = DeviceId(1 + world.dice.roll(3) as u16);
    let away = 1 + world.dice.roll(20);
    for round in 0..150 {
        if round == lost_at + away {
            world.restore(device);
        }
        if round == lost_at {
            world.lose(device);
            // What comes later must not depend on what is gone.
            world.finish();
            world.check();
            let losses = world.coordinator.take_losses();
            assert_eq!(losses.len(), 1);
            for handle in &losses[0].lost {
                let mut actions = Vec::new();
                let host = MemoryId(0);
                world.coordinator.provide(*handle, host, &mut actions).expect("free");
                world.take(actions);
                world.buffers.insert((*handle, host), 7);
                world.truth.insert(*handle, 7);
            }
        }
        world.submit(&handles);
        for _ in 0..world.dice.roll(5) {
            world.step();
        }
    }
    world.finish();
    world.check();
    for (handle, value) in world.truth.clone() {
        let memory = world.coordinator.data().copies(handle).next().expect("provided again");
        assert_eq!(world.buffers[&(handle, memory)], value, "{handle:?}");
    }
}

#[test]
fn a_million_accesses_keep_the_laws() {
    let mut evictions = 0;
    for (row, kind) in SCHEDULERS.iter().enumerate() {
        let tasks = if kind.name == "heft" { 2_000 } else { 140_000 };
        evictions += play(row, 12 + row as u64, tasks, 900);
    }
    assert!(evictions > 100_000, "{evictions}");
}
