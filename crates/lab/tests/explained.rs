//! What people are told about stages that wait: the reasons are those that were recorded, and every
//! "it would start" comes true once it is done.
//!
//! `HET_SEED=N cargo test -p het-lab --test explained` asks about one scenario alone.

use std::cell::RefCell;
use std::sync::Arc;

use het_control::{MemoryLog, Past};
use het_core::{Action, Domain, Event, JobChange, JobSpec, StageIndex, StageKey, StageSpec, State};
use het_lab::{Draw, Scenario, play, random_scenario};
use het_policy::{Cache, Policy, View, by_name};
use het_scheduler::{Situation, WhatIf, explain, propose};

const SCENARIOS: u64 = 1_000;

/// Questions for each of them, at most.
const QUESTIONS: usize = 6;

#[test]
fn what_is_told_is_what_was_decided_and_what_would_be() {
    let seeds = match std::env::var("HET_SEED") {
        Ok(seed) => vec![seed.parse().expect("HET_SEED is a number")],
        Err(_) => (1..=SCENARIOS).collect(),
    };
    let (mut questions, mut options) = (0, 0);
    for seed in seeds {
        let (asked, told) = ask(&random_scenario(seed));
        questions += asked;
        options += told;
    }
    println!("{questions} questions, {options} options");
}

/// Plays a scenario and asks now and then; how often, and how many options were told.
fn ask(scenario: &Scenario) -> (usize, usize) {
    let policy = by_name("adaptive").expect("the table has it");
    let played = play(scenario, policy, MemoryLog::default(), |_, _| ()).expect("it ends");
    let mut past = Past {
        state: State::new(Arc::new(scenario.topology.clone())),
        rates: scenario.rates.clone(),
    };
    // One for all questions, as a server has it.
    let cache = RefCell::default();
    let mut draw = Draw::new(scenario.seed, 90);
    let (mut asked, mut told) = (0, 0);
    let mut events = played.log().0.iter().peekable();
    while let Some((at, event)) = events.next() {
        past.apply(*at, event);
        let decided = matches!(event, Event::PlanCommitted { .. });
        let is_last = events.peek().is_none_or(|(next, _)| next > at);
        let waiting: Vec<StageKey> = past.state.waiting().collect();
        if !decided || !is_last || waiting.is_empty() || !draw.chance(40) || asked == QUESTIONS {
            continue;
        }
        let key = *draw.pick(&waiting);
        asked += 1;
        let view =
            View { state: &past.state, rates: &past.rates, now: *at, cadence: scenario.cadence };
        told += check(scenario.seed, &Situation { view, policy, cache: &cache }, key);
    }
    (asked, told)
}

/// How many options were told.
fn check(seed: u64, situation: &Situation<'_>, key: StageKey) -> usize {
    let Situation { view, policy, .. } = *situation;
    let View { state, now, .. } = view;
    let told = explain(situation, key);
    let recorded = &state.stage(key).2.wait_reasons;
    assert!(
        !recorded.is_empty(),
        "seed {seed} at {} ms, {key:?}: it waits, and nothing says why; {:?} {:?}",
        now.0,
        state.stage(key).2.state,
        state.claims().get(&key),
    );
    assert_eq!(told.wait_reasons, *recorded, "seed {seed}, {key:?}");
    for option in &told.what_if {
        let (stage, stops) = apply(&view, key, option);
        let fork = &stage.0;
        let proposal = propose(&View { state: fork, ..view }, policy, &mut Cache::default());
        assert_eq!(proposal.findings, [], "seed {seed}, {option:?}");
        let given = proposal.plan.actions.iter().any(|action| match action {
            Action::Start { stage: of, .. } => *of == stage.1,
            Action::Claim { stage: of, .. } => *of == stage.1 && !stops.is_empty(),
            _ => false,
        });
        assert!(given, "seed {seed} at {} ms, {key:?}: {option:?} is not true", now.0);
        let stopped = proposal.plan.actions.iter().filter_map(|action| match action {
            Action::Stop { lease, .. } => Some(fork.leases()[lease].stage),
            _ => None,
        });
        let mut others: Vec<StageKey> = stopped.filter(|of| of.job != key.job).collect();
        others.retain(|of| !stops.contains(of));
        let due = round_stops(&view, policy);
        others.retain(|of| !due.contains(of));
        assert_eq!(others, [], "seed {seed}, {option:?}: others are stopped too");
    }
    told.what_if.len()
}

/// Who is stopped anyway.
fn round_stops(view: &View<'_>, policy: &dyn Policy) -> Vec<StageKey> {
    let plan = propose(view, policy, &mut Cache::default()).plan;
    let stops = plan.actions.iter().filter_map(|action| match action {
        Action::Stop { lease, .. } => Some(view.state.leases()[lease].stage),
        _ => None,
    });
    stops.collect()
}

/// A copy of the state in which somebody did what an option says, the stage to look at there, and
/// whom that is said to stop.
fn apply(view: &View<'_>, key: StageKey, option: &WhatIf) -> ((State, StageKey), Vec<StageKey>) {
    let mut fork = view.state.clone();
    let (job, spec, _) = view.state.stage(key);
    let relaxed = match option {
        WhatIf::HigherPriority { priority, stops } => {
            let change = JobChange { priority: Some(*priority), time_limit: None };
            fork.apply(view.now, &Event::JobChanged { job: key.job, change });
            return ((fork, key), stops.clone());
        }
        WhatIf::AnyDomain => StageSpec { within: Domain::Any, ..spec.clone() },
        WhatIf::FewerDevices { word, count } => {
            let mut alternatives = spec.alternatives.iter();
            let more = alternatives.find(|a| a.selector.word == *word && a.count > *count);
            let mut fewer = more.expect("the option names one").clone();
            fewer.count = *count;
            StageSpec { alternatives: vec![fewer], ..spec.clone() }
        }
    };
    let relaxed = StageSpec { after: Vec::new(), follows: Vec::new(), ..relaxed };
    let id = fork.next_job();
    let spec = JobSpec { stages: vec![relaxed], ..(*job.spec).clone() };
    fork.apply(view.now, &Event::JobCancelled { job: key.job });
    let (spec, succeeded, checkpoints) = (Arc::new(spec), Vec::new(), Vec::new());
    fork.apply(view.now, &Event::JobSubmitted { job: id, spec, succeeded, checkpoints });
    ((fork, StageKey { job: id, stage: StageIndex(0) }), Vec::new())
}
