//! Devices of whose speed something beside our jobs takes a part.

use std::sync::Arc;

use het_core::{
    Degradation, DegradationCause, DeviceId, Event, LeaseId, Micro, Millis, Priority, Progress,
    State, Time,
};
use het_testkit::build::{alternative, job, key, stage, started, submitted, topology};

const DEVICE: DeviceId = DeviceId(0);

/// A job runs on the first of two accelerators.
fn running() -> (State, LeaseId) {
    let mut state = State::new(Arc::new(topology(&[(&[("h100", 2)], 0)])));
    let train = stage("train", vec![alternative("h100", 1)]);
    state.apply(Time::ZERO, &submitted(1, job(Priority::Normal, vec![train])));
    let (lease, start) = started(&state, key(1, 0), &[DEVICE.0]);
    state.apply(Time::ZERO, &start);
    state.apply(Time::ZERO, &Event::StageStarted { lease });
    (state, lease)
}

fn degraded(left: i64) -> Event {
    let degradation =
        Degradation { left: Micro(left), cause: DegradationCause::Contention { by: None } };
    Event::DeviceDegraded { device: DEVICE, degradation }
}

/// Steps at this rate for so many seconds.
fn works(state: &mut State, lease: LeaseId, seconds: u64, rate: u64) {
    for _ in 0..seconds {
        let before = state.stage(key(1, 0)).2.progress.step.unwrap_or(0);
        let progress = Progress { step: Some(before + rate), ..Progress::default() };
        state.apply(state.now() + Millis::seconds(1), &Event::Progressed { lease, progress });
    }
}

/// The pace of the device for whoever comes, and for the job that runs there.
#[track_caller]
fn check(state: &State, lease: LeaseId, expected: [i64; 2]) {
    let of_lease = state.pace_for(&state.leases()[&lease]);
    assert_eq!([state.pace(DEVICE), of_lease].map(|pace| pace.0), expected);
    assert_eq!(state.pace(DeviceId(1)), Micro::ONE);
    let slow: Vec<DeviceId> = state.slow_devices().collect();
    assert_eq!(slow.contains(&DEVICE), expected[0] < 1_000_000);
}

#[test]
fn it_counts_for_all_where_nobody_knows_better_until_it_is_over() {
    let (mut state, lease) = running();
    check(&state, lease, [1_000_000; 2]);
    state.apply(Time(1), &degraded(600_000));
    check(&state, lease, [600_000; 2]);
    state.apply(Time(2), &degraded(0));
    check(&state, lease, [1; 2]);
    state.apply(Time(3), &degraded(2_000_000));
    check(&state, lease, [1_000_000; 2]);
    state.apply(Time(4), &Event::DeviceRestored { device: DEVICE });
    check(&state, lease, [1_000_000; 2]);
    assert_eq!(state.slow_devices().count(), 0);
}

#[test]
fn steps_made_since_before_tell_whether_it_is_felt() {
    let (mut state, lease) = running();
    works(&mut state, lease, 33, 10);
    state.apply(state.now(), &degraded(600_000));
    check(&state, lease, [600_000, 1_000_000]);
    works(&mut state, lease, 7, 10);
    check(&state, lease, [600_000, 1_000_000]);
    works(&mut state, lease, 24, 3);
    let told = state.slowness(DEVICE).expect("its steps say so").part;
    check(&state, lease, [told.0; 2]);
}

#[test]
fn steps_made_only_since_then_say_nothing_of_it() {
    let (mut state, lease) = running();
    state.apply(Time::ZERO, &degraded(600_000));
    works(&mut state, lease, 33, 10);
    state.apply(state.now(), &degraded(500_000));
    check(&state, lease, [500_000; 2]);
}

#[test]
fn heat_that_came_while_it_works_is_no_reason_to_leave() {
    let (mut state, lease) = running();
    let degradation = Degradation { left: Micro(600_000), cause: DegradationCause::Throttling };
    let hot = Event::DeviceDegraded { device: DEVICE, degradation };
    state.apply(Time(1), &hot);
    check(&state, lease, [600_000, 1_000_000]);
}
