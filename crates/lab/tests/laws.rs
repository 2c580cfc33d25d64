//! Random scenarios with faults: every law after every event, replay, determinism.
//!
//! A failure prints its seed; `HET_SEED=N cargo test -p het-lab --test laws` plays that one alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_control::MemoryLog;
use het_core::{Action, Event, Millis, Reason, State, StopCause};
use het_lab::{
    Cadence, Retention, Scenario, play, random_changing_scenario, random_scenario,
    with_start_conditions, with_warm_starts,
};
use het_policy::{Cache, Decision, Policy, View, by_name};
use het_sim::Fault;
use het_testkit::oracle::{Oracle, Strictness};

/// Scenarios a policy; five policies of ours make the thousand of a CI run.
const SCENARIOS: u64 = 200;

/// Shorter than most stages, so that time is shared.
const ROUND: Millis = Millis::seconds(10);

/// Shorter than most stages too.
const QUANTUM: Millis = Millis::seconds(15);

fn seeds() -> Vec<u64> {
    match std::env::var("HET_SEED") {
        Ok(seed) => vec![seed.parse().expect("HET_SEED is a number")],
        Err(_) => (1..=SCENARIOS).collect(),
    }
}

fn strictness(policy: &str) -> Strictness {
    if ["fifo", "fgd"].contains(&policy) { Strictness::EveryPolicy } else { Strictness::Ours }
}

/// Plays one scenario under the oracle; the log if no law was broken.
fn play_seed(seed: u64, policy: &str) -> Result<MemoryLog, String> {
    play_scenario(&random_scenario(seed), policy, strictness(policy))
}

/// The same with the shortest quantum, so that equals share time.
fn play_sharing(seed: u64, policy: &str) -> Result<MemoryLog, String> {
    let cadence = Cadence::EveryEvent { quantum: Some(QUANTUM) };
    play_scenario(&Scenario { cadence, ..random_scenario(seed) }, policy, strictness(policy))
}

/// The same with decisions in rounds. Which stages wait on purpose is then up to the round.
fn play_in_rounds(seed: u64, policy: &str) -> Result<MemoryLog, String> {
    let scenario = Scenario { cadence: Cadence::Rounds(ROUND), ..random_scenario(seed) };
    play_scenario(&scenario, policy, Strictness::EveryPolicy)
}

fn play_scenario(
    scenario: &Scenario,
    policy: &str,
    strictness: Strictness,
) -> Result<MemoryLog, String> {
    let seed = scenario.seed;
    let topology = Arc::new(scenario.topology.clone());
    let quantum = match scenario.cadence {
        Cadence::Rounds(_) => Millis::ZERO,
        Cadence::EveryEvent { quantum } => quantum.unwrap_or(QUANTUM),
    };
    let mut oracle = Oracle::new(Arc::clone(&topology), strictness).with_quantum(quantum);
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
        play(scenario, by_name(policy).expect("the table has it"), MemoryLog::default(), observe)
            .map_err(|error| format!("{error}"))?;
    oracle.all_ended();
    match oracle.violations() {
        [] => Ok(control.log().clone()),
        broken => Err(broken[..broken.len().min(5)].join("\n  ")),
    }
}

fn check(policy: &str) {
    check_with(policy, play_seed);
}

fn check_with(policy: &str, play_seed: impl Fn(u64, &str) -> Result<MemoryLog, String>) {
    let failed: Vec<String> = seeds()
        .into_iter()
        .filter_map(|seed| {
            let why = play_seed(seed, policy).err()?;
            Some(format!(
                "{} breaks laws with seed {seed}:\n  {why}\n  replay: HET_SEED={seed} cargo test \
                 -p het-lab --test laws {}",
                policy, policy
            ))
        })
        .collect();
    assert!(failed.is_empty(), "{} failures\n{}", failed.len(), failed[0]);
}

/// The state forgets ended jobs almost at once.
fn play_forgetting(seed: u64, policy: &str) -> Result<MemoryLog, String> {
    let retention = Retention::Newest(seed as usize % 4);
    let scenario = Scenario { retention, ..random_scenario(seed) };
    play_scenario(&scenario, policy, strictness(policy))
}

