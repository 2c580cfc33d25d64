//! Making a plan: several ways to rank tasks and to choose devices, the plan that there is, and
//! variations of the best, as many as the budget allows. The one that is predicted to end first
//! is taken.

use std::collections::VecDeque;

use crate::{DeviceId, TaskId, View};

use super::super::plan::{self, Choose, Contention, Plan, Problem, Weight};
use super::{Adaptive, LOOKED_AT, PLANNED_MAX, Planned};

/// Nanoseconds that it takes to put a task into a plan, for each device, with one memory.
const COST: f64 = 60.0;

/// With several memories transfers are looked at, too.
const COST_WITH_TRANSFERS: f64 = 200.0;

/// Planning may take this part of the time that passes.
const PART: f64 = 0.01;

/// Most variations that are tried at a time.
const VARIATIONS_MAX: usize = 64;

/// Ranks are varied by up to this part, up and down.
const VARIATION: f64 = 0.15;

/// What planning may cost, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Budget {
    credit: f64,
    /// Until when credit was given.
    at: f64,
    /// Tasks for which credit was given.
    submitted: u64,
    /// Of the sequence of variations.
    seed: u64,
}

impl Budget {
    /// The next number of the sequence, from -1 to 1 (Steele, Lea and Flood 2014, "Fast splittable
    /// pseudorandom number generators").
    fn vary(&mut self) -> f64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}

fn cost_a_task(devices: usize, memories: usize) -> f64 {
    devices as f64 * if memories > 1 { COST_WITH_TRANSFERS } else { COST }
}

/// Nanoseconds from which on a task is worth planning.
pub(super) fn worth_planning(devices: usize, memories: usize) -> f64 {
    cost_a_task(devices, memories) / PART
}

/// A plan and the ranks that it came from.
struct Ranked {
    plan: Plan,
    ranks: Vec<f64>,
}

