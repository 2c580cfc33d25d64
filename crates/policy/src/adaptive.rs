//! `adaptive`: every round a market. What a turn is worth to a stage is weighed against what its
//! devices are worth to everybody, and the weights follow the load.
//!
//! A turn on an offer brings the stage nearer its end, and the whole queue nearer its end:
//!
//! - *own progress*, the part of the remaining work done per second: shortest remaining time first
//!   on the devices where that time is shortest (Schrage 1968 for one machine);
//! - *common progress*, the work done per second at the prices of [`market::horizon`]: each class
//!   does what it is comparatively best at. It counts for more the longer the queue is.
//!
//! Where jobs may grow and shrink, and nobody knows how long they take, another rule holds: see
//! [`elastic`].
//!
//! Two corrections keep the tail short. Lateness raises a stage, and while more work waits than the
//! longest job takes, so does waiting (no starvation). And a stage that takes nearly as long as all
//! work together goes first, longest first (Graham 1969), once no new work arrives or the cluster
//! is overloaded, because only it decides when everything is done.

use het_core::Time;

use crate::demand::{Demand, Demands, Offer};
use crate::left::Left;
use crate::market::{self, HandedOut, Horizon};
use crate::rules::ADAPTIVE;
use crate::turns::{self, Turns};
use crate::{Decision, Memory, Policy, View, elastic, greedy};

/// Between a lightly and a heavily loaded cluster, by how many times longer than the longest job
/// all the work takes.
const LOAD: (f64, f64) = (1.2, 1.6);

/// Weight of common progress at light and at heavy load. This and the other weights were chosen by
/// a random search over 120 settings on the six inputs of `docs/studies/gavel.md`.
const COMMON: (f64, f64) = (2.0, 16.0);

/// A stage is critical from this part of the horizon on; never at light load.
const CRITICAL: (f64, f64) = (1.1, 0.8);

/// Critical stages are told apart by this power of their length.
const CRITICAL_POWER: i32 = 4;

/// Without arrivals for this part of the horizon the queue is taken to drain.
const DRAINING_AFTER: f64 = 0.3;

/// Weight of the squared waiting time, in horizons, at heavy load.
const AGEING: f64 = 0.02;

/// A stage that would end this many times later than alone on an equal part of the cluster is late,
/// and rises with a power of its lateness at light and at heavy load (finish-time fairness: Mahajan
/// et al., NSDI 2020).
const LATE: f64 = 1.2;
const LATE_POWER: (f64, f64) = (0.9, 6.0);

/// What outranks everything that a weight can do: a critical stage stands one such step above the
/// rest of its priority, a priority two above the one below.
const RANK: f64 = 1e3;

/// In rounds: a market each. Between them, and where every event is decided on: the rule table.
#[derive(Debug, Clone, Copy)]
pub struct Adaptive;

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        ADAPTIVE.name
    }

    fn decide(&self, view: &View<'_>, memory: &mut Memory) -> Decision {
        let Some(round) = view.round else { return greedy::decide(&ADAPTIVE, view, memory) };
        turns::once_a_round(view, memory, |demands, _, prices: &mut Option<Vec<f64>>| {
            if demands.stages.iter().any(Demand::is_elastic) {
                return elastic::share_out_by_use(demands, view.now);
            }
            let horizon = market::horizon(demands, prices.as_deref());
            let turns = share_out(demands, &horizon, view.now, round.as_seconds());
            // The next search starts from where this one ended.
            *prices = Some(horizon.prices);
            turns
        })
    }
}

/// What the weights of this round are.
#[derive(Debug, Clone, Copy)]
struct Weights {
    /// Seconds that everything takes.
    horizon: f64,
    common: f64,
    critical: f64,
    ageing: f64,
    late_power: f64,
}

