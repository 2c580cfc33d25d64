use het_core::{Priority, State};
use het_testkit::build::{alternative, job, key, stage, started, submitted, topology};

use super::*;

/// A running job of `uid` in `namespace`, as its object says it.
fn left(number: u64, namespace: &str, uid: &str) -> Left {
    let mut state = State::new(Arc::new(topology(&[(&[("h100", 2)], 0)])));
    let mut spec = job(Priority::Normal, vec![stage("train", vec![alternative("h100", 1)])]);
    spec.tenant = namespace.into();
    spec.key = Some(format!("trainingjob/{uid}").as_str().into());
    state.apply(Time::ZERO, &submitted(number, spec));
    let (_, start) = started(&state, key(number, 0), &[0]);
    state.apply(Time::ZERO, &start);
    let owner = JobOwner {
        namespace: namespace.to_owned(),
        name: format!("job-{number}"),
        uid: uid.to_owned(),
    };
    Left { owner, handover: JobHandover::of(&state, JobId(number)).expect("it is there") }
}

/// How many of these are adopted, and what is said of the others.
#[track_caller]
fn check(objects: &[Left], jobs: usize, said: &[&str]) {
    let (adopted, unread) = adopted(objects, &topology(&[(&[("h100", 2)], 0)]));
    assert_eq!(adopted.jobs.len(), jobs);
    assert_eq!(unread.len(), said.len(), "{unread:?}");
    unread.iter().zip(said).for_each(|(one, word)| assert!(one.contains(word), "{one}"));
}

#[test]
fn a_job_is_what_its_own_object_says() {
    check(&[left(1, "research", "a")], 1, &[]);
    let mut of_another = left(1, "research", "a");
    of_another.owner.uid = "b".to_owned();
    check(&[of_another], 0, &["not of this job"]);
    let mut elsewhere = left(1, "research", "a");
    elsewhere.owner.namespace = "other".to_owned();
    check(&[elsewhere], 0, &["not of this job"]);
}

#[test]
fn two_that_say_the_same_number_or_lease_take_nothing_from_each_other() {
    let one = "another object has its number, or one of its leases";
    check(&[left(1, "research", "a"), left(1, "other", "b")], 0, &[one, one]);
    // Each was the first of its own server, so both have the first lease.
    check(&[left(1, "research", "a"), left(2, "other", "b")], 0, &[one, one]);
}

#[test]
fn numbers_that_nothing_can_follow_are_refused() {
    let text = left(1, "research", "a").handover.to_json();
    assert!(JobHandover::from_json(&text).is_ok());
    let huge = text.replacen("\"id\":1", "\"id\":18446744073709551615", 1);
    assert!(huge != text && JobHandover::from_json(&huge).is_err());
    let later = text.replacen("\"version\":1", "\"version\":2", 1);
    assert!(later != text && JobHandover::from_json(&later).is_err());
}
