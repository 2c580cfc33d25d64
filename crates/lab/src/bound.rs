//! What no schedule of a scenario can beat: lower bounds of mean completion time and makespan.
//!
//! Let a device of each class have a price, so that the whole cluster costs 1 a second. A job
//! costs at least what each of its stages costs in its cheapest shape, so that any schedule is also
//! one of a single machine of speed 1 on which the job takes that long. And it takes at least its
//! fastest shapes, one stage after the other. Of such a machine two sums are known:
//!
//! - the least total completion time, shortest remaining time first (Schrage 1968);
//! - the least total mean busy time, shortest first (Goemans 1997). A job ends at least half of its
//!   fastest time after its mean busy time.
//!
//! Both hold for any prices, which are the multipliers of a linear program's capacities; those that
//! bound best are searched. Pauses of stops, faults and how gangs stand are left out: a stage
//! starts once, on the best place.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use het_core::{DeviceId, JobId, Locality, StageIndex, StageKey};
use het_sim::{Application, StageModel};
use serde::Serialize;

use crate::Scenario;

/// Seconds that every schedule takes at least.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bound {
    pub avg_jct_s: f64,
    pub makespan_s: f64,
}

impl Bound {
    /// `None` where jobs are held, cancelled or fail, and where there is none.
    pub fn of(scenario: &Scenario) -> Option<Self> {
        let fails = |model: &Arc<StageModel>| model.fails_at.is_some();
        if !scenario.words.is_empty() || scenario.models.values().any(fails) {
            return None;
        }
        let jobs = Survey::new(scenario).jobs()?;
        let capacity: Vec<f64> =
            scenario.topology.units_by_class().into_iter().map(f64::from).collect();
        let total = best_over_prices(&capacity, |prices| total_completion(&jobs, prices));
        let alone: f64 = jobs.iter().map(|job| job.alone_s).sum();
        let last = jobs.iter().map(|job| job.ready_s + job.alone_s).fold(0.0, f64::max);
        Some(Self {
            avg_jct_s: total.max(alone) / jobs.len() as f64,
            makespan_s: best_over_prices(&capacity, |prices| makespan(&jobs, prices)).max(last),
        })
    }
}

/// What is known of a job.
struct Job {
    ready_s: f64,
    /// Of its fastest shapes, one stage after the other.
    alone_s: f64,
    /// Of each stage: by class, the least device-seconds.
    stages: Vec<Vec<(usize, f64)>>,
}

impl Job {
    /// What it costs at least.
    fn cost(&self, prices: &[f64]) -> f64 {
        let cheapest = |stage: &Vec<(usize, f64)>| {
            let costs = stage.iter().map(|&(class, device_s)| prices[class] * device_s);
            costs.fold(f64::INFINITY, f64::min)
        };
        self.stages.iter().map(cheapest).sum()
    }
}

/// Looks jobs up; what was worked out of an application is not worked out again.
struct Survey<'a> {
    scenario: &'a Scenario,
    /// One device of each class.
    representatives: Vec<Option<DeviceId>>,
    /// Least seconds, by the address of the application, class and devices.
    applications: BTreeMap<(usize, usize, u32), Option<f64>>,
}

impl<'a> Survey<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let topology = &scenario.topology;
        let of_class =
            |class: usize| topology.device_ids().find(|&id| topology.device(id).class == class);
        let representatives = (0..topology.classes.len()).map(of_class).collect();
        Self { scenario, representatives, applications: BTreeMap::new() }
    }

    /// By time of arrival; `None` if there is none, or one without a shape.
    fn jobs(mut self) -> Option<Vec<Job>> {
        let rows = self.scenario.jobs.iter().enumerate();
        let mut jobs: Vec<Job> = rows.map(|(row, _)| self.job(row)).collect::<Option<_>>()?;
        jobs.sort_by(|a, b| a.ready_s.total_cmp(&b.ready_s));
        Some(jobs).filter(|jobs| !jobs.is_empty())
    }

    fn job(&mut self, row: usize) -> Option<Job> {
        let (arrival, spec) = &self.scenario.jobs[row];
        let mut ends: BTreeMap<StageIndex, f64> = BTreeMap::new();
        let mut stages = Vec::new();
        for stage in spec.stage_indices() {
            let key = StageKey { job: JobId(row as u64 + 1), stage };
            let shapes = self.shapes(key)?;
            let mut by_class: BTreeMap<usize, f64> = BTreeMap::new();
            for &(class, units, seconds) in &shapes {
                let device_s = by_class.entry(class).or_insert(f64::INFINITY);
                *device_s = device_s.min(f64::from(units) * seconds);
            }
            let fastest = shapes.iter().map(|shape| shape.2).fold(f64::INFINITY, f64::min);
            let after = spec.stage(stage).after.iter().filter_map(|before| ends.get(before));
            let begins = after.copied().fold(0.0, f64::max);
            ends.insert(stage, begins + fastest);
            stages.push(by_class.into_iter().collect());
        }
        let alone_s = ends.into_values().fold(0.0, f64::max);
        Some(Job { ready_s: arrival.0 as f64 / 1e3, alone_s, stages })
    }

    /// Class, units and least seconds of each shape that the cluster has; `None` if it has none.
    fn shapes(&mut self, key: StageKey) -> Option<Vec<(usize, u32, f64)>> {
        let model = self.scenario.models.get(&key)?;
        let spec = self.scenario.jobs[key.job.0 as usize - 1].1.stage(key.stage);
        let topology = &self.scenario.topology;
        let mut shapes = Vec::new();
        for alternative in &spec.alternatives {
            for class in 0..self.representatives.len() {
                let one = self.representatives[class];
                if !one.is_some_and(|id| alternative.selector.accepts(topology, id)) {
                    continue;
                }
                let units = alternative.count;
                let works_s = match &model.elastic {
                    Some(application) => self.least_seconds(application, class, units),
                    None => {
                        let step_ns = model
                            .step_on(&topology.classes[class].id, units, Locality::BEST)
                            .unwrap_or(model.step_ns_default);
                        Some(model.steps as f64 * step_ns as f64 / 1e9)
                    }
                };
                let seconds = works_s.map(|works_s| model.load.as_seconds() + works_s);
                shapes.extend(seconds.map(|seconds| (class, units, seconds)));
            }
        }
        Some(shapes).filter(|shapes| !shapes.is_empty())
    }

    fn least_seconds(
        &mut self,
        application: &Arc<Application>,
        class: usize,
        units: u32,
    ) -> Option<f64> {
        let key = (Arc::as_ptr(application) as usize, class, units);
        let name = &self.scenario.topology.classes[class].id;
        *self.applications.entry(key).or_insert_with(|| application.least_seconds(name, units))
    }
}

