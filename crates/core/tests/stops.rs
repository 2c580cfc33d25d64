//! What is kept of a stop: who wanted it, and what was lost.

use std::sync::Arc;

use het_core::{
    Action, Checkpoint, Event, LeaseId, Loss, Millis, Outcome, Priority, Progress, STOPS_KEPT,
    Share, Stage, State, StopCause, Time,
};
use het_testkit::build::{alternative, committed, job, key, stage, started, submitted, topology};

fn seconds(at: u64) -> Time {
    Time::ZERO + Millis::seconds(at)
}

/// Job 1 runs on the only accelerator.
fn begin(state: &mut State, at: u64) -> LeaseId {
    let (lease, start) = started(state, key(1, 0), &[0]);
    state.apply(seconds(at), &start);
    state.apply(seconds(at), &Event::StageStarted { lease });
    lease
}

fn state() -> State {
    let mut state = State::new(Arc::new(topology(&[(&[("h100", 1)], 0)])));
    let spec = job(Priority::Low, vec![stage("train", vec![alternative("h100", 1)])]);
    state.apply(Time::ZERO, &submitted(1, spec));
    state
}

fn report(state: &mut State, at: u64, lease: LeaseId, step: u64) {
    let progress = Progress { step: Some(step), ..Progress::default() };
    state.apply(seconds(at), &Event::Progressed { lease, progress });
}

fn save(state: &mut State, at: u64, lease: LeaseId, step: u64) {
    let checkpoint = Checkpoint { step, path: String::new() };
    state.apply(seconds(at), &Event::Checkpointed { lease, checkpoint });
}

fn stop(state: &mut State, at: u64, lease: LeaseId) {
    let cause = StopCause::Quantum;
    let stop = Action::Stop { lease, cause, grace: Millis::seconds(5), cost: None };
    state.apply(seconds(at), &committed(state, stop));
}

fn end(state: &mut State, at: u64, lease: LeaseId, outcome: Outcome) {
    state.apply(seconds(at), &Event::StageEnded { lease, outcome });
}

fn record(state: &State) -> &Stage {
    state.stage_record(key(1, 0))
}

fn loss(state: &State) -> Loss {
    record(state).stops.last().and_then(|stop| stop.loss).expect("the gang is gone")
}

#[test]
fn what_was_not_saved_is_lost() {
    let mut state = state();
    let lease = begin(&mut state, 0);
    save(&mut state, 40, lease, 50);
    report(&mut state, 60, lease, 64);
    stop(&mut state, 61, lease);
    assert_eq!(record(&state).stops[0].loss, None, "it still saves");
    end(&mut state, 65, lease, Outcome::Stopped);
    let loss = loss(&state);
    assert_eq!((loss.steps(), loss.unsaved), (Some(14), Millis::seconds(25)));
    assert_eq!(loss.cost, Share::WHOLE.over(Millis::seconds(25)));
    assert_eq!(record(&state).saved_at_notice(), Some(false));
}

#[test]
fn what_is_saved_at_the_notice_is_not() {
    let mut state = state();
    let lease = begin(&mut state, 0);
    report(&mut state, 60, lease, 64);
    stop(&mut state, 61, lease);
    save(&mut state, 64, lease, 64);
    end(&mut state, 65, lease, Outcome::Stopped);
    assert_eq!((loss(&state).steps(), loss(&state).unsaved), (Some(0), Millis::seconds(1)));
    assert_eq!(record(&state).saved_at_notice(), Some(true));
}

#[test]
fn steps_of_an_earlier_attempt_are_not_lost_twice() {
    let mut state = state();
    let first = begin(&mut state, 0);
    report(&mut state, 60, first, 64);
    stop(&mut state, 61, first);
    end(&mut state, 65, first, Outcome::Stopped);
    assert_eq!(loss(&state).steps(), Some(64), "nothing was saved");
    let second = begin(&mut state, 70);
    stop(&mut state, 71, second);
    end(&mut state, 72, second, Outcome::Stopped);
    assert_eq!((loss(&state).steps(), loss(&state).unsaved), (None, Millis::seconds(2)));
}

#[test]
fn a_fault_is_a_stop_that_nobody_decided() {
    let mut state = state();
    let lease = begin(&mut state, 0);
    report(&mut state, 9, lease, 9);
    end(&mut state, 10, lease, Outcome::Lost);
    let stop = record(&state).stops[0];
    assert_eq!(
        (stop.cause, stop.at, stop.saved_at_notice()),
        (StopCause::Fault, seconds(10), None)
    );
    assert_eq!(loss(&state).steps(), Some(9));
}

#[test]
fn one_that_ends_before_it_is_stopped_lost_nothing() {
    let mut state = state();
    let lease = begin(&mut state, 0);
    stop(&mut state, 10, lease);
    end(&mut state, 11, lease, Outcome::Finished);
    assert_eq!(record(&state).stops, []);
}

#[test]
fn the_newest_stops_are_kept() {
    let mut state = state();
    for round in 0..STOPS_KEPT as u64 + 3 {
        let lease = begin(&mut state, 10 * round);
        stop(&mut state, 10 * round + 1, lease);
        end(&mut state, 10 * round + 2, lease, Outcome::Stopped);
    }
    let stops = &record(&state).stops;
    assert_eq!((stops.len(), stops[0].at), (STOPS_KEPT, seconds(31)));
}
