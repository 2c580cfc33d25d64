//! Prices of device classes: what one unit of each is worth when everybody wants the best.
//!
//! Two questions about the same table of offers. [`horizon`]: how long would the work ahead take if
//! it were spread over the classes as well as possible, and what would one more unit of each save?
//! [`clearing`]: at which prices does what people want fit what there is?

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::demand::{Demand, Demands, Offer, density};
use super::remaining::Remaining;
use crate::memory;

/// Rounds of price correction; each moves a price by at most the square root of its imbalance, and
/// the best bound seen counts, so that more only tighten it.
const HORIZON_STEPS: usize = 60;

/// Rounds of the ascending auction; prices that have not settled by then are close.
const CLEARING_STEPS: usize = 12;

/// Change of a price, in parts, below which an auction has settled.
const SETTLED: f64 = 1e-3;

/// How long all remaining work takes at least, in seconds, and prices per class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Horizon {
    #[serde(with = "memory::exact")]
    pub seconds: f64,
    /// Seconds of the horizon that a unit of the class saves; prices over all units sum to one.
    #[serde(with = "memory::exact_list")]
    pub prices: Vec<f64>,
}

/// Steps to go, and where they can be made how fast.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub steps: f64,
    pub offers: Arc<[Offer]>,
}

impl Work {
    pub fn of(demand: &Demand) -> Self {
        Self { steps: demand.remaining, offers: Arc::clone(&demand.offers) }
    }

    /// All work that can be made in the same ways as one.
    fn merged(works: impl Iterator<Item = Self>) -> Vec<Self> {
        let mut rows: BTreeMap<*const Offer, usize> = BTreeMap::new();
        let mut merged: Vec<Self> = Vec::new();
        for work in works {
            match rows.entry(work.offers.as_ptr()) {
                Entry::Occupied(row) => merged[*row.get()].steps += work.steps,
                Entry::Vacant(row) => {
                    row.insert(merged.len());
                    merged.push(work);
                }
            }
        }
        merged
    }
}

/// The linear-programming bound on the time to finish all work with fractional assignment: the
/// largest, over prices that sum to one over all units, of the work valued at its cheapest class
/// (the dual of minimising the makespan on unrelated machines: Lenstra, Shmoys and Tardos 1990).
/// Found by multiplicative weights (Plotkin, Shmoys and Tardos 1995) from `start`.
pub(crate) fn horizon(
    capacity: &[u32],
    works: impl Iterator<Item = Work>,
    start: Option<&[f64]>,
) -> Horizon {
    let works = Work::merged(works);
    let units: Vec<f64> = capacity.iter().map(|&units| f64::from(units)).collect();
    let everything: f64 = units.iter().sum();
    let floor = 1e-4 / everything.max(1.0);
    let mut prices: Vec<f64> = match start {
        Some(prices) if prices.len() == units.len() => {
            prices.iter().map(|price| price.max(floor)).collect()
        }
        _ => vec![1.0; units.len()],
    };
    normalise(&mut prices, &units);
    let mut best = Horizon { seconds: -1.0, prices: prices.clone() };
    let mut reach = 0.5;
    let mut load = vec![0.0; units.len()];
    for _ in 0..HORIZON_STEPS {
        load.fill(0.0);
        let mut value = 0.0;
        for work in &works {
            let costs = work.offers.iter().map(|offer| {
                let seconds = work.steps / offer.rate * f64::from(offer.units);
                (seconds * prices[offer.class], offer.class, seconds)
            });
            let cheapest = costs.min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((cost, class, seconds)) = cheapest {
                value += cost;
                load[class] += seconds;
            }
        }
        if value > best.seconds {
            best = Horizon { seconds: value, prices: prices.clone() };
        }
        let used = units.iter().filter(|&&units| units > 0.0).count().max(1) as f64;
        let spread =
            |class: usize| if units[class] > 0.0 { load[class] / units[class] } else { 0.0 };
        let mean = (0..units.len()).map(spread).sum::<f64>() / used;
        if mean <= 0.0 {
            break;
        }
        for (class, price) in prices.iter_mut().enumerate() {
            *price *= (spread(class) / mean).max(0.05).powf(reach);
        }
        normalise(&mut prices, &units);
        reach *= 0.93;
    }
    best
}

fn normalise(prices: &mut [f64], units: &[f64]) {
    let total: f64 = prices.iter().zip(units).map(|(price, units)| price * units).sum();
    if total > 0.0 {
        prices.iter_mut().for_each(|price| *price /= total);
    }
}

/// Prices per unit at which demand fits supply, by an ascending auction (Demange, Gale and
/// Sotomayor 1986). `utilities[stage][offer]` is what an offer is worth to its stage.
pub(crate) fn clearing(demands: &Demands, utilities: &[Vec<f64>]) -> Vec<f64> {
    let mut prices = vec![0.0; demands.capacity.len()];
    let mut bids: Vec<(f64, u32)> = Vec::with_capacity(demands.stages.len());
    for _ in 0..CLEARING_STEPS {
        let before = prices.clone();
        for class in 0..prices.len() {
            bids.clear();
            for (demand, utilities) in demands.stages.iter().zip(utilities) {
                bid(demand, utilities, &prices, class, &mut bids);
            }
            bids.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
            let mut left = demands.capacity[class];
            let refused = bids.iter().find(|(_, units)| {
                let fits = *units <= left;
                left = left.saturating_sub(*units);
                !fits
            });
            prices[class] = refused.map_or(0.0, |(limit, _)| limit.max(0.0));
        }
        let settled = |(new, old): (&f64, &f64)| (new - old).abs() <= SETTLED * old.abs();
        if prices.iter().zip(&before).all(settled) {
            break;
        }
    }
    prices
}

