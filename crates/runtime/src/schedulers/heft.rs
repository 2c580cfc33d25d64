//! HEFT as published: one plan before the first task, with the model's means and without what
//! else is on the links, followed to the letter.

use std::collections::VecDeque;

use crate::{DeviceId, Scheduler, Stage, TaskId, View};

use super::plan::{self, Choose, Contention, Problem, Weight};

/// A plan is made again only for tasks that were not there when it was made, or whose device is
/// gone.
#[derive(Debug, Default)]
pub struct Heft {
    orders: Vec<VecDeque<TaskId>>,
    /// Tasks in the orders, by row.
    planned: Vec<Option<TaskId>>,
    is_stale: bool,
}

impl Heft {
    fn plan(&mut self, view: &View<'_>) {
        let mut problem = Problem::new(view, usize::MAX, Contention::Ignored);
        // It ranks tasks by what is behind them and by nothing else.
        problem.priorities.fill(0);
        let ranks = problem.upward_ranks(Weight::Mean);
        let plan = plan::planned(&problem, &ranks, Choose::Finish);
        let orders = plan::by_device(&problem, &plan);
        let ids = |order: Vec<u32>| order.into_iter().map(|place| problem.ids[place as usize]);
        self.orders = orders.into_iter().map(|order| ids(order).collect()).collect();
        self.planned = vec![None; view.graph.rows()];
        for task in self.orders.iter().flatten() {
            self.planned[task.row()] = Some(*task);
        }
        self.is_stale = false;
    }
}

impl Scheduler for Heft {
    fn name(&self) -> &'static str {
        "heft"
    }

    fn ready(&mut self, _view: &View<'_>, task: TaskId, _after: Option<DeviceId>) {
        self.is_stale |= self.planned.get(task.row()).copied().flatten() != Some(task);
    }

    fn next(&mut self, view: &View<'_>, device: DeviceId) -> Option<TaskId> {
        if self.is_stale {
            self.plan(view);
        }
        let order = self.orders.get_mut(device.row())?;
        let is_done = |task: &TaskId| {
            view.task(*task).is_none_or(|node| {
                node.is_cancelled || !matches!(node.stage, Stage::Waiting | Stage::Ready)
            })
        };
        while let Some(task) = order.front().copied().filter(is_done) {
            order.pop_front();
            // One that stood behind another in a stream may come back.
            self.planned[task.row()].take_if(|planned| *planned == task);
        }
        let task = *order.front().filter(|task| view.is_ready(**task))?;
        order.pop_front();
        self.planned[task.row()] = None;
        Some(task)
    }

    fn upcoming(&self, _view: &View<'_>, device: DeviceId, soon: &mut Vec<TaskId>) {
        soon.extend(self.orders.get(device.row()).into_iter().flatten().take(4));
    }

    fn device_lost(&mut self, _view: &View<'_>, _device: DeviceId, _back: &mut Vec<TaskId>) {
        self.is_stale = true;
    }
}
