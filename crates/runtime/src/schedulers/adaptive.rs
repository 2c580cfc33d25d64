//! Ours: what is worth planning is planned, and planned again when reality departs from the
//! model; what is too short for that goes where it ends first, and idle devices take it from there.
//!
//! Which of the two a task gets follows from its length beside the cost of planning it, so that
//! the load chooses: planning has one part in a hundred of the time that passes, no more.

mod replan;
mod short;

use std::collections::{BTreeSet, VecDeque};

use crate::graph::Node;
use crate::scheduler::{Candidate, Choice};
use crate::{DeviceId, Nanos, Scheduler, Stage, TaskId, View};

use replan::Budget;
use short::ShortQueues;

/// Of tasks in submission order, those that are planned ahead.
const PLANNED_MAX: usize = 2_000;

/// Tasks of a device's order that are looked at when the first can't run.
const LOOKED_AT: usize = 16;

/// A task that took so much longer or shorter than expected, as a part of that, makes the plan
/// worth looking at again.
const DEPARTURE: f64 = 0.15;

/// A task's place in the plan.
#[derive(Debug, Clone, Copy)]
struct Planned {
    task: TaskId,
    device: DeviceId,
    start: f64,
    end: f64,
    rank: f64,
    /// It is in no order any more.
    is_handed_out: bool,
}

/// The default scheduler.
#[derive(Debug, Default)]
pub struct Adaptive {
    short: ShortQueues,
    /// Planned tasks of each device by their start.
    orders: Vec<VecDeque<TaskId>>,
    /// By row of the task.
    planned: Vec<Option<Planned>>,
    /// Ready tasks that were not handed out and are in no queue of short ones.
    pending: usize,
    /// Ready tasks that are in no plan.
    fresh: Vec<TaskId>,
    /// Something took another time than planned.
    has_departed: bool,
    budget: Budget,
    log: Option<Vec<Choice>>,
}

impl Adaptive {
    /// One that keeps its choices for [`Scheduler::take_log`].
    pub fn logged() -> Self {
        Self { log: Some(Vec::new()), ..Self::default() }
    }

    fn slot(&self, task: TaskId) -> Option<Planned> {
        self.planned.get(task.row()).copied().flatten().filter(|planned| planned.task == task)
    }

    /// Whether planning it costs little beside running it, wherever that is.
    fn is_long(view: &View<'_>, node: &Node) -> bool {
        let devices = view.devices().filter(|device| view.can_run(node, *device));
        let mut means = devices.map(|device| view.estimate(node, device).map(|one| one.mean));
        let least = replan::worth_planning(view.streams.len(), view.machine.memories().len());
        means.all(|mean| mean.is_some_and(|mean| mean >= least))
    }

    /// The first of the device's order where it is ready; else one that ends before that is
    /// expected to be.
    fn own(&mut self, view: &View<'_>, device: DeviceId) -> Option<(TaskId, &'static str)> {
        let order = self.orders.get_mut(device.row())?;
        let is_done = |task: &TaskId| {
            view.task(*task).is_none_or(|node| {
                node.is_cancelled || !matches!(node.stage, Stage::Waiting | Stage::Ready)
            }) || self.short.has(*task)
        };
        while let Some(task) = order.front().copied().filter(is_done) {
            order.pop_front();
            // One that stood behind another in a stream may come back.
            if let Some(planned) = self.planned[task.row()].as_mut() {
                planned.is_handed_out |= planned.task == task;
            }
        }
        let first = *order.front()?;
        if view.is_ready(first) {
            order.pop_front();
            return Some((first, "plan"));
        }
        let begins = self.slot(first).map_or(0.0, |planned| planned.start);
        let order = self.orders.get_mut(device.row())?;
        let place = order.iter().take(LOOKED_AT).position(|task| {
            let node = view.task(*task).filter(|_| view.is_ready(*task) && !self.short.has(*task));
            let estimate = node.and_then(|node| view.estimate(node, device));
            estimate.is_some_and(|estimate| view.now as f64 + estimate.mean <= begins)
        })?;
        order.remove(place).map(|task| (task, "fits-before"))
    }

