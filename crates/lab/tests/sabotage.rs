//! Seeded bugs: does the oracle bite? Each bug is put into the plans of a healthy scheduler,
//! between reconciling and committing, where a mistake of the scheduler would be.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use het_core::{
    Action, Bytes, Checkpoint, Event, Grant, LeaseId, Millis, Plan, Preemptible, Reason, Share,
    StageKey, State, StopCause, StopCost, Time,
};
use het_engine::Engine;
use het_lab::{Scenario, random_scenario};
use het_perf::Rates;
use het_policy::{Cache, Cadence, Policy, Pool, View, by_name, place};
use het_scheduler::{check, propose};
use het_sim::Sim;
use het_testkit::oracle::{Oracle, Strictness};

/// Scenarios in which a bug must show itself.
const SEEDS: u64 = 200;

/// A mistake; returns whether it found something to spoil.
type Bug = fn(&mut Plan, &State) -> bool;

const BUGS: &[(&str, Bug)] = &[
    ("a device is given twice", |plan, _| {
        let other = placements(plan).next().map(|placement| placement.ranks.clone());
        let Some(ranks) = other else { return false };
        let mut starts = starts(plan).skip(1);
        let Some(Action::Start { placement, .. }) = starts.next() else { return false };
        Arc::make_mut(placement).ranks = ranks;
        true
    }),
    ("a rank of the gang is missing", |plan, _| {
        change_placement(plan, |placement| {
            placement.ranks.len() > 1 && placement.ranks.pop().is_some()
        })
    }),
    ("a device of a rank is missing", |plan, _| {
        change_placement(plan, |placement| placement.ranks[0].grants.pop().is_some())
    }),
    ("more of a device is held than was asked for", |plan, _| {
        change_placement(plan, |placement| {
            let Some(Grant { share, .. }) = placement.ranks[0].grants.first_mut() else {
                return false;
            };
            *share += Share::WHOLE;
            true
        })
    }),
    ("memory is promised without end", |plan, _| {
        change_placement(plan, |placement| {
            placement.ranks[0].host.memory = Bytes(u64::MAX / 4);
            true
        })
    }),
    ("a lease number is used again", |plan, state| {
        let newest = state.next_lease().0.saturating_sub(1);
        change_start(plan, |action| {
            let Action::Start { lease, .. } = action else { return false };
            *lease = LeaseId(newest);
            newest > 0
        })
    }),
    ("an attempt number does not grow", |plan, _| {
        change_start(plan, |action| {
            let Action::Start { attempt, .. } = action else { return false };
            *attempt -= 1;
            true
        })
    }),
    ("a resume starts from nothing", |plan, _| {
        change_start(plan, |action| {
            let Action::Start { resume, .. } = action else { return false };
            resume.take().is_some()
        })
    }),
    ("a resume starts from an older checkpoint", |plan, _| {
        change_start(plan, |action| {
            let Action::Start { resume: Some(Checkpoint { step, .. }), .. } = action else {
                return false;
            };
            *step = step.saturating_sub(1);
            true
        })
    }),
    ("a stage starts before what it comes after", |plan, state| {
        let blocked = state.jobs().iter().find_map(|(&job, found)| {
            let stages = found.spec.stage_indices();
            let mut keys = stages.map(|stage| StageKey { job, stage });
            keys.find(|key| {
                !state.is_waiting(*key)
                    && !found.spec.stage(key.stage).after.is_empty()
                    && found.stages[key.stage.index()].attempts == 0
            })
        });
        let Some(blocked) = blocked else { return false };
        change_start(plan, |action| {
            let Action::Start { stage, .. } = action else { return false };
            *stage = blocked;
            true
        })
    }),
    ("nothing is ever started", |plan, _| {
        let before = plan.actions.len();
        plan.actions.retain(|action| !matches!(action, Action::Start { .. }));
        plan.actions.len() < before
    }),
    ("claims are forgotten", |plan, _| {
        let before = plan.actions.len();
        plan.actions.retain(|action| !matches!(action, Action::Claim { .. }));
        plan.actions.len() < before
    }),
    ("an equal is preempted", |plan, state| {
        let leases = state.leases().iter();
        let pair = leases.clone().zip(leases.skip(1)).find(|((_, a), (_, b))| {
            let priority = |key: StageKey| state.stage(key).0.priority();
            priority(a.stage) == priority(b.stage)
        });
        let Some(((&victim, _), (_, other))) = pair else { return false };
        plan.actions.push(preemption(victim, other.stage));
        true
    }),
    ("a limit is forgotten", |plan, state| {
        let over = state.waiting().find_map(|key| {
            let spec = state.stage(key).1;
            let limited = state.stage(key).2.wait_reasons.iter();
            let mut limited = limited.filter(|why| matches!(why, Reason::OverLimit { .. }));
            limited.next()?;
            let mut pool = Pool::of(state);
            for action in &plan.actions {
                if let Action::Start { placement, .. } | Action::Claim { placement, .. } = action {
                    pool.take(placement);
                }
            }
            (0..spec.alternatives.len()).find_map(|i| Some((key, place(&mut pool, spec, i).ok()?)))
        });
        let Some((stage, placement)) = over else { return false };
        let begun = plan.actions.iter().filter(|a| matches!(a, Action::Start { .. })).count();
        let (_, spec, of) = state.stage(stage);
        plan.actions.push(Action::Start {
            lease: LeaseId(state.next_lease().0 + begun as u64),
            stage,
            attempt: of.attempts + 1,
            launch: Arc::clone(&spec.alternatives[placement.alternative].launch),
            placement: Arc::new(placement),
            resume: of.checkpoint.clone(),
            reasons: Vec::new(),
        });
        true
    }),
    ("what is not preemptible is suspended", |plan, state| {
        let never = state.leases().iter().find(|(_, lease)| {
            let preemptible = state.stage(lease.stage).1.preemptible;
            preemptible == Preemptible::Never && !lease.phase.is_stopping()
        });
        let Some((&lease, _)) = never else { return false };
        let (cause, grace) = (StopCause::Quantum, Millis(1_000));
        plan.actions.push(Action::Stop { lease, cause, grace, cost: None });
        true
    }),
    ("what nobody borrowed is reclaimed", |plan, state| {
        let mut waiting = state.waiting();
        let (Some((&lease, _)), Some(preemptor)) = (state.leases().iter().next(), waiting.next())
        else {
            return false;
        };
        let cause = StopCause::Reclaim { preemptor };
        plan.actions.push(Action::Stop { lease, cause, grace: Millis(1_000), cost: None });
        true
    }),
    ("a preemption is not priced", |plan, _| {
        let stops = plan.actions.iter_mut().filter_map(|action| match action {
            Action::Stop { cause: StopCause::Priority { .. }, cost, .. } => Some(cost),
            _ => None,
        });
        stops.map(Option::take).filter(Option::is_some).count() > 0
    }),
    ("a stopping stage is stopped again", |plan, state| {
        let stopping = state.leases().iter().find_map(|(&id, lease)| match lease.phase {
            het_core::Phase::Stopping { cause } => Some((id, cause)),
            _ => None,
        });
        let Some((lease, cause)) = stopping else { return false };
        let grace = Millis(1_000);
        plan.actions.push(Action::Stop { lease, cause, grace, cost: None });
        true
    }),
    ("a generation is used again", |plan, state| {
        plan.generation = state.generation();
        plan.generation.0 > 0
    }),
    ("a waiting stage has no reason", |plan, _| {
        plan.waits.iter_mut().map(|(_, reasons)| reasons.clear()).count() > 0
    }),
];

