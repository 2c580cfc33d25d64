//! Tasks that are too short to plan: each to the device where it ends first, by queue, transfers
//! and model. A device without any takes what ends sooner with it.

use crate::graph::Node;
use crate::{DeviceId, TaskId, View};

use crate::queue::PriorityQueue;

#[derive(Debug, Clone, Copy)]
struct Queued {
    task: TaskId,
    expected: f64,
}

#[derive(Debug, Default)]
pub(super) struct ShortQueues {
    queues: Vec<PriorityQueue<Queued>>,
    /// Expected nanoseconds of each queue.
    work: Vec<f64>,
    /// Those in the queues, by row.
    queued: Vec<Option<TaskId>>,
    count: usize,
}

impl ShortQueues {
    pub fn add(&mut self, view: &View<'_>, task: TaskId, node: &Node) {
        self.queues.resize_with(view.streams.len(), PriorityQueue::default);
        self.work.resize(view.streams.len(), 0.0);
        let one_memory = view.machine.memories().len() == 1;
        // (known, finish, expected, row): where nothing is known yet it is tried first, on the
        // device with the shortest queue.
        let mut best: Option<(bool, f64, f64, usize)> = None;
        for device in view.devices().filter(|device| view.can_run(node, *device)) {
            let row = device.row();
            let estimate = view.estimate(node, device);
            let (is_known, finish) = match estimate {
                None => {
                    (false, (self.queues[row].len() + view.streams[row].committed.len()) as f64)
                }
                Some(estimate) => {
                    let mut start = view.free_at(device) as f64 + self.work[row];
                    if !one_memory {
                        let Some(at) = view.available_at(node, device) else { continue };
                        start = start.max(at as f64);
                    }
                    (true, start + estimate.mean)
                }
            };
            let expected = estimate.map_or(0.0, |estimate| estimate.mean);
            let is_better = best.is_none_or(|(known, least, ..)| match (is_known, known) {
                (false, true) => true,
                (true, false) => false,
                _ => finish < least,
            });
            if is_better {
                best = Some((is_known, finish, expected, row));
            }
        }
        let Some((_, _, expected, row)) = best else { return };
        self.queues[row].add(node.priority(), Queued { task, expected });
        self.work[row] += expected;
        self.count += 1;
        if self.queued.len() <= task.row() {
            self.queued.resize(view.graph.rows(), None);
        }
        self.queued[task.row()] = Some(task);
    }

    /// The first of the device's queue, or one of another's that ends sooner here. `own` is the
    /// priority of what the device has beside: nothing less urgent is stolen.
    pub fn next(
        &mut self,
        view: &View<'_>,
        device: DeviceId,
        own: Option<i32>,
    ) -> Option<(TaskId, &'static str)> {
        if self.count == 0 {
            return None;
        }
        let row = device.row();
        if !self.queues[row].is_empty() {
            return Some((self.take(row, 0)?, "earliest-finish"));
        }
        // From the queue that ends last: of its most urgent the last, else the last of all.
        let others = (0..self.queues.len())
            .filter(|other| self.queues[*other].priority().is_some_and(|first| Some(first) >= own));
        let ends = |other: usize| view.free_at(DeviceId(other as u16)) as f64 + self.work[other];
        let other = others.max_by(|a, b| ends(*a).total_cmp(&ends(*b)).then(b.cmp(a)))?;
        let (urgent, all) = (self.queues[other].most_urgent(), self.queues[other].len());
        if urgent < all {
            let before = self.queues[other].iter().take(urgent);
            let work: f64 = before.map(|(_, queued)| queued.expected).sum();
            let end = view.free_at(DeviceId(other as u16)) as f64 + work;
            if self.ends_sooner(view, device, (other, urgent - 1), end) {
                return Some((self.take(other, urgent - 1)?, "stolen"));
            }
        }
        let last = self.queues[other].iter().next_back().map(|(priority, _)| priority);
        match last >= own && self.ends_sooner(view, device, (other, all - 1), ends(other)) {
            true => Some((self.take(other, all - 1)?, "stolen")),
            false => None,
        }
    }

    /// Whether the task in a place of another's queue ends on the device before `end`.
    fn ends_sooner(
        &self,
        view: &View<'_>,
        device: DeviceId,
        (row, place): (usize, usize),
        end: f64,
    ) -> bool {
        let queued = self.queues[row].get(place);
        let node = queued.and_then(|queued| view.task(queued.task));
        let Some(node) = node.filter(|node| view.can_run(node, device)) else { return false };
        let (Some(here), Some(data)) =
            (view.estimate(node, device), view.available_at(node, device))
        else {
            return false;
        };
        view.free_at(device).max(data) as f64 + here.mean < end
    }

    /// The priority of the first in the device's own queue, or of what it might steal.
    pub fn priority(&self, device: DeviceId) -> Option<i32> {
        match self.own_priority(device) {
            None if self.count > 0 => self.queues.iter().filter_map(PriorityQueue::priority).max(),
            own => own,
        }
    }

    pub fn own_priority(&self, device: DeviceId) -> Option<i32> {
        self.queues.get(device.row())?.priority()
    }

    fn take(&mut self, row: usize, place: usize) -> Option<TaskId> {
        let queued = self.queues[row].remove(place)?;
        let work = &mut self.work[row];
        *work = if self.queues[row].is_empty() { 0.0 } else { (*work - queued.expected).max(0.0) };
        self.count -= 1;
        self.queued[queued.task.row()] = None;
        Some(queued.task)
    }

    /// Whether it is in a queue. It may be planned, too, where it was thought to be longer.
    pub fn has(&self, task: TaskId) -> bool {
        self.queued.get(task.row()).copied().flatten() == Some(task)
    }

    pub fn upcoming(&self, device: DeviceId, soon: &mut Vec<TaskId>) {
        let queue = self.queues.get(device.row()).into_iter();
        soon.extend(queue.flat_map(PriorityQueue::iter).take(4).map(|(_, queued)| queued.task));
    }

    pub fn device_lost(&mut self, device: DeviceId, back: &mut Vec<TaskId>) {
        if let Some(queue) = self.queues.get_mut(device.row()) {
            self.count -= queue.len();
            for queued in queue.drain() {
                self.queued[queued.task.row()] = None;
                back.push(queued.task);
            }
            self.work[device.row()] = 0.0;
        }
    }
}