/// Adds what a stage would give per unit for more and more of a class, the first units first: the
/// slopes of the concave envelope of what its shapes there are worth beyond the best it could have
/// elsewhere, or nothing.
fn bid(
    demand: &Demand,
    utilities: &[f64],
    prices: &[f64],
    class: usize,
    bids: &mut Vec<(f64, u32)>,
) {
    let mut elsewhere: f64 = 0.0;
    let mut here: Vec<(u32, f64)> = Vec::new();
    for (offer, &utility) in demand.offers.iter().zip(utilities) {
        if offer.class == class {
            here.push((offer.units, utility));
        } else {
            elsewhere = elsewhere.max(utility - f64::from(offer.units) * prices[offer.class]);
        }
    }
    let mut at = (0, elsewhere);
    let slope = |from: (u32, f64), to: (u32, f64)| (to.1 - from.1) / f64::from(to.0 - from.0);
    loop {
        let further = here.iter().filter(|shape| shape.0 > at.0).copied();
        let steepest = further.max_by(|a, b| slope(at, *a).total_cmp(&slope(at, *b)));
        let Some(next) = steepest else { break };
        bids.push((slope(at, next), next.0 - at.0));
        at = next;
    }
}

/// Gives everybody what it wants most at `prices`, and whatever is still free then to those who got
/// nothing; who gets most out of a device comes first.
pub(crate) fn hand_out(
    demands: &[&Demand],
    utilities: &[&[f64]],
    prices: &[f64],
    remaining: &mut Remaining,
) -> Vec<Option<usize>> {
    let surplus = |row: usize, offer: usize| {
        let shape = &demands[row].offers[offer];
        utilities[row][offer] - f64::from(shape.units) * prices[shape.class]
    };
    let rows = demands.iter().zip(utilities).enumerate();
    let mut order: Vec<(f64, usize)> =
        rows.map(|(row, (demand, values))| (density(demand, values), row)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut chosen = vec![None; demands.len()];
    for &(_, row) in &order {
        let offers = &demands[row].offers;
        let wanted = best(0..offers.len(), |offer| surplus(row, offer));
        if let Some((offer, gain)) = wanted
            && gain >= 0.0
            && utilities[row][offer] > 0.0
            && remaining.fits(demands[row], &offers[offer])
        {
            remaining.take(demands[row], &offers[offer]);
            chosen[row] = Some(offer);
        }
    }
    for (_, row) in order {
        let offers = &demands[row].offers;
        if chosen[row].is_some() {
            continue;
        }
        let fits = |&offer: &usize| {
            utilities[row][offer] > 0.0 && remaining.fits(demands[row], &offers[offer])
        };
        let fitting = (0..offers.len()).filter(fits);
        if let Some((offer, _)) = best(fitting, |offer| surplus(row, offer)) {
            remaining.take(demands[row], &offers[offer]);
            chosen[row] = Some(offer);
        }
    }
    chosen
}

/// The offer with the highest score, the first of equals.
fn best(offers: impl Iterator<Item = usize>, score: impl Fn(usize) -> f64) -> Option<(usize, f64)> {
    let scored = offers.map(|offer| (offer, score(offer)));
    scored.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Stages with ten steps to go, each with its rates by class, one unit at a time.
    fn demands(capacity: &[u32], rates: &[&[f64]]) -> Demands {
        let stage = |(row, rates): (usize, &&[f64])| Demand::example(row as u64 + 1, "", rates);
        Demands {
            present: rates.len(),
            stages: rates.iter().enumerate().map(stage).collect(),
            spanning: Vec::new(),
            capacity: capacity.to_vec(),
            classes: Vec::new(),
            quotas: Arc::default(),
        }
    }

    #[test]
    fn the_horizon_is_the_bound_of_the_linear_program() {
        let check = |capacity: &[u32], rates: &[&[f64]], seconds: f64| {
            let works = demands(capacity, rates);
            let works = works.stages.iter().map(Work::of);
            let found = horizon(capacity, works, None).seconds;
            assert!((found / seconds - 1.0).abs() < 0.01, "{found} is not {seconds}");
        };
        // Three equal jobs on two devices.
        check(&[2], &[&[1.0], &[1.0], &[1.0]], 15.0);
        // Each on the class it is better at.
        check(&[1, 1], &[&[1.0, 0.5], &[0.5, 1.0]], 10.0);
        // Both want the first class: the one that loses less there works D on the second and
        // 10 - 0.8 D on the first, the other 10 on the first, and D = 20 - 0.8 D.
        check(&[1, 1], &[&[1.0, 0.8], &[1.0, 0.2]], 100.0 / 9.0);
    }

    #[test]
    fn the_price_is_what_the_first_to_go_away_would_give() {
        let three = demands(&[2], &[&[1.0], &[1.0], &[1.0]]);
        assert_eq!(clearing(&three, &[vec![3.0], vec![2.0], vec![1.0]]), [1.0]);
        let two = demands(&[2], &[&[1.0], &[1.0]]);
        assert_eq!(clearing(&two, &[vec![3.0], vec![2.0]]), [0.0]);
    }
}
