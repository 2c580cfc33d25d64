//! What a dry run says is what the next decision does, and no cheaper set of victims would do.
//!
//! `HET_SEED=N cargo test -p het-lab --test previews` looks at one scenario alone.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use het_control::{MemoryLog, Past};
use het_core::{
    Action, Event, LeaseId, Phase, Placement, Plan, Priority, ShareMillis, StageKey, StageState,
    State, StopCause, Time,
};
use het_lab::{Draw, Scenario, play, random_scenario};
use het_perf::stop_cost;
use het_policy::{PREEMPTIONS_MAX, Policy, Pool, View, by_name, place};
use het_scheduler::{Outlook, Situation, preview};

/// Each gives one state.
const SCENARIOS: u64 = 200;

/// Of which all sets are looked at.
const CANDIDATES_MAX: usize = 10;

fn seeds(last: u64) -> Vec<u64> {
    match std::env::var("HET_SEED") {
        Ok(seed) => vec![seed.parse().expect("HET_SEED is a number")],
        Err(_) => (1..=last).collect(),
    }
}

fn stops(plan: &Plan) -> impl Iterator<Item = (LeaseId, StopCause)> + '_ {
    plan.actions.iter().filter_map(|action| match action {
        Action::Stop { lease, cause, .. } => Some((*lease, *cause)),
        _ => None,
    })
}

/// Plays a scenario and shows every state in which a plan was made, and that plan.
fn replay(
    scenario: &Scenario,
    policy: &'static dyn Policy,
    mut see: impl FnMut(&Past, Time, &Plan),
) {
    let played = play(scenario, policy, MemoryLog::default(), |_, _| ()).expect("it ends");
    let mut past = Past {
        state: State::new(Arc::new(scenario.topology.clone())),
        rates: scenario.rates.clone(),
    };
    for (at, event) in &played.log().0 {
        if let Event::PlanCommitted { plan } = event {
            see(&past, *at, plan);
        }
        past.apply(*at, event);
    }
}

#[test]
fn what_a_dry_run_says_is_what_the_next_decision_does() {
    let policy = by_name("adaptive").expect("the table has it");
    let (mut states, mut stopped, mut started) = (0, 0, 0);
    for seed in seeds(SCENARIOS) {
        let scenario = random_scenario(seed);
        let mut plans = Vec::new();
        replay(&scenario, policy, |_, _, plan| plans.push(stops(plan).next().is_some()));
        let mut draw = Draw::new(seed, 91);
        // Every other one of those that stop somebody, where there are any.
        let with_stops: Vec<usize> = (0..plans.len()).filter(|&plan| plans[plan]).collect();
        let chosen = match with_stops.is_empty() || seed % 2 == 0 {
            true => draw.between(0, plans.len() as u64 - 1) as usize,
            false => *draw.pick(&with_stops),
        };
        let mut number = 0;
        replay(&scenario, policy, |past, at, plan| {
            if number == chosen {
                states += 1;
                let (state, rates) = (&past.state, &past.rates);
                let view = View { state, rates, now: at, cadence: scenario.cadence };
                let situation = Situation { view, policy, cache: &RefCell::default() };
                let (stops, starts) = check_previews(seed, &situation, plan);
                stopped += stops;
                started += starts;
            }
            number += 1;
        });
    }
    println!("{states} states, {stopped} stops, {started} starts");
    assert!(std::env::var("HET_SEED").is_ok() || (stopped > 50 && started > 50));
}

/// Asks about every stage; how many stops and starts were told.
fn check_previews(seed: u64, situation: &Situation<'_>, plan: &Plan) -> (usize, usize) {
    let state = situation.view.state;
    let keys = state.jobs().iter().flat_map(|(&job, found)| {
        found.spec.stage_indices().map(move |stage| StageKey { job, stage })
    });
    let (mut stopped, mut started) = (0, 0);
    for key in keys {
        let told = preview(situation, key);
        let context = format!("seed {seed} at {} ms, {key}: {told:?}", situation.view.now.0);
        match state.stage(key).2.state {
            StageState::Active { lease } => {
                let decided = stops(plan).find(|(id, _)| *id == lease).map(|(_, cause)| cause);
                let stopping = match state.leases()[&lease].phase {
                    Phase::Stopping { cause } => Some(cause),
                    _ => decided,
                };
                assert_eq!(told.outlook == Outlook::Stops, stopping.is_some(), "{context}");
                if stopping.is_some() {
                    assert_eq!(told.stops[0].cause, stopping, "{context}");
                }
                stopped += usize::from(decided.is_some());
            }
            _ if state.is_waiting(key) => {
                let is_for = |(id, cause): (LeaseId, StopCause)| {
                    (cause.preemptor() == Some(key)).then(|| state.leases()[&id].stage)
                };
                let victims: BTreeSet<StageKey> = stops(plan).filter_map(is_for).collect();
                let named: BTreeSet<StageKey> = told.stops.iter().map(|stop| stop.stage).collect();
                assert!(victims.is_subset(&named), "{context}: not {victims:?}");
                let starts = plan
                    .actions
                    .iter()
                    .any(|action| matches!(action, Action::Start { stage, .. } if *stage == key));
                let is_given = starts || !named.is_empty();
                assert_eq!(told.outlook == Outlook::Starts, is_given, "{context}");
                started += usize::from(starts);
            }
            _ => assert!(told.stops.is_empty() || state.job(key.job).is_some_and(|job| job.held)),
        }
    }
    (stopped, started)
}

