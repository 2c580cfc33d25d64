//! What is read of objects of each kind.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use super::*;
use crate::names::Binding;

fn scheduler() -> Scheduler {
    Scheduler { name: "heterosis".into(), binding: Binding::Own }
}

fn template(scheduler: &str, gpus: u32, cpu: &str) -> Value {
    let mut requests = json!({ "cpu": cpu });
    if gpus > 0 {
        requests["nvidia.com/gpu"] = json!(gpus.to_string());
    }
    json!({ "spec": {
        "schedulerName": scheduler,
        "containers": [{ "name": "main", "resources": { "requests": requests } }],
    } })
}

fn gpus(count: u32) -> Value {
    template("heterosis", count, "4")
}

fn row_of(kind: WorkloadKind, metadata: Value, spec: Value, status: Value) -> Option<WorkloadRow> {
    let mut object = json!({
        "apiVersion": kind.api_version(), "kind": kind.name(), "metadata": metadata,
        "spec": spec, "status": status,
    });
    object["metadata"]["name"] = json!("w");
    object["metadata"]["namespace"] = json!("n");
    let object = serde_json::from_value(object).expect("it is one");
    WorkloadRow::of(kind, object, &scheduler())
}

fn row(kind: WorkloadKind, spec: Value) -> WorkloadRow {
    row_of(kind, json!({}), spec, json!({})).expect("it is a workload")
}

/// Ranks, and the devices of each.
#[track_caller]
fn check(kind: WorkloadKind, spec: Value, expected: Option<(u32, u64)>) {
    let row = row(kind, spec);
    let found = row.gang.as_ref().map(|gang| {
        assert_eq!(gang.refused, None);
        let devices = gang.requests.get("nvidia.com/gpu").copied().unwrap_or_default();
        (gang.ranks, devices / 1_000)
    });
    assert_eq!(found, expected, "{kind:?}");
    assert_eq!(row.asks(), expected.is_some(), "{kind:?} is suspended");
}

#[test]
fn each_kind_says_how_many_pods_start_together() {
    let job = |parallelism: u32, completions: Value| {
        json!({
            "parallelism": parallelism, "completions": completions, "template": gpus(8),
            "suspend": true,
        })
    };
    check(WorkloadKind::Job, job(4, json!(4)), Some((4, 8)));
    check(WorkloadKind::Job, job(4, json!(2)), Some((2, 8)));
    check(WorkloadKind::Job, job(4, Value::Null), Some((4, 8)));
    let nobody = json!({ "suspend": true, "template": template("default-scheduler", 8, "4") });
    check(WorkloadKind::Job, nobody, None);

    let replicated = |template: Value, replicas: u32| {
        json!({
            "name": "r", "replicas": replicas,
            "template": { "spec": { "parallelism": 2, "completions": 2, "template": template } },
        })
    };
    let sets = [replicated(template("heterosis", 0, "1"), 1), replicated(gpus(4), 3)];
    let set = json!({ "suspend": true, "replicatedJobs": sets });
    check(WorkloadKind::JobSet, set, Some((6, 4)));

    let roles = json!({
        "Master": { "replicas": 1, "template": gpus(2) },
        "Worker": { "replicas": 3, "template": gpus(2) },
    });
    let spec = json!({ "runPolicy": { "suspend": true }, "pytorchReplicaSpecs": roles });
    check(WorkloadKind::PyTorchJob, spec, Some((4, 2)));

    let groups = [json!({ "replicas": 2, "numOfHosts": 2, "template": gpus(4) })];
    let head = json!({ "template": template("heterosis", 0, "2") });
    let spec = json!({ "suspend": true, "headGroupSpec": head, "workerGroupSpecs": groups });
    check(WorkloadKind::RayCluster, spec, Some((4, 4)));
}