fn decide(state: &State, policy: &dyn Policy, now: Time) -> Plan {
    let rates = Rates::default();
    let view = View { state, rates: &rates, now, cadence: Cadence::default() };
    propose(&view, policy, &mut Cache::default()).plan
}

fn preemption(lease: LeaseId, preemptor: StageKey) -> Action {
    let cost = StopCost { gain: het_core::ShareMillis(1), ..StopCost::default() };
    let cause = StopCause::Priority { preemptor };
    Action::Stop { lease, cause, grace: Millis(1_000), cost: Some(cost) }
}

fn starts(plan: &mut Plan) -> impl Iterator<Item = &mut Action> {
    plan.actions.iter_mut().filter(|action| matches!(action, Action::Start { .. }))
}

fn placements(plan: &Plan) -> impl Iterator<Item = &het_core::Placement> {
    plan.actions.iter().filter_map(|action| match action {
        Action::Start { placement, .. } => Some(&**placement),
        _ => None,
    })
}

fn change_start(plan: &mut Plan, mut change: impl FnMut(&mut Action) -> bool) -> bool {
    starts(plan).any(&mut change)
}

fn change_placement(
    plan: &mut Plan,
    mut change: impl FnMut(&mut het_core::Placement) -> bool,
) -> bool {
    change_start(plan, |action| match action {
        Action::Start { placement, .. } => change(Arc::make_mut(placement)),
        _ => false,
    })
}

