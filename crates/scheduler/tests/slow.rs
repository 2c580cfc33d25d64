//! Who leaves a device that has become slow, and who gets it.

use std::sync::Arc;

use het_core::{
    Action, DeviceId, Event, JobSpec, LeaseId, Millis, Preemptible, Priority, Progress, State,
    StopCause, Time,
};
use het_perf::Rates;
use het_testkit::build::{alternative, job, key, stage, started, submitted, topology};
use het_testkit::scene;

fn training(steps: u64) -> JobSpec {
    let mut spec = job(Priority::Normal, vec![stage("train", vec![alternative("h100", 1)])]);
    spec.stages[0].steps = Some(steps);
    spec
}

/// A job runs on accelerator 0, which makes half the steps since a while; it has so many in all.
fn slowed(accelerators: u32, spec: JobSpec) -> (State, Rates, LeaseId) {
    let mut state = State::new(Arc::new(topology(&[(&[("h100", accelerators)], 0)])));
    let rates = rates(&state, &spec);
    state.apply(Time::ZERO, &submitted(1, spec));
    let (lease, start) = started(&state, key(1, 0), &[0]);
    state.apply(Time::ZERO, &start);
    state.apply(Time::ZERO, &Event::StageStarted { lease });
    let mut step = 0;
    for second in 1..=60 {
        step += if second <= 33 { 10 } else { 5 };
        let progress = Progress { step: Some(step), ..Progress::default() };
        state.apply(Time(second * 1_000), &Event::Progressed { lease, progress });
    }
    assert!(state.slowness(DeviceId(0)).is_some());
    (state, rates, lease)
}

/// Ten steps a second; a stop and a start take ten seconds.
fn rates(state: &State, spec: &JobSpec) -> Rates {
    let (mut rates, profile) = (Rates::default(), &spec.stages[0].profile);
    rates.declare(profile, &state.topology().class_of(DeviceId(0)).id, 1, 10.0);
    rates.declare_restart(profile, Millis::seconds(10));
    rates
}

fn proposed(state: &State, rates: &Rates) -> Vec<Action> {
    scene::proposed(state, rates, "adaptive").actions
}

fn leaves(actions: &[Action], lease: LeaseId) -> bool {
    let is_it = |action: &Action| match action {
        Action::Stop { lease: of, cause, .. } => *of == lease && *cause == StopCause::Slow,
        _ => false,
    };
    actions.iter().any(is_it)
}

#[test]
fn who_gains_by_it_leaves_a_slow_device() {
    let (state, rates, lease) = slowed(2, training(100_000));
    assert!(leaves(&proposed(&state, &rates), lease));
}

#[test]
fn who_may_not_be_stopped_for_others_leaves_it_as_well() {
    let mut spec = training(100_000);
    spec.stages[0].preemptible = Preemptible::Never;
    let (state, rates, lease) = slowed(2, spec);
    assert!(leaves(&proposed(&state, &rates), lease));
}

#[test]
fn who_is_about_to_end_stays() {
    let (state, rates, lease) = slowed(2, training(500));
    assert!(!leaves(&proposed(&state, &rates), lease));
}

#[test]
fn where_nothing_else_is_free_everybody_stays() {
    let (state, rates, lease) = slowed(1, training(100_000));
    assert!(!leaves(&proposed(&state, &rates), lease));
}

#[test]
fn a_slow_device_is_the_last_that_anybody_gets() {
    let (mut state, rates, lease) = slowed(3, training(100_000));
    let ended = Event::StageEnded { lease, outcome: het_core::Outcome::Finished };
    state.apply(state.now(), &ended);
    for id in 2..=4 {
        state.apply(state.now(), &submitted(id, training(1_000)));
        let starts = proposed(&state, &rates).into_iter().filter_map(|action| match action {
            Action::Start { placement, .. } => placement.devices().next().map(|it| it.device),
            _ => None,
        });
        let given: Vec<DeviceId> = starts.collect();
        assert_eq!(given, [DeviceId([1, 2, 0][id as usize - 2])]);
        let (_, start) = started(&state, key(id, 0), &[given[0].0]);
        state.apply(state.now(), &start);
    }
}
