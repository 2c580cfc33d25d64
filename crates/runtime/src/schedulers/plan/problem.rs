//! What is left to do, as arrays: tasks in the order of submission, which is an order in which
//! they may run.

use std::collections::BTreeMap;

use crate::{DeviceId, Estimate, Machine, Mode, Nanos, Stage, TaskId, View};

/// A handle by its place in the problem.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct PlannedAccess {
    pub handle: u32,
    pub mode: Mode,
}

#[derive(Debug, Clone)]
pub(in super::super) struct Problem<'a> {
    pub machine: &'a Machine,
    pub now: f64,
    pub devices: usize,
    pub memories: usize,
    pub ids: Vec<TaskId>,
    /// As submitted.
    pub priorities: Vec<i32>,
    /// Tasks of the problem that each waits for.
    pub waiting: Vec<u32>,
    /// Those that will not run and only hand on what they wait for.
    pub cancelled: Vec<bool>,
    /// Device, start and end of what is committed.
    pub committed: Vec<Option<(u16, f64, f64)>>,
    /// Devices, after what is committed.
    pub free_at: Vec<f64>,
    /// Of each memory and handle, when it is valid there.
    pub valid_at: Vec<f64>,
    pub bytes: Vec<u64>,
    pub memory_of: Vec<usize>,
    /// Empty where the plan is blind to what else is on the links.
    pub link_free_at: Vec<f64>,
    durations: Vec<f64>,
    successors: Rows<u32>,
    predecessors: Rows<u32>,
    accesses: Rows<PlannedAccess>,
}

/// Lists of different lengths, one behind the other.
#[derive(Debug, Clone)]
struct Rows<T> {
    begins: Vec<u32>,
    all: Vec<T>,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { begins: vec![0], all: Vec::new() }
    }
}

impl<T> Rows<T> {
    fn add(&mut self, row: impl IntoIterator<Item = T>) {
        self.all.extend(row);
        self.begins.push(self.all.len() as u32);
    }

    fn get(&self, row: usize) -> &[T] {
        &self.all[self.begins[row] as usize..self.begins[row + 1] as usize]
    }
}

/// Whether a plan knows what is reserved on the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Contention {
    Seen,
    Ignored,
}

impl<'a> Problem<'a> {
    /// The first `most` tasks that have not ended. A task whose duration is known nowhere counts
    /// as none.
    pub fn new(view: &View<'a>, most: usize, contention: Contention) -> Self {
        let live = view.graph.tasks();
        let mut tasks: Vec<(u64, TaskId)> = live.map(|(id, node)| (node.sequence(), id)).collect();
        if tasks.len() > most {
            tasks.select_nth_unstable(most);
            tasks.truncate(most);
        }
        tasks.sort_unstable();
        let machine = view.machine;
        let devices = machine.devices().len();
        let links = match contention {
            Contention::Seen => view.data.reservations().free_at(),
            Contention::Ignored => &[],
        };
        let mut one = Self {
            machine,
            now: view.now as f64,
            devices,
            memories: machine.memories().len(),
            ids: tasks.into_iter().map(|(_, id)| id).collect(),
            priorities: Vec::new(),
            waiting: Vec::new(),
            cancelled: Vec::new(),
            committed: Vec::new(),
            free_at: vec![view.now as f64; devices],
            valid_at: Vec::new(),
            bytes: Vec::new(),
            memory_of: machine.device_ids().map(|id| machine.memory_of(id).row()).collect(),
            link_free_at: links.iter().map(|at| *at as f64).collect(),
            durations: Vec::new(),
            successors: Rows::default(),
            predecessors: Rows::default(),
            accesses: Rows::default(),
        };
        one.add_durations(view);
        one.add_edges(view);
        one.add_accesses(view);
        one.add_committed(view);
        one
    }

    fn add_durations(&mut self, view: &View<'_>) {
        let is_cancelled = |id: &TaskId| view.task(*id).is_some_and(|node| node.is_cancelled);
        self.cancelled = self.ids.iter().map(is_cancelled).collect();
        let priority = |id: &TaskId| view.task(*id).map_or(0, |node| node.priority());
        self.priorities = self.ids.iter().map(priority).collect();
        for id in &self.ids {
            let Some(node) = view.task(*id) else { continue };
            let known = view.machine.device_ids().filter_map(|device| {
                view.can_run(node, device).then(|| view.estimate(node, device)).flatten()
            });
            let least = known.map(|estimate| estimate.mean).fold(f64::INFINITY, f64::min);
            let unknown = if least.is_finite() { least } else { 0.0 };
            let durations =
                view.machine.device_ids().map(|device| match view.can_run(node, device) {
                    true => view.estimate(node, device).map_or(unknown, |estimate| estimate.mean),
                    false => f64::INFINITY,
                });
            self.durations.extend(durations);
        }
    }

