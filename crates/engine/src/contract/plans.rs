//! What plans do, and what they do not.

use std::time::Duration;

use het_core::{Action, Generation, LeaseId, Millis, Outcome, Plan};

use super::world::{SHORT, World, claim, finished, stop, stopped, unclaim, unprepare};
use super::{Case, GRACE, Subject};
use crate::{Engine, Script};

pub(super) fn cases<S: Subject>() -> Vec<Case<S>> {
    vec![
        ("a gang starts once and ends once", starts_and_ends_once),
        ("gangs beside each other end on their own", side_by_side),
        ("a failing rank ends the gang with its code", failing_rank),
        ("a stop ends a lease", stop_ends_a_lease),
        ("a stop ends a deaf lease within its grace", stop_ends_a_deaf_lease),
        ("a stop that overtakes the start ends the lease", stop_before_the_start),
        ("a second stop changes nothing", stop_twice),
        ("a stop of an ended lease does nothing", stop_after_the_end),
        ("a stop of an unknown lease does nothing", stop_of_nobody),
        ("submitting a plan twice equals once", submit_twice),
        ("a plan of an old generation does nothing", old_generation),
        ("an empty plan moves the generation on", empty_plan),
        ("claims start and end nothing", claims),
        ("a start goes on with what was prepared", starts_prepared),
        ("what is prepared and given up starts as if it had not been", gives_preparations_up),
        ("a wait ends when its time is over", wait_until),
        ("a waker ends a wait", waker),
    ]
}

fn starts_and_ends_once<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.act(vec![world.start(1, 2)]);
    world.hear_ends(1);
    world.hear_nothing_more();
    assert_eq!(world.heard.started[&LeaseId(1)], 1, "{}", world.case);
    world.check_ended(1, finished);
}

fn side_by_side<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT, Script::UntilNotice]);
    world.act(vec![world.start(1, 1), world.start(2, 1)]);
    world.hear_start(2);
    world.hear_ends(1);
    world.check_ended(1, finished);
    world.act(vec![stop(2)]);
    world.hear_ends(2);
    world.check_ended(2, stopped);
}

fn failing_rank<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::Fail(Millis(20), 7)]);
    world.act(vec![world.start(1, 2)]);
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, |end| matches!(end, Outcome::Failed(failure) if failure.exit_code == 7));
}

fn stop_ends_a_lease<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice]);
    world.act(vec![world.start(1, 2)]);
    world.hear_start(1);
    world.act(vec![stop(1)]);
    world.hear_ends(1);
    world.check_ended(1, stopped);
}

fn stop_ends_a_deaf_lease<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::Deaf]);
    world.act(vec![world.start(1, 1)]);
    world.hear_start(1);
    world.act(vec![stop(1)]);
    world.hear_ends(1);
    world.check_ended(1, stopped);
}

fn stop_before_the_start<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice]);
    world.act(vec![world.start(1, 1)]);
    world.act(vec![stop(1)]);
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, stopped);
}

fn stop_twice<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::Deaf]);
    world.act(vec![world.start(1, 1)]);
    world.hear_start(1);
    let began = world.engine().now();
    let first = world.act(vec![stop(1)]);
    let again = Plan { generation: Generation(first.generation.0 + 1), ..first };
    world.engine().submit(&again);
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, stopped);
    assert!(world.engine().now() >= began + GRACE, "{}: the grace was cut short", world.case);
}

fn stop_after_the_end<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    let plan = world.act(vec![world.start(1, 1)]);
    world.hear_ends(1);
    let actions = vec![stop(1)];
    let generation = Generation(plan.generation.0 + 1);
    world.engine().submit(&Plan { generation, actions, waits: Vec::new() });
    world.hear_nothing_more();
    world.check_ended(1, finished);
}

fn stop_of_nobody<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    let actions = vec![stop(99)];
    world.engine().submit(&Plan { generation: Generation(1), actions, waits: Vec::new() });
    let actions = vec![world.start(1, 1)];
    world.commit(Vec::new());
    world.act(actions);
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, finished);
}

fn submit_twice<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    let plan = world.act(vec![world.start(1, 1)]);
    world.engine().submit(&plan);
    world.hear_ends(1);
    world.engine().submit(&plan);
    world.hear_nothing_more();
    assert_eq!(world.heard.started[&LeaseId(1)], 1, "{}", world.case);
    world.check_ended(1, finished);
}

fn old_generation<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice, SHORT]);
    world.commit(Vec::new());
    world.act(vec![world.start(1, 1)]);
    world.hear_start(1);
    let actions: Vec<Action> = vec![stop(1), world.start(2, 1)];
    world.engine().submit(&Plan { generation: Generation(1), actions, waits: Vec::new() });
    world.hear_nothing_more();
    assert!(world.heard.ended.is_empty(), "{}: {:?}", world.case, world.heard.ended);
    assert!(!world.heard.started.contains_key(&LeaseId(2)), "{}", world.case);
}

fn empty_plan<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    let empty = world.act(Vec::new());
    let late = Plan { actions: vec![world.start(1, 1)], ..empty };
    world.engine().submit(&late);
    world.hear_nothing_more();
    assert!(world.heard.started.is_empty(), "{}", world.case);
}

fn claims<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice, SHORT]);
    world.act(vec![world.start(1, 1), claim(2)]);
    world.hear_start(1);
    world.act(vec![unclaim(2)]);
    world.hear_nothing_more();
    assert!(world.heard.ended.is_empty(), "{}: {:?}", world.case, world.heard.ended);
}

fn starts_prepared<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.act(vec![world.prepare(1)]);
    world.hear_nothing_more();
    assert!(world.heard.started.is_empty(), "{}: {:?}", world.case, world.heard.started);
    world.act(vec![world.start(1, 1)]);
    world.hear_ends(1);
    world.hear_nothing_more();
    assert_eq!(world.heard.started[&LeaseId(1)], 1, "{}", world.case);
    world.check_ended(1, finished);
}

fn gives_preparations_up<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT, SHORT]);
    world.act(vec![world.prepare(1)]);
    world.act(vec![unprepare(1), world.start(2, 1)]);
    world.hear_ends(1);
    world.hear_nothing_more();
    assert!(!world.heard.started.contains_key(&LeaseId(1)), "{}", world.case);
    world.check_ended(2, finished);
}

fn wait_until<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[]);
    let until = world.engine().now() + Millis(20);
    assert_eq!(world.engine().next_event(Some(until)), None, "{}", world.case);
    assert!(world.engine().now() >= until, "{}: it did not wait", world.case);
}

fn waker<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[]);
    let waker = world.engine().waker();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        waker.wake();
    });
    assert_eq!(world.engine().next_event(None), None, "{}", world.case);
    other.join().expect("it only wakes");
}
