//! What a stage would give for each shape that it could have.
//!
//! Running on an offer brings the stage nearer its end, and the whole queue nearer its end:
//!
//! - *own progress*, the part of the remaining work done per second: shortest remaining time first
//!   on the devices where that time is shortest (Schrage 1968 for one machine);
//! - *common progress*, the work done per second at the prices of [`market::horizon`]: each class
//!   does what it is comparatively best at. It counts for more the longer the queue is.
//!
//! Of a stage that may have more or fewer devices, only own progress counts, by a concave power:
//! what a device more brings falls with those it has, so that the rest goes to others. So it is of
//! a stage whose length nobody knows, with its speed in place of its progress, and falling with the
//! device time that it has had: of unknown lengths those that have had little are likely to end
//! first (Nuyens and Wierman 2008).
//!
//! Two corrections keep the tail short. Lateness raises a stage (no starvation). And a stage that
//! takes nearly as long as all work together goes first, longest first (Graham 1969), once no new
//! work arrives or the cluster is overloaded, because only it decides when everything is done.

use het_core::{Millis, Time};
use serde::{Deserialize, Serialize};

use super::Weights;
use crate::market::{self, Demand, Demands, Horizon, Offer, Work, alone_seconds};
use crate::placement::WORTHWHILE;
use crate::{Cadence, View, memory};

/// What outranks everything that a weight can do: a critical stage stands one such step above the
/// rest of its priority, a priority two above the one below.
const RANK: f64 = 1e3;

/// Part of the value of a stage that is left however long its start takes, so that who waits is
/// worth something.
const LEFT_MIN: f64 = 0.01;

/// How long a running stage is left alone where nobody knows what a stop costs, or it is free.
const QUANTUM_DEFAULT: Millis = Millis::seconds(360);
const QUANTUM_MIN: Millis = Millis::seconds(60);
const QUANTUM_MAX: Millis = Millis::seconds(1_800);

/// What was found when prices were last searched: enough to say what any stage gives for what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Prices {
    #[serde(with = "memory::millis")]
    pub searched_at: Time,
    /// Stages that took part in the search.
    pub parties: usize,
    /// Whole units in service, by class.
    capacity: Vec<u32>,
    /// Stages that ran or waited.
    present: usize,
    horizon: Horizon,
    /// Seconds that everything takes.
    #[serde(with = "memory::exact")]
    all_s: f64,
    #[serde(with = "memory::exact")]
    common: f64,
    #[serde(with = "memory::exact")]
    critical: f64,
    #[serde(with = "memory::exact")]
    late_power: f64,
    /// The most that anybody gives who is not critical.
    #[serde(with = "memory::exact")]
    highest: f64,
    /// Per unit, by class, at which demand fits supply.
    #[serde(with = "memory::exact_list")]
    pub per_unit: Vec<f64>,
}

impl Prices {
    /// Searches prices from where the last search ended. `rest` is work of those who are not among
    /// `demands`. Also what everybody gives for each offer.
    pub fn search(
        view: &View<'_>,
        weights: &Weights,
        demands: &Demands,
        rest: &[Work],
        last: Option<&Self>,
    ) -> (Self, Vec<Vec<f64>>) {
        let now = view.now;
        let last = last.filter(|last| last.capacity.len() == demands.capacity.len());
        let start = last.map(|last| last.horizon.prices.as_slice());
        let works = demands.stages.iter().map(Work::of).chain(rest.iter().cloned());
        let horizon = market::horizon(&demands.capacity, works, start);
        let known = demands.stages.iter().filter(|demand| demand.known);
        let longest = known.map(|d| d.seconds_on(&d.fastest())).fold(0.0, f64::max);
        let heavy = between(horizon.seconds / longest.max(f64::MIN_POSITIVE), weights.load);
        let all_s = horizon.seconds.max(longest).max(f64::MIN_POSITIVE);
        let newest = demands.stages.iter().map(|demand| demand.submitted).max().unwrap_or(now);
        let quiet = now.since(newest).as_seconds() / all_s;
        let pressed = heavy.max(between(quiet, (0.0, weights.draining_after)));
        let at = |(light, loaded): (f64, f64), part: f64| light + (loaded - light) * part;
        let mut found = Self {
            searched_at: now,
            parties: demands.stages.len(),
            capacity: demands.capacity.clone(),
            present: demands.present,
            horizon,
            all_s,
            common: at(weights.common, heavy) * demands.present as f64 / all_s,
            critical: if pressed < 1.0 { f64::INFINITY } else { weights.critical },
            late_power: at(weights.late_power, heavy),
            highest: 0.0,
            per_unit: Vec::new(),
        };
        let progress = demands.stages.iter().map(|demand| found.progress(view, weights, demand));
        let progress: Vec<Vec<f64>> = progress.collect();
        found.highest = progress.iter().flatten().copied().fold(0.0, f64::max);
        let rows = demands.stages.iter().zip(progress);
        let values: Vec<Vec<f64>> = rows.map(|(demand, row)| found.ranked(demand, row)).collect();
        found.per_unit = market::clearing(demands, &values);
        (found, values)
    }