    fn add_edges(&mut self, view: &View<'_>) {
        let mut places = vec![u32::MAX; view.graph.rows()];
        for (place, id) in self.ids.iter().enumerate() {
            places[id.row()] = place as u32;
        }
        self.waiting = vec![0; self.ids.len()];
        let mut before = vec![Vec::new(); self.ids.len()];
        for (place, id) in self.ids.iter().enumerate() {
            let later = view.graph.successors(*id).map(|task| places[task.row()]);
            let later: Vec<u32> = later.filter(|place| *place != u32::MAX).collect();
            for task in &later {
                self.waiting[*task as usize] += 1;
                before[*task as usize].push(place as u32);
            }
            self.successors.add(later);
        }
        for row in before {
            self.predecessors.add(row);
        }
    }

    fn add_accesses(&mut self, view: &View<'_>) {
        let mut known: BTreeMap<crate::HandleId, u32> = BTreeMap::new();
        for id in &self.ids {
            let accesses = view.task(*id).map_or(&[][..], |node| node.accesses());
            let places = accesses.iter().map(|access| {
                let next = known.len() as u32;
                let handle = *known.entry(access.handle).or_insert(next);
                PlannedAccess { handle, mode: access.mode }
            });
            let places: Vec<PlannedAccess> = places.collect();
            self.accesses.add(places);
        }
        self.bytes = vec![0; known.len()];
        self.valid_at = vec![f64::INFINITY; known.len() * self.memories];
        for (handle, place) in known {
            self.bytes[place as usize] = view.data.bytes(handle);
            for memory in view.machine.memory_ids() {
                if let Some(at) = view.data.expected_at(handle, memory, view.now) {
                    self.valid_at[place as usize * self.memories + memory.row()] = at as f64;
                }
            }
        }
    }

    /// What streams have, with what is likely to be left of the tasks that run.
    fn add_committed(&mut self, view: &View<'_>) {
        self.committed = vec![None; self.ids.len()];
        let mut places: BTreeMap<TaskId, usize> = BTreeMap::new();
        for (place, id) in self.ids.iter().enumerate() {
            let is_committed = |stage| matches!(stage, Stage::Committed | Stage::Launched);
            if view.task(*id).is_some_and(|node| is_committed(node.stage())) {
                places.insert(*id, place);
            }
        }
        for device in view.machine.device_ids() {
            let stream = &view.streams[device.row()];
            let mut at = self.now;
            for (order, id) in stream.committed.iter().enumerate() {
                let Some(node) = view.task(*id) else { continue };
                let runs = order == 0 && node.stage() == Stage::Launched;
                let since = if runs { stream.since as f64 } else { at };
                let left = match view.estimate(node, device) {
                    Some(estimate) if runs => remaining(estimate, self.now - since),
                    Some(estimate) => estimate.mean,
                    None => 0.0,
                };
                let start = at.max(self.available_at(view, *id, device));
                at = if runs { self.now + left } else { start + left };
                if let Some(place) = places.get(id) {
                    self.committed[*place] = Some((device.0, since, at));
                }
            }
            self.free_at[device.row()] = at;
        }
    }

    fn available_at(&self, view: &View<'_>, id: TaskId, device: DeviceId) -> f64 {
        let node = view.task(id).filter(|node| node.stage() == Stage::Committed);
        let at = node.and_then(|node| view.available_at(node, device));
        at.map_or(self.now, |at: Nanos| at as f64)
    }

    /// The same without what else is on the links.
    pub fn blind(&self) -> Self {
        Self { link_free_at: Vec::new(), ..self.clone() }
    }

    pub fn count(&self) -> usize {
        self.ids.len()
    }

    pub fn duration(&self, place: usize, device: usize) -> f64 {
        self.durations[place * self.devices + device]
    }

    pub fn successors(&self, place: usize) -> &[u32] {
        self.successors.get(place)
    }

    pub fn predecessors(&self, place: usize) -> &[u32] {
        self.predecessors.get(place)
    }

    pub fn accesses(&self, place: usize) -> &[PlannedAccess] {
        self.accesses.get(place)
    }

    /// Nanoseconds on the devices that can run it, as one number.
    fn weight(&self, place: usize, by: Weight) -> f64 {
        let all = &self.durations[place * self.devices..(place + 1) * self.devices];
        let able = all.iter().copied().filter(|duration| duration.is_finite());
        let count = able.clone().count().max(1) as f64;
        match by {
            Weight::Mean => able.sum::<f64>() / count,
            Weight::Least => able.fold(f64::INFINITY, f64::min),
            Weight::Harmonic => count / able.map(|duration| 1.0 / duration.max(1e-9)).sum::<f64>(),
        }
    }