#[test]
fn no_cheaper_set_of_victims_would_do() {
    let mut checked = 0;
    for name in ["adaptive", "dynamic"] {
        let policy = by_name(name).expect("the table has it");
        for seed in seeds(2 * SCENARIOS) {
            let scenario = random_scenario(seed);
            replay(&scenario, policy, |past, at, plan| {
                let (state, rates) = (&past.state, &past.rates);
                let view = View { state, rates, now: at, cadence: scenario.cadence };
                checked += usize::from(check_victims(seed, &view, plan));
            });
        }
    }
    println!("{checked} preemptions");
    assert!(std::env::var("HET_SEED").is_ok() || checked > 50, "{checked}");
}

/// What a set of victims comes to: the highest priority in it, then its cost.
type Worth = (Option<Priority>, ShareMillis);

/// Tries every set of victims for the one stage that a plan preempts for; whether that could be
/// said of the plan. Under quotas whom one may stop depends on who else is stopped: scenes of the
/// policy show that.
fn check_victims(seed: u64, view: &View<'_>, plan: &Plan) -> bool {
    let View { state, rates, now, .. } = *view;
    // What a victim goes on with is taken of what it frees.
    if stops(plan).any(|(_, cause)| matches!(cause, StopCause::Shrink { .. })) {
        return false;
    }
    let preempted: Vec<(LeaseId, StageKey)> = stops(plan)
        .filter_map(|(id, cause)| match cause {
            StopCause::Priority { preemptor } => Some((id, preemptor)),
            _ => None,
        })
        .collect();
    let preemptors: BTreeSet<StageKey> = preempted.iter().map(|(_, key)| *key).collect();
    let [key] = preemptors.iter().copied().collect::<Vec<_>>()[..] else { return false };
    let Some(shape) = claim_of(plan, key) else { return false };
    let Some(pool) = pool_beside(state, plan, key) else { return false };
    if !state.quotas().is_empty() || state.yielding().next().is_some() {
        return false;
    }
    let (job, spec, _) = state.stage(key);
    let elsewise: BTreeSet<LeaseId> =
        stops(plan).map(|(id, _)| id).filter(|id| preempted.iter().all(|(o, _)| o != id)).collect();
    let may = |(id, lease): &(&LeaseId, &het_core::Lease)| {
        let (theirs, spec, stage) = state.stage(lease.stage);
        theirs.priority() < job.priority()
            && !lease.phase.is_stopping()
            && stage.preemptions < PREEMPTIONS_MAX
            && spec.preemptible.allows(lease.since, now)
            && !elsewise.contains(*id)
    };
    let candidates: Vec<LeaseId> = state.leases().iter().filter(may).map(|(id, _)| *id).collect();
    if candidates.len() > CANDIDATES_MAX {
        return false;
    }
    let worth = |set: &[LeaseId]| -> Worth {
        let priority = |id: &LeaseId| state.stage(state.leases()[id].stage).0.priority();
        let cost = |id: &LeaseId| {
            let lease = &state.leases()[id];
            let (_, spec, stage) = state.stage(lease.stage);
            stop_cost(rates, spec, stage, lease, now).cost
        };
        (set.iter().map(priority).max(), set.iter().map(cost).sum())
    };
    let chosen: Vec<LeaseId> = preempted.iter().map(|(id, _)| *id).collect();
    // The gain doubles with every step of priority between the two.
    let gap = |(highest, _): Worth| job.priority() as u32 - highest.map_or(0, |p| p as u32);
    let pays = |set: Worth| {
        let more = gap(set) - gap(worth(&chosen));
        set.0.is_some() && set.1.0 < gain_of(plan, key).0 << more
    };
    for set in 0_u32..1 << candidates.len() {
        let rows = candidates.iter().enumerate().filter(|(row, _)| set & (1 << row) != 0);
        let set: Vec<LeaseId> = rows.map(|(_, id)| *id).collect();
        if worth(&set) < worth(&chosen) && pays(worth(&set)) {
            let mut freed = pool.clone();
            set.iter().for_each(|id| freed.give_back(&state.leases()[id].placement));
            let fits = place(&mut freed, spec, shape.alternative).is_ok();
            assert!(
                !fits,
                "seed {seed} at {} ms, {key}: {set:?} would do for {:?}, not {chosen:?} for {:?}",
                now.0,
                worth(&set),
                worth(&chosen)
            );
        }
    }
    true
}

/// What the preemption for a stage brings, as recorded.
fn gain_of(plan: &Plan, key: StageKey) -> ShareMillis {
    let gain = |action: &Action| match action {
        Action::Stop { cause, cost: Some(cost), .. } if cause.preemptor() == Some(key) => {
            Some(cost.gain)
        }
        _ => None,
    };
    plan.actions.iter().find_map(gain).unwrap_or_default()
}

fn claim_of(plan: &Plan, key: StageKey) -> Option<&Placement> {
    plan.actions.iter().find_map(|action| match action {
        Action::Claim { stage, placement, .. } if *stage == key => Some(&**placement),
        _ => None,
    })
}

/// What is free beside all that a plan gives to others; `None` where that needs what the victims
/// free, so that nobody can tell what was free before.
fn pool_beside<'a>(state: &'a State, plan: &Plan, key: StageKey) -> Option<Pool<'a>> {
    let mut pool = Pool::of(state);
    if state.claims().contains_key(&key) {
        return None;
    }
    for action in &plan.actions {
        let (Action::Start { stage, placement, .. } | Action::Claim { stage, placement, .. }) =
            action
        else {
            continue;
        };
        if *stage == key {
            continue;
        }
        if state.claims().contains_key(stage) || !pool.covers(placement) {
            return None;
        }
        pool.take(placement);
    }
    Some(pool)
}
