//! StarPU's `dmdas`: a ready task is queued at the device with the least
//! `finish + transfer`, where it stays; queues are by priority, then by missing bytes.

use crate::graph::Node;
use crate::{Candidate, DeviceId, Estimate, Scheduler, TaskId, View};

use crate::queue::PriorityQueue;

/// Tasks of equal priority among which the one with the fewest missing bytes is looked for.
const COMPARED: usize = 8;

#[derive(Debug, Clone, Copy)]
struct Queued {
    task: TaskId,
    expected: f64,
}

/// Published as a reference, without calibration runs: what is not known takes no time.
#[derive(Debug, Default)]
pub struct Dmdas {
    queues: Vec<PriorityQueue<Queued>>,
    /// Expected nanoseconds of each queue.
    work: Vec<f64>,
}

impl Dmdas {
    fn candidate(&self, view: &View<'_>, node: &Node, device: DeviceId) -> Option<Candidate> {
        let available_at = view.available_at(node, device)?;
        let unknown = Estimate { mean: 0.0, deviation: 0.0 };
        let duration = view.estimate(node, device).unwrap_or(unknown);
        let free_at = view.free_at(device).saturating_add(self.work[device.row()] as u64);
        let finish = free_at.max(available_at) as f64 + duration.mean;
        let score = finish + (available_at - view.now) as f64;
        Some(Candidate { device, free_at, available_at, duration, score })
    }
}

impl Scheduler for Dmdas {
    fn name(&self) -> &'static str {
        "dmdas"
    }

    fn ready(&mut self, view: &View<'_>, task: TaskId, _after: Option<DeviceId>) {
        self.queues.resize_with(view.streams.len(), PriorityQueue::default);
        self.work.resize(view.streams.len(), 0.0);
        let Some(node) = view.task(task) else { return };
        let able = view.devices().filter(|device| view.can_run(node, *device));
        let candidates = able.filter_map(|device| self.candidate(view, node, device));
        let best = candidates.min_by(|a, b| a.score.total_cmp(&b.score));
        let Some(Candidate { device, duration, .. }) = best else { return };
        let row = device.row();
        let queued = Queued { task, expected: duration.mean };
        self.queues[row].add(node.priority, queued);
        self.work[row] += queued.expected;
    }

    fn next(&mut self, view: &View<'_>, device: DeviceId) -> Option<TaskId> {
        let queue = self.queues.get_mut(device.row())?;
        let priority = queue.priority()?;
        let memory = view.memory_of(device);
        let missing = |queued: &Queued| {
            view.task(queued.task).map_or(0, |node| view.data.missing_bytes(&node.accesses, memory))
        };
        let place = match view.machine.memories().len() {
            1 => 0,
            _ => {
                let alike = queue.iter().take(COMPARED).take_while(|(other, _)| *other == priority);
                let missing = alike.map(|(_, queued)| missing(queued)).enumerate();
                missing.min_by_key(|(place, bytes)| (*bytes, *place))?.0
            }
        };
        let queued = queue.remove(place)?;
        let work = &mut self.work[device.row()];
        *work = if queue.is_empty() { 0.0 } else { (*work - queued.expected).max(0.0) };
        Some(queued.task)
    }

    fn next_priority(&self, _view: &View<'_>, device: DeviceId) -> Option<i32> {
        self.queues.get(device.row())?.priority()
    }

    fn upcoming(&self, _view: &View<'_>, device: DeviceId, soon: &mut Vec<TaskId>) {
        let queue = self.queues.get(device.row()).into_iter();
        soon.extend(queue.flat_map(PriorityQueue::iter).take(4).map(|(_, queued)| queued.task));
    }

    fn device_lost(&mut self, _view: &View<'_>, device: DeviceId, back: &mut Vec<TaskId>) {
        if let Some(queue) = self.queues.get_mut(device.row()) {
            back.extend(queue.drain().map(|queued| queued.task));
            self.work[device.row()] = 0.0;
        }
    }
}