    /// HEFT's upward rank: what is left from the start of a task to the end of the longest path
    /// behind it, `w(t) + max over later s of (c(t, s) + rank(s))`, with `w` and `c` the same
    /// for all devices.
    pub fn upward_ranks(&self, by: Weight) -> Vec<f64> {
        let pairs = self.mean_transfer_per_byte();
        let mut ranks = vec![0.0; self.count()];
        for place in (0..self.count()).rev() {
            let onward = self.successors(place).iter().fold(0.0_f64, |most, later| {
                let cost = pairs * self.shared_bytes(place, *later as usize) as f64;
                most.max(cost + ranks[*later as usize])
            });
            ranks[place] = self.weight(place, by) + onward;
        }
        ranks
    }

    /// Bytes that the first writes and the second reads.
    fn shared_bytes(&self, earlier: usize, later: usize) -> u64 {
        let written = self.accesses(earlier).iter().filter(|access| access.mode.writes());
        let read = self.accesses(later).iter().filter(|access| access.mode.reads());
        let read: smallvec::SmallVec<[u32; 8]> = read.map(|access| access.handle).collect();
        let shared = written.filter(|access| read.contains(&access.handle));
        shared.map(|access| self.bytes[access.handle as usize]).sum()
    }

    /// Nanoseconds a byte between two devices, over all pairs of them.
    fn mean_transfer_per_byte(&self) -> f64 {
        const BYTES: u64 = 1 << 20;
        let memory = |device: usize| crate::MemoryId(self.memory_of[device] as u16);
        let pairs = (0..self.devices).flat_map(|a| (0..self.devices).map(move |b| (a, b)));
        let times = pairs.map(|(a, b)| match memory(a) == memory(b) {
            true => 0.0,
            false => {
                let time = self.machine.transfer_time(memory(a), memory(b), BYTES);
                time.unwrap_or(0) as f64 / BYTES as f64
            }
        });
        times.sum::<f64>() / (self.devices * self.devices) as f64
    }

    /// PEFT's optimistic cost table (Arabnejad and Barbosa 2014, "List scheduling algorithm for
    /// heterogeneous systems by an optimistic cost table"): of each task and device, what is left
    /// behind it where every later task has the device that suits it best.
    pub fn optimistic_costs(&self) -> Vec<f64> {
        let devices = self.devices;
        let per_byte = self.mean_transfer_per_byte();
        let mut table = vec![0.0; self.count() * devices];
        for place in (0..self.count()).rev() {
            for device in 0..devices {
                let behind = self.successors(place).iter().map(|later| {
                    let later = *later as usize;
                    let cost = per_byte * self.shared_bytes(place, later) as f64;
                    let best = (0..devices).map(|other| {
                        let moved = match self.memory_of[other] == self.memory_of[device] {
                            true => 0.0,
                            false => cost,
                        };
                        table[later * devices + other] + self.duration(later, other) + moved
                    });
                    best.fold(f64::INFINITY, f64::min)
                });
                table[place * devices + device] = behind.fold(0.0, f64::max);
            }
        }
        table
    }
}

/// How durations on unlike devices become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Weight {
    Mean,
    Least,
    Harmonic,
}

/// What is likely to be left of a task after so long: the mean of a normal distribution above it,
/// `mean + deviation · φ(z) / (1 − Φ(z)) − elapsed`.
fn remaining(Estimate { mean, deviation }: Estimate, elapsed: f64) -> f64 {
    if deviation <= 0.0 {
        return (mean - elapsed).max(0.0);
    }
    let z = (elapsed - mean) / deviation;
    // Far above, the quotient nears z + 1/z.
    let quotient = match z {
        z if z < -6.0 => 0.0,
        z if z > 6.0 => z + 1.0 / z,
        z => density(z) / upper_tail(z),
    };
    (mean + deviation * quotient - elapsed).max(0.0)
}

fn density(z: f64) -> f64 {
    (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// 1 − Φ(z), by Zelen and Severo's approximation (Abramowitz and Stegun 26.2.17), within 8e-8.
fn upper_tail(z: f64) -> f64 {
    if z < 0.0 {
        return 1.0 - upper_tail(-z);
    }
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let [a, b, c, d, e] =
        [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    density(z) * t * (a + t * (b + t * (c + t * (d + t * e))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_late_task_follows_from_its_spread() {
        let check = |mean, deviation, elapsed, left: f64| {
            let found = remaining(Estimate { mean, deviation }, elapsed);
            assert!((found - left).abs() < 1e-3, "{mean} {deviation} {elapsed}: {found}");
        };
        check(10.0, 0.0, 4.0, 6.0);
        check(10.0, 0.0, 14.0, 0.0);
        // Half of a normal distribution has its mean √(2/π) deviations above its own.
        check(10.0, 2.0, 10.0, 2.0 * 0.797_884_6);
        check(10.0, 2.0, -20.0, 30.0);
        check(10.0, 2.0, 14.0, 2.0 * 2.373_215_5 - 4.0);
    }
}