/// Plays a scenario with the bug in every plan it can spoil; what the oracle says first.
fn play(seed: u64, bug: Bug) -> Option<String> {
    let scenario = random_scenario(seed);
    let topology = Arc::new(scenario.topology.clone());
    let policy = by_name("adaptive").expect("the table has it");
    let mut oracle = Oracle::new(Arc::clone(&topology), Strictness::Ours);
    let mut state = State::new(Arc::clone(&topology));
    let words = Scenario { words: Vec::new(), ..scenario.clone() }.said();
    let faults = scenario.faults.iter().cloned();
    let mut sim = Sim::new(topology, scenario.models.clone(), words, faults);
    for _ in 0..5_000 {
        let due = state.next_eligible();
        let next = sim.next_event(due);
        let at = next.as_ref().map_or(sim.now(), |(at, _)| *at);
        if next.is_none() && due.is_none() {
            break;
        }
        let events = next.map(|(_, event)| event);
        for event in events.into_iter().chain(state.eligibility_events(at)) {
            oracle.see(at, &event);
            state.apply(at, &event);
        }
        let mut plan = decide(&state, policy, at);
        bug(&mut plan, &state);
        if !plan.is_empty() {
            let committed = Event::PlanCommitted { plan: Arc::new(plan.clone()) };
            oracle.see(at, &committed);
            if let Some(found) = oracle.violations().first() {
                return Some(found.clone());
            }
            // A bug that the oracle lets pass may still be stopped by the state's own assertions.
            let applied = catch_unwind(AssertUnwindSafe(|| state.apply(at, &committed)));
            if applied.is_err() {
                return Some("the state refused it".to_owned());
            }
            sim.submit(&plan);
        }
        oracle.turn_is_over();
        if let Some(found) = oracle.violations().first() {
            return Some(found.clone());
        }
    }
    oracle.all_ended();
    oracle.violations().first().cloned()
}

#[test]
fn every_seeded_bug_is_caught() {
    let mut missed = Vec::new();
    for (name, bug) in BUGS {
        match (1..=SEEDS).find_map(|seed| Some((seed, play(seed, *bug)?))) {
            Some((seed, found)) => println!("{name}: seed {seed}: {found}"),
            None => missed.push(*name),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
    assert!(BUGS.len() >= 10);
}

#[test]
fn without_a_bug_nothing_is_blamed() {
    for seed in 1..=20 {
        assert_eq!(play(seed, |_, _| false), None, "seed {seed}");
    }
}

#[test]
fn the_check_before_commit_catches_what_would_break_a_law() {
    let mut caught = 0;
    for seed in 1..=50 {
        let scenario = random_scenario(seed);
        let mut state = State::new(Arc::new(scenario.topology.clone()));
        for (_, event) in (Scenario { words: Vec::new(), ..scenario }).said() {
            state.apply(Time(1), &event);
        }
        let policy = by_name("adaptive").expect("the table has it");
        let healthy = decide(&state, policy, Time(1));
        assert_eq!(check(&state, &healthy, Time(1)), [], "seed {seed}");
        for (_, bug) in &BUGS[..5] {
            let mut plan = healthy.clone();
            if bug(&mut plan, &state) {
                assert_ne!(check(&state, &plan, Time(1)), [], "seed {seed}");
                caught += 1;
            }
        }
    }
    assert!(caught > 100, "{caught} spoiled plans");
}
