use std::collections::BTreeMap;

use super::*;
use crate::names::ObjectKey;

fn pod(phase: PodPhase) -> PodRow {
    let key = ObjectKey { namespace: "n".to_owned(), name: "p".to_owned() };
    let (uid, requests) = (String::new(), BTreeMap::new());
    PodRow {
        key,
        uid,
        node: None,
        phase,
        is_deleting: false,
        rank: None,
        requests,
        claims: Vec::new(),
        trouble: None,
        needs: None,
        report: None,
        workload: None,
        group: None,
    }
}

fn deleted(phase: PodPhase) -> PodRow {
    PodRow { is_deleting: true, ..pod(phase) }
}

fn failed(reason: &str, container_reason: &str, exit_code: Option<i32>) -> PodPhase {
    let [reason, container_reason] = [reason, container_reason].map(str::to_owned);
    PodPhase::Failed(PodFailure { reason, container_reason, message: String::new(), exit_code })
}

/// Two ranks whose pods have nodes and run.
fn running() -> Gang {
    let mut gang = Gang::new(2);
    gang.begun(&[true, true], None);
    for rank in 0..2 {
        gang.see(rank, &pod(PodPhase::Running));
    }
    assert_eq!(facts(&mut gang), [Fact::Started]);
    gang
}

/// What follows now, up to the end.
fn facts(gang: &mut Gang) -> Vec<Fact> {
    let mut facts = Vec::new();
    while let Some(fact) = gang.next() {
        let is_end = matches!(fact, Fact::Ended(_));
        facts.push(fact);
        if is_end {
            break;
        }
    }
    facts
}

#[track_caller]
fn check_end(mut gang: Gang, expected: impl Fn(&Outcome) -> bool) {
    match facts(&mut gang).pop() {
        Some(Fact::Ended(outcome)) => assert!(expected(&outcome), "{outcome:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_starts_with_its_last_rank_and_ends_with_its_last() {
    let mut gang = Gang::new(2);
    gang.see(0, &pod(PodPhase::Running));
    gang.see(1, &pod(PodPhase::Pending));
    assert_eq!(facts(&mut gang), []);
    gang.begun(&[true, true], None);
    assert_eq!(facts(&mut gang), []);
    gang.see(1, &pod(PodPhase::Running));
    assert_eq!(facts(&mut gang), [Fact::Started]);
    gang.see(0, &pod(PodPhase::Succeeded));
    assert_eq!(facts(&mut gang), []);
    gang.see(1, &pod(PodPhase::Succeeded));
    check_end(gang, |outcome| *outcome == Outcome::Finished);
}

#[test]
fn a_failing_rank_breaks_the_gang_and_names_the_end() {
    let mut gang = running();
    gang.see(1, &pod(failed("", "Error", Some(7))));
    assert_eq!(facts(&mut gang), [Fact::Broken]);
    gang.see(0, &deleted(failed("", "Error", Some(143))));
    check_end(gang, |outcome| match outcome {
        Outcome::Failed(failure) => {
            (failure.rank, failure.exit_code, failure.cause) == (1, 7, FailureCause::Program)
        }
        _ => false,
    });
}

#[test]
fn what_a_stop_brings_about_is_no_failure() {
    let mut gang = running();
    gang.stop();
    gang.see(0, &deleted(failed("", "Error", Some(143))));
    gang.see(1, &deleted(PodPhase::Succeeded));
    check_end(gang, |outcome| *outcome == Outcome::Stopped);
}

#[test]
fn who_had_finished_before_the_stop_has_finished() {
    let mut gang = running();
    gang.see(0, &pod(PodPhase::Succeeded));
    gang.stop();
    gang.see(1, &pod(PodPhase::Succeeded));
    gang.see_gone(0);
    check_end(gang, |outcome| *outcome == Outcome::Finished);
}

#[test]
fn a_pod_that_somebody_deletes_is_lost_with_its_gang() {
    let mut gang = running();
    gang.see(0, &deleted(PodPhase::Running));
    assert_eq!(facts(&mut gang), []);
    gang.see_gone(0);
    assert_eq!(facts(&mut gang), [Fact::Broken]);
    gang.see_gone(1);
    check_end(gang, |outcome| *outcome == Outcome::Lost);
}

#[test]
fn a_refused_gang_ends_when_what_was_made_is_gone() {
    let mut gang = Gang::new(2);
    gang.see(0, &pod(PodPhase::Pending));
    gang.begun(&[true, false], Some("quota exceeded".to_owned()));
    assert_eq!(facts(&mut gang), [Fact::Broken]);
    gang.see_gone(0);
    check_end(
        gang,
        |outcome| matches!(outcome, Outcome::Refused { reason } if reason == "quota exceeded"),
    );
}

/// The end of a gang of one whose pod failed like that.
fn end_of(reason: &str, container_reason: &str, exit_code: Option<i32>) -> Outcome {
    let mut gang = Gang::new(1);
    gang.begun(&[true], None);
    gang.see(0, &pod(failed(reason, container_reason, exit_code)));
    match facts(&mut gang).pop() {
        Some(Fact::Ended(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

#[test]
fn causes_are_what_the_kubelet_says() {
    let cause = |container_reason, exit_code| match end_of("", container_reason, exit_code) {
        Outcome::Failed(failure) => failure.cause,
        other => panic!("{other:?}"),
    };
    assert_eq!(cause("OOMKilled", Some(137)), FailureCause::MemoryLimit);
    assert_eq!(cause("Error", Some(137)), FailureCause::Killed);
    assert_eq!(cause("StartError", Some(128)), FailureCause::CannotRun);
    assert_eq!(cause("", None), FailureCause::Unseen);
    assert!(matches!(end_of("OutOfnvidia.com/gpu", "", None), Outcome::Refused { .. }));
    assert_eq!(end_of("Evicted", "", None), Outcome::Lost);
}

#[test]
fn ranks_of_which_nobody_has_heard_are_named() {
    let mut gang = Gang::new(3);
    assert_eq!(gang.unheard().count(), 0);
    gang.begun(&[true, true, false], None);
    gang.see(1, &pod(PodPhase::Pending));
    assert_eq!(gang.unheard().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_gang_of_which_a_rank_hangs_is_ended_and_fails_for_that() {
    let mut gang = running();
    gang.hung(1, Millis(90_000));
    assert_eq!(facts(&mut gang), [Fact::Broken]);
    gang.see(0, &deleted(failed("", "Error", Some(143))));
    gang.see_gone(1);
    check_end(gang, |outcome| {
        let Outcome::Failed(failure) = outcome else { return false };
        failure.cause == FailureCause::Stalled && failure.rank == 1
    });
    // Who is asked to stop is no longer waited for.
    let mut gang = running();
    gang.stop();
    gang.hung(1, Millis(90_000));
    assert_eq!(facts(&mut gang), []);
}
