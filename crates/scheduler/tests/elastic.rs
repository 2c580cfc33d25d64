//! Stages that have fewer devices than they ask for.

use std::sync::Arc;

use het_core::{
    Action, CheckpointSpec, Elastic, Event, JobSpec, Launch, Locality, Millis, PlannedSpeeds,
    Priority, Progress, State, Time,
};
use het_perf::{Gang, Rates};
use het_testkit::build::{alternative, job, key, stage, started, submitted, topology};
use het_testkit::scene;

/// A job that asks for four accelerators, and may have two or eight.
fn elastic() -> JobSpec {
    let checkpoint = CheckpointSpec {
        dir: "/saves".to_owned(),
        every: Some(Millis::seconds(10)),
        notice: "SIGTERM".into(),
        grace: CheckpointSpec::GRACE_DEFAULT,
    };
    let of_size = |count| {
        let mut one = alternative("h100", count);
        one.launch = Arc::new(Launch {
            elastic: Some(Elastic { reference: 4, batch: None }),
            checkpoint: Some(checkpoint.clone()),
            ..(*one.launch).clone()
        });
        one
    };
    let mut spec = job(Priority::Normal, vec![stage("train", [2, 4, 8].map(of_size).into())]);
    spec.stages[0].steps = Some(100_000);
    spec
}

/// It has two of so many accelerators since a while, whose speed alone was measured.
fn shrunk(accelerators: u32) -> (State, Rates) {
    let mut state = State::new(Arc::new(topology(&[(&[("h100", accelerators)], 8)])));
    let (spec, mut rates) = (elastic(), Rates::default());
    let class = state.topology().class_of(state.topology().accelerators().next().expect("one"));
    let gang = Gang { class, units: 2, locality: Locality::BEST };
    rates.observe(&spec.stages[0].profile, &PlannedSpeeds::default(), gang, 10.0);
    rates.declare_restart(&spec.stages[0].profile, Millis::seconds(10));
    state.apply(Time::ZERO, &submitted(1, spec));
    let devices: Vec<u32> = state.topology().accelerators().take(2).map(|id| id.0).collect();
    let (lease, start) = started(&state, key(1, 0), &devices);
    state.apply(Time::ZERO, &start);
    state.apply(Time::ZERO, &Event::StageStarted { lease });
    let progress = Progress { step: Some(3_000), ..Progress::default() };
    state.apply(Time(300_000), &Event::Progressed { lease, progress });
    (state, rates)
}

#[test]
fn who_shrank_goes_back_to_what_it_asks_for_though_nobody_measured_that() {
    let (state, rates) = shrunk(4);
    let plan = scene::proposed(&state, &rates, "adaptive");
    assert!(plan.actions.iter().any(|action| matches!(action, Action::Stop { .. })), "{plan:?}");
}

#[test]
fn where_the_others_are_not_free_it_stays() {
    let (state, rates) = shrunk(3);
    let plan = scene::proposed(&state, &rates, "adaptive");
    assert_eq!(plan.actions, []);
}
