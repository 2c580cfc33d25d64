//! From what should be to ordered actions: stops first, then claims given up, then starts and
//! claims in the order of the policy.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use het_core::{
    Action, CheckpointSpec, Generation, Job, LeaseId, Millis, Phase, Placement, Plan, Reason,
    StageKey, StageState, State, StopCause, StopCost, Time,
};
use het_perf::{Rates, stop_cost};
use het_policy::{Decision, Pool, Want};

/// Turns a decision into a plan. A wanted placement that is free becomes a start; one that is still
/// in use, or of a stage that has to stop elsewhere first, becomes a claim.
///
/// Nothing is repeated that is already so.
pub fn reconcile(state: &State, rates: &Rates, decision: &Decision, now: Time) -> Plan {
    let mut plan = Plan { generation: Generation(state.generation().0 + 1), ..Plan::default() };
    let mut stopped = BTreeSet::new();
    // Stopped for good: they go on nowhere, whatever the decision had in mind for them.
    let mut ending = BTreeSet::new();
    let forced = state.leases_to_end().chain(overdue(state, now));
    let ordered = decision.stops.iter().map(|order| (order.lease, order.cause, Some(order.cost)));
    let forced = forced.map(|(lease, cause)| (lease, cause, None));
    for (lease, cause, cost) in forced.chain(ordered).chain(drained(state, rates, now)) {
        if stopped.insert(lease) {
            if !cause.moves() {
                ending.insert(state.leases()[&lease].stage);
            }
            plan.actions.push(stop(state, lease, cause, cost));
        }
    }
    let mut starts = LazyCell::new(|| Starts::new(state));
    for stage in dead_claims(state, decision) {
        starts.give_up(stage);
        plan.actions.push(Action::Unclaim { stage });
    }
    for (key, want) in &decision.wants {
        match want {
            Want::Run { .. } if ending.contains(key) => {}
            Want::Run { placement, reasons } => {
                plan.actions.extend(starts.run(*key, placement, reasons));
            }
            Want::Wait { reasons } if state.stage(*key).2.wait_reasons != *reasons => {
                plan.waits.push((*key, reasons.clone()));
            }
            Want::Wait { .. } => {}
        }
    }
    plan
}

/// Jobs with a time limit that have begun, and when they reach it.
pub(crate) fn time_limits(state: &State) -> impl Iterator<Item = (&Job, Time)> + '_ {
    state.limited_jobs().filter_map(|job| {
        let first = job.stages.iter().filter_map(|stage| stage.first_started).min()?;
        Some((job, first + job.spec.time_limit?))
    })
}

fn overdue(state: &State, now: Time) -> impl Iterator<Item = (LeaseId, StopCause)> + '_ {
    let jobs = time_limits(state).filter(move |(_, at)| *at <= now).map(|(job, _)| job);
    let active = jobs.flat_map(|job| &job.stages).filter_map(|stage| match stage.state {
        StageState::Active { lease } => Some(lease),
        _ => None,
    });
    let runs = |id: &LeaseId| !state.leases()[id].phase.is_stopping();
    active.filter(runs).map(|lease| (lease, StopCause::TimeLimit))
}

/// What saves and runs on a device that somebody took out of service, whether or not there is room
/// for it elsewhere. What cannot save may end where it is.
fn drained<'a>(
    state: &'a State,
    rates: &'a Rates,
    now: Time,
) -> impl Iterator<Item = (LeaseId, StopCause, Option<StopCost>)> + 'a {
    let leases = state.drains_any().then(|| state.leases().iter()).into_iter().flatten();
    leases.filter_map(move |(&id, lease)| {
        let (_, spec, stage) = state.stage(lease.stage);
        let runs = matches!(lease.phase, Phase::Running { .. });
        let leaves = runs && spec.saves(lease.placement.alternative) && state.is_on_drained(lease);
        leaves.then(|| (id, StopCause::Drain, Some(stop_cost(rates, spec, stage, lease, now))))
    })
}

fn stop(state: &State, id: LeaseId, cause: StopCause, cost: Option<StopCost>) -> Action {
    let lease = &state.leases()[&id];
    let (_, spec, _) = state.stage(lease.stage);
    let checkpoint = &spec.alternatives[lease.placement.alternative].launch.checkpoint;
    let grace = checkpoint.as_ref().map_or(CheckpointSpec::GRACE_DEFAULT, |spec| spec.grace);
    Action::Stop { lease: id, cause, grace: grace.max(Millis(1)), cost }
}

/// Claims that the decision no longer stands by.
fn dead_claims<'a>(
    state: &'a State,
    decision: &'a Decision,
) -> impl Iterator<Item = StageKey> + 'a {
    let wanted: BTreeMap<StageKey, &Placement> = decision
        .wants
        .iter()
        .filter_map(|(key, want)| match want {
            Want::Run { placement, .. } => Some((*key, placement)),
            Want::Wait { .. } => None,
        })
        .collect();
    state
        .claims()
        .iter()
        .filter(move |(key, claim)| wanted.get(key) != Some(&&*claim.placement))
        .map(|(key, _)| *key)
}

/// Tells starts from claims while devices are handed out.
struct Starts<'a> {
    state: &'a State,
    /// What is neither held nor claimed.
    pool: Pool<'a>,
    claims: BTreeMap<StageKey, Arc<Placement>>,
    next_lease: LeaseId,
}

impl<'a> Starts<'a> {
    fn new(state: &'a State) -> Self {
        let claims = state.claims().iter().map(|(key, claim)| (*key, Arc::clone(&claim.placement)));
        let next_lease = state.next_lease();
        let pool = Pool::of(state).with_suspected();
        Self { state, pool, claims: claims.collect(), next_lease }
    }

    fn give_up(&mut self, key: StageKey) -> Option<Arc<Placement>> {
        let claim = self.claims.remove(&key)?;
        self.pool.give_back(&claim);
        Some(claim)
    }

    fn run(&mut self, key: StageKey, placement: &Placement, reasons: &[Reason]) -> Option<Action> {
        let claim = self.give_up(key);
        if self.state.is_waiting(key) && self.pool.covers(placement) {
            self.pool.take(placement);
            return Some(self.start(key, placement, reasons));
        }
        self.pool.take(placement);
        if claim.is_some_and(|claim| *claim == *placement) {
            return None;
        }
        let placement = Arc::new(placement.clone());
        Some(Action::Claim { stage: key, placement, reasons: reasons.to_vec() })
    }

    fn start(&mut self, key: StageKey, placement: &Placement, reasons: &[Reason]) -> Action {
        let (_, spec, stage) = self.state.stage(key);
        let prepared = self.state.preparation(key);
        let prepared = prepared.filter(|it| it.serves(spec, placement, stage.checkpoint.as_ref()));
        let lease = prepared.map_or(self.next_lease, |preparation| preparation.lease);
        if prepared.is_none() {
            self.next_lease = LeaseId(lease.0 + 1);
        }
        Action::Start {
            lease,
            stage: key,
            attempt: stage.attempts + 1,
            placement: Arc::new(placement.clone()),
            launch: Arc::clone(&spec.alternatives[placement.alternative].launch),
            resume: stage.checkpoint.clone(),
            reasons: reasons.to_vec(),
        }
    }
}