impl Weights {
    fn of(demands: &Demands, horizon: &Horizon, now: Time) -> Self {
        let fastest = |demand: &Demand| demand.seconds_on(&demand.fastest());
        let longest = demands.stages.iter().map(fastest).fold(0.0, f64::max);
        let load = horizon.seconds / longest.max(f64::MIN_POSITIVE);
        let heavy = between(load, LOAD.0, LOAD.1);
        let all = horizon.seconds.max(longest);
        let newest = demands.stages.iter().map(|demand| demand.submitted).max().unwrap_or(now);
        let draining = between(now.since(newest).as_seconds() / all, 0.0, DRAINING_AFTER);
        let pressed = heavy.max(draining);
        Self {
            horizon: all,
            common: COMMON.0 + (COMMON.1 - COMMON.0) * heavy,
            critical: CRITICAL.0 + (CRITICAL.1 - CRITICAL.0) * pressed,
            ageing: AGEING * heavy,
            late_power: LATE_POWER.0 + (LATE_POWER.1 - LATE_POWER.0) * heavy,
        }
    }
}

/// Where `value` stands between `low` (0) and `high` (1).
fn between(value: f64, low: f64, high: f64) -> f64 {
    ((value - low) / (high - low)).clamp(0.0, 1.0)
}

/// Who runs where in a round of `round` seconds.
fn share_out(demands: &Demands, horizon: &Horizon, now: Time, round: f64) -> Turns {
    let weights = Weights::of(demands, horizon, now);
    let utilities: Vec<Vec<f64>> = utilities(demands, horizon, &weights, now, round);
    let mut left = Left::of(demands);
    let pinned = demands.stages.iter().map(Demand::pinned).collect();
    let HandedOut { order, chosen } = market::hand_out(demands, &utilities, &mut left, pinned);
    let turn = |&index: &usize| {
        let demand = &demands.stages[index];
        Some((demand.key, demand.offers[chosen[index]?]))
    };
    let others = order.iter().filter(|index| chosen[**index].is_none());
    let others = others.map(|&index| demands.stages[index].key);
    Turns {
        leftovers: demands.spanning.iter().copied().chain(others).collect(),
        chosen: order.iter().filter_map(turn).collect(),
        spanning: demands.spanning.clone(),
    }
}

/// What a turn on each offer is worth, by stage and offer.
fn utilities(
    demands: &Demands,
    horizon: &Horizon,
    weights: &Weights,
    now: Time,
    round: f64,
) -> Vec<Vec<f64>> {
    let common = weights.common * demands.stages.len() as f64 / weights.horizon;
    let progress = |demand: &Demand| -> Vec<f64> {
        let fastest = demand.fastest();
        let price = |offer: &Offer| f64::from(offer.units) * horizon.prices[offer.class];
        let step =
            demand.offers.iter().map(|offer| price(offer) / offer.rate).fold(f64::MAX, f64::min);
        let waited = now.since(demand.submitted).as_seconds() / weights.horizon;
        let lateness = (demands.lateness(demand, now) / LATE).max(1.0);
        let late = lateness.powf(weights.late_power);
        let raised = (1.0 + weights.ageing * waited * waited) * late;
        let own = 1.0 / demand.seconds_on(&fastest);
        let value =
            |offer: &Offer| (own * offer.rate / fastest.rate + common * step * offer.rate) * raised;
        demand.offers.iter().map(value).collect()
    };
    let mut rows: Vec<Vec<f64>> = demands.stages.iter().map(progress).collect();
    let highest = rows.iter().flatten().copied().fold(0.0, f64::max);
    for (demand, row) in demands.stages.iter().zip(&mut rows) {
        let fastest = demand.fastest();
        let length = demand.seconds_on(&fastest) / weights.horizon;
        if length >= weights.critical {
            let urgency = RANK * highest * length.powi(CRITICAL_POWER);
            for (offer, utility) in demand.offers.iter().zip(row.iter_mut()) {
                *utility = urgency * f64::from(offer.units) * offer.rate / fastest.rate;
            }
        }
        let moving = (demand.restart.as_seconds() / round).min(1.0);
        let rank = RANK.powi(2 * demand.priority as i32);
        for (index, utility) in row.iter_mut().enumerate() {
            let stays = demand.running.is_some_and(|(_, at)| at == index);
            *utility *= rank * if stays { 1.0 } else { 1.0 - moving };
        }
    }
    rows
}