    /// What a stage gives for each of its offers; nothing for those that are not worth its while.
    pub fn values(&self, view: &View<'_>, weights: &Weights, demand: &Demand) -> Vec<f64> {
        self.ranked(demand, self.progress(view, weights, demand))
    }

    /// Of one priority, critical or not.
    fn progress(&self, view: &View<'_>, weights: &Weights, demand: &Demand) -> Vec<f64> {
        let is_slow = |offer: &Offer| {
            let no_larger = demand.offers.iter().filter(|other| other.units <= offer.units);
            no_larger.map(|other| other.rate).fold(0.0, f64::max) * WORTHWHILE > offer.rate
        };
        let values = self.progress_anywhere(view, weights, demand);
        let rows = demand.offers.iter().zip(values);
        rows.map(|(offer, value)| if is_slow(offer) { 0.0 } else { value }).collect()
    }

    fn progress_anywhere(&self, view: &View<'_>, weights: &Weights, demand: &Demand) -> Vec<f64> {
        let damped = kept_by_a_change(demand, weights, view);
        let stays = |index: usize| demand.running.is_some_and(|(_, at)| at == index);
        if !demand.known {
            let slowest = demand.offers.iter().map(|offer| offer.rate).fold(f64::MAX, f64::min);
            let young = 1.0 + demand.attained_device_s / weights.young_device_s;
            let own = young.powf(-weights.young_power) / weights.unknown_s;
            let kept =
                |index: usize| if demand.running.is_none() || stays(index) { 1.0 } else { damped };
            let value = |(index, offer): (usize, &Offer)| {
                let speed = (offer.rate / slowest * kept(index)).powf(weights.diminishing);
                own * speed * demand.weight_of_unsaved(index)
            };
            return demand.offers.iter().enumerate().map(value).collect();
        }
        let late = self.lateness(view, demand).powf(self.late_power);
        let kept = |index: usize, offer: &Offer| {
            let stop = weights.stop * demand.restart.as_seconds() / demand.seconds_on(offer);
            match demand.running {
                Some(_) if stays(index) => 1.0 + stop,
                Some(_) => damped / (1.0 + stop),
                None => damped,
            }
        };
        if demand.has_sizes() {
            // Of a rate to the power of one, so that it compares with what others give.
            let usual = (self.present as f64 / self.all_s).powf(1.0 - weights.diminishing);
            let value = |(index, offer): (usize, &Offer)| {
                let progress = offer.rate * kept(index, offer) / demand.remaining;
                usual * progress.powf(weights.diminishing) * late * demand.weight_of_unsaved(index)
            };
            return demand.offers.iter().enumerate().map(value).collect();
        }
        let price = |offer: &Offer| f64::from(offer.units) * self.horizon.prices[offer.class];
        let steps = demand.offers.iter().map(|offer| price(offer) / offer.rate);
        let step = steps.fold(f64::MAX, f64::min);
        let value = |(index, offer): (usize, &Offer)| {
            let progress = (1.0 / demand.remaining + self.common * step) * offer.rate;
            progress * late * kept(index, offer) * demand.weight_of_unsaved(index)
        };
        demand.offers.iter().enumerate().map(value).collect()
    }

