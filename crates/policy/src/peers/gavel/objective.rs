//! What shares are good for: the published objectives.

use het_core::Time;

use crate::market::{Demand, Demands, alone_seconds};

use super::linear::{Goal, Program, SharesByStage};

/// Makespans are searched between these, in seconds.
const MAKESPAN_RANGE: (f64, f64) = (100.0, 1e6);

/// The search ends when the bounds are this close, as a ratio.
const MAKESPAN_CLOSE: f64 = 1.05;

/// Finish-time fairness is searched to this precision.
const FAIRNESS_STEPS: usize = 20;

/// An objective over shares of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Objective {
    /// In order of arrival, each the fastest class that still has room; nobody passes.
    FirstComeFastest,
    /// An equal part of every class.
    Isolated,
    /// The least share of anybody is as large as possible.
    MaxMinTime,
    /// The least speed of anybody, against its speed on an equal part, is as large as possible.
    MaxMinSpeed,
    /// The sum of speeds, each against the fastest class, is as large as possible.
    SumThroughput,
    /// Everything present ends as early as possible.
    Makespan,
    /// Nobody ends later, against having an equal part to itself, than the worst must.
    FinishTimeFairness,
}

impl Objective {
    /// Nobody runs beyond its share, even where devices idle.
    pub fn is_strict(self) -> bool {
        self == Self::FirstComeFastest
    }

    /// Everybody's share of time on every class.
    pub fn shares(self, demands: &Demands, now: Time) -> SharesByStage {
        if demands.stages.is_empty() {
            return SharesByStage::new();
        }
        match self {
            Self::FirstComeFastest => first_come(demands),
            Self::Isolated => isolated(demands),
            Self::MaxMinTime => max_min(demands, |_, _| 1.0),
            Self::MaxMinSpeed => max_min(demands, Demands::equal_part_rate),
            Self::SumThroughput => sum_throughput(demands),
            Self::Makespan => makespan(demands),
            Self::FinishTimeFairness => finish_time_fairness(demands, now),
        }
    }
}

fn first_come(demands: &Demands) -> SharesByStage {
    let classes = demands.capacity.len();
    let mut left = demands.capacity.clone();
    let mut shares: SharesByStage =
        demands.stages.iter().map(|demand| (demand.key, vec![0.0; classes])).collect();
    let mut arrived: Vec<&Demand> = demands.stages.iter().collect();
    arrived.sort_by_key(|demand| (demand.submitted, demand.key));
    for demand in arrived {
        let room = demand.offers.iter().filter(|offer| left[offer.class] >= offer.units);
        let Some(offer) = room.max_by(|a, b| a.rate.total_cmp(&b.rate)) else { break };
        left[offer.class] -= offer.units;
        if let Some(row) = shares.get_mut(&demand.key) {
            row[offer.class] = 1.0;
        }
    }
    shares
}

fn isolated(demands: &Demands) -> SharesByStage {
    let everybody = demands.stages.len() as f64;
    let rows = demands.stages.iter().map(|demand| {
        let units = f64::from(demand.offers[0].units);
        let mut row: Vec<f64> =
            demands.capacity.iter().map(|&here| f64::from(here) / everybody / units).collect();
        let total: f64 = row.iter().sum::<f64>().max(1.0);
        row.iter_mut().for_each(|share| *share /= total);
        (demand.key, row)
    });
    rows.collect()
}

/// Maximises the least value, which is the share × rate of a stage, over `norm` of it, times its
/// units. With a norm of one the rate counts as one too.
fn max_min(demands: &Demands, norm: impl Fn(&Demands, &Demand) -> f64) -> SharesByStage {
    let mut program = Program::new(demands, Goal::RaiseLeast);
    for (index, demand) in demands.stages.iter().enumerate() {
        let norm = norm(demands, demand);
        let typeless = norm == 1.0;
        for (offer, shape) in demand.offers.iter().enumerate() {
            let rate = if typeless { 1.0 } else { shape.rate };
            program.value(index, offer, rate * f64::from(shape.units) / norm);
        }
    }
    program.solve().unwrap_or_else(|| isolated(demands))
}

fn sum_throughput(demands: &Demands) -> SharesByStage {
    let mut program = Program::new(demands, Goal::RaiseSum);
    for (index, demand) in demands.stages.iter().enumerate() {
        for (offer, shape) in demand.offers.iter().enumerate() {
            program.value(index, offer, shape.rate);
        }
    }
    program.solve().unwrap_or_else(|| isolated(demands))
}

/// The shortest horizon, by bisection, in which everybody can do its remaining steps.
fn makespan(demands: &Demands) -> SharesByStage {
    let within = |seconds: f64| at_least(demands, |demand| demand.remaining / seconds);
    let (mut low, mut high) = MAKESPAN_RANGE;
    let mut found = None;
    while high > MAKESPAN_CLOSE * low {
        let middle = (low + high) / 2.0;
        match within(middle) {
            Some(shares) => {
                found = Some(shares);
                high = middle;
            }
            None => low = middle,
        }
    }
    found.or_else(|| within(high)).unwrap_or_else(|| isolated(demands))
}

/// The least worst ratio, by bisection, of finishing time shared to finishing time alone on an
/// equal part.
fn finish_time_fairness(demands: &Demands, now: Time) -> SharesByStage {
    let within = |ratio: f64| {
        at_least(demands, |demand| {
            let elapsed = now.since(demand.submitted).as_seconds();
            let left =
                ratio * alone_seconds(&demands.capacity, demands.stages.len(), demand) - elapsed;
            if left > 0.0 { demand.remaining / left } else { f64::INFINITY }
        })
    };
    let (mut low, mut high) = (0.0, 1.0);
    let mut found = within(high);
    while found.is_none() && high < 1e6 {
        (low, high) = (high, 2.0 * high);
        found = within(high);
    }
    for _ in 0..FAIRNESS_STEPS {
        let middle = (low + high) / 2.0;
        match within(middle) {
            Some(shares) => (found, high) = (Some(shares), middle),
            None => low = middle,
        }
    }
    found.unwrap_or_else(|| isolated(demands))
}

/// Shares that give everybody at least `speed` steps per second, if there are any.
fn at_least(demands: &Demands, speed: impl Fn(&Demand) -> f64) -> Option<SharesByStage> {
    let mut program = Program::new(demands, Goal::Any);
    for (index, demand) in demands.stages.iter().enumerate() {
        let speed = speed(demand);
        if speed > demand.fastest().rate {
            return None;
        }
        for (offer, shape) in demand.offers.iter().enumerate() {
            program.value(index, offer, shape.rate);
        }
        program.at_least(index, speed);
    }
    program.solve()
}
