//! Policies that first fix what share of time each job gets on each device class, and then take
//! turns so that everybody receives its share (Narayanan et al., OSDI 2020, "Heterogeneity-Aware
//! Cluster Scheduling Policies for Deep Learning Workloads").
//!
//! The shares come from an [`Objective`]; they are computed again when jobs came or went, but not
//! more often than every [`RESET_MIN`]. A job's turn is due by its share over the part of time that
//! it received. Without rounds there is nothing to share in; then every event opens a round.

mod linear;
mod objective;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use het_core::{Millis, StageKey, Time};
use serde::{Deserialize, Serialize};

use super::rounds::{self, Allocations};
use crate::market::{Demand, Demands, Offer, Remaining};
use crate::{Cache, Cadence, Decision, Policy, View, memory};

pub(crate) use objective::Objective;

/// Shares stand for at least this long (the published scheduler's default).
const RESET_MIN: Millis = Millis::seconds(1_920);

/// What everybody is taken to have received at a reset, as part of a round.
const HEAD_START: f64 = 0.5;

/// Rounds where the view has none: the published scheduler's default.
const ROUND_DEFAULT: Millis = Millis::seconds(360);

/// A share of one is worth this while nothing was received.
const UNSERVED: f64 = 1e9;

/// A policy that shares time.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    pub(crate) name: &'static str,
    pub(crate) objective: Objective,
}

/// What was shared out, and who received how much of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Ledger {
    #[serde(with = "memory::millis_if_any")]
    reset_at: Option<Time>,
    /// Jobs came or went since the shares were computed.
    stale: bool,
    #[serde(with = "memory::exact_by_stage")]
    shares: BTreeMap<StageKey, Vec<f64>>,
    /// Seconds received since the reset, by stage and class.
    #[serde(with = "memory::exact_by_stage")]
    received: BTreeMap<StageKey, Vec<f64>>,
    /// The same summed over stages, gone ones included.
    #[serde(with = "memory::exact_list")]
    given: Vec<f64>,
    /// Share × time that was owed and not received at resets, in seconds.
    #[serde(with = "memory::exact_by_stage")]
    deficits: BTreeMap<StageKey, Vec<f64>>,
}

impl Policy for Shares {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide(&self, view: &View<'_>, cache: &mut Cache) -> Decision {
        let now = view.now;
        let round = match view.cadence {
            Cadence::Rounds(every) => every.as_seconds(),
            Cadence::EveryEvent { .. } => ROUND_DEFAULT.as_seconds(),
        };
        rounds::once_a_round(self.name, view, cache, |demands, before, ledger: &mut Ledger| {
            ledger.meet(demands, round);
            if let Some((at, allocations)) = before {
                ledger.book(allocations, now.since(at).as_seconds());
            }
            ledger.part_with(demands);
            let due = ledger.reset_at.is_none_or(|at| Ledger::is_due(at, now));
            if ledger.stale && due {
                ledger.reset(demands, now, round);
                ledger.shares = self.objective.shares(demands, now);
                ledger.stale = false;
            }
            ledger.take_turns(demands, self.objective)
        })
    }
}

impl Ledger {
    /// The published scheduler takes a reset at time zero for none, so its first interval counts
    /// from the first change after that.
    fn is_due(reset_at: Time, now: Time) -> bool {
        reset_at == Time::ZERO || now.since(reset_at) >= RESET_MIN
    }

    /// Opens an account for everybody who came.
    fn meet(&mut self, demands: &Demands, round: f64) {
        let classes = demands.capacity.len();
        self.given.resize(classes, 0.0);
        for demand in &demands.stages {
            if let Entry::Vacant(account) = self.received.entry(demand.key) {
                account.insert(vec![HEAD_START * round; classes]);
                self.given.iter_mut().for_each(|given| *given += HEAD_START * round);
                self.stale = true;
            }
        }
    }

    /// Books the allocations of the last round, which took `seconds`.
    fn book(&mut self, allocations: &Allocations, seconds: f64) {
        for (key, offer) in &allocations.chosen {
            if let Some(received) = self.received.get_mut(key) {
                received[offer.class] += seconds;
                self.given[offer.class] += seconds;
            }
        }
    }

    /// Closes the accounts of everybody who went.
    fn part_with(&mut self, demands: &Demands) {
        let present: BTreeSet<StageKey> = demands.stages.iter().map(|demand| demand.key).collect();
        let before = self.received.len();
        self.received.retain(|key, _| present.contains(key));
        self.shares.retain(|key, _| present.contains(key));
        self.deficits.retain(|key, _| present.contains(key));
        self.stale |= self.received.len() < before;
    }

    /// Starts counting again, carrying over what is owed.
    fn reset(&mut self, demands: &Demands, now: Time, round: f64) {
        let elapsed = self.reset_at.map_or(0.0, |at| now.since(at).as_seconds());
        self.given.fill(0.0);
        for demand in &demands.stages {
            let Some(received) = self.received.get_mut(&demand.key) else { continue };
            let shares = self.shares.get(&demand.key);
            let owed = self.deficits.entry(demand.key).or_insert_with(|| vec![0.0; received.len()]);
            for (class, received) in received.iter_mut().enumerate() {
                let share = shares.map_or(0.0, |shares| shares[class]);
                owed[class] += share * elapsed - (*received - HEAD_START * round);
                *received = HEAD_START * round;
                self.given[class] += *received;
            }
        }
        self.reset_at = Some(now);
    }

    /// Greedily by how far each is behind its share; who does not fit is passed.
    fn take_turns(&self, demands: &Demands, objective: Objective) -> Allocations {
        let rows = demands.stages.iter().flat_map(|demand| {
            demand.offers.iter().map(move |offer| (self.due(demand, offer), demand, offer))
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by(|(a, one, here), (b, other, there)| {
            let order = a.iter().zip(b).map(|(a, b)| b.total_cmp(a));
            let first = order.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then);
            here.class.cmp(&there.class).then(first).then(one.key.cmp(&other.key))
        });
        let mut remaining = Remaining::of(demands);
        let pinned = demands
            .stages
            .iter()
            .filter_map(|demand| Some((demand.key, demand.offers[demand.pinned()?])));
        let mut chosen: Vec<(StageKey, Offer)> = pinned.collect();
        let mut served: BTreeSet<StageKey> = chosen.iter().map(|(key, _)| *key).collect();
        for (due, demand, offer) in rows {
            let idle = due[0] <= 0.0 && objective.is_strict();
            if !idle && remaining.fits(demand, offer) && served.insert(demand.key) {
                remaining.take(demand, offer);
                chosen.push((demand.key, *offer));
            }
        }
        let spanning = demands.spanning.clone();
        Allocations { chosen, leftovers: spanning.clone(), spanning }
    }

    /// How due a stage is on an offer: share over received part, then what it is owed, then share.
    fn due(&self, demand: &Demand, offer: &Offer) -> [f64; 3] {
        let class = offer.class;
        let of = |table: &BTreeMap<StageKey, Vec<f64>>| {
            table.get(&demand.key).map_or(0.0, |row| row[class])
        };
        let share = of(&self.shares);
        let part =
            if self.given[class] > 0.0 { of(&self.received) / self.given[class] } else { 0.0 };
        let due = if part > 0.0 { share / part } else { share * UNSERVED };
        [due, of(&self.deficits), share]
    }
}
