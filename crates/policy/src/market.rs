//! Prices of device classes: what one unit of each is worth when everybody wants the best.
//!
//! Two questions about the same table of offers. [`horizon`]: how long would the work ahead take if
//! it were spread over the classes as well as possible, and what would one more unit of each save?
//! [`clearing`]: at which prices does what people want fit what there is?

use het_core::StageKey;

use crate::demand::Demands;
use crate::left::Left;

/// Rounds of price correction; each moves a price by at most the square root of its imbalance, and
/// the best bound seen counts, so that more only tighten it.
const HORIZON_STEPS: usize = 60;

/// Rounds of the ascending auction; prices that have not settled by then are close.
const CLEARING_STEPS: usize = 12;

/// Change of a price, in parts, below which an auction has settled.
const SETTLED: f64 = 1e-3;

/// How long all remaining work takes at least, in seconds, and prices per class.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Horizon {
    pub seconds: f64,
    /// Seconds of the horizon that a unit of the class saves; prices over all units sum to one.
    pub prices: Vec<f64>,
}

/// The linear-programming bound on the time to finish all work with fractional assignment: the
/// largest, over prices that sum to one over all units, of the work valued at its cheapest class
/// (the dual of minimising the makespan on unrelated machines: Lenstra, Shmoys and Tardos 1990).
/// Found by multiplicative weights (Plotkin, Shmoys and Tardos 1995) from `start`.
pub(crate) fn horizon(demands: &Demands, start: Option<&[f64]>) -> Horizon {
    let units: Vec<f64> = demands.capacity.iter().map(|&units| f64::from(units)).collect();
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
        for demand in &demands.stages {
            let costs = demand.offers.iter().map(|offer| {
                let seconds = demand.seconds_on(offer) * f64::from(offer.units);
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
                bids.extend(bid(demand, utilities, &prices, class));
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

/// The price per unit at which a stage leaves a class for something else, or for nothing, and the
/// units it takes until then.
fn bid(
    demand: &crate::demand::Demand,
    utilities: &[f64],
    prices: &[f64],
    class: usize,
) -> Option<(f64, u32)> {
    let mut elsewhere: f64 = 0.0;
    let mut here: Option<(f64, u32)> = None;
    for (offer, &utility) in demand.offers.iter().zip(utilities) {
        if offer.class == class {
            if here.is_none_or(|(best, _)| utility > best) {
                here = Some((utility, offer.units));
            }
        } else {
            let surplus = utility - f64::from(offer.units) * prices[offer.class];
            elsewhere = elsewhere.max(surplus);
        }
    }
    here.map(|(utility, units)| ((utility - elsewhere) / f64::from(units), units))
}

/// Who got what at clearing prices.
#[derive(Debug)]
pub(crate) struct HandedOut {
    /// Stages by what a device brings there, the most first.
    pub order: Vec<usize>,
    /// By stage: the offer it got.
    pub chosen: Vec<Option<usize>>,
}

/// Gives everybody what it wants most at clearing prices, and whatever is still free then to those
/// who got nothing. Those who have something in `chosen` keep that.
pub(crate) fn hand_out(
    demands: &Demands,
    utilities: &[Vec<f64>],
    left: &mut Left,
    chosen: Vec<Option<usize>>,
) -> HandedOut {
    let prices = clearing(demands, utilities);
    let surplus = |index: usize, offer: usize| {
        let shape = &demands.stages[index].offers[offer];
        utilities[index][offer] - f64::from(shape.units) * prices[shape.class]
    };
    let order = order(demands, utilities);
    let mut chosen = chosen;
    left.keep_to_parts(demands);
    for &index in order.iter().filter(|index| chosen[**index].is_none()).collect::<Vec<_>>() {
        let offers = &demands.stages[index].offers;
        let wanted = best(0..offers.len(), |offer| surplus(index, offer));
        if let Some((offer, gain)) = wanted
            && gain >= 0.0
            && left.fits(&demands.stages[index], &offers[offer])
        {
            left.take(&demands.stages[index], &offers[offer]);
            chosen[index] = Some(offer);
        }
    }
    left.open_to_limits(demands);
    for &index in order.iter().filter(|index| chosen[**index].is_none()).collect::<Vec<_>>() {
        let demand = &demands.stages[index];
        let offers = &demand.offers;
        let fitting = (0..offers.len()).filter(|&offer| left.fits(demand, &offers[offer]));
        if let Some((offer, _)) = best(fitting, |offer| surplus(index, offer)) {
            left.take(demand, &offers[offer]);
            chosen[index] = Some(offer);
        }
    }
    HandedOut { order, chosen }
}

/// The offer with the highest score, the first of equals.
fn best(offers: impl Iterator<Item = usize>, score: impl Fn(usize) -> f64) -> Option<(usize, f64)> {
    let scored = offers.map(|offer| (offer, score(offer)));
    scored.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

/// Stages by what a device brings there, the most first.
fn order(demands: &Demands, utilities: &[Vec<f64>]) -> Vec<usize> {
    let density = |index: usize| {
        let per_unit = demands.stages[index].offers.iter().zip(&utilities[index]);
        let per_unit = per_unit.map(|(offer, utility)| utility / f64::from(offer.units));
        per_unit.fold(f64::NEG_INFINITY, f64::max)
    };
    let mut rows: Vec<(f64, StageKey, usize)> = (0..demands.stages.len())
        .map(|index| (density(index), demands.stages[index].key, index))
        .collect();
    rows.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    rows.into_iter().map(|(.., index)| index).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::demand::Demand;

    /// Stages with ten steps to go, each with its rates by class, one unit at a time.
    fn demands(capacity: &[u32], rates: &[&[f64]]) -> Demands {
        let stage = |(row, rates): (usize, &&[f64])| Demand::example(row as u64 + 1, "", rates);
        Demands {
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
            let found = horizon(&demands(capacity, rates), None).seconds;
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
