//! `sia`: every round each job gets the shape that makes the product of what they all gain largest
//! (Jayaram Subramanya et al., SOSP 2023, "Sia: heterogeneity-aware, goodput-optimized ML-cluster
//! scheduling"), as its simulator does it.

use het_core::Time;

use crate::assign::{Choice, assign};
use crate::demand::{Demand, Demands, Offer};
use crate::turns::{self, Left, Turns};
use crate::{Decision, Memory, Policy, View, market};

/// Power of the goodput in the sum that is made small: below zero the slow gain most.
const FAIRNESS: f64 = -0.5;

/// What it costs to leave a job without devices.
const NOTHING: f64 = 1.1;

/// Costs are rounded to so many parts.
const ROUNDED_TO: f64 = 100.0;

/// Goodput of every shape, fairly weighed.
#[derive(Debug, Clone, Copy)]
pub struct Sia;

impl Policy for Sia {
    fn name(&self) -> &'static str {
        "sia"
    }

    fn decide(&self, view: &View<'_>, memory: &mut Memory) -> Decision {
        turns::once_a_round(view, memory, |demands, _, (): &mut ()| {
            let gains: Vec<Vec<f64>> =
                demands.stages.iter().map(|demand| gains(demand, view.now)).collect();
            share_out(demands, &gains)
        })
    }
}

/// What each offer spares its job, over having nothing.
fn gains(demand: &Demand, now: Time) -> Vec<f64> {
    let slowest = demand.offers.iter().map(|offer| offer.rate).fold(f64::INFINITY, f64::min);
    let damped = kept_after_a_restart(demand, now);
    let running = demand.running.map(|(_, offer)| offer);
    let gain = |(index, offer): (usize, &Offer)| {
        let stays = running.is_none_or(|running| running == index);
        let speedup = offer.rate / slowest * if stays { 1.0 } else { damped };
        let cost = (speedup.powf(FAIRNESS) * ROUNDED_TO).round() / ROUNDED_TO;
        NOTHING - cost
    };
    demand.offers.iter().enumerate().map(gain).collect()
}

/// Part of its life that a job would not have spent on restarts if it were restarted now.
fn kept_after_a_restart(demand: &Demand, now: Time) -> f64 {
    let age = now.since(demand.submitted).as_seconds();
    let pause = demand.restart.as_seconds();
    if age < pause {
        return 1.0;
    }
    let lost = f64::from(demand.attempts.saturating_sub(1)) * pause;
    ((age - lost) / (age + pause)).max(0.0)
}

/// The turns with the largest sum of gains. Whoever is starting keeps what it has.
pub(crate) fn share_out(demands: &Demands, gains: &[Vec<f64>]) -> Turns {
    let pinned = |demand: &Demand| demand.running.filter(|_| demand.starting);
    let mut left = Left::whole(demands);
    for (demand, (_, offer)) in demands.stages.iter().filter_map(|d| Some((d, pinned(d)?))) {
        left.take(&demand.offers[offer]);
    }
    let row = |(demand, gains): (&Demand, &Vec<f64>)| -> Vec<Choice> {
        if pinned(demand).is_some() {
            return Vec::new();
        }
        let choice = |(offer, &gain): (&Offer, &f64)| Choice {
            class: offer.class,
            units: offer.units,
            gain,
        };
        demand.offers.iter().zip(gains).map(choice).collect()
    };
    let rows: Vec<Vec<Choice>> = demands.stages.iter().zip(gains).map(row).collect();
    let kept = || demands.stages.iter().map(|demand| Some(pinned(demand)?.1)).collect();
    let chosen = assign(left.units(), &rows)
        .unwrap_or_else(|| market::hand_out(demands, gains, &mut left, kept()).chosen);
    let turn = |(demand, chosen): (&Demand, Option<usize>)| {
        let offer = pinned(demand).map(|(_, offer)| offer).or(chosen)?;
        Some((demand.key, demand.offers[offer]))
    };
    let mut chosen: Vec<_> = demands.stages.iter().zip(chosen).filter_map(turn).collect();
    // The largest first, so that they find whole nodes.
    chosen.sort_by_key(|(key, offer)| (std::cmp::Reverse(offer.units), *key));
    Turns { chosen, leftovers: demands.spanning.clone(), spanning: demands.spanning.clone() }
}
