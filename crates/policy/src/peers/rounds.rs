//! Rounds: a planner allocates devices until the next one; this carries it out.
//!
//! Whoever runs and is allocated what it has goes on. Whoever runs and is allocated nothing, or
//! something else, is suspended. Whoever waits and is allocated devices starts once they are free.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Lease, Placement, Reason, StageKey, StopCause, Time};

use serde::{Deserialize, Serialize};

use crate::market::{Book, Demands, Offer};
use crate::memory::{self, Recalled, Stored};
use crate::placement::{on_class, place};
use crate::speed::spread_penalty;
use crate::tenants::Tenants;
use crate::{Cache, Decision, Pool, StopOrder, View, Want};

/// Who is to run on what.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Allocations {
    /// Most deserving first.
    #[serde(with = "memory::pairs")]
    pub chosen: Vec<(StageKey, Offer)>,
    /// Those who may have what is still free after them, on any devices.
    #[serde(with = "memory::stages")]
    pub leftovers: Vec<StageKey>,
    /// Those who run where nothing can be allocated, and so are left alone.
    #[serde(with = "memory::stages")]
    pub spanning: Vec<StageKey>,
}

/// A planner's memory: what it decided in the last round, and what it carries to the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Round<T> {
    #[serde(with = "memory::millis")]
    at: Time,
    /// Under the word that logs have had for it from the beginning.
    #[serde(rename = "turns")]
    allocations: Allocations,
    carried: T,
}

/// What is not worked out anew for every decision.
#[derive(Debug, Clone)]
struct Kept<T> {
    book: Book,
    memory: Recalled<Option<Round<T>>>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { book: Book::default(), memory: Recalled::default() }
    }
}

/// Plans once a round and carries that out, however often the round is looked at: what is stopped
/// has to go before what takes its place can start. `plan` is shown the allocations of the round
/// before and when that was.
pub(crate) fn once_a_round<T: Stored + Send + 'static>(
    policy: &str,
    view: &View<'_>,
    cache: &mut Cache,
    plan: impl FnOnce(&Demands, Option<(Time, &Allocations)>, &mut T) -> Allocations,
) -> Decision {
    let Kept { book, memory } = cache.of::<Kept<T>>();
    let last = memory.recall(view.state, policy);
    let round = match last {
        Some(round) if round.at == view.now => round,
        last => {
            let before = last.as_ref().map(|round| (round.at, &round.allocations));
            let mut carried = last.as_ref().map(|r| r.carried.clone()).unwrap_or_default();
            let allocations = plan(&Demands::survey(view, book), before, &mut carried);
            Round { at: view.now, allocations, carried }
        }
    };
    let decision = carry_out(view, &round.allocations);
    Decision { remembers: memory.remember(policy, Some(round)), ..decision }
}

/// What has to happen for everybody in `allocations`, and nobody else, to run.
fn carry_out(view: &View<'_>, allocations: &Allocations) -> Decision {
    let state = view.state;
    let chosen: BTreeMap<StageKey, &Offer> =
        allocations.chosen.iter().map(|(key, offer)| (*key, offer)).collect();
    let mut pool = Pool::of(state);
    let mut tenants = Tenants::of(state);
    let mut decision = Decision::default();
    let mut moves = BTreeSet::new();
    for (&id, lease) in state.leases() {
        if lease.phase.is_stopping() {
            pool.give_back(&lease.placement);
            moves.insert(lease.stage);
        } else if !stays(view, allocations, lease, chosen.get(&lease.stage).copied()) {
            pool.give_back(&lease.placement);
            moves.insert(lease.stage);
            let elsewhere = chosen.contains_key(&lease.stage);
            let cause = match (leaves(view, lease), elsewhere) {
                (true, _) => StopCause::Drain,
                (false, true) => StopCause::Migration,
                (false, false) => StopCause::Quantum,
            };
            decision.stops.push(StopOrder::of(view, id, lease, cause));
        }
    }
    let mut told = BTreeSet::new();
    for (key, offer) in &allocations.chosen {
        if state.is_waiting(*key) {
            told.insert(*key);
            let want = begin(view, &mut pool, *key, offer);
            decision.wants.push((*key, permitted(view, &mut tenants, *key, want)));
        } else if moves.contains(key) {
            // It has to stop first; until it waits, nobody else gets what it moves to.
            let (_, spec, _) = state.stage(*key);
            if let Ok(kept) = on_class(&mut pool, spec, offer.alternative, offer.class) {
                pool.take(&kept);
            }
        }
    }
    for &key in allocations.leftovers.iter().filter(|key| state.is_waiting(**key)) {
        if told.insert(key) {
            // A gang on several classes could be allocated nothing later: only those get that
            // anyway.
            let may_mix =
                if allocations.spanning.contains(&key) { Mixing::Allowed } else { Mixing::Not };
            let want = anywhere(view, &mut pool, key, may_mix);
            decision.wants.push((key, permitted(view, &mut tenants, key, want)));
        }
    }
    let others = state.waiting().filter(|key| !told.contains(key));
    let wait = || Want::Wait { reasons: vec![Reason::NotItsTurn] };
    decision.wants.extend(others.map(|key| (key, wait())));
    decision
}

