//! Random scenarios with faults: every law after every event, replay, determinism.
//!
//! A failure prints its seed; `HET_SEED=N cargo test -p het-lab --test laws` plays that one alone.

use std::sync::Arc;

use het_control::MemoryLog;
use het_core::{Event, State};
use het_lab::{Scenario, drive};
use het_policy::by_name;
use het_testkit::oracle::{Oracle, Strictness};

/// Scenarios a policy; five policies make the thousand of a CI run.
const SCENARIOS: u64 = 200;

fn seeds() -> Vec<u64> {
    match std::env::var("HET_SEED") {
        Ok(seed) => vec![seed.parse().expect("HET_SEED is a number")],
        Err(_) => (1..=SCENARIOS).collect(),
    }
}

fn strictness(policy: &str) -> Strictness {
    if policy == "fifo" { Strictness::EveryPolicy } else { Strictness::Ours }
}

/// Plays one scenario under the oracle; the log if no law was broken.
fn play(seed: u64, policy: &str) -> Result<MemoryLog, String> {
    let scenario = Scenario::random(seed);
    let topology = Arc::new(scenario.topology.clone());
    let mut oracle = Oracle::new(Arc::clone(&topology), strictness(policy));
    let mut shadow = State::new(topology);
    let observe = |turn: &het_control::Turn, live: &State| {
        for (at, event) in &turn.events {
            oracle.see(*at, event);
            shadow.apply(*at, event);
            oracle.compare(&shadow);
        }
        oracle.turn_is_over();
        assert_eq!(&shadow, live, "seed {seed}: replaying the log gives another state");
    };
    let control =
        drive(&scenario, by_name(policy).expect("the table has it"), MemoryLog::default(), observe)
            .map_err(|error| format!("{error}"))?;
    oracle.all_ended();
    match oracle.violations() {
        [] => Ok(control.log().clone()),
        broken => Err(broken[..broken.len().min(5)].join("\n  ")),
    }
}

fn check(policy: &str) {
    let failed: Vec<String> = seeds()
        .into_iter()
        .filter_map(|seed| {
            let why = play(seed, policy).err()?;
            Some(format!(
                "{} breaks laws with seed {seed}:\n  {why}\n  replay: HET_SEED={seed} cargo test \
                 -p het-lab --test laws {}",
                policy, policy
            ))
        })
        .collect();
    assert!(failed.is_empty(), "{} failures\n{}", failed.len(), failed[0]);
}

#[test]
fn fifo_keeps_the_laws() {
    check("fifo");
}

#[test]
fn static_keeps_the_laws() {
    check("static");
}

#[test]
fn dynamic_keeps_the_laws() {
    check("dynamic");
}

#[test]
fn hybrid_keeps_the_laws() {
    check("hybrid");
}

#[test]
fn adaptive_keeps_the_laws() {
    check("adaptive");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for seed in seeds().into_iter().take(20) {
        let bytes = |log: MemoryLog| format!("{:?}", log.0).into_bytes();
        let first = play(seed, "adaptive").map(bytes);
        let second = play(seed, "adaptive").map(bytes);
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn scenarios_exercise_what_they_are_for() {
    let (mut stops, mut claims, mut losses, mut resumed) = (0, 0, 0, 0);
    for seed in 1..=50 {
        let log = play(seed, "adaptive").expect("the seed keeps the laws");
        for (_, event) in &log.0 {
            match event {
                Event::PlanCommitted { plan } => {
                    for action in &plan.actions {
                        match action {
                            het_core::Action::Stop { .. } => stops += 1,
                            het_core::Action::Claim { .. } => claims += 1,
                            het_core::Action::Start { resume: Some(_), .. } => resumed += 1,
                            _ => {}
                        }
                    }
                }
                Event::NodeLost { .. } => losses += 1,
                _ => {}
            }
        }
    }
    println!("stops {stops}, claims {claims}, losses {losses}, resumed {resumed}");
    assert!(stops > 20 && claims > 20 && losses > 20 && resumed > 20);
}
