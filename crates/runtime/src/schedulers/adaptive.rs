//! Ours: what is worth planning is planned, and planned again when reality departs from the
//! model; what is too short for that goes where it ends first, and idle devices take it from there.
//!
//! Which of the two a task gets follows from its length beside the cost of planning it, so that
//! the load chooses: planning has one part in a hundred of the time that passes, no more.
//!
//! Whatever is planned, of the ready tasks that are meant for a device the most urgent is first.

mod replan;
mod short;

use std::cmp::Reverse;
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

/// Tasks of a device's order that are named as its next.
const UPCOMING: usize = 4;

/// A task that took so much longer or shorter than expected, as a part of that, makes the plan
/// worth looking at again.
const DEPARTURE: f64 = 0.15;

/// Where tasks take so much longer or shorter than expected in the mean, as a part of that, a plan
/// is no reason to let a device wait.
const NOISE: f64 = 0.05;

/// What the last task counts for in that mean.
const NOISE_WEIGHT: f64 = 0.1;

/// What a device does then while it waits for its next task may delay that by this part of the
/// wait.
const DELAY: f64 = 0.5;

/// A task's place in the plan.
#[derive(Debug, Clone, Copy)]
struct Planned {
    task: TaskId,
    device: DeviceId,
    start: f64,
    rank: f64,
    priority: i32,
    /// In the order of its device.
    place: u32,
    /// It is in no order any more, or is left there to be passed over.
    is_handed_out: bool,
}

/// A planned task that is ready: the most urgent first, then as planned.
type Open = (Reverse<i32>, u32, TaskId);

impl Planned {
    fn open(&self) -> Open {
        (Reverse(self.priority), self.place, self.task)
    }
}

/// The default scheduler.
#[derive(Debug, Default)]
pub struct Adaptive {
    short: ShortQueues,
    /// Planned tasks of each device by their start.
    orders: Vec<VecDeque<TaskId>>,
    /// By row of the task.
    planned: Vec<Option<Planned>>,
    /// Of each device what is ready of its order and in no queue of short ones.
    open: Vec<BTreeSet<Open>>,
    /// How many those are.
    open_count: usize,
    /// Ready tasks that are in no plan.
    fresh: Vec<TaskId>,
    /// The most urgent of them.
    fresh_priority: Option<i32>,
    /// Something took another time than the model said when it was committed.
    has_departed: bool,
    /// By how much tasks do so, as a part of that time: an exponential mean.
    noise: f64,
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

    fn is_noisy(&self) -> bool {
        self.noise > NOISE
    }

    /// Whether planning it costs little beside running it, wherever that is.
    fn is_long(view: &View<'_>, node: &Node) -> bool {
        let devices = view.devices().filter(|device| view.can_run(node, *device));
        let mut means = devices.map(|device| view.estimate(node, device).map(|one| one.mean));
        let least = replan::worth_planning(view.streams.len(), view.machine.memories().len());
        means.all(|mean| mean.is_some_and(|mean| mean >= least))
    }

    fn add_fresh(&mut self, view: &View<'_>, task: TaskId) {
        self.fresh.push(task);
        self.fresh_priority = self.fresh_priority.max(view.task(task).map(Node::priority));
    }

    fn add_open(&mut self, planned: &Planned) {
        let rows = self.orders.len().max(planned.device.row() + 1);
        self.open.resize_with(rows, BTreeSet::new);
        let is_new = self.open[planned.device.row()].insert(planned.open());
        self.open_count += usize::from(is_new);
    }

    /// The most urgent that is ready of a device's order.
    fn first_open(&mut self, view: &View<'_>, device: DeviceId) -> Option<Open> {
        let open = self.open.get_mut(device.row())?;
        loop {
            let first = *open.first()?;
            if view.is_ready(first.2) {
                return Some(first);
            }
            // It was cancelled meanwhile.
            open.pop_first();
            self.open_count -= 1;
        }
    }

    /// Takes a planned task that is ready out of its order.
    fn hand_out(&mut self, task: TaskId) -> Option<TaskId> {
        let planned = self.planned.get_mut(task.row())?.as_mut()?;
        planned.is_handed_out = true;
        let (device, open) = (planned.device, planned.open());
        let was_open = self.open.get_mut(device.row())?.remove(&open);
        self.open_count -= usize::from(was_open);
        Some(task)
    }

