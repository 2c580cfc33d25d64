//! Who leaves a device that has become slow, and who gets it.

use std::sync::Arc;

use het_core::{
    Action, Degradation, DegradationCause, DeviceId, Event, JobSpec, LeaseId, Micro, Millis,
    Preemptible, Priority, Progress, Reason, State, StopCause, Time,
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

fn degraded(device: u32, left: i64) -> Event {
    let degradation =
        Degradation { left: Micro(left), cause: DegradationCause::Contention { by: None } };
    Event::DeviceDegraded { device: DeviceId(device), degradation }
}

/// Which alternative on which device is started.
fn starts(state: &State, rates: &Rates) -> Vec<(usize, u32)> {
    let start = |action: Action| match action {
        Action::Start { placement, .. } => {
            Some((placement.alternative, placement.devices().next()?.device.0))
        }
        _ => None,
    };
    proposed(state, rates).into_iter().filter_map(start).collect()
}

/// Starts whose reason is that they finish first.
fn fastest(state: &State, rates: &Rates) -> Vec<Reason> {
    let of_start = |action: Action| match action {
        Action::Start { reasons, .. } => reasons,
        _ => Vec::new(),
    };
    let all = proposed(state, rates).into_iter().flat_map(of_start);
    all.filter(|reason| matches!(reason, Reason::FastestFinish { .. })).collect()
}

#[test]
fn what_somebody_else_slows_is_the_last_that_anybody_gets() {
    let mut state = State::new(Arc::new(topology(&[(&[("h100", 2)], 0)])));
    let spec = training(1_000);
    let rates = rates(&state, &spec);
    state.apply(Time::ZERO, &degraded(0, 700_000));
    state.apply(Time::ZERO, &submitted(1, spec));
    assert_eq!(starts(&state, &rates), [(0, 1)]);
}

#[test]
fn a_fast_device_that_is_slowed_enough_is_no_better_than_a_slow_one() {
    let chosen = |left: Option<i64>| {
        let mut state = State::new(Arc::new(topology(&[(&[("h100", 1), ("v100", 1)], 0)])));
        let alternatives = vec![alternative("v100", 1), alternative("h100", 1)];
        let mut spec = job(Priority::Normal, vec![stage("train", alternatives)]);
        spec.stages[0].steps = Some(10_000);
        let mut rates = rates(&state, &spec);
        rates.declare(&spec.stages[0].profile, &"v100".into(), 1, 5.0);
        left.into_iter().for_each(|left| state.apply(Time::ZERO, &degraded(0, left)));
        state.apply(Time::ZERO, &submitted(1, spec));
        assert_eq!(fastest(&state, &rates).len(), 1, "it says that it is the fastest");
        starts(&state, &rates)
    };
    assert_eq!(chosen(None), [(1, 0)]);
    assert_eq!(chosen(Some(700_000)), [(1, 0)]);
    assert_eq!(chosen(Some(300_000)), [(0, 1)]);
}

#[test]
fn who_makes_no_steps_leaves_what_somebody_else_slows_and_who_does_stays_unless_they_tell() {
    let leaves_it = |makes_steps: bool| {
        let mut state = State::new(Arc::new(topology(&[(&[("h100", 2)], 0)])));
        let spec = training(100_000);
        let rates = rates(&state, &spec);
        state.apply(Time::ZERO, &submitted(1, spec));
        let (lease, start) = started(&state, key(1, 0), &[0]);
        state.apply(Time::ZERO, &start);
        state.apply(Time::ZERO, &Event::StageStarted { lease });
        for second in 1..=60 {
            let step = makes_steps.then_some(second * 10);
            let progress = Progress { step, ..Progress::default() };
            state.apply(Time(second * 1_000), &Event::Progressed { lease, progress });
        }
        state.apply(state.now(), &degraded(0, 300_000));
        leaves(&proposed(&state, &rates), lease)
    };
    assert_eq!([leaves_it(false), leaves_it(true)], [true, false]);
}
