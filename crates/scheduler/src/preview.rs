//! Whom the next decision would stop for a stage, or what it would make of a stage that runs, and
//! what that costs: told by deciding, and so what happens if nothing else does.

use std::collections::BTreeSet;

use het_core::{
    Action, DeviceId, Event, Lease, LeaseId, Phase, Placement, Plan, Reason, StageKey, StageState,
    State, StopCause, StopCost,
};
use het_perf::stop_cost;

use crate::{Situation, yielding};

/// What would become of a stage, and who would be stopped for that.
#[derive(Debug, Clone, PartialEq)]
pub struct Preview {
    pub stage: StageKey,
    pub outlook: Outlook,
    pub stops: Vec<Stopping>,
}

/// What would become of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// It runs, and goes on as far as the next decision goes.
    GoesOn,
    /// It runs, and makes room if it is told to.
    OnRequest,
    /// It runs, and nobody may stop it for others now.
    NotPreemptible,
    /// It runs, and is being stopped or would be.
    Stops,
    /// It waits, and would start beside everybody, or once those are stopped that are named.
    Starts,
    /// The same once somebody releases its job.
    StartsOnceReleased,
    /// It waits, and goes on waiting.
    Waits {
        reasons: Vec<Reason>,
        held: bool,
    },
    /// Other stages of its job come first.
    Pending,
    Ended,
}

/// A stop that is under way or would be decided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stopping {
    pub stage: StageKey,
    pub preemptor: Option<StageKey>,
    /// `None` for one that nobody asks for.
    pub cause: Option<StopCause>,
    pub cost: StopCost,
}

/// What the next decision would make of a stage.
pub fn preview(situation: &Situation<'_>, key: StageKey) -> Preview {
    let state = situation.view.state;
    let (job, _, stage) = state.stage(key);
    let told = |outlook, stops| Preview { stage: key, outlook, stops };
    match stage.state {
        StageState::Active { lease } => {
            let (outlook, stop) = running(situation, lease);
            told(outlook, vec![stop])
        }
        _ if stage.state.is_terminal() => told(Outlook::Ended, Vec::new()),
        _ if state.is_waiting(key) => {
            let (outlook, stops) = waiting(situation, state, key);
            told(outlook, stops)
        }
        _ if job.held => {
            let mut fork = state.clone();
            fork.apply(situation.view.now, &Event::JobReleased { job: key.job });
            if !fork.is_waiting(key) {
                return told(Outlook::Pending, Vec::new());
            }
            let (outlook, stops) = waiting(situation, &fork, key);
            let outlook = match outlook {
                Outlook::Starts => Outlook::StartsOnceReleased,
                Outlook::Waits { reasons, .. } => Outlook::Waits { reasons, held: true },
                other => other,
            };
            told(outlook, stops)
        }
        _ => told(Outlook::Pending, Vec::new()),
    }
}

/// Of one that runs: who is getting its devices, would get them, or could on request; else what a
/// stop would cost for nobody.
fn running(situation: &Situation<'_>, id: LeaseId) -> (Outlook, Stopping) {
    let view = &situation.view;
    let state = view.state;
    let lease = &state.leases()[&id];
    let (_, spec, stage) = state.stage(lease.stage);
    let now = stop_cost(view.rates, spec, stage, lease, view.now);
    let stop = |cause: Option<StopCause>, preemptor, cost| Stopping {
        stage: lease.stage,
        preemptor,
        cause,
        cost,
    };
    if let Phase::Stopping { cause } = lease.phase {
        let cost = stage.stops.last().and_then(|stop| stop.expected).unwrap_or(now);
        return (Outlook::Stops, stop(Some(cause), cause.preemptor(), cost));
    }
    if let Some((cause, cost)) = stop_of(&situation.propose_on(state).plan, id) {
        return (Outlook::Stops, stop(Some(cause), cause.preemptor(), cost.unwrap_or(now)));
    }
    if !spec.preemptible.allows(lease.since, view.now) {
        return (Outlook::NotPreemptible, stop(None, None, now));
    }
    let asked = yielding(view, id).and_then(|asked| {
        let mut fork = state.clone();
        let preemptor = asked.preemptor;
        fork.apply(view.now, &Event::StageYields { lease: id, preemptor });
        stop_of(&situation.propose_on(&fork).plan, id)
    });
    match asked {
        Some((cause, cost)) => {
            (Outlook::OnRequest, stop(Some(cause), cause.preemptor(), cost.unwrap_or(now)))
        }
        None => (Outlook::GoesOn, stop(None, None, now)),
    }
}