    /// Passes over what a device's order has no more. Returns what is first then.
    fn first_planned(&mut self, view: &View<'_>, device: DeviceId) -> Option<Planned> {
        loop {
            let task = *self.orders.get(device.row())?.front()?;
            let is_open = view.task(task).is_some_and(|node| {
                !node.is_cancelled && matches!(node.stage, Stage::Waiting | Stage::Ready)
            });
            let planned = self.slot(task).filter(|planned| !planned.is_handed_out);
            if let Some(planned) = planned.filter(|_| is_open && !self.short.has(task)) {
                return Some(planned);
            }
            self.orders[device.row()].pop_front();
            // One that stood behind another in a stream may come back.
            if let Some(planned) = self.planned[task.row()].as_mut() {
                planned.is_handed_out |= planned.task == task;
            }
        }
    }

    /// What is next of the device's order. While its data is still copied something else has its
    /// turn, if it is only less urgent and has its own data.
    fn own(&mut self, view: &View<'_>, device: DeviceId) -> Option<(TaskId, &'static str)> {
        let (task, reason) = self.first_own(view, device)?;
        let node = view.task(task)?;
        if view.machine.memories().len() > 1 && !view.has_data(node, device) {
            let open = self.open[device.row()].iter().take(LOOKED_AT).map(|open| open.2);
            let mut others = open.filter_map(|task| Some((task, view.task(task)?)));
            let less_urgent = others.find(|(other, node_of_it)| {
                node_of_it.priority() < node.priority()
                    && view.is_ready(*other)
                    && view.has_data(node_of_it, device)
            });
            if let Some((other, _)) = less_urgent {
                return Some((self.hand_out(other)?, "has-data"));
            }
        }
        Some((self.hand_out(task)?, reason))
    }

    /// The first of the device's order where it is ready and none is more urgent; else, of the
    /// most urgent that are ready, the first, or one that hardly delays what the device waits for.
    fn first_own(&mut self, view: &View<'_>, device: DeviceId) -> Option<(TaskId, &'static str)> {
        let first = self.first_planned(view, device)?;
        let (Reverse(urgent), place, task) = self.first_open(view, device)?;
        if place == first.place {
            return Some((task, "plan"));
        }
        if urgent > first.priority || view.is_ready(first.task) {
            return Some((task, "urgent"));
        }
        let alike = self.open[device.row()].iter().take(LOOKED_AT);
        let mut alike = alike.take_while(|open| open.0 == Reverse(urgent)).map(|open| open.2);
        let now = view.now as f64;
        // What is less urgent delays nothing.
        let may_delay = match self.is_noisy() && urgent == first.priority {
            true => DELAY * (first.start - now).max(0.0),
            false => 0.0,
        };
        let fits = alike.find(|task| {
            let node = view.task(*task).filter(|_| view.is_ready(*task));
            let estimate = node.and_then(|node| view.estimate(node, device));
            estimate.is_some_and(|own| now + own.mean <= first.start + may_delay)
        });
        match fits {
            Some(task) => Some((task, "fits-before")),
            // What the device would wait for may wait for one that is queued here.
            None if self.short.own_priority(device).is_some() => Some((task, "urgent")),
            None => None,
        }
    }

    /// A ready task of another device that ends here before it would there, by more than it delays
    /// what this one waits for: the most urgent first, and none that is less urgent than what is
    /// ready of the device's own, or that delays what is more urgent.
    fn stolen(
        &mut self,
        view: &View<'_>,
        device: DeviceId,
        own: Option<i32>,
    ) -> Option<(TaskId, &'static str)> {
        let mut best: Option<(i32, f64, TaskId)> = None;
        let next = self.first_planned(view, device);
        let next_start = next.map(|next| next.start.max(view.now as f64));
        for other in view.machine.device_ids().filter(|other| *other != device) {
            let mut at = view.free_at(other) as f64;
            let order = self.orders.get(other.row()).into_iter().flatten();
            for task in order.take(LOOKED_AT) {
                let Some(planned) = self.slot(*task).filter(|one| !one.is_handed_out) else {
                    continue;
                };
                let Some(node) = view.task(*task) else { continue };
                at += view.estimate(node, other).map_or(0.0, |estimate| estimate.mean);
                let is_open = view.is_ready(*task) && !self.short.has(*task);
                let is_for_it = Some(planned.priority) >= own && view.can_run(node, device);
                if !is_open || !is_for_it {
                    continue;
                }
                let Some(available) = view.available_at(node, device) else { continue };
                let mean = view.estimate(node, device).map_or(0.0, |estimate| estimate.mean);
                let end = available as f64 + mean;
                let delay = next_start.map_or(0.0, |start| (end - start).max(0.0));
                if delay > 0.0 && next.is_some_and(|next| planned.priority < next.priority) {
                    continue;
                }
                let gain = at - end - delay;
                let is_better = best.is_none_or(|(priority, most, _)| {
                    planned.priority.cmp(&priority).then(gain.total_cmp(&most)).is_gt()
                });
                if gain > 0.0 && is_better {
                    best = Some((planned.priority, gain, *task));
                }
            }
        }
        let (.., task) = best?;
        Some((self.hand_out(task)?, "stolen"))
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
        match self.slot(task).filter(|planned| !planned.is_handed_out) {
            Some(planned) => self.add_open(&planned),
            None => self.add_fresh(view, task),
        }
    }

