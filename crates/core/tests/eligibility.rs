//! Start conditions: when jobs become eligible, when they are given up, and that what is known of
//! it follows from the jobs.

use std::sync::Arc;

use het_core::{
    ArrayMember, Dependencies, Dependency, DependencyCondition, DependencyRule, Event, JobId,
    JobSpec, Millis, NotEligible, Priority, StartConditions, State, Time,
};
use het_testkit::build::{alternative, job, stage, submitted, topology};

fn state() -> State {
    State::new(Arc::new(topology(&[(&[("h100", 4)], 4)])))
}

/// Applies an event and the facts that follow from it, and makes the state again from its parts.
#[track_caller]
fn apply(state: &mut State, at: u64, event: &Event) -> Vec<Event> {
    let mut facts = Vec::new();
    let mut next = vec![event.clone()];
    while !next.is_empty() {
        for event in &next {
            state.apply(Time(at), event);
            let made = State::from_parts(state.clone().into_parts()).expect("its own parts");
            assert_eq!(made, *state, "after {event:?}");
        }
        next = state.eligibility_events(Time(at));
        facts.extend(next.clone());
    }
    facts
}

fn spec(start: StartConditions) -> JobSpec {
    let stages = vec![stage("train", vec![alternative("h100", 1)])];
    JobSpec { start, ..job(Priority::Normal, stages) }
}

fn after(rule: DependencyRule, on: &[(u64, DependencyCondition)]) -> StartConditions {
    let dependency = |&(job, condition): &(u64, DependencyCondition)| Dependency {
        job: JobId(job),
        condition,
        delay: Millis(0),
    };
    let on = on.iter().map(dependency).collect();
    StartConditions { dependencies: Dependencies { rule, on }, ..StartConditions::default() }
}

fn submit(state: &mut State, id: u64, start: StartConditions) -> Vec<Event> {
    let at = state.now().0;
    apply(state, at, &submitted(id, spec(start)))
}

fn cancel(state: &mut State, at: u64, id: u64) -> Vec<Event> {
    apply(state, at, &Event::JobCancelled { job: JobId(id) })
}

fn eligible(job: u64) -> Event {
    Event::JobEligible { job: JobId(job) }
}

fn given_up(job: u64) -> Event {
    Event::DependencyFailed { job: JobId(job) }
}

fn waiting(state: &State) -> Vec<u64> {
    state.waiting().map(|key| key.job.0).collect()
}

#[test]
fn a_job_waits_for_the_end_of_another() {
    let mut state = state();
    submit(&mut state, 1, StartConditions::default());
    let start = after(DependencyRule::All, &[(1, DependencyCondition::Ended)]);
    assert_eq!(submit(&mut state, 2, start), []);
    assert_eq!(waiting(&state), [1]);
    let reason = NotEligible::DependsOn { job: JobId(1), condition: DependencyCondition::Ended };
    assert_eq!(state.not_eligible(JobId(2)), [reason]);
    assert_eq!(cancel(&mut state, 5, 1), [eligible(2)]);
    assert_eq!(waiting(&state), [2]);
}

#[test]
fn who_waits_for_what_cannot_come_is_given_up_with_all_who_wait_for_it() {
    let mut state = state();
    submit(&mut state, 1, StartConditions::default());
    submit(&mut state, 2, after(DependencyRule::All, &[(1, DependencyCondition::Succeeded)]));
    submit(&mut state, 3, after(DependencyRule::All, &[(2, DependencyCondition::Succeeded)]));
    submit(&mut state, 4, after(DependencyRule::All, &[(2, DependencyCondition::Failed)]));
    assert_eq!(cancel(&mut state, 5, 1), [given_up(2), eligible(4), given_up(3)]);
    let condition = DependencyCondition::Succeeded;
    let reason = NotEligible::DependencyFailed { job: JobId(2), condition };
    assert_eq!(state.not_eligible(JobId(3)), [reason]);
}

#[test]
fn one_of_several_is_enough_where_that_is_said() {
    let mut state = state();
    (1..=2).for_each(|id| drop(submit(&mut state, id, StartConditions::default())));
    let either = [(1, DependencyCondition::Succeeded), (2, DependencyCondition::Failed)];
    submit(&mut state, 3, after(DependencyRule::Any, &either));
    assert_eq!(cancel(&mut state, 5, 1), []);
    state.apply(Time(5), &Event::JobRetired { job: JobId(1) });
    assert_eq!(cancel(&mut state, 6, 2), [eligible(3)]);
}

#[test]
fn what_was_met_stays_met_when_a_job_is_forgotten() {
    let mut state = state();
    (1..=2).for_each(|id| drop(submit(&mut state, id, StartConditions::default())));
    let both = [(1, DependencyCondition::Failed), (2, DependencyCondition::Ended)];
    submit(&mut state, 3, after(DependencyRule::All, &both));
    cancel(&mut state, 5, 1);
    assert_eq!(apply(&mut state, 6, &Event::JobRetired { job: JobId(1) }), []);
    assert_eq!(cancel(&mut state, 7, 2), [eligible(3)]);
}

#[test]
fn a_job_begins_at_its_time() {
    let mut state = state();
    let start = StartConditions { begin: Some(Time(100)), ..StartConditions::default() };
    submit(&mut state, 1, start);
    assert_eq!(state.next_eligible(), Some(Time(100)));
    assert_eq!(state.not_eligible(JobId(1)), [NotEligible::NotBefore { at: Time(100) }]);
    assert_eq!(state.eligibility_events(Time(99)), []);
    assert_eq!(state.eligibility_events(Time(100)), [eligible(1)]);
}

#[test]
fn a_delay_counts_from_when_the_condition_was_met() {
    let mut state = state();
    submit(&mut state, 1, StartConditions::default());
    let mut start = after(DependencyRule::All, &[(1, DependencyCondition::Ended)]);
    start.dependencies.on[0].delay = Millis(50);
    submit(&mut state, 2, start);
    cancel(&mut state, 5, 1);
    assert_eq!(state.next_eligible(), Some(Time(55)));
}

#[test]
fn so_many_of_an_array_run_at_a_time() {
    let mut state = state();
    let member = |index| StartConditions {
        array: Some(ArrayMember { array: JobId(1), index, parallel_max: Some(2) }),
        ..StartConditions::default()
    };
    (1..=5).for_each(|id| drop(submit(&mut state, id, member(id as u32))));
    assert_eq!(waiting(&state), [1, 2]);
    assert_eq!(state.not_eligible(JobId(3)), [NotEligible::ArrayFull { parallel_max: 2 }]);
    apply(&mut state, 1, &Event::JobHeld { job: JobId(3) });
    assert_eq!(cancel(&mut state, 2, 1), [eligible(4)], "3 is held and takes nobody's place");
    apply(&mut state, 3, &Event::JobReleased { job: JobId(3) });
    assert_eq!(waiting(&state), [2, 4]);
    assert_eq!(cancel(&mut state, 4, 4), [eligible(3)]);
}