#[test]
fn forgetting_ended_jobs_keeps_the_laws() {
    for policy in ["fifo", "adaptive", "fgd"] {
        check_with(policy, play_forgetting);
    }
}

/// Jobs wait for others, for a time, and for their turn in an array.
fn play_conditional(seed: u64, policy: &str) -> Result<MemoryLog, String> {
    play_scenario(&with_start_conditions(random_scenario(seed)), policy, strictness(policy))
}

#[test]
fn start_conditions_are_kept() {
    for policy in ["fifo", "static", "dynamic", "hybrid", "adaptive"] {
        check_with(policy, play_conditional);
    }
}

/// Nodes join and leave, lose devices, and are used by others.
fn play_changing(seed: u64, policy: &str) -> Result<MemoryLog, String> {
    play_scenario(&random_changing_scenario(seed), policy, strictness(policy))
}

/// Programs of stages that wait are started before they have devices.
fn play_warm(seed: u64, policy: &str) -> Result<MemoryLog, String> {
    play_scenario(&with_warm_starts(random_changing_scenario(seed), 80), policy, strictness(policy))
}

#[test]
fn warm_starts_keep_the_laws() {
    for policy in ["fifo", "hybrid", "fgd", "adaptive"] {
        check_with(policy, play_warm);
    }
}

/// Who starts when and where, and who stops when.
fn starts_and_stops(log: &MemoryLog) -> Vec<String> {
    let plans = log.0.iter().filter_map(|(at, event)| match event {
        Event::PlanCommitted { plan } => Some((at, plan)),
        _ => None,
    });
    let mut stages = BTreeMap::new();
    let mut told = Vec::new();
    for (at, action) in plans.flat_map(|(at, plan)| plan.actions.iter().map(move |it| (at, it))) {
        match action {
            Action::Start { lease, stage, placement, .. } => {
                stages.insert(*lease, *stage);
                told.push(format!("{at:?} start {stage} {placement:?}"));
            }
            Action::Stop { lease, cause, .. } => {
                told.push(format!("{at:?} stop {} {cause:?}", stages[lease]));
            }
            _ => {}
        }
    }
    told
}

/// Where nothing runs into a tie of leases, whose numbers are others: without drains, and in the
/// order of submission.
#[test]
fn what_is_prepared_changes_no_decision() {
    for seed in seeds() {
        let mut cold = random_scenario(seed);
        cold.words.retain(|(_, word)| !matches!(word, Event::StageYields { .. }));
        cold.faults.retain(|(_, fault)| !matches!(fault, Fault::DeviceDrained { .. }));
        let warm = with_warm_starts(cold.clone(), 0);
        let [cold, warm] = [&cold, &warm].map(|scenario| {
            let log = play_scenario(scenario, "fifo", strictness("fifo"));
            starts_and_stops(&log.expect("it is legal"))
        });
        assert!(cold == warm, "another decision with seed {seed}");
    }
}