#[test]
fn what_cannot_be_started_together_is_told() {
    let roles = json!({
        "Master": { "template": gpus(1) },
        "Worker": { "replicas": 3, "template": gpus(2) },
    });
    let spec = json!({ "runPolicy": { "suspend": true }, "pytorchReplicaSpecs": roles });
    let refused = row(WorkloadKind::PyTorchJob, spec).gang.and_then(|gang| gang.refused.clone());
    let Some(Unsuitable::NotSupported(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("different devices"), "{why}");

    let metadata = json!({ "annotations": { "heterosis.dev/topology": "room" } });
    let spec = json!({ "suspend": true, "template": gpus(1) });
    let job = row_of(WorkloadKind::Job, metadata, spec, json!({})).and_then(|row| row.gang);
    let Some(Unsuitable::NotSupported(why)) = job.and_then(|gang| gang.refused.clone()) else {
        panic!("it is no word");
    };
    assert!(why.contains("`room`") && why.contains("node, rack, pod, any"), "{why}");
}

/// The gang of an object with this status.
fn gang_of(kind: WorkloadKind, spec: Value, status: Value) -> Option<Arc<WorkloadGang>> {
    row_of(kind, json!({}), spec, status).and_then(|row| row.gang)
}

#[test]
fn what_is_done_is_not_made_again() {
    let job = |template: Value| {
        json!({
            "parallelism": 4, "completions": 6, "suspend": true, "template": template,
        })
    };
    let left = |succeeded: u32| {
        let status = json!({ "succeeded": succeeded });
        gang_of(WorkloadKind::Job, job(gpus(1)), status).map(|gang| gang.ranks)
    };
    assert_eq!([left(0), left(1), left(4)], [Some(4), Some(4), Some(2)]);

    let part = json!({
        "name": "r", "replicas": 3, "template": { "spec": job(gpus(1)) },
    });
    let spec = json!({ "suspend": true, "replicatedJobs": [part] });
    let status = json!({ "replicatedJobsStatus": [{ "name": "r", "succeeded": 2 }] });
    assert_eq!(gang_of(WorkloadKind::JobSet, spec, status).map(|gang| gang.ranks), Some(4));

    let group = |replicas: u32, least: u32, suspend: bool| {
        json!({
            "replicas": replicas, "minReplicas": least, "suspend": suspend, "template": gpus(1),
        })
    };
    let head = json!({ "template": template("heterosis", 0, "2") });
    let groups = [group(1, 2, false), group(5, 0, true)];
    let spec = json!({ "suspend": true, "headGroupSpec": head, "workerGroupSpecs": groups });
    let cluster = gang_of(WorkloadKind::RayCluster, spec, json!({})).expect("it is one");
    assert_eq!((cluster.ranks, cluster.is_all), (2, false));
}

#[test]
fn amounts_are_read_as_somebody_wrote_them() {
    let with = |resources: Value| {
        let container = json!({ "name": "main", "resources": resources });
        let spec = json!({ "schedulerName": "heterosis", "containers": [container] });
        let roles = json!({ "Worker": { "replicas": 2, "template": { "spec": spec } } });
        let spec = json!({ "runPolicy": { "suspend": true }, "pytorchReplicaSpecs": roles });
        gang_of(WorkloadKind::PyTorchJob, spec, json!({}))
    };
    for resources in [
        json!({ "requests": { "nvidia.com/gpu": 8 } }),
        json!({ "limits": { "nvidia.com/gpu": "8" } }),
        json!({ "limits": { "nvidia.com/gpu": 8, "cpu": 0.5 } }),
    ] {
        let gang = with(resources).expect("it is one");
        assert_eq!(gang.requests.get("nvidia.com/gpu"), Some(&8_000));
        assert!(gang.is_all && gang.refused.is_none());
    }
    let none = with(json!({ "limits": { "nvidia.com/gpu": "eight" } }));
    assert!(none.is_some_and(|gang| gang.refused.is_some()));
}

#[test]
fn a_template_that_cannot_be_read_is_told() {
    let bad = json!({ "spec": { "schedulerName": 3 } });
    let roles = json!({ "Master": { "template": gpus(1) }, "Worker": { "template": bad } });
    let spec = json!({ "runPolicy": { "suspend": true }, "pytorchReplicaSpecs": roles });
    let gang = gang_of(WorkloadKind::PyTorchJob, spec, json!({})).expect("it has a master");
    let Some(Unsuitable::NotSupported(why)) = &gang.refused else { panic!("{gang:?}") };
    assert!(why.contains("cannot be read"), "{why}");

    // Of one that has no other the scheduler's name is enough.
    let only = |name: &str| {
        let bad = json!({ "spec": { "schedulerName": name, "containers": 3 } });
        let roles = json!({ "Worker": { "template": bad } });
        let spec = json!({ "runPolicy": { "suspend": true }, "pytorchReplicaSpecs": roles });
        gang_of(WorkloadKind::PyTorchJob, spec, json!({}))
    };
    assert!(only("heterosis").is_some_and(|gang| gang.refused.is_some()));
    assert!(only("another").is_none());
}

#[test]
fn a_workload_made_by_another_goes_by_the_one_that_suspends_it() {
    let owner = |api: &str, kind: &str| {
        let owner = json!({
            "apiVersion": api, "kind": kind, "name": "parent", "uid": "p", "controller": true,
        });
        json!({ "ownerReferences": [owner] })
    };
    let spec = json!({ "suspend": true, "template": gpus(1), "replicatedJobs": [] });
    let of = |kind, (api, parent): (&str, &str)| {
        row_of(kind, owner(api, parent), spec.clone(), json!({}))
    };
    let by = of(WorkloadKind::JobSet, ("trainer.kubeflow.org/v1alpha1", "TrainJob"))
        .expect("it has one")
        .suspended_by;
    assert_eq!((by.name.kind, by.uid.as_str()), (WorkloadKind::TrainJob, "p"));
    assert!(
        of(WorkloadKind::Job, ("jobset.x-k8s.io/v1alpha2", "JobSet")).is_none(),
        "the set has its jobs begin"
    );
    let by = of(WorkloadKind::Job, ("batch/v1", "CronJob")).expect("it is its own").suspended_by;
    assert_eq!(by.name.kind, WorkloadKind::Job);
}

#[test]
fn conditions_say_how_it_ended() {
    let spec = json!({ "suspend": true, "template": gpus(1) });
    let ended = |condition: &str, status: &str| {
        let condition = json!({ "type": condition, "status": status, "reason": "BackoffLimit" });
        let status = json!({ "conditions": [condition] });
        row_of(WorkloadKind::Job, json!({}), spec.clone(), status).and_then(|row| row.end)
    };
    assert_eq!(ended("Complete", "True"), Some(WorkloadEnd::Succeeded));
    assert_eq!(ended("Failed", "True"), Some(WorkloadEnd::Failed("BackoffLimit".to_owned())));
    assert_eq!(ended("Failed", "False"), None);
    assert_eq!(ended("Suspended", "True"), None);
}

#[test]
fn who_ended_its_job_here_is_not_asked_again() {
    let metadata = json!({ "annotations": { "heterosis.dev/ended": "cancelled" } });
    let spec = json!({ "suspend": true, "template": gpus(1) });
    let row = row_of(WorkloadKind::Job, metadata, spec, json!({})).expect("it is one");
    assert!(!row.asks());
}

#[test]
fn a_pod_is_of_its_set_or_of_its_controller() {
    let owner = |api: &str, kind: &str, name: &str| OwnerReference {
        api_version: api.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: "u".to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    let of = |labels: &BTreeMap<String, String>, owner: Option<&OwnerReference>| {
        WorkloadName::of_pod("n", labels, owner).map(|name| (name.kind, name.key.name))
    };
    let plain = BTreeMap::new();
    let job = owner("batch/v1", "Job", "w-r-0");
    assert_eq!(of(&plain, Some(&job)), Some((WorkloadKind::Job, "w-r-0".to_owned())));
    let set = BTreeMap::from([("jobset.sigs.k8s.io/jobset-name".to_owned(), "w".to_owned())]);
    assert_eq!(of(&set, Some(&job)), Some((WorkloadKind::JobSet, "w".to_owned())));
    assert_eq!(of(&plain, Some(&owner("apps/v1", "ReplicaSet", "r"))), None);
    let volcano = owner("batch.volcano.sh/v1alpha1", "Job", "w");
    assert_eq!(of(&plain, Some(&volcano)), None, "its kind is called the same");
    assert_eq!(of(&plain, None), None);
}
