//! One queue for all devices.

use std::collections::VecDeque;

use crate::{DeviceId, Scheduler, TaskId, View};

/// First come, first served; the more urgent first.
#[derive(Debug, Default)]
pub struct Eager {
    queue: VecDeque<TaskId>,
}

impl Scheduler for Eager {
    fn name(&self) -> &'static str {
        "eager"
    }

    fn ready(&mut self, view: &View<'_>, task: TaskId, _after: Option<DeviceId>) {
        let priority = |task: TaskId| view.task(task).map_or(i32::MAX, |node| node.priority);
        let own = priority(task);
        let behind = self.queue.iter().rev().take_while(|other| priority(**other) < own);
        let place = self.queue.len() - behind.count();
        self.queue.insert(place, task);
    }

    fn next(&mut self, view: &View<'_>, device: DeviceId) -> Option<TaskId> {
        let can_run =
            |task: &TaskId| view.task(*task).is_none_or(|node| view.can_run(node, device));
        let place = self.queue.iter().position(can_run)?;
        self.queue.remove(place)
    }

    fn upcoming(&self, view: &View<'_>, device: DeviceId, soon: &mut Vec<TaskId>) {
        let can_run =
            |task: &&TaskId| view.task(**task).is_some_and(|node| view.can_run(node, device));
        soon.extend(self.queue.iter().find(can_run));
    }

    fn device_lost(&mut self, _view: &View<'_>, _device: DeviceId, _back: &mut Vec<TaskId>) {}
}
