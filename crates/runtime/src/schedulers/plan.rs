//! Lists of tasks, urgent first, put one after the other where they end first: HEFT (Topcuoglu,
//! Hariri and Wu 2002, "Performance-effective and low-complexity task scheduling for heterogeneous
//! computing") and what is tried beside it.

mod problem;
mod timeline;

use std::cmp::Ordering;
use std::collections::BinaryHeap;

pub(super) use problem::{Contention, Problem, Weight};
use timeline::{Links, Timeline};

/// How a device is chosen for a task.
#[derive(Debug, Clone, Copy)]
pub(super) enum Choose<'a> {
    /// The earliest finish.
    Finish,
    /// The earliest finish with what has to come after it, by the table of
    /// [`Problem::optimistic_costs`]: task by task, device by device.
    Onward(&'a [f64]),
    /// As it was planned.
    Fixed(&'a [u16]),
}

/// Where and when every task of a problem runs, by its place there.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    pub makespan: f64,
    pub devices: Vec<u16>,
    pub starts: Vec<f64>,
    pub ends: Vec<f64>,
}

#[derive(Debug, PartialEq)]
struct Urgent {
    priority: i32,
    rank: f64,
    place: u32,
}

impl Eq for Urgent {}

impl Ord for Urgent {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_rank = self.priority.cmp(&other.priority).then(self.rank.total_cmp(&other.rank));
        by_rank.then(other.place.cmp(&self.place))
    }
}

impl PartialOrd for Urgent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One pass over the tasks of a problem.
struct Pass<'a> {
    problem: &'a Problem<'a>,
    devices: Vec<Timeline>,
    links: Links<'a>,
    /// When each handle is valid in each memory; infinite where it is not.
    valid_at: Vec<f64>,
    plan: Plan,
}

/// Puts all tasks of a problem into a plan, of those that may be next the most urgent first, and of
/// these the one of the highest rank.
pub(super) fn planned(problem: &Problem<'_>, ranks: &[f64], choose: Choose<'_>) -> Plan {
    let count = problem.count();
    let mut pass = Pass {
        problem,
        devices: problem.free_at.iter().map(|free| Timeline::new(*free)).collect(),
        links: Links::new(problem),
        valid_at: problem.valid_at.clone(),
        plan: Plan {
            makespan: problem.now,
            devices: vec![0; count],
            starts: vec![0.0; count],
            ends: vec![0.0; count],
        },
    };
    let mut waiting = problem.waiting.clone();
    // What is committed already comes before all else on its device.
    let urgent = |place: u32| {
        let (priority, rank) = match problem.committed[place as usize] {
            Some(_) => (i32::MAX, f64::INFINITY),
            None => (problem.priorities[place as usize], ranks[place as usize]),
        };
        Urgent { priority, rank, place }
    };
    let first = (0..count as u32).filter(|place| waiting[*place as usize] == 0);
    let mut open: BinaryHeap<Urgent> = first.map(urgent).collect();
    while let Some(Urgent { place, .. }) = open.pop() {
        let place = place as usize;
        pass.put(place, choose);
        for later in problem.successors(place) {
            waiting[*later as usize] -= 1;
            if waiting[*later as usize] == 0 {
                open.push(urgent(*later));
            }
        }
    }
    pass.plan
}

