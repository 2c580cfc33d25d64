//! What follows from what is seen of the pods of a group, in every order.

use std::sync::Arc;

use het_core::Priority;
use proptest::prelude::*;

use super::*;
use crate::names::ObjectKey;
use crate::needs::{NodeRule, PodNeeds};
use crate::objects::{PodFailure, PodPhase};

const SLOTS: usize = 3;

fn pod(uid: &str) -> PodRow {
    let needs = PodNeeds {
        profile: "g".into(),
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
        requests: BTreeMap::from([("nvidia.com/gpu".to_owned(), 2_000)]),
        claims: Vec::new(),
        trouble: None,
        needs: Some(Arc::new(needs)),
        report: None,
        workload: None,
        group: Some("g".into()),
    }
}

fn on(node: &Name, phase: PodPhase, uid: &str) -> PodRow {
    PodRow { node: Some(node.clone()), phase, needs: None, ..pod(uid) }
}

fn lease() -> GroupLease {
    let nodes = (0..SLOTS).map(|at| format!("node-{at}").as_str().into()).collect();
    let devices = Devices { resource: "nvidia.com/gpu".into(), count: 2 };
    GroupLease::new(Given { nodes, devices }, Phase::Starting)
}

/// Gives pods `0`, `1` and so on the slots of a lease, and says where those are.
fn placed(lease: &mut GroupLease) -> Vec<Name> {
    let parts = (0..SLOTS).map(|at| lease.see_pod(&pod(&at.to_string())));
    let place = |part| match part {
        Part::Placed(node) => node,
        other => panic!("{other:?}"),
    };
    parts.map(place).collect()
}

fn facts(lease: &mut GroupLease) -> Vec<Fact> {
    let mut facts = Vec::new();
    while let Some(fact) = lease.next() {
        let is_last = matches!(fact, Fact::Ended(_));
        facts.push(fact);
        if is_last {
            break;
        }
    }
    facts
}

#[test]
fn a_group_is_scheduled_once_all_have_nodes_and_ends_with_its_last_pod() {
    let mut lease = lease();
    let nodes = placed(&mut lease);
    assert_eq!(facts(&mut lease), []);
    for (at, node) in nodes.iter().enumerate() {
        lease.see_pod(&on(node, PodPhase::Pending, &at.to_string()));
    }
    assert_eq!(facts(&mut lease), [Fact::Scheduled]);
    assert_eq!(lease.see_pod(&pod("later")), Part::None, "all slots are taken");
    for (at, node) in nodes.iter().enumerate() {
        lease.see_pod(&on(node, PodPhase::Running, &at.to_string()));
    }
    assert_eq!(facts(&mut lease), [Fact::Started]);

    // What replaces one that failed gets its place, and only what is like it.
    let failed = PodPhase::Failed(PodFailure::default());
    lease.see_pod(&on(&nodes[1], failed, "1"));
    assert_eq!(facts(&mut lease), []);
    let other = PodRow { requests: BTreeMap::new(), ..pod("other") };
    assert_eq!(lease.see_pod(&other), Part::None);
    assert_eq!(lease.see_pod(&pod("again")), Part::Placed(nodes[1].clone()));
    for (node, uid) in nodes.iter().zip(["0", "again", "2"]) {
        lease.see_pod(&on(node, PodPhase::Succeeded, uid));
    }
    assert_eq!(facts(&mut lease), [Fact::Ended(Outcome::Finished)]);
}

#[test]
fn a_group_that_stops_evicts_what_has_nodes_and_waits_for_its_end() {
    let mut lease = lease();
    let nodes = placed(&mut lease);
    lease.see_pod(&on(&nodes[0], PodPhase::Running, "0"));
    lease.stop(Outcome::Stopped);
    assert_eq!(facts(&mut lease), [Fact::Evict("0".to_owned())]);
    assert_eq!(lease.see_pod(&pod("new")), Part::None, "it gives no more nodes");
    // One whose binding was under way is seen later, another never gets there.
    lease.see_pod(&on(&nodes[1], PodPhase::Pending, "1"));
    assert_eq!(facts(&mut lease), [Fact::Evict("1".to_owned())]);
    lease.refused("2", "no".to_owned());
    lease.see_pod_gone("0");
    assert_eq!(facts(&mut lease), []);
    lease.see_pod_gone("1");
    assert_eq!(facts(&mut lease), [Fact::Ended(Outcome::Stopped)]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is seen of pods, and a stop in between: a lease ends when nobody is on it, and
    /// evicts each pod once.
    #[test]
    fn a_lease_ends_once_nobody_is_left(
        seen in prop::collection::vec((0..SLOTS, 0..5u8), 0..40),
        stops_at in 0..40usize,
    ) {
        let mut lease = lease();
        let nodes = placed(&mut lease);
        let mut there = [true; SLOTS];
        let mut evicted = Vec::new();
        for (turn, (at, what)) in seen.into_iter().enumerate() {
            if turn == stops_at {
                lease.stop(Outcome::Stopped);
            }
            let (node, uid) = (&nodes[at], at.to_string());
            if there[at] {
                let phase = match what {
                    0 => Some(PodPhase::Pending),
                    1 => Some(PodPhase::Running),
                    2 => Some(PodPhase::Succeeded),
                    3 => Some(PodPhase::Failed(PodFailure::default())),
                    _ => None,
                };
                there[at] = phase.as_ref().is_some_and(|phase| !phase.has_ended());
                match phase {
                    Some(phase) => drop(lease.see_pod(&on(node, phase, &uid))),
                    None => prop_assert!(lease.see_pod_gone(&uid)),
                }
            }
            let facts = facts(&mut lease);
            let has_ended = facts.iter().any(|fact| matches!(fact, Fact::Ended(_)));
            prop_assert_eq!(has_ended, there == [false; SLOTS]);
            for fact in facts {
                if let Fact::Evict(uid) = fact {
                    prop_assert!(!evicted.contains(&uid), "twice: {}", uid);
                    evicted.push(uid);
                }
            }
            if has_ended {
                break;
            }
        }
    }
}