    /// By how many times later than alone on an equal part of the cluster it ends at the earliest,
    /// counted from when it became ready; 1 where it is earlier.
    fn lateness(&self, view: &View<'_>, demand: &Demand) -> f64 {
        let waited = view.now.since(demand.ready).as_seconds();
        let earliest = waited + demand.seconds_on(&demand.fastest());
        (earliest / alone_seconds(&self.capacity, self.present, demand)).max(1.0)
    }

    /// The critical above the rest, and priorities above each other.
    fn ranked(&self, demand: &Demand, progress: Vec<f64>) -> Vec<f64> {
        let fastest = demand.fastest();
        let length = demand.seconds_on(&fastest) / self.all_s;
        let rank = RANK.powi(2 * demand.priority as i32);
        if !demand.known || length < self.critical {
            return progress.into_iter().map(|value| value * rank).collect();
        }
        let urgency = RANK * self.highest * length * rank;
        let value = |(offer, progress): (&Offer, f64)| match progress > 0.0 {
            true => urgency * f64::from(fastest.units) * offer.rate / fastest.rate,
            false => 0.0,
        };
        demand.offers.iter().zip(progress).map(value).collect()
    }

    /// The offers of a stage, those first that are worth most beyond their price. One that knows
    /// how far it has to go and may have more or fewer devices begins on as many as are free: the
    /// next search takes from it what others can use better, while one that begins on few and grows
    /// lengthened the queues of the headline study at loads above one by a fifth.
    pub fn bids(&self, demand: &Demand, values: &[f64]) -> Vec<Bid> {
        let priced = !(demand.known && demand.has_sizes());
        let bid = |(offer, &value): (&Offer, &f64)| {
            let price = self.per_unit.get(offer.class).filter(|_| priced).copied();
            Bid { offer: *offer, value, price: f64::from(offer.units) * price.unwrap_or_default() }
        };
        let mut bids: Vec<Bid> = demand.offers.iter().zip(values).map(bid).collect();
        bids.sort_by(|a, b| b.surplus(1.0).total_cmp(&a.surplus(1.0)));
        bids
    }
}

/// What a stage gives for an offer, and what that costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bid {
    pub offer: Offer,
    pub value: f64,
    pub price: f64,
}

impl Bid {
    /// What is left of the value where the stage makes so great a part of its speed.
    pub fn surplus(&self, part: f64) -> f64 {
        self.value * part - self.price
    }
}

/// How long a running stage is left alone whose restart takes so long; `None` if nobody knows.
pub(crate) fn quantum(view: &View<'_>, weights: &Weights, restart: Option<Millis>) -> Millis {
    match (view.cadence, restart) {
        (Cadence::Rounds(every), _) => every,
        (Cadence::EveryEvent { quantum: Some(quantum) }, _) => quantum,
        (_, None | Some(Millis::ZERO)) => QUANTUM_DEFAULT,
        (_, Some(restart)) => {
            let costs = Millis((restart.0 as f64 * weights.quantum) as u64);
            costs.clamp(QUANTUM_MIN, QUANTUM_MAX)
        }
    }
}

/// Where `value` stands between `low` (0) and `high` (1).
fn between(value: f64, (low, high): (f64, f64)) -> f64 {
    ((value - low) / (high - low)).clamp(0.0, 1.0)
}

/// The part of what a stage gains elsewhere that the pause of going there leaves.
fn kept_by_a_change(demand: &Demand, weights: &Weights, view: &View<'_>) -> f64 {
    if !demand.known || demand.has_sizes() {
        return demand.kept_after_a_restart(view.now).powf(weights.caution);
    }
    let quantum = quantum(view, weights, demand.restart_known).as_seconds();
    (1.0 - demand.restart.as_seconds() / quantum).max(LEFT_MIN)
}
