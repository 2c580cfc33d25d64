//! `sia`: jobs that may grow and shrink; every round each gets the shape with which the sum of
//! goodput^-0.5 is smallest, as its simulator does (Jayaram Subramanya et al., SOSP 2023, "Sia:
//! heterogeneity-aware, goodput-optimized ML-cluster scheduling").

mod assign;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use het_core::{Name, Priority, Time};

use super::rounds::{self, Allocations};
use crate::market::{Demand, Demands, Offer, Party, Remaining, exchange};
use crate::{Cache, Decision, Policy, View};

use assign::{Choice, assign};

/// Power of the goodput; below zero the slow gain most.
const POWER: f64 = -0.5;

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

    fn decide(&self, view: &View<'_>, cache: &mut Cache) -> Decision {
        rounds::once_a_round(self.name(), view, cache, |demands, _, (): &mut ()| {
            let gains = demands.stages.iter().map(|demand| gains(demand, view.now)).collect();
            share_out(demands, gains)
        })
    }
}

/// What each offer spares its job, over having nothing: by its goodput over that of the slowest,
/// less where the job would have to be restarted for it.
fn gains(demand: &Demand, now: Time) -> Vec<f64> {
    let damped = demand.kept_after_a_restart(now);
    let measured = demand.offers.iter().filter(|offer| !offer.extrapolated);
    let slowest = measured.map(|offer| offer.rate).fold(f64::INFINITY, f64::min);
    let running = demand.running.map(|(_, offer)| offer);
    let gain = |(index, offer): (usize, &Offer)| {
        if offer.extrapolated {
            return f64::NEG_INFINITY;
        }
        let stays = running.is_none_or(|running| running == index);
        let speedup = offer.rate / slowest * if stays { 1.0 } else { damped };
        NOTHING - (speedup.powf(POWER) * ROUNDED_TO).round() / ROUNDED_TO
    };
    demand.offers.iter().enumerate().map(gain).collect()
}

/// The allocations with the largest sum of gains, a higher priority before a lower one. Those who
/// cannot be stopped keep what they have.
fn share_out(demands: &Demands, gains: Vec<Vec<f64>>) -> Allocations {
    let offer = |demand: &Demand| {
        let kept = demand.running.filter(|_| demand.stuck || demand.starting);
        kept.map(|(_, offer)| offer)
    };
    let mut chosen: Vec<Option<usize>> = demands.stages.iter().map(offer).collect();
    let mut remaining = Remaining::whole(demands);
    let kept = demands.stages.iter().zip(&chosen);
    kept.for_each(|(demand, offer)| {
        offer.iter().for_each(|&o| remaining.take(demand, &demand.offers[o]))
    });
    remaining.keep_to_parts(demands);
    let mut exact = serve(demands, &gains, &mut remaining, &mut chosen);
    if remaining.has_parts() && exact.is_some() {
        remaining.open_to_limits(demands);
        exact = serve(demands, &gains, &mut remaining, &mut chosen);
    }
    if exact.is_none() {
        // Too many devices for the exact answer.
        let gains = ranked(demands, &gains);
        let has = chosen.clone();
        let party = |row: usize| Party {
            demand: &demands.stages[row],
            values: &gains[row],
            has: has[row],
            loses: has[row].is_none(),
        };
        let parties: Vec<Party<'_>> = (0..has.len()).map(party).collect();
        chosen = exchange(&parties, has.clone(), &mut remaining).1;
    }
    let allocated =
        |(demand, offer): (&Demand, Option<usize>)| Some((demand.key, demand.offers[offer?]));
    let mut chosen: Vec<_> = demands.stages.iter().zip(chosen).filter_map(allocated).collect();
    // The largest first, so that they find whole nodes.
    chosen.sort_by_key(|(key, offer)| (Reverse(offer.units), *key));
    Allocations { chosen, leftovers: demands.spanning.clone(), spanning: demands.spanning.clone() }
}

/// Gives everybody without devices what brings most, one priority after the other and where tenants
/// have parts, one tenant after the other. `None` where there are too many devices for that.
fn serve(
    demands: &Demands,
    gains: &[Vec<f64>],
    remaining: &mut Remaining,
    chosen: &mut [Option<usize>],
) -> Option<()> {
    let names: BTreeSet<&Name> = demands.stages.iter().map(|demand| &demand.tenant).collect();
    let tenants: Vec<Option<&Name>> =
        if remaining.has_parts() { names.into_iter().map(Some).collect() } else { vec![None] };
    for priority in Priority::ALL {
        for tenant in &tenants {
            let is_next = |demand: &Demand| {
                demand.priority == priority && tenant.is_none_or(|name| demand.tenant == *name)
            };
            let rows: Vec<usize> = (0..chosen.len())
                .filter(|&row| is_next(&demands.stages[row]) && chosen[row].is_none())
                .collect();
            let choices: Vec<Vec<Choice>> =
                rows.iter().map(|&row| choices(&demands.stages[row], &gains[row])).collect();
            let units = remaining.units_for(tenant.unwrap_or(&Name::default()));
            for (row, offer) in rows.into_iter().zip(assign(&units, &choices)?) {
                let demand = &demands.stages[row];
                offer.iter().for_each(|&offer| remaining.take(demand, &demand.offers[offer]));
                chosen[row] = offer;
            }
        }
    }
    Some(())
}

fn choices(demand: &Demand, gains: &[f64]) -> Vec<Choice> {
    let choice =
        |(offer, &gain): (&Offer, &f64)| Choice { class: offer.class, units: offer.units, gain };
    demand.offers.iter().zip(gains).map(choice).collect()
}

/// Gains that no sum of gains of a lower priority outweighs.
fn ranked(demands: &Demands, gains: &[Vec<f64>]) -> Vec<Vec<f64>> {
    const STEP: f64 = 1e4;
    let raised = |(demand, gains): (&Demand, &Vec<f64>)| {
        gains.iter().map(|gain| gain * STEP.powi(demand.priority as i32)).collect()
    };
    demands.stages.iter().zip(gains).map(raised).collect()
}
