//! One queue that all devices take from.

use crate::{DeviceId, Scheduler, TaskId, View};

use crate::queue::PriorityQueue;

/// First come, first served; the more urgent first.
#[derive(Debug, Default)]
pub struct Eager {
    queue: PriorityQueue<TaskId>,
}

impl Eager {
    /// The first that the device can run, with its priority and place.
    fn first(&self, view: &View<'_>, device: DeviceId) -> Option<(usize, i32, TaskId)> {
        let can_run =
            |task: &TaskId| view.task(*task).is_none_or(|node| view.can_run(node, device));
        let mut queued = self.queue.iter().enumerate();
        let found = queued.find(|(_, (_, task))| can_run(task));
        found.map(|(place, (priority, task))| (place, priority, *task))
    }
}

impl Scheduler for Eager {
    fn name(&self) -> &'static str {
        "eager"
    }

    fn ready(&mut self, view: &View<'_>, task: TaskId, _after: Option<DeviceId>) {
        if let Some(node) = view.task(task) {
            self.queue.add(node.priority, task);
        }
    }

    fn next(&mut self, view: &View<'_>, device: DeviceId) -> Option<TaskId> {
        let (place, ..) = self.first(view, device)?;
        self.queue.remove(place)
    }

    fn next_priority(&self, view: &View<'_>, device: DeviceId) -> Option<i32> {
        self.first(view, device).map(|(_, priority, _)| priority)
    }

    fn upcoming(&self, view: &View<'_>, device: DeviceId, soon: &mut Vec<TaskId>) {
        soon.extend(self.first(view, device).map(|(.., task)| task));
    }

    fn device_lost(&mut self, _view: &View<'_>, _device: DeviceId, _back: &mut Vec<TaskId>) {}
}