    /// A ready task of another device that ends here before it would there.
    fn stolen(&mut self, view: &View<'_>, device: DeviceId) -> Option<(TaskId, &'static str)> {
        let mut best: Option<(f64, usize, usize)> = None;
        for other in view.machine.device_ids().filter(|other| *other != device) {
            let mut at = view.free_at(other) as f64;
            let order = self.orders.get(other.row()).into_iter().flatten();
            for (place, task) in order.take(LOOKED_AT).enumerate() {
                let Some(node) = view.task(*task) else { continue };
                at += view.estimate(node, other).map_or(0.0, |estimate| estimate.mean);
                let is_open = view.is_ready(*task) && !self.short.has(*task);
                if !is_open || !view.can_run(node, device) {
                    continue;
                }
                let Some(available) = view.available_at(node, device) else { continue };
                let mean = view.estimate(node, device).map_or(0.0, |estimate| estimate.mean);
                let gain = at - (available as f64 + mean);
                if gain > 0.0 && best.is_none_or(|(most, ..)| gain > most) {
                    best = Some((gain, other.row(), place));
                }
            }
        }
        let (_, row, place) = best?;
        self.orders[row].remove(place).map(|task| (task, "stolen"))
    }

    fn note(&mut self, view: &View<'_>, task: TaskId, chosen: DeviceId, reason: &'static str) {
        let Some(node) = view.task(task).filter(|_| self.log.is_some()) else { return };
        let candidates = view.devices().filter(|device| view.can_run(node, *device));
        let candidates = candidates.filter_map(|device| {
            let available_at = view.available_at(node, device)?;
            let duration = view.estimate(node, device)?;
            let free_at = view.free_at(device);
            let score = free_at.max(available_at) as f64 + duration.mean;
            Some(Candidate { device, free_at, available_at, duration, score })
        });
        let choice = Choice {
            at: view.now,
            sequence: node.sequence,
            kernel: node.kernel,
            chosen,
            reason,
            candidates: candidates.collect(),
            took: None,
        };
        self.log.get_or_insert_default().push(choice);
    }
}

impl Scheduler for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn ready(&mut self, view: &View<'_>, task: TaskId, _after: Option<DeviceId>) {
        let Some(node) = view.task(task) else { return };
        if !Self::is_long(view, node) {
            self.short.add(view, task, node);
            return;
        }
        self.pending += 1;
        if self.slot(task).is_none_or(|planned| planned.is_handed_out) {
            self.fresh.push(task);
        }
    }

    fn next(&mut self, view: &View<'_>, device: DeviceId) -> Option<TaskId> {
        if let Some((task, reason)) = self.short.next(view, device) {
            self.note(view, task, device, reason);
            return Some(task);
        }
        if self.pending == 0 {
            return None;
        }
        if !self.fresh.is_empty() || self.has_departed {
            self.replan(view);
        }
        let found = self.own(view, device);
        // A plan that still holds means it where it lets a device wait.
        let found = match found {
            None if self.has_departed => self.stolen(view, device),
            found => found,
        };
        let (task, reason) = found?;
        self.pending -= 1;
        if let Some(planned) = &mut self.planned[task.row()] {
            planned.is_handed_out = true;
        }
        self.note(view, task, device, reason);
        Some(task)
    }

    fn upcoming(&self, _view: &View<'_>, device: DeviceId, soon: &mut Vec<TaskId>) {
        self.short.upcoming(device, soon);
        soon.extend(self.orders.get(device.row()).into_iter().flatten().take(4));
    }

    fn ended(&mut self, view: &View<'_>, task: TaskId, _device: DeviceId, took: Nanos) {
        if let Some(planned) = self.slot(task) {
            let expected = planned.end - planned.start;
            self.has_departed |= (took as f64 - expected).abs() > DEPARTURE * expected;
            self.planned[task.row()] = None;
        }
        if let (Some(log), Some(node)) = (&mut self.log, view.task(task)) {
            let own = log.iter_mut().rev().find(|choice| choice.sequence == node.sequence);
            if let Some(choice) = own {
                choice.took = Some(took);
            }
        }
    }

    fn device_lost(&mut self, view: &View<'_>, device: DeviceId, back: &mut Vec<TaskId>) {
        self.short.device_lost(device, back);
        // What comes back is offered anew.
        let offered: BTreeSet<TaskId> = back.iter().copied().collect();
        // Those that are ready stay ours, and the next plan has them.
        if let Some(order) = self.orders.get_mut(device.row()) {
            for task in order.drain(..) {
                self.planned[task.row()] = None;
                let is_ours = !offered.contains(&task) && !self.short.has(task);
                if view.is_ready(task) && is_ours {
                    self.fresh.push(task);
                }
            }
        }
    }

    fn take_log(&mut self) -> Vec<Choice> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
