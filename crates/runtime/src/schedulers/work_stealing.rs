//! A queue a device; idle devices take from the longest.

use crate::{DeviceId, Scheduler, TaskId, View};

use crate::queue::PriorityQueue;

/// A task goes to the device whose task it waited for last, which has its data; one that waited
/// for none to each device in turn. In a queue the more urgent stand first. Nothing is known of
/// durations.
#[derive(Debug, Default)]
pub struct WorkStealing {
    queues: Vec<PriorityQueue<TaskId>>,
    turn: usize,
}

impl WorkStealing {
    /// The device that comes next and can run it.
    fn in_turn(&mut self, view: &View<'_>, task: TaskId) -> Option<DeviceId> {
        let node = view.task(task)?;
        let count = self.queues.len();
        let from = self.turn;
        let found = (0..count)
            .map(|step| DeviceId(((from + step) % count) as u16))
            .find(|device| view.can_run(node, *device))?;
        self.turn = (found.row() + 1) % count;
        Some(found)
    }
}

impl Scheduler for WorkStealing {
    fn name(&self) -> &'static str {
        "work-stealing"
    }

    fn ready(&mut self, view: &View<'_>, task: TaskId, after: Option<DeviceId>) {
        self.queues.resize_with(view.streams.len(), PriorityQueue::default);
        let Some(node) = view.task(task) else { return };
        let can_run = |device: &DeviceId| view.can_run(node, *device);
        if let Some(device) = after.filter(can_run).or_else(|| self.in_turn(view, task)) {
            self.queues[device.row()].add(node.priority, task);
        }
    }

    fn next(&mut self, view: &View<'_>, device: DeviceId) -> Option<TaskId> {
        if let Some(task) = self.queues.get_mut(device.row())?.pop() {
            return Some(task);
        }
        let can_run =
            |task: &TaskId| view.task(*task).is_none_or(|node| view.can_run(node, device));
        let longest = (0..self.queues.len())
            .filter(|row| self.queues[*row].iter().any(|(_, task)| can_run(task)))
            .max_by_key(|row| (self.queues[*row].len(), usize::MAX - row))?;
        // The one that came last among the most urgent, which are first in the queue.
        let queue = &self.queues[longest];
        let urgent = queue.iter().find(|(_, task)| can_run(task))?.0;
        let place = queue.iter().rposition(|(other, task)| other == urgent && can_run(task))?;
        self.queues[longest].remove(place)
    }

    fn next_priority(&self, _view: &View<'_>, device: DeviceId) -> Option<i32> {
        self.queues.get(device.row())?.priority()
    }

    fn upcoming(&self, _view: &View<'_>, device: DeviceId, soon: &mut Vec<TaskId>) {
        let queue = self.queues.get(device.row()).into_iter();
        soon.extend(queue.flat_map(PriorityQueue::iter).map(|(_, task)| *task).take(4));
    }

    fn device_lost(&mut self, _view: &View<'_>, device: DeviceId, back: &mut Vec<TaskId>) {
        if let Some(queue) = self.queues.get_mut(device.row()) {
            back.extend(queue.drain());
        }
    }
}
