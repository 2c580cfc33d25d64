//! What follows from what is seen of a workload and of its pods, in every order.

use std::sync::Arc;

use het_core::{Priority, Time};
use proptest::prelude::*;

use super::*;
use crate::needs::{NodeRule, PodNeeds};
use crate::objects::{PodFailure, PodPhase};
use crate::workload_kinds::{WorkloadKind, WorkloadName};
use crate::workloads::SuspendedBy;

fn requests() -> BTreeMap<String, u64> {
    BTreeMap::from([("nvidia.com/gpu".to_owned(), 2_000)])
}

/// A pod that asks for a node.
fn pod(uid: &str) -> PodRow {
    let needs = PodNeeds {
        profile: "w".into(),
        priority: Priority::Normal,
        preemptible: true,
        nodes: NodeRule::default(),
        not_supported: None,
    };
    PodRow {
        key: ObjectKey { namespace: "n".to_owned(), name: uid.to_owned() },
        uid: uid.to_owned(),
        node: None,
        phase: PodPhase::Pending,
        is_deleting: false,
        rank: None,
        requests: requests(),
        claims: Vec::new(),
        trouble: None,
        needs: Some(Arc::new(needs)),
        report: None,
        workload: None,
        group: None,
    }
}

fn on(node: &str, phase: PodPhase, uid: &str) -> PodRow {
    PodRow { node: Some(node.into()), phase, needs: None, ..pod(uid) }
}

fn workload(is_suspended: bool, end: Option<WorkloadEnd>) -> WorkloadRow {
    at(1, is_suspended, end)
}

fn at(version: u64, is_suspended: bool, end: Option<WorkloadEnd>) -> WorkloadRow {
    let key = ObjectKey { namespace: "n".to_owned(), name: "w".to_owned() };
    let name = WorkloadName { kind: WorkloadKind::JobSet, key };
    WorkloadRow {
        uid: "w".to_owned(),
        version,
        suspended_by: SuspendedBy { name: name.clone(), uid: "w".to_owned() },
        is_suspended,
        is_over: false,
        end,
        gang: None,
        name,
    }
}

fn given() -> Given {
    let devices = Devices { resource: "nvidia.com/gpu".into(), count: 2 };
    Given { nodes: vec!["a".into(), "b".into()], devices }
}

fn two() -> WorkloadLease {
    let mut lease = WorkloadLease::new(given(), false);
    lease.see(&workload(true, None));
    assert_eq!(lease.next(), None);
    assert!(lease.is_to_begin());
    lease.see(&workload(false, None));
    lease
}

fn started() -> WorkloadLease {
    let mut lease = two();
    for (uid, node) in [("0", "a"), ("1", "b")] {
        assert_eq!(lease.see_pod(&pod(uid)), Part::Placed(node.into()));
        assert_eq!(lease.next(), None, "{uid}");
        assert_eq!(lease.see_pod(&on(node, PodPhase::Running, uid)), Part::Has);
    }
    assert_eq!(lease.next(), Some(Fact::Started));
    lease
}

#[test]
fn it_ends_once_its_controller_says_so_and_its_pods_are_over() {
    let mut lease = started();
    lease.see_pod(&on("a", PodPhase::Succeeded, "0"));
    lease.see(&workload(false, Some(WorkloadEnd::Succeeded)));
    assert_eq!(lease.next(), None, "a pod still runs");
    assert!(lease.see_pod_gone(&pod("1").key, "1"));
    assert_eq!(lease.next(), Some(Fact::Ended(Outcome::Finished)));

    let mut lease = started();
    lease.see(&workload(false, Some(WorkloadEnd::Failed("too often".to_owned()))));
    for (uid, node) in [("0", "a"), ("1", "b")] {
        lease.see_pod(&on(node, PodPhase::Failed(PodFailure::default()), uid));
    }
    let Some(Fact::Ended(Outcome::Failed(failure))) = lease.next() else {
        panic!("it has failed");
    };
    assert_eq!((failure.message.as_str(), failure.cause), ("too often", FailureCause::Program));
}

#[test]
fn a_pod_that_replaces_another_gets_its_slot_and_no_other() {
    let mut lease = started();
    assert_eq!(lease.see_pod(&pod("2")), Part::Waits { is_new: true });
    assert_eq!(lease.see_pod(&pod("2")), Part::Waits { is_new: false });
    assert_eq!(lease.next_waiting(), None, "both slots are taken");
    lease.see_pod(&on("b", PodPhase::Failed(PodFailure::default()), "1"));
    assert_eq!(lease.next_waiting(), Some(pod("2").key));
    assert_eq!(lease.see_pod(&pod("2")), Part::Placed("b".into()));
    assert_eq!(lease.next(), None);
}

