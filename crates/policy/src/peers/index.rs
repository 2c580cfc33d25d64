//! Policies that sort everybody anew in every round and serve the first: what fits runs on the
//! fastest class that still has room, what does not is passed.

use super::rounds::{self, Allocations};
use crate::market::{Demand, Demands, Offer, Remaining};
use crate::{Cache, Decision, Policy, View};

/// A sorted queue, served from the front.
#[derive(Debug, Clone, Copy)]
pub struct IndexPolicy {
    pub(crate) name: &'static str,
    pub(crate) order: Index,
}

/// Who stands in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Index {
    /// Least device time to go on the class where that is least (Schrage 1968).
    ShortestRemaining,
    /// Least device time had so far (Gu et al., NSDI 2019, "Tiresias", without its levels).
    LeastAttained,
}

impl Policy for IndexPolicy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide(&self, view: &View<'_>, cache: &mut Cache) -> Decision {
        rounds::once_a_round(self.name, view, cache, |demands, _, (): &mut ()| {
            serve(demands, self.order)
        })
    }
}

fn serve(demands: &Demands, order: Index) -> Allocations {
    let place = |demand: &Demand| match order {
        Index::ShortestRemaining => {
            let device_time = |offer: &Offer| demand.seconds_on(offer) * f64::from(offer.units);
            demand.offers.iter().map(device_time).fold(f64::INFINITY, f64::min)
        }
        Index::LeastAttained => demand.attained_device_s,
    };
    let mut queue: Vec<(f64, &Demand)> =
        demands.stages.iter().map(|demand| (place(demand), demand)).collect();
    queue.sort_by(|(a, one), (b, other)| a.total_cmp(b).then(one.key.cmp(&other.key)));
    let mut remaining = Remaining::of(demands);
    let mut allocations = Allocations {
        leftovers: demands.spanning.clone(),
        spanning: demands.spanning.clone(),
        ..Allocations::default()
    };
    for (_, demand) in queue {
        let pinned = demand.pinned().map(|offer| demand.offers[offer]);
        let room = demand.offers.iter().filter(|offer| remaining.fits(demand, offer)).copied();
        let fastest = room.reduce(|best, next| if next.rate > best.rate { next } else { best });
        if let Some(offer) = pinned.or(fastest) {
            if pinned.is_none() {
                remaining.take(demand, &offer);
            }
            allocations.chosen.push((demand.key, offer));
        }
    }
    allocations
}
