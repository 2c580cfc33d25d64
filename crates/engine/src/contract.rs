//! One suite for every engine: fake, simulator and node.
//!
//! An engine's test calls [`check_all`] with a function that builds the engine and the programs
//! ([`Launch`]) that behave as each [`Script`] says.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{
    Action, Bytes, DeviceId, Event, Generation, Grant, JobId, Launch, LeaseId, Millis, NodeId,
    Outcome, Placement, Plan, Rank, Share, StageIndex, StageKey, StopCause,
};

use crate::{Engine, Script};

/// Grace that the suite gives to stops.
pub const GRACE: Millis = Millis(300);

/// Builds an engine on one node with one device of at least two units, and one launch a script.
pub trait Subject {
    type Engine: Engine;

    fn build(&self, scripts: &[(StageKey, Script)]) -> (Self::Engine, Vec<Launch>);
}

/// Runs every law of the contract.
///
/// # Panics
/// On the first law that the engine breaks, naming it.
pub fn check_all<S: Subject>(subject: &S) {
    finishes_once(subject);
    failure_of_a_rank_ends_the_gang(subject);
    stop_ends_a_lease(subject);
    stop_ends_a_deaf_lease_within_grace(subject);
    submitting_twice_equals_once(subject);
    unknown_leases_are_ignored(subject);
}

fn key() -> StageKey {
    StageKey { job: JobId(1), stage: StageIndex(0) }
}

fn start(generation: u64, lease: u64, ranks: u32, launch: &Launch) -> Plan {
    let rank = Rank {
        node: NodeId(0),
        grants: vec![Grant { device: DeviceId(0), share: Share::WHOLE }],
        companions: Vec::new(),
        memory: Bytes::ZERO,
    };
    let placement = Placement { alternative: 0, ranks: vec![rank; ranks as usize] };
    let action = Action::Start {
        lease: LeaseId(lease),
        stage: key(),
        attempt: 1,
        placement: Arc::new(placement),
        launch: Arc::new(launch.clone()),
        resume: None,
        reasons: Vec::new(),
    };
    Plan { generation: Generation(generation), actions: vec![action], waits: Vec::new() }
}

fn stop(generation: u64, lease: u64) -> Plan {
    let action =
        Action::Stop { lease: LeaseId(lease), cause: StopCause::User, grace: GRACE, cost: None };
    Plan { generation: Generation(generation), actions: vec![action], waits: Vec::new() }
}

fn build<S: Subject>(subject: &S, script: Script) -> (S::Engine, Launch) {
    let (engine, mut launches) = subject.build(&[(key(), script)]);
    (engine, launches.remove(0))
}

/// What became of each lease, and how many facts about starts and ends there were.
#[derive(Default)]
struct Seen {
    started: BTreeMap<LeaseId, u32>,
    ended: BTreeMap<LeaseId, Vec<Outcome>>,
}

/// Reads events until `ends` leases ended and nothing more comes within a grace.
fn drain<E: Engine>(engine: &mut E, ends: usize) -> Seen {
    let mut seen = Seen::default();
    let mut last = engine.now();
    let deadline = last + Millis(10_000);
    loop {
        let done = seen.ended.len() >= ends;
        let until = if done { engine.now() + GRACE } else { deadline };
        let Some((at, event)) = engine.next_event(Some(until)) else {
            assert!(done, "no end came within 10 s");
            return seen;
        };
        assert!(at >= last, "time went backwards");
        last = at;
        match event {
            Event::StageStarted { lease } => *seen.started.entry(lease).or_default() += 1,
            Event::StageEnded { lease, outcome } => {
                seen.ended.entry(lease).or_default().push(outcome);
            }
            Event::Progressed { lease, .. }
            | Event::Checkpointed { lease, .. }
            | Event::StagePublished { lease } => {
                assert!(!seen.ended.contains_key(&lease), "a fact came after the end");
            }
            _ => {}
        }
    }
}

/// Waits until the lease runs.
fn await_start<E: Engine>(engine: &mut E) {
    let deadline = engine.now() + Millis(10_000);
    while let Some((_, event)) = engine.next_event(Some(deadline)) {
        if matches!(event, Event::StageStarted { .. }) {
            return;
        }
    }
    panic!("no start came within 10 s");
}

fn finishes_once<S: Subject>(subject: &S) {
    let (mut engine, launch) = build(subject, Script::Finish(Millis(20)));
    engine.submit(&start(1, 1, 2, &launch));
    let seen = drain(&mut engine, 1);
    assert_eq!(seen.started[&LeaseId(1)], 1, "one start a lease");
    assert_eq!(seen.ended[&LeaseId(1)], [Outcome::Finished], "one end a lease");
}

fn failure_of_a_rank_ends_the_gang<S: Subject>(subject: &S) {
    let (mut engine, launch) = build(subject, Script::Fail(Millis(20), 7));
    engine.submit(&start(1, 1, 2, &launch));
    let seen = drain(&mut engine, 1);
    match seen.ended[&LeaseId(1)].as_slice() {
        [Outcome::Failed(failure)] => assert_eq!(failure.exit_code, 7, "the code is passed on"),
        other => panic!("a failing rank must end the gang once, got {other:?}"),
    }
}

fn stop_ends_a_lease<S: Subject>(subject: &S) {
    let (mut engine, launch) = build(subject, Script::UntilNotice);
    engine.submit(&start(1, 1, 2, &launch));
    await_start(&mut engine);
    engine.submit(&stop(2, 1));
    let seen = drain(&mut engine, 1);
    assert_stopped(&seen);
}

fn stop_ends_a_deaf_lease_within_grace<S: Subject>(subject: &S) {
    let (mut engine, launch) = build(subject, Script::Deaf);
    engine.submit(&start(1, 1, 1, &launch));
    await_start(&mut engine);
    engine.submit(&stop(2, 1));
    let seen = drain(&mut engine, 1);
    assert_stopped(&seen);
}

/// An end after a stop is `Stopped` or `Failed` (killed): the state treats both as a stop.
fn assert_stopped(seen: &Seen) {
    let ends = &seen.ended[&LeaseId(1)];
    assert!(matches!(ends.as_slice(), [Outcome::Stopped | Outcome::Failed(_)]), "got {ends:?}");
}

fn submitting_twice_equals_once<S: Subject>(subject: &S) {
    let (mut engine, launch) = build(subject, Script::Finish(Millis(20)));
    let plan = start(1, 1, 1, &launch);
    engine.submit(&plan);
    engine.submit(&plan);
    let seen = drain(&mut engine, 1);
    assert_eq!(seen.started[&LeaseId(1)], 1, "the second submit starts nothing");
    assert_eq!(seen.ended[&LeaseId(1)].len(), 1, "the second submit ends nothing");
}

fn unknown_leases_are_ignored<S: Subject>(subject: &S) {
    let (mut engine, launch) = build(subject, Script::Finish(Millis(20)));
    engine.submit(&stop(1, 99));
    engine.submit(&start(2, 1, 1, &launch));
    let seen = drain(&mut engine, 1);
    assert!(!seen.ended.contains_key(&LeaseId(99)), "a stale lease changes nothing");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fake;

    struct FakeSubject;

    impl Subject for FakeSubject {
        type Engine = Fake;

        fn build(&self, scripts: &[(StageKey, Script)]) -> (Fake, Vec<Launch>) {
            (Fake::new(scripts.iter().copied()), vec![Launch::default(); scripts.len()])
        }
    }

    #[test]
    fn the_fake_keeps_the_contract() {
        check_all(&FakeSubject);
    }
}