#[test]
fn pods_that_ask_for_something_else_are_none_of_its() {
    let mut lease = two();
    // A controller added a container that begins before the others.
    let mut with_memory = pod("0");
    with_memory.requests.insert("memory".to_owned(), 20_000);
    assert_eq!(lease.see_pod(&with_memory), Part::Placed("a".into()));
    let head = PodRow { requests: BTreeMap::new(), ..pod("head") };
    assert_eq!(lease.see_pod(&head), Part::None);
    // It was bound before, and not to a node of this lease.
    assert_eq!(lease.see_pod(&on("c", PodPhase::Running, "c")), Part::None);
}

#[test]
fn a_stop_suspends_it_and_ends_when_nothing_is_left() {
    let mut lease = started();
    lease.stop();
    assert_eq!(lease.next(), Some(Fact::Suspend));
    assert_eq!(lease.next(), None);
    let part = lease.see_pod(&pod("2"));
    assert_eq!(part, Part::Waits { is_new: false }, "nothing begins any more");
    lease.see_pod_gone(&pod("0").key, "0");
    lease.see_pod_gone(&pod("1").key, "1");
    assert_eq!(lease.next(), None, "it is not suspended yet");
    lease.see(&workload(true, None));
    assert_eq!(lease.next(), None, "that may be of an earlier time");
    lease.suspended(1);
    assert_eq!(lease.next(), Some(Fact::Ended(Outcome::Stopped)));
}

#[test]
fn what_somebody_else_suspends_is_held() {
    let mut lease = started();
    lease.see(&workload(true, None));
    assert_eq!(lease.next(), Some(Fact::Held));
    assert_eq!(lease.next(), Some(Fact::Suspend));
    lease.suspended(1);
    lease.see_pod_gone(&pod("0").key, "0");
    lease.see_pod_gone(&pod("1").key, "1");
    assert_eq!(lease.next(), Some(Fact::Ended(Outcome::Lost)));
}

#[test]
fn a_pod_that_gets_no_node_ends_it_with_the_reason() {
    let mut lease = two();
    assert_eq!(lease.see_pod(&pod("0")), Part::Placed("a".into()));
    lease.refused("0", "no".to_owned());
    assert_eq!(lease.next(), Some(Fact::Suspend));
    lease.suspended(2);
    assert_eq!(lease.next(), None);
    lease.see(&at(2, true, None));
    let refused = Outcome::Refused { reason: "no".to_owned() };
    assert_eq!(lease.next(), Some(Fact::Ended(refused)));
}

#[test]
fn one_that_is_deleted_holds_its_devices_until_its_pods_are_gone() {
    let mut lease = started();
    lease.see_gone();
    assert_eq!(lease.next(), None);
    lease.see_pod_gone(&pod("0").key, "0");
    lease.see_pod_gone(&pod("1").key, "1");
    assert_eq!(lease.next(), Some(Fact::Gone));
}

#[test]
fn a_successor_goes_on_with_the_pods_that_it_finds() {
    let phase = Phase::Running { since: Time::ZERO };
    let mut lease = WorkloadLease::adopted(given(), false, phase);
    lease.see(&workload(false, None));
    assert_eq!(lease.see_pod(&on("b", PodPhase::Running, "1")), Part::Has);
    assert_eq!(lease.see_pod(&pod("0")), Part::Placed("a".into()));
    assert_eq!(lease.next(), None, "it has started before");
    lease.stop();
    assert_eq!(lease.next(), Some(Fact::Suspend));
}

#[test]
fn a_stop_before_it_began_waits_until_nothing_can_begin_any_more() {
    let mut lease = WorkloadLease::new(given(), false);
    lease.see(&workload(true, None));
    lease.stop();
    assert_eq!(lease.next(), Some(Fact::Suspend));
    assert_eq!(lease.next(), None, "its unsuspension may be under way");
    lease.see(&at(2, false, None));
    lease.suspended(3);
    assert_eq!(lease.next(), None);
    lease.see(&at(3, true, None));
    assert_eq!(lease.next(), Some(Fact::Ended(Outcome::Stopped)));
}

#[test]
fn what_somebody_has_go_on_while_it_is_to_stop_is_suspended_again() {
    let mut lease = started();
    lease.stop();
    assert_eq!(lease.next(), Some(Fact::Suspend));
    lease.suspended(5);
    lease.see(&at(5, true, None));
    lease.see(&at(6, false, None));
    assert_eq!(lease.next(), Some(Fact::Suspend));
    assert_eq!(lease.next(), None);
    lease.suspended(7);
    lease.see(&at(7, true, None));
    for uid in ["0", "1"] {
        lease.see_pod_gone(&pod(uid).key, uid);
    }
    assert_eq!(lease.next(), Some(Fact::Ended(Outcome::Stopped)));
}

