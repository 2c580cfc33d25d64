//! What happens when the loop over an engine dies and another goes on from what was committed.

use het_core::{Event, LeaseId, State};

use super::world::{SHORT, World, claim, finished, stop, stopped, unclaim};
use super::{Case, Subject};
use crate::{Engine, Script};

pub(super) fn cases<S: Subject>() -> Vec<Case<S>> {
    vec![
        ("what runs goes on", running),
        ("what ended while nobody listened is reported", ended_unheard),
        ("an end that was not committed is reported again", ended_uncommitted),
        ("an end that was committed is not reported again", ended_committed),
        ("what was planned and never begun begins", never_begun),
        ("what was reported as started may be reported again, and ends once", started_uncommitted),
        ("a stop that was committed and not carried out is carried out", stop_not_carried_out),
        ("a stop that was under way goes on", stop_under_way),
        ("a state that knows no leases hears of none", unknown_leases),
        ("adopting twice equals once", twice),
        ("plans up to the state's generation are old", generation_fence),
        ("an adopted engine takes new plans", new_plans),
        ("what was prepared starts after a change of the loop", prepared),
        ("every prefix of a plan is legal", prefixes),
    ]
}

fn running<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice]);
    world.act(vec![world.start(1, 2)]);
    world.hear_start(1);
    world.crash();
    world.hear_nothing_more();
    assert!(world.heard.ended.is_empty(), "{}: {:?}", world.case, world.heard.ended);
    world.act(vec![stop(1)]);
    world.hear_ends(1);
    world.check_ended(1, stopped);
}

fn prepared<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.act(vec![world.prepare(1)]);
    world.crash();
    world.act(vec![world.start(1, 1)]);
    world.hear_ends(1);
    world.hear_nothing_more();
    assert_eq!(world.heard.started[&LeaseId(1)], 1, "{}", world.case);
    world.check_ended(1, finished);
}

fn ended_unheard<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.act(vec![world.start(1, 1)]);
    world.hear_start(1);
    world.crash_to_sleep();
    // In virtual time nothing ends while nobody listens; on a machine it may.
    let state = world.state.clone();
    world.engine().adopt(&state);
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, finished);
}

fn ended_uncommitted<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.act(vec![world.start(1, 1)]);
    world.hear_start(1);
    while !matches!(world.overhear(), Event::StageEnded { .. }) {}
    world.crash();
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, finished);
}

fn ended_committed<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.act(vec![world.start(1, 1)]);
    world.hear_ends(1);
    world.crash();
    world.hear_nothing_more();
    world.check_ended(1, finished);
}

fn never_begun<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.commit(vec![world.start(1, 1)]);
    world.crash();
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, finished);
}

fn started_uncommitted<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice]);
    world.act(vec![world.start(1, 1)]);
    while !matches!(world.overhear(), Event::StageStarted { .. }) {}
    world.crash();
    world.hear_start(1);
    assert_eq!(world.heard.started[&LeaseId(1)], 1, "{}", world.case);
    world.act(vec![stop(1)]);
    world.hear_ends(1);
    world.check_ended(1, stopped);
}

fn stop_not_carried_out<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice]);
    world.act(vec![world.start(1, 1)]);
    world.hear_start(1);
    world.commit(vec![stop(1)]);
    world.crash();
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, stopped);
}

fn stop_under_way<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice]);
    world.act(vec![world.start(1, 1)]);
    world.hear_start(1);
    world.act(vec![stop(1)]);
    world.crash();
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, stopped);
}

fn unknown_leases<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    let before = world.state.clone();
    world.act(vec![world.start(1, 1)]);
    world.state = before;
    world.crash();
    world.hear_nothing_more();
    assert!(world.heard.ended.is_empty(), "{}: {:?}", world.case, world.heard.ended);
}

fn twice<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.commit(vec![world.start(1, 1)]);
    world.crash();
    world.crash();
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, finished);
}

fn generation_fence<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice]);
    world.act(vec![world.start(1, 1)]);
    world.hear_start(1);
    let mut old = world.commit(Vec::new());
    world.crash();
    old.actions = vec![stop(1)];
    world.engine().submit(&old);
    world.hear_nothing_more();
    assert!(world.heard.ended.is_empty(), "{}: {:?}", world.case, world.heard.ended);
}

fn new_plans<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT, SHORT]);
    world.act(vec![world.start(1, 1)]);
    world.crash();
    world.act(vec![world.start(2, 1)]);
    world.hear_ends(2);
    world.hear_nothing_more();
    world.check_ended(1, finished);
    world.check_ended(2, finished);
}

/// The loop dies after each number of actions that the engine got.
fn prefixes<S: Subject>(world: World<'_, S>) {
    let scripts = [Script::UntilNotice, SHORT, SHORT, SHORT];
    let length = |state: &State| state.leases().len();
    for carried_out in 0..=5 {
        let mut world = world.again().with(&scripts);
        world.act(vec![world.start(1, 1)]);
        world.hear_start(1);
        let (second, third) = (world.start(2, 1), world.start(3, 1));
        let mut plan = world.commit(vec![stop(1), second, third, claim(4), unclaim(4)]);
        assert_eq!(length(&world.state), 3, "{}", world.case);
        plan.actions.truncate(carried_out);
        world.engine().submit(&plan);
        world.crash();
        world.hear_ends(3);
        world.hear_nothing_more();
        world.check_ended(1, stopped);
        world.check_ended(2, finished);
        world.check_ended(3, finished);
    }
}
