//! What the pods of a group ask for, by what its object says.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::needs::NodeRule;
use crate::objects::PodPhase;

fn group(spec: &Value) -> GroupRow {
    let object = json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
        "metadata": { "name": "g", "namespace": "n", "uid": "u" }, "spec": spec,
    });
    let object = serde_json::from_value(object).expect("it is one");
    GroupRow::of(object).expect("it has a name")
}

fn gang(least: u64) -> Value {
    json!({ "schedulingPolicy": { "gang": { "minCount": least } } })
}

fn pod(name: &str, count: u64) -> PodRow {
    let needs = PodNeeds {
        profile: "g".into(),
        priority: Priority::Normal,
        preemptible: false,
        nodes: NodeRule::default(),
        not_supported: None,
    };
    PodRow {
        key: ObjectKey { namespace: "n".to_owned(), name: name.to_owned() },
        uid: name.to_owned(),
        node: None,
        phase: PodPhase::Pending,
        is_deleting: false,
        rank: None,
        requests: BTreeMap::from([("nvidia.com/gpu".to_owned(), count * 1_000)]),
        claims: Vec::new(),
        trouble: None,
        needs: Some(Arc::new(needs)),
        report: None,
        workload: None,
        group: Some("g".into()),
    }
}

/// In words: who starts together, or what is said.
fn told(group: &GroupRow, pods: &[PodRow], placed: usize, has_places: bool) -> String {
    let waiting: Vec<&PodRow> = pods.iter().collect();
    match group.asks(&waiting, placed, has_places) {
        Asks::Alone => "alone".to_owned(),
        Asks::Not(why) => format!("not: {why:?}"),
        Asks::Together(Ok(pods)) => {
            pods.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>().join(" ")
        }
        Asks::Together(Err(why)) => format!("{why:?}"),
    }
}

#[test]
fn as_many_start_together_as_the_group_says() {
    let pods = [pod("a", 1), pod("b", 1), pod("c", 1)];
    let of_two = group(&gang(2));
    assert_eq!(told(&of_two, &pods, 0, false), "a b");
    assert_eq!(told(&of_two, &pods, 1, false), "a", "one of them has a node already");
    assert_eq!(told(&of_two, &pods, 2, false), "alone");
    assert_eq!(told(&of_two, &pods, 0, true), "alone", "those that come later");
    assert!(told(&of_two, &pods[..1], 0, false).contains("1 of the 2 pods"));
    assert_eq!(
        told(&group(&json!({ "schedulingPolicy": { "basic": {} } })), &pods, 0, false),
        "alone"
    );
    let unlike = [pod("a", 1), pod("b", 2)];
    assert!(told(&of_two, &unlike, 0, false).contains("different devices"));
}

#[test]
fn what_a_group_asks_for_that_nobody_does_is_named() {
    let pods = [pod("a", 1), pod("b", 1)];
    let mut spec = gang(2);
    spec["resourceClaims"] = json!([{ "name": "c" }]);
    assert!(told(&group(&spec), &pods, 0, false).contains("resource claims"));
    let mut spec = json!({ "schedulingPolicy": { "basic": {} } });
    spec["schedulingConstraints"] = json!({ "topology": [{ "key": "rack" }] });
    assert!(
        told(&group(&spec), &pods, 0, false).starts_with("not: "),
        "nobody knows where the first is"
    );
    let mut spec = gang(1);
    spec["schedulingConstraints"] = json!({ "topology": [{ "key": "rack" }] });
    assert_eq!(told(&group(&spec), &pods, 0, false), "a");
    assert!(told(&group(&spec), &pods[1..], 1, true).contains("topology constraint"));
}

#[test]
fn both_versions_say_how_pods_may_be_stopped() {
    for (mode, is_whole) in [
        (json!({ "all": {} }), true),
        (json!({ "single": {} }), false),
        (json!("PodGroup"), true),
        (json!("Pod"), false),
        (Value::Null, false),
    ] {
        let mut spec = gang(1);
        spec["disruptionMode"] = mode.clone();
        assert_eq!(group(&spec).is_stopped_whole, is_whole, "{mode}");
    }
}

#[test]
fn the_smallest_part_that_a_label_names_counts() {
    let level = |key: &str| match key {
        "rack" => Some(Domain::Rack),
        "zone" => Some(Domain::Pod),
        _ => None,
    };
    let levels = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    assert_eq!(within(&levels(&["zone", "rack"]), level), Ok(Domain::Rack));
    assert_eq!(within(&levels(&[]), level), Ok(Domain::Any));
    assert_eq!(within(&levels(&["zone", "row"]), level), Err("row"));
}