/// The same, unless the tenant of the stage still holds too much, stages that stop included.
fn permitted(
    view: &View<'_>,
    tenants: &mut Option<Tenants<'_>>,
    key: StageKey,
    want: Want,
) -> Want {
    let (Some(tenants), Want::Run { placement, .. }) = (tenants, &want) else { return want };
    let (job, spec, _) = view.state.stage(key);
    let tenant = &job.spec.tenant;
    if let Some(claim) = view.state.claims().get(&key) {
        tenants.give_back(tenant, &claim.placement);
    }
    match tenants.refusal(tenant, spec.preemptible, placement) {
        Some(reason) => Want::Wait { reasons: vec![reason] },
        None => {
            tenants.take(tenant, placement);
            want
        }
    }
}

/// Whoever began in this very round, or runs where nothing can be allocated, is left alone.
fn stays(view: &View<'_>, allocations: &Allocations, lease: &Lease, offer: Option<&Offer>) -> bool {
    if lease.since == view.now || allocations.spanning.contains(&lease.stage) {
        return true;
    }
    if leaves(view, lease) {
        return false;
    }
    let on = |grant: het_core::Grant| view.state.topology().device(grant.device).class;
    offer.is_some_and(|offer| {
        offer.alternative == lease.placement.alternative
            && lease.placement.devices().all(|grant| on(grant) == offer.class)
    })
}

/// It cannot stay where it is, and can save.
fn leaves(view: &View<'_>, lease: &Lease) -> bool {
    let (_, spec, _) = view.state.stage(lease.stage);
    spec.saves(lease.placement.alternative) && view.state.is_endangered(lease)
}

fn begin(view: &View<'_>, pool: &mut Pool<'_>, key: StageKey, offer: &Offer) -> Want {
    let (_, spec, stage) = view.state.stage(key);
    let word = spec.alternatives[offer.alternative].selector.word.clone();
    let mut reasons = vec![Reason::ItsTurn { word }];
    reasons.extend(stage.checkpoint.as_ref().map(|saved| Reason::Resumed { step: saved.step }));
    if let Some(claim) = view.state.claims().get(&key) {
        return run(view, key, (*claim.placement).clone(), reasons);
    }
    match on_class(pool, spec, offer.alternative, offer.class) {
        Ok(placement) => {
            pool.take(&placement);
            run(view, key, placement, reasons)
        }
        Err(reason) => Want::Wait { reasons: vec![reason] },
    }
}

/// Whether a gang may stand on several device classes at once.
#[derive(Debug, Clone, Copy)]
enum Mixing {
    Allowed,
    Not,
}

/// On whatever fits, in file order.
fn anywhere(view: &View<'_>, pool: &mut Pool<'_>, key: StageKey, mixing: Mixing) -> Want {
    if let Some(claim) = view.state.claims().get(&key) {
        return run(view, key, (*claim.placement).clone(), vec![Reason::ClaimReady]);
    }
    let (_, spec, _) = view.state.stage(key);
    let classes = 0..view.state.topology().classes.len();
    let mut fitting = |index: usize| match mixing {
        Mixing::Allowed => place(pool, spec, index).ok(),
        Mixing::Not => classes.clone().find_map(|class| on_class(pool, spec, index, class).ok()),
    };
    let Some(placement) = (0..spec.alternatives.len()).find_map(&mut fitting) else {
        return Want::Wait { reasons: vec![Reason::NotItsTurn] };
    };
    pool.take(&placement);
    let word = spec.alternatives[placement.alternative].selector.word.clone();
    run(view, key, placement, vec![Reason::FreeNow { word }])
}

fn run(view: &View<'_>, key: StageKey, placement: Placement, mut reasons: Vec<Reason>) -> Want {
    reasons.extend(spread_penalty(view, view.state.stage(key).1, &placement));
    Want::Run { placement, reasons }
}
