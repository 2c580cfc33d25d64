//! What is simulated is what runs: the same workload, played through the control loop with the fake
//! engine and in the simulator, is decided alike.

use std::path::Path;
use std::sync::Arc;

use het_control::{Controller, MemoryLog};
use het_core::{Event, Millis, Plan, State, Time};
use het_engine::{Fake, Script};
use het_lab::workload::{Speeds, read_jobs};
use het_lab::{
    Assumptions, Cadence, CheckpointModel, Draw, Noise, Restart, Scenario, cluster, play, what_if,
};
use het_policy::{Policy, by_name};

/// Jobs of all priorities at times of their own, on one class of devices; no program can save, as
/// the fake engine's cannot.
fn scenario(seed: u64, cadence: Cadence) -> Scenario {
    let mut draw = Draw::new(seed, 0);
    let mut at = 0;
    let mut line = |_| {
        at += draw.between(1, 400_000);
        let (arrival_s, arrival_ms) = (at / 1_000, at % 1_000);
        let priority = *draw.pick(&["low", "normal", "normal", "high", "urgent"]);
        let (units, seconds) = (*draw.pick(&[1, 1, 2, 4]), draw.between(60, 6_000));
        format!(
            "{{\"arrival_s\":{arrival_s}.{arrival_ms:03},\"priority\":\"{priority}\",\
             \"stages\":[{{\"kind\":\"train\",\"units\":{units},\"seconds\":{seconds}.5}}]}}\n"
        )
    };
    let lines: String = (0..60).map(&mut line).collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("engines-{seed}.jsonl"));
    std::fs::write(&path, lines).expect("the folder is there");
    let jobs = read_jobs(&path, None).expect("the lines are well formed");
    let topology = cluster("uniform:4x2").expect("the words are known");
    let (restart, noise, checkpoint) =
        (Restart::Fixed(Millis(0)), Noise::default(), CheckpointModel::default());
    let assumptions = Assumptions { cadence, restart, warm: None, noise, checkpoint, seed };
    let mut scenario =
        what_if(&topology, &jobs, &Speeds::default(), &assumptions).expect("every job fits");
    for (_, job) in &mut scenario.jobs {
        for stage in &mut Arc::make_mut(job).stages {
            for alternative in &mut stage.alternatives {
                Arc::make_mut(&mut alternative.launch).checkpoint = None;
            }
        }
    }
    for model in scenario.models.values_mut() {
        Arc::make_mut(model).save = None;
    }
    scenario
}

fn plans(events: &[(Time, Event)]) -> Vec<(Time, Arc<Plan>)> {
    let plan = |(at, event): &(Time, Event)| match event {
        Event::PlanCommitted { plan } => Some((*at, Arc::clone(plan))),
        _ => None,
    };
    events.iter().filter_map(plan).collect()
}

/// The same with the fake engine: users come to the loop from outside, as they come to a server.
fn on_fake(scenario: &Scenario, policy: &'static dyn Policy) -> Vec<(Time, Arc<Plan>)> {
    let scripts = scenario.models.iter().map(|(&key, model)| {
        let ns = u128::from(model.steps) * u128::from(model.longest_step_ns());
        (key, Script::Finish(Millis(ns.div_ceil(1_000_000) as u64)))
    });
    let engine = Fake::new(scripts);
    let state = State::new(Arc::new(scenario.topology.clone()));
    let log = MemoryLog::default();
    let mut control = Controller::new(state, scenario.rates.clone(), policy, engine, log)
        .with_cadence(scenario.cadence);
    for (at, event) in scenario.said() {
        while control.now() < at {
            control.turn(Some(at)).expect("no plan breaks a law");
        }
        control.accept(event);
        control.turn(Some(at)).expect("no plan breaks a law");
    }
    while control.state().jobs().values().any(|job| job.end.is_none()) {
        control.turn(None).expect("no plan breaks a law");
    }
    plans(&control.log().0)
}

#[test]
fn the_fake_engine_and_the_simulator_are_given_the_same_plans() {
    for name in ["fifo", "static", "dynamic", "hybrid", "feedback", "adaptive", "fgd"] {
        let policy = by_name(name).expect("the table has it");
        for seed in 1..=20 {
            let scenario = scenario(seed, Cadence::default());
            let sim = play(&scenario, policy, MemoryLog::default(), |_, _| ()).expect("it ends");
            let (simulated, played) = (plans(&sim.log().0), on_fake(&scenario, policy));
            let differ = |(one, other): &(&_, &_)| one != other;
            if let Some((one, other)) = simulated.iter().zip(&played).find(differ) {
                panic!("{name}, seed {seed}:\n  {one:?}\non the fake\n  {other:?}");
            }
            assert_eq!(simulated.len(), played.len(), "{name}, seed {seed}");
        }
    }
}