fn stop_of(plan: &Plan, id: LeaseId) -> Option<(StopCause, Option<StopCost>)> {
    plan.actions.iter().find_map(|action| match action {
        Action::Stop { lease, cause, cost, .. } if *lease == id => Some((*cause, *cost)),
        _ => None,
    })
}

/// Of one that waits on `state`, which is that of the situation or a copy after further events.
fn waiting(situation: &Situation<'_>, state: &State, key: StageKey) -> (Outlook, Vec<Stopping>) {
    let plan = situation.propose_on(state).plan;
    let under_way = under_way(situation, state, key);
    let claimed = plan.actions.iter().find_map(|action| match action {
        Action::Claim { stage, placement, .. } if *stage == key => Some(&**placement),
        _ => None,
    });
    let starts = plan.actions.iter().any(|action| match action {
        Action::Start { stage, .. } => *stage == key,
        _ => false,
    });
    let decided = plan.actions.iter().filter_map(|action| match action {
        Action::Stop { lease: id, cause, cost, .. } => {
            let lease = &state.leases()[id];
            let is_for = is_for(*cause, lease, key, claimed);
            let (_, spec, stage) = state.stage(lease.stage);
            let now = || stop_cost(situation.view.rates, spec, stage, lease, situation.view.now);
            is_for.then(|| Stopping {
                stage: lease.stage,
                preemptor: Some(key),
                cause: Some(*cause),
                cost: (*cost).unwrap_or_else(now),
            })
        }
        _ => None,
    });
    let stops: Vec<Stopping> = under_way.into_iter().chain(decided).collect();
    if starts || !stops.is_empty() {
        return (Outlook::Starts, stops);
    }
    let said = plan.waits.iter().find(|(stage, _)| *stage == key).map(|(_, reasons)| reasons);
    let reasons = said.unwrap_or(&state.stage(key).2.wait_reasons).clone();
    (Outlook::Waits { reasons, held: false }, stops)
}

/// Stops that were decided for it and are not over.
fn under_way(situation: &Situation<'_>, state: &State, key: StageKey) -> Vec<Stopping> {
    let claimed = state.claims().get(&key).map(|claim| &*claim.placement);
    let leases = state.leases().values().filter_map(|lease| {
        let Phase::Stopping { cause } = lease.phase else { return None };
        let is_for = is_for(cause, lease, key, claimed);
        let (_, spec, stage) = state.stage(lease.stage);
        let expected = stage.stops.last().and_then(|stop| stop.expected);
        let cost = || stop_cost(situation.view.rates, spec, stage, lease, situation.view.now);
        is_for.then(|| Stopping {
            stage: lease.stage,
            preemptor: Some(key),
            cause: Some(cause),
            cost: expected.unwrap_or_else(cost),
        })
    });
    leases.collect()
}

/// Whether a stop makes room for a stage, which has claimed that placement.
fn is_for(cause: StopCause, lease: &Lease, key: StageKey, claimed: Option<&Placement>) -> bool {
    match cause.preemptor() {
        Some(preemptor) => preemptor == key,
        None => claimed.is_some_and(|claimed| share_a_device(claimed, &lease.placement)),
    }
}

fn share_a_device(one: &Placement, other: &Placement) -> bool {
    let devices: BTreeSet<DeviceId> = one.grants().map(|grant| grant.device).collect();
    other.grants().any(|grant| devices.contains(&grant.device))
}