    fn next(&mut self, view: &View<'_>, device: DeviceId) -> Option<TaskId> {
        if self.fresh_priority > self.short.priority(device) {
            self.replan(view);
        }
        let planned = self.first_open(view, device).map(|(Reverse(priority), ..)| priority);
        let own = planned.max(self.fresh_priority);
        if self.short.priority(device) >= planned
            && let Some((task, reason)) = self.short.next(view, device, own)
        {
            self.note(view, task, device, reason);
            return Some(task);
        }
        if self.open_count == 0 && self.fresh.is_empty() {
            return None;
        }
        if !self.fresh.is_empty() {
            // What no plan has then is in a queue.
            self.replan(view);
            return self.next(view, device);
        }
        if self.has_departed {
            self.replan(view);
        }
        let found = self.own(view, device);
        // A plan that holds means it where it lets a device wait.
        let found = match found {
            None if self.has_departed || self.is_noisy() => self.stolen(view, device, planned),
            found => found,
        };
        let (task, reason) = found?;
        self.note(view, task, device, reason);
        Some(task)
    }

    fn next_priority(&self, _view: &View<'_>, device: DeviceId) -> Option<i32> {
        let open = self.open.get(device.row()).and_then(BTreeSet::first);
        let planned = open.map(|(Reverse(priority), ..)| *priority);
        self.short.own_priority(device).max(planned).max(self.fresh_priority)
    }

    fn upcoming(&self, _view: &View<'_>, device: DeviceId, soon: &mut Vec<TaskId>) {
        self.short.upcoming(device, soon);
        let order = self.orders.get(device.row()).into_iter().flatten().copied();
        let planned = order.filter_map(|task| self.slot(task).filter(|one| !one.is_handed_out));
        let mut planned = planned.take(UPCOMING).peekable();
        let first = planned.peek().map(|planned| planned.priority);
        let open = self.open.get(device.row()).into_iter().flatten().take(UPCOMING);
        soon.extend(open.filter(|open| Some(open.0.0) > first).map(|open| open.2));
        soon.extend(planned.map(|planned| planned.task));
    }

    fn ended(&mut self, view: &View<'_>, task: TaskId, _device: DeviceId, took: Nanos) {
        if let Some(node) = view.task(task).filter(|_| self.slot(task).is_some()) {
            let departure = (took as f64 - node.expected).abs() / node.expected.max(1.0);
            // Of what nobody knew before the plan has a guess.
            self.has_departed |= departure > DEPARTURE || node.expected.is_infinite();
            if node.expected.is_finite() {
                self.noise += NOISE_WEIGHT * (departure.min(1.0) - self.noise);
            }
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
        if let Some(open) = self.open.get_mut(device.row()) {
            self.open_count -= std::mem::take(open).len();
        }
        let order = self.orders.get_mut(device.row()).map(std::mem::take).unwrap_or_default();
        for task in order {
            let planned = self.planned[task.row()].take_if(|planned| planned.task == task);
            let is_ours = planned.is_some_and(|planned| !planned.is_handed_out)
                && !offered.contains(&task)
                && !self.short.has(task);
            if view.is_ready(task) && is_ours {
                self.add_fresh(view, task);
            }
        }
    }

    fn take_log(&mut self) -> Vec<Choice> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