/// `static` is not among them: it gives a job to devices that may leave for good.
#[test]
fn clusters_that_change_keep_the_laws() {
    for policy in ["fifo", "dynamic", "hybrid", "feedback", "adaptive"] {
        check_with(policy, play_changing);
    }
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
fn feedback_keeps_the_laws() {
    check("feedback");
}

#[test]
fn adaptive_keeps_the_laws() {
    check("adaptive");
}

#[test]
fn adaptive_keeps_the_laws_where_equals_share_time() {
    check_with("adaptive", play_sharing);
}

#[test]
fn placing_in_order_keeps_the_laws() {
    check("fgd");
}

#[test]
fn adaptive_keeps_the_laws_in_rounds() {
    check_with("adaptive", play_in_rounds);
}

#[test]
fn shares_keep_the_laws_in_rounds() {
    check_with("max-min-fairness-perf", play_in_rounds);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for seed in seeds().into_iter().take(20) {
        let bytes = |log: MemoryLog| format!("{:?}", log.0).into_bytes();
        let first = play_sharing(seed, "adaptive").map(bytes);
        let second = play_sharing(seed, "adaptive").map(bytes);
        assert_eq!(first, second, "seed {seed}");
    }
}

/// A policy of which nothing but the state outlives a decision.
#[derive(Debug)]
struct Forgetful(&'static dyn Policy);

impl Policy for Forgetful {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn decide(&self, view: &View<'_>, _: &mut Cache) -> Decision {
        self.0.decide(view, &mut Cache::default())
    }
}

/// Whatever a policy keeps beside the state only saves work: a restart changes no decision.
#[test]
fn a_decision_follows_from_the_state() {
    let events = Cadence::EveryEvent { quantum: Some(QUANTUM) };
    let rounds = Cadence::Rounds(ROUND);
    let ours = ["fifo", "static", "dynamic", "hybrid", "feedback", "adaptive", "fgd"];
    let theirs = ["adaptive", "max-min-fairness-perf"];
    let ours = ours.map(|name| (name, events));
    for (name, cadence) in ours.into_iter().chain(theirs.map(|name| (name, rounds))) {
        let policy = by_name(name).expect("the table has it");
        let forgetful: &'static dyn Policy = Box::leak(Box::new(Forgetful(policy)));
        for seed in seeds().into_iter().take(100) {
            let scenario = Scenario { cadence, ..random_scenario(seed) };
            let log = |policy| {
                let control = play(&scenario, policy, MemoryLog::default(), |_, _| ());
                control.expect("it ends").log().0.clone()
            };
            let (kept, forgotten) = (log(policy), log(forgetful));
            let differ = |(one, other): &(&_, &_)| one != other;
            if let Some((one, other)) = kept.iter().zip(&forgotten).find(differ) {
                panic!("{name}, seed {seed}:\n  {one:?}\nwithout its cache\n  {other:?}");
            }
            assert_eq!(kept.len(), forgotten.len(), "{name}, seed {seed}");
        }
    }
}

#[test]
fn scenarios_exercise_what_they_are_for() {
    let (mut stops, mut claims, mut losses, mut resumed) = (0, 0, 0, 0);
    let (mut limited, mut reclaimed, mut turns, mut drained) = (0, 0, 0, 0);
    let (mut rejected, mut shrunk) = (0, 0);
    for seed in 1..=250 {
        let log = play_sharing(seed, "adaptive").expect("the seed keeps the laws");
        for (_, event) in &log.0 {
            match event {
                Event::PlanCommitted { plan } => {
                    let reasons = plan.waits.iter().flat_map(|(_, reasons)| reasons);
                    limited += reasons.filter(|r| matches!(r, Reason::OverLimit { .. })).count();
                    for action in &plan.actions {
                        match action {
                            Action::Stop { cause: StopCause::Reclaim { .. }, .. } => reclaimed += 1,
                            Action::Stop { cause: StopCause::Shrink { .. }, .. } => shrunk += 1,
                            Action::Stop { cause, .. } => {
                                stops += 1;
                                turns += u32::from(*cause == StopCause::Quantum);
                                drained += u32::from(*cause == StopCause::Drain);
                            }
                            Action::Claim { .. } => claims += 1,
                            Action::Start { resume: Some(_), .. } => resumed += 1,
                            _ => {}
                        }
                    }
                }
                Event::NodeLost { .. } => losses += 1,
                Event::CheckpointRejected { .. } => rejected += 1,
                _ => {}
            }
        }
    }
    println!("rejected {rejected}, shrunk {shrunk}");
    println!("stops {stops}, claims {claims}, losses {losses}, resumed {resumed}");
    println!("limited {limited}, reclaimed {reclaimed}, turns {turns}, drained {drained}");
    assert!(limited > 10 && reclaimed > 10 && turns > 10 && drained > 10);
    assert!(rejected > 10 && shrunk > 10);
    assert!(stops > 20 && claims > 20 && losses > 20 && resumed > 20);
}
