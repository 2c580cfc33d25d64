//! A queue a device; idle devices take from the longest.

use std::collections::VecDeque;

use crate::{DeviceId, Scheduler, TaskId, View};

/// A task goes to the device whose task it waited for last, which has its data; one that waited
/// for none to each device in turn. Nothing is known of durations.
#[derive(Debug, Default)]
pub struct WorkStealing {
    queues: Vec<VecDeque<TaskId>>,
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
        self.queues.resize_with(view.streams.len(), VecDeque::new);
        let can_run =
            |device: &DeviceId| view.task(task).is_some_and(|node| view.can_run(node, *device));
        if let Some(device) = after.filter(can_run).or_else(|| self.in_turn(view, task)) {
            self.queues[device.row()].push_back(task);
        }
    }

    fn next(&mut self, view: &View<'_>, device: DeviceId) -> Option<TaskId> {
        if let Some(task) = self.queues.get_mut(device.row())?.pop_front() {
            return Some(task);
        }
        let can_run =
            |task: &TaskId| view.task(*task).is_none_or(|node| view.can_run(node, device));
        let longest = (0..self.queues.len())
            .filter(|row| self.queues[*row].iter().any(can_run))
            .max_by_key(|row| (self.queues[*row].len(), usize::MAX - row))?;
        let place = self.queues[longest].iter().rposition(can_run)?;
        self.queues[longest].remove(place)
    }

    fn upcoming(&self, _view: &View<'_>, device: DeviceId, soon: &mut Vec<TaskId>) {
        soon.extend(self.queues.get(device.row()).into_iter().flatten().take(4));
    }

    fn device_lost(&mut self, _view: &View<'_>, device: DeviceId, back: &mut Vec<TaskId>) {
        if let Some(queue) = self.queues.get_mut(device.row()) {
            back.extend(queue.drain(..));
        }
    }
}