/// At these prices, of all jobs together, from their arrivals on.
fn total_completion(jobs: &[Job], prices: &[f64]) -> f64 {
    let costs: Vec<f64> = jobs.iter().map(|job| job.cost(prices).max(f64::MIN_POSITIVE)).collect();
    let arrivals: f64 = jobs.iter().map(|job| job.ready_s).sum();
    let mut ends = vec![0.0; jobs.len()];
    single_machine(jobs, &costs, |_, remaining| remaining, |job, _, to| ends[job] = to);
    let shortest: f64 = ends.iter().sum();
    let mut busy: f64 = jobs.iter().map(|job| job.alone_s / 2.0).sum();
    let served = |job: usize, from: f64, to: f64| {
        busy += (to - from) / costs[job] * f64::midpoint(from, to);
    };
    single_machine(jobs, &costs, |cost, _| cost, served);
    shortest.max(busy) - arrivals
}

/// Serves one job at a time, of those there always the one of least `rank(cost, remaining)`, and
/// reports the job, beginning and end of each piece.
fn single_machine(
    jobs: &[Job],
    costs: &[f64],
    rank: impl Fn(f64, f64) -> f64,
    mut served: impl FnMut(usize, f64, f64),
) {
    // Positive numbers are ordered as their bits are.
    let entry = |job: usize, remaining: f64| {
        Reverse((rank(costs[job], remaining).to_bits(), job, remaining.to_bits()))
    };
    let mut waiting = BinaryHeap::new();
    let (mut now, mut next) = (0.0, 0);
    loop {
        while next < jobs.len() && (jobs[next].ready_s <= now || waiting.is_empty()) {
            now = jobs[next].ready_s.max(now);
            waiting.push(entry(next, costs[next]));
            next += 1;
        }
        let Some(Reverse((_, job, remaining))) = waiting.pop() else { return };
        let remaining = f64::from_bits(remaining);
        let until = jobs.get(next).map_or(f64::INFINITY, |job| job.ready_s);
        let to = until.min(now + remaining);
        served(job, now, to);
        if until < now + remaining {
            waiting.push(entry(job, remaining - (until - now)));
        }
        now = to;
    }
}

/// At these prices: nothing that arrives from some time on is worked at before.
fn makespan(jobs: &[Job], prices: &[f64]) -> f64 {
    let (mut work, mut latest) = (0.0, 0.0_f64);
    for job in jobs.iter().rev() {
        work += job.cost(prices);
        latest = latest.max(job.ready_s + work);
    }
    latest
}

/// Factors by which a price is changed, one after the other.
const FACTORS: [f64; 4] = [4.0, 2.0, 1.3, 1.1];

/// The greatest value that was found, at prices at which all of `capacity` costs 1 a second.
fn best_over_prices(capacity: &[f64], value: impl Fn(&[f64]) -> f64) -> f64 {
    let scaled = |mut prices: Vec<f64>| {
        let all: f64 = prices.iter().zip(capacity).map(|(price, units)| price * units).sum();
        prices.iter_mut().for_each(|price| *price /= all);
        prices
    };
    let mut prices = scaled(vec![1.0; capacity.len()]);
    let mut best = value(&prices);
    for factor in FACTORS {
        loop {
            let before = best;
            for class in 0..capacity.len() {
                for factor in [factor, 1.0 / factor] {
                    let mut tried = prices.clone();
                    tried[class] *= factor;
                    let tried = scaled(tried);
                    let found = value(&tried);
                    if found > best {
                        (best, prices) = (found, tried);
                    }
                }
            }
            // A gain that nobody sees in print is not worth another round.
            if best <= before * 1.001 {
                break;
            }
        }
    }
    best
}