impl Adaptive {
    /// Takes the best plan that the budget finds. Where not even two can be afforded the one that
    /// there is stays, and what it lacks is queued as short tasks are. So it is with one device,
    /// for which a plan decides nothing but an order: queues have one by priority and arrival.
    pub(super) fn replan(&mut self, view: &View<'_>) {
        if view.devices().nth(1).is_none() {
            self.has_departed = false;
            self.queue_fresh(view);
            return;
        }
        let unfinished = view.graph.unfinished().min(PLANNED_MAX);
        let once = unfinished as f64
            * cost_a_task(view.machine.devices().len(), view.machine.memories().len());
        let now = view.now as f64;
        self.budget.credit += PART * (now - self.budget.at + self.new_work(view));
        self.budget.at = now;
        if self.budget.credit < 2.0 * once {
            self.queue_fresh(view);
            return;
        }
        let problem = Problem::new(view, PLANNED_MAX, Contention::Seen);
        let has_fresh = !self.fresh.is_empty();
        let mut best = self.current(&problem);
        let mut consider = |ranks: Vec<f64>, choose: Choose<'_>, credit: &mut f64| {
            let plan = plan::planned(&problem, &ranks, choose);
            *credit -= once;
            let least = best.as_ref().map_or(f64::INFINITY, |best| best.plan.makespan);
            if plan.makespan < least {
                best = Some(Ranked { plan, ranks });
            }
        };
        let credit = &mut self.budget.credit;
        consider(problem.upward_ranks(Weight::Mean), Choose::Finish, credit);
        if problem.memories > 1 && has_fresh {
            // As HEFT has it, which is blind to other transfers, with what they make of it.
            let blind = problem.blind();
            let ranks = problem.upward_ranks(Weight::Mean);
            let plan = plan::planned(&blind, &ranks, Choose::Finish);
            let order = plan.starts.iter().map(|start| -start).collect();
            consider(order, Choose::Fixed(&plan.devices), credit);
        }
        let table = if *credit > 5.0 * once { problem.optimistic_costs() } else { Vec::new() };
        for by in [Weight::Harmonic, Weight::Least, Weight::Mean] {
            if *credit > 5.0 * once {
                consider(problem.upward_ranks(by), Choose::Finish, credit);
                consider(problem.upward_ranks(by), Choose::Onward(&table), credit);
            }
        }
        let affordable = (self.budget.credit / 2.0 / once).max(0.0) as usize;
        for _ in 0..affordable.min(VARIATIONS_MAX) {
            let Some(base) = &best else { break };
            let budget = &mut self.budget;
            let ranks: Vec<f64> =
                base.ranks.iter().map(|rank| rank * (1.0 + VARIATION * budget.vary())).collect();
            let plan = plan::planned(&problem, &ranks, Choose::Finish);
            self.budget.credit -= once;
            if plan.makespan < base.plan.makespan {
                best = Some(Ranked { plan, ranks });
            }
        }
        if let Some(best) = best {
            self.take_plan(view, &problem, &best);
        }
        // Of more than can be planned the rest is queued.
        let fresh = std::mem::take(&mut self.fresh).into_iter();
        self.fresh = fresh.filter(|task| self.slot(*task).is_none()).collect();
        self.queue_fresh(view);
        self.has_departed = false;
    }

    fn queue_fresh(&mut self, view: &View<'_>) {
        self.fresh_priority = None;
        for task in std::mem::take(&mut self.fresh) {
            if let Some(node) = view.task(task).filter(|_| view.is_ready(task)) {
                self.short.add(view, task, node);
            }
        }
    }

    /// Nanoseconds a device of the tasks that were submitted since this was asked last, which are
    /// taken to be like those of them that are ready.
    fn new_work(&mut self, view: &View<'_>) -> f64 {
        let submitted = view.graph.submitted();
        let new = submitted - std::mem::replace(&mut self.budget.submitted, submitted);
        let looked_at = self.fresh.iter().take(LOOKED_AT).filter_map(|task| view.task(*task));
        let least = looked_at.map(|node| {
            let means = view.devices().filter_map(|device| Some(view.estimate(node, device)?.mean));
            means.fold(f64::INFINITY, f64::min)
        });
        let least: Vec<f64> = least.filter(|mean| mean.is_finite()).collect();
        let mean = least.iter().sum::<f64>() / least.len().max(1) as f64;
        new as f64 * mean / view.machine.devices().len() as f64
    }

    /// The plan that there is, from now on; `None` where it lacks a task.
    fn current(&mut self, problem: &Problem<'_>) -> Option<Ranked> {
        let mut devices = Vec::with_capacity(problem.count());
        let mut order = Vec::with_capacity(problem.count());
        let mut ranks = Vec::with_capacity(problem.count());
        for (place, id) in problem.ids.iter().enumerate() {
            let committed = match problem.cancelled[place] {
                true => Some((0, problem.now, problem.now)),
                false => problem.committed[place],
            };
            let planned = match committed {
                Some((device, start, _)) => Planned {
                    task: *id,
                    device: DeviceId(device),
                    start,
                    rank: 0.0,
                    priority: problem.priorities[place],
                    place: 0,
                    is_handed_out: true,
                },
                None => self.slot(*id)?,
            };
            devices.push(planned.device.0);
            order.push(-planned.start);
            ranks.push(planned.rank);
        }
        let plan = plan::planned(problem, &order, Choose::Fixed(&devices));
        Some(Ranked { plan, ranks })
    }

    fn take_plan(&mut self, view: &View<'_>, problem: &Problem<'_>, best: &Ranked) {
        let orders = plan::by_device(problem, &best.plan);
        let Plan { devices, starts, .. } = &best.plan;
        self.planned.clear();
        self.planned.resize(view.graph.rows(), None);
        for (place, task) in problem.ids.iter().copied().enumerate() {
            self.planned[task.row()] = Some(Planned {
                task,
                device: DeviceId(devices[place]),
                start: starts[place],
                rank: best.ranks[place],
                priority: problem.priorities[place],
                place: 0,
                is_handed_out: problem.committed[place].is_some(),
            });
        }
        self.orders.clear();
        self.open.clear();
        self.open_count = 0;
        for order in orders {
            let ids = order.into_iter().map(|place| problem.ids[place as usize]);
            let ids: VecDeque<TaskId> = ids.collect();
            for (place, task) in ids.iter().enumerate() {
                let Some(planned) = &mut self.planned[task.row()] else { continue };
                planned.place = place as u32;
                let planned = *planned;
                if view.is_ready(*task) && !self.short.has(*task) {
                    self.add_open(&planned);
                }
            }
            self.orders.push(ids);
        }
    }
}