impl Pass<'_> {
    fn put(&mut self, place: usize, choose: Choose<'_>) {
        let problem = self.problem;
        let before = problem.predecessors(place).iter();
        let after = before.fold(problem.now, |at, task| at.max(self.plan.ends[*task as usize]));
        if problem.cancelled[place] {
            (self.plan.starts[place], self.plan.ends[place]) = (after, after);
            return;
        }
        if let Some((device, start, end)) = problem.committed[place] {
            self.set(place, usize::from(device), (start, end));
            return;
        }
        let mut best: Option<(f64, usize, f64)> = None;
        for device in 0..problem.devices {
            let duration = problem.duration(place, device);
            let is_meant = match choose {
                Choose::Fixed(devices) => usize::from(devices[place]) == device,
                _ => true,
            };
            if !duration.is_finite() || !is_meant {
                continue;
            }
            let available = self.available_at(place, device).max(after);
            let start = self.devices[device].first_gap(available, duration);
            let score = match choose {
                Choose::Onward(table) => start + duration + table[place * problem.devices + device],
                _ => start + duration,
            };
            if best.is_none_or(|(least, ..)| score < least) {
                best = Some((score, device, start));
            }
        }
        let Some((_, device, _)) = best else {
            // The device that was planned is gone: no other plan is worse.
            self.plan.makespan = f64::INFINITY;
            return;
        };
        let available = self.fetch(place, device).max(after);
        let duration = problem.duration(place, device);
        let start = self.devices[device].first_gap(available, duration);
        self.devices[device].take(start, start + duration);
        self.set(place, device, (start, start + duration));
    }

    fn set(&mut self, place: usize, device: usize, (start, end): (f64, f64)) {
        let plan = &mut self.plan;
        plan.devices[place] = device as u16;
        (plan.starts[place], plan.ends[place]) = (start, end);
        plan.makespan = plan.makespan.max(end);
        let memory = self.problem.memory_of[device];
        for access in self.problem.accesses(place).iter().filter(|access| access.mode.writes()) {
            let row = access.handle as usize * self.problem.memories;
            self.valid_at[row..row + self.problem.memories].fill(f64::INFINITY);
            self.valid_at[row + memory] = end;
        }
    }

    /// When what a task reads is in the memory of a device, each handle by itself.
    fn available_at(&self, place: usize, device: usize) -> f64 {
        let memory = self.problem.memory_of[device];
        let read = self.problem.accesses(place).iter().filter(|access| access.mode.reads());
        read.fold(self.problem.now, |at, access| {
            let row = access.handle as usize * self.problem.memories;
            let there = self.valid_at[row + memory];
            let there = match there.is_finite() {
                true => there,
                false => self.source(access.handle, memory).map_or(at, |(_, (_, end))| end),
            };
            at.max(there)
        })
    }

    /// The memory from which a handle arrives first, and the interval of its transfer.
    fn source(&self, handle: u32, to: usize) -> Option<(usize, (f64, f64))> {
        let row = handle as usize * self.problem.memories;
        let bytes = self.problem.bytes[handle as usize];
        let holders =
            (0..self.problem.memories).filter(|from| self.valid_at[row + from].is_finite());
        let offers = holders.filter_map(|from| {
            Some((from, self.links.offer((from, to), bytes, self.valid_at[row + from])?))
        });
        offers.min_by(|(_, a), (_, b)| a.1.total_cmp(&b.1))
    }

    /// The same as [`Pass::available_at`], and takes the links.
    fn fetch(&mut self, place: usize, device: usize) -> f64 {
        let problem = self.problem;
        let memory = problem.memory_of[device];
        let mut at = problem.now;
        for access in problem.accesses(place).iter().filter(|access| access.mode.reads()) {
            let row = access.handle as usize * problem.memories + memory;
            if !self.valid_at[row].is_finite()
                && let Some((from, (start, end))) = self.source(access.handle, memory)
            {
                let bytes = problem.bytes[access.handle as usize];
                self.links.take((from, memory), bytes, start);
                self.valid_at[row] = end;
            }
            if self.valid_at[row].is_finite() {
                at = at.max(self.valid_at[row]);
            }
        }
        at
    }
}

/// Tasks of each device by their start, those that are committed left out.
pub(super) fn by_device(problem: &Problem<'_>, plan: &Plan) -> Vec<Vec<u32>> {
    let mut orders = vec![Vec::new(); problem.devices];
    let is_open = |place: &usize| problem.committed[*place].is_none() && !problem.cancelled[*place];
    for place in (0..problem.count()).filter(is_open) {
        orders[usize::from(plan.devices[place])].push(place as u32);
    }
    for order in &mut orders {
        order.sort_by(|a, b| {
            let start = |place: u32| plan.starts[place as usize];
            start(*a).total_cmp(&start(*b)).then(a.cmp(b))
        });
    }
    orders
}