#[test]
fn what_was_suspended_while_nobody_led_is_held() {
    let phase = Phase::Running { since: Time::ZERO };
    let mut lease = WorkloadLease::adopted(given(), false, phase);
    lease.see(&workload(true, None));
    assert!(!lease.is_to_begin());
    assert_eq!(lease.next(), Some(Fact::Held));
}

#[test]
fn who_was_not_allowed_to_look_for_a_while_knows_it_again() {
    let mut lease = started();
    lease.see_gone();
    assert_eq!(lease.next(), None, "its pods are there");
    lease.see(&at(9, false, None));
    for uid in ["0", "1"] {
        lease.see_pod_gone(&pod(uid).key, uid);
    }
    assert_eq!(lease.next(), None, "its controller makes others");
}

#[test]
fn one_with_fewer_pods_than_ranks_has_begun_when_they_all_run() {
    let mut lease = two();
    assert!(!lease.has_begun());
    lease.see_pod(&pod("0"));
    assert!(!lease.has_begun());
    lease.see_pod(&on("a", PodPhase::Running, "0"));
    assert!(lease.has_begun());
    lease.start();
    assert_eq!(lease.next(), Some(Fact::Started));
}

#[test]
fn a_pod_with_more_cores_than_its_template_is_one_where_there_are_no_others() {
    let cores = |milli| BTreeMap::from([("cpu".to_owned(), milli)]);
    let devices = Devices { resource: "cpu".into(), count: 4 };
    for (is_all, milli, is_one) in
        [(true, 4_100, true), (true, 3_000, false), (false, 4_100, false), (false, 4_000, true)]
    {
        let given = Given { nodes: vec!["a".into()], devices: devices.clone() };
        let mut lease = WorkloadLease::new(given, is_all);
        let row = PodRow { requests: cores(milli), ..pod("0") };
        assert_eq!(lease.see_pod(&row) != Part::None, is_one, "{is_all} {milli}");
    }
}

/// Something that is seen, of pods by number.
#[derive(Debug, Clone)]
enum Step {
    Comes(u8),
    Runs(u8),
    Ends(u8),
    Goes(u8),
    Suspended(bool),
    Stop,
    Refused(u8),
    Succeeds,
    Gone,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = || 0..6u8;
    let step = prop_oneof![
        4 => number().prop_map(Step::Comes),
        4 => number().prop_map(Step::Runs),
        3 => number().prop_map(Step::Ends),
        3 => number().prop_map(Step::Goes),
        3 => any::<bool>().prop_map(Step::Suspended),
        1 => Just(Step::Stop),
        1 => number().prop_map(Step::Refused),
        1 => Just(Step::Succeeds),
        1 => Just(Step::Gone),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No node has more pods than ranks, whatever comes; and it ends only when nobody is left.
    #[test]
    fn pods_have_slots_of_their_own(steps in steps()) {
        let mut lease = two();
        let mut nodes: BTreeMap<u8, Name> = BTreeMap::new();
        let mut ended = false;
        for (version, step) in (2..).zip(steps) {
            match &step {
                Step::Comes(number) if !nodes.contains_key(number) => {
                    if let Part::Placed(node) = lease.see_pod(&pod(&number.to_string())) {
                        nodes.insert(*number, node);
                    }
                }
                Step::Runs(number) => {
                    if let Some(node) = nodes.get(number) {
                        let row = on(node.as_str(), PodPhase::Running, &number.to_string());
                        prop_assert_eq!(lease.see_pod(&row), Part::Has);
                    }
                }
                Step::Ends(number) => {
                    if let Some(node) = nodes.remove(number) {
                        let phase = PodPhase::Failed(PodFailure::default());
                        lease.see_pod(&on(node.as_str(), phase, &number.to_string()));
                    }
                }
                Step::Goes(number) => {
                    nodes.remove(number);
                    let uid = number.to_string();
                    lease.see_pod_gone(&pod(&uid).key, &uid);
                }
                Step::Suspended(is_suspended) => lease.see(&at(version, *is_suspended, None)),
                Step::Stop => lease.stop(),
                Step::Refused(number) => {
                    nodes.remove(number);
                    lease.refused(&number.to_string(), String::new());
                }
                Step::Succeeds => {
                    lease.see(&at(version, false, Some(WorkloadEnd::Succeeded)));
                }
                Step::Gone => lease.see_gone(),
                Step::Comes(_) => {}
            }
            while let Some(fact) = lease.next() {
                if fact == Fact::Suspend {
                    lease.suspended(version);
                }
                if matches!(fact, Fact::Ended(_) | Fact::Gone) {
                    prop_assert!(nodes.is_empty(), "{:?} still on {:?}", fact, nodes);
                    ended = true;
                    break;
                }
            }
            if ended {
                break;
            }
            let used: Vec<&Name> = nodes.values().collect();
            prop_assert!(used.iter().all(|node| used.iter().filter(|it| it == &node).count() == 1));
        }
    }
}
