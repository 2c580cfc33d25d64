//! The event store: what was appended is what is replayed, batch by batch.

use std::sync::Arc;

use het_control::Log;
use het_core::{Action, Event, Outcome, Plan, Priority, State, Time, Topology};
use het_perf::Rates;
use het_policy::{Cache, Cadence, View, by_name};
use het_server::{EventStore, StoreError};
use het_testkit::build;

fn topology() -> Topology {
    build::topology(&[(&[("h100", 2)], 4)])
}

/// Events of every kind that a small run has, and the state they lead to.
fn some_events() -> (Vec<(Time, Event)>, State) {
    let mut state = State::new(Arc::new(topology()));
    let mut events = Vec::new();
    let mut tell = |state: &mut State, at: u64, event: Event| {
        state.apply(Time(at), &event);
        events.push((Time(at), event));
    };
    let stage = build::stage("train", vec![build::alternative("h100", 2)]);
    tell(&mut state, 1, build::submitted(1, build::job(Priority::High, vec![stage.clone()])));
    tell(&mut state, 2, build::submitted(2, build::job(Priority::Urgent, vec![stage])));
    for at in [3, 40_000] {
        let plan = plan(&state, at);
        tell(&mut state, at, Event::PlanCommitted { plan: Arc::new(plan) });
        let lease = *state.leases().keys().next().expect("the plan starts one");
        tell(&mut state, at + 1, Event::StageStarted { lease });
        let checkpoint = het_core::Checkpoint { step: at, path: "/c".to_owned() };
        tell(&mut state, at + 2, Event::Checkpointed { lease, checkpoint });
        tell(&mut state, at + 3, Event::StageEnded { lease, outcome: Outcome::Finished });
    }
    (events, state)
}

fn plan(state: &State, at: u64) -> Plan {
    let policy = by_name("adaptive").expect("the table has it");
    let rates = Rates::default();
    let view = View { state, rates: &rates, now: Time(at), cadence: Cadence::default() };
    let plan = het_scheduler::propose(&view, policy, &mut Cache::default()).plan;
    assert!(matches!(plan.actions[..], [Action::Start { .. }]), "{plan:?}");
    plan
}

#[test]
fn replaying_the_store_gives_the_live_state() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    let (events, live) = some_events();
    let mut store = EventStore::create(&path, &topology()).expect("a new store");
    for batch in events.chunks(3) {
        store.append(batch).expect("the disk has room");
    }
    drop(store);
    let store = EventStore::open(&path).expect("it was closed");
    assert_eq!(store.reader().events().expect("they read"), events);
    assert_eq!(store.replay().expect("they apply"), live);
}

#[test]
fn a_store_goes_on_where_it_ended() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    let (events, live) = some_events();
    let (first, second) = events.split_at(4);
    EventStore::create(&path, &topology()).expect("new").append(first).expect("room");
    EventStore::open(&path).expect("closed").append(second).expect("room");
    let state = EventStore::open(&path).expect("closed").replay().expect("it reads");
    assert_eq!(state, live);
}

#[test]
fn one_process_at_a_time() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    let held = EventStore::create(&path, &topology()).expect("a new store");
    assert!(matches!(EventStore::open(&path), Err(StoreError::InUse)));
    drop(held);
    EventStore::open(&path).expect("it is free again");
}

#[test]
fn a_file_that_is_no_store_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    std::fs::write(&path, b"not a database at all").expect("writable");
    assert!(matches!(EventStore::open(&path), Err(StoreError::Redb(_))));
}
