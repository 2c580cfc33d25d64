//! Pods that were given nodes and never run, and pods of a leader that is none any more.

use std::sync::Arc;

use het_core::{
    Action, DeviceId, Event, Generation, Grant, HostResources, JobId, Launch, LeaseId, Millis,
    NodeId, Outcome, Placement, Plan, Rank, Share, StageIndex, StageKey, State, Time,
};
use het_engine::Engine;
use het_engine::contract::topology;
use het_kubernetes::{
    Binding, Kubernetes, KubernetesConfig, ManifestOptions, Nodes, Patience, SCHEDULER, manifests,
};
use kube::Error;
use serde_json::{Value, json};

use crate::rig::{Cluster, container, unique};

const PATIENCE_MS: u64 = 20_000;

/// The start of a gang of one on the first node.
fn start(command: &str) -> Plan {
    let grants = vec![Grant { device: DeviceId(0), share: Share::units(1) }];
    let host = HostResources::NONE;
    let rank = Rank { node: NodeId(0), grants, companions: Vec::new(), host };
    let launch = Launch {
        job: "begins".into(),
        stage: "train".into(),
        workdir: "/work".to_owned(),
        argv: vec![command.to_owned()],
        container: Some(container()),
        ..Launch::default()
    };
    let start = Action::Start {
        lease: LeaseId(1),
        stage: StageKey { job: JobId(1), stage: StageIndex(0) },
        attempt: 1,
        placement: Arc::new(Placement { alternative: 0, ranks: vec![rank] }),
        launch: Arc::new(launch),
        resume: None,
        reasons: Vec::new(),
    };
    Plan { generation: Generation(1), actions: vec![start], waits: Vec::new() }
}

/// What becomes of the gang.
fn outcome(cluster: &Cluster, command: &str, patience: Patience) -> Outcome {
    let scheduler = unique("begins");
    cluster.make_namespace(&scheduler);
    let (way, leadership) = cluster.led(&scheduler);
    let mut engine = Kubernetes::new(KubernetesConfig {
        cluster: way,
        scheduler: scheduler.clone(),
        leadership,
        binding: Binding::Own,
        supervisor: None,
        resources: Vec::new(),
        namespace: Some(scheduler),
        nodes: Nodes::Reported,
        begins_at: Time::ZERO,
        patience,
    });
    engine.adopt(&State::new(Arc::new(topology())));
    engine.submit(&start(command));
    let deadline = Time(engine.now().0 + PATIENCE_MS);
    loop {
        assert!(engine.now() < deadline, "its end is not seen");
        if let Some((_, Event::StageEnded { outcome, .. })) = engine.next_event(Some(deadline)) {
            return outcome;
        }
    }
}

#[test]
fn a_gang_that_does_not_begin_gives_its_devices_back() {
    let Some(cluster) = Cluster::find() else { return };
    let has = json!({ "cpu": "8", "memory": "16Gi", "pods": "110" });
    cluster.make_node("n0", &has, &json!({}));
    let patience = Patience { in_trouble: Millis(300), silent: Millis(60_000) };
    let Outcome::Refused { reason } = outcome(&cluster, "unpullable", patience) else {
        panic!("it was not refused");
    };
    let expected = "the pod of rank 0 does not begin: ImagePullBackOff: Back-off pulling image";
    assert_eq!(reason, expected);
    let patience = Patience { in_trouble: Millis(60_000), silent: Millis(300) };
    let Outcome::Refused { reason } = outcome(&cluster, "unpullable", patience) else {
        panic!("it was not refused");
    };
    assert!(reason.contains("nobody says why"), "{reason}");
}

fn pod(namespace: &str, scheduler: &str, epoch: u64) -> Value {
    let container = json!({ "name": "stage", "image": "registry.example/none" });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "fenced-", "namespace": namespace,
            "labels": { "heterosis.dev/scheduler": scheduler },
            "annotations": { "heterosis.dev/epoch": epoch.to_string() },
        },
        "spec": { "schedulerName": scheduler, "containers": [container] },
    })
}

#[test]
fn what_an_earlier_leader_makes_is_refused() {
    let Some(cluster) = Cluster::find() else { return };
    let scheduler = unique("fence");
    cluster.make_namespace(&scheduler);
    let options = ManifestOptions {
        binding: Binding::Own,
        namespace: "default".to_owned(),
        image: None,
        scheduler: scheduler.clone(),
        storage: "1Gi".to_owned(),
        replicas: 1,
        jobs_namespaces: Vec::new(),
        handed_over: false,
        device_table: None,
    };
    let fence = manifests(&options).into_iter().filter(|object| {
        object["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmission"))
    });
    for object in fence {
        cluster.make(object["kind"].as_str().expect("it has one"), None, &object);
    }
    let (_first, leads) = cluster.led(&scheduler);
    assert_eq!(leads.epoch(), 1);
    let (_second, leads) = cluster.led(&scheduler);
    assert_eq!((leads.epoch_before(), leads.epoch()), (1, 2));
    // The API server takes a moment to know the policy.
    let refusal = (0..1_000).find_map(|_| {
        match cluster.try_make("Pod", Some(&scheduler), &pod(&scheduler, &scheduler, 1)) {
            Err(Error::Api(status)) => Some((status.code, status.message)),
            other => {
                drop(other.expect("it is taken while there is no policy"));
                None
            }
        }
    });
    let (code, message) = refusal.expect("it is refused in the end");
    assert_eq!(code, 403, "{message}");
    assert!(message.contains("another server leads since"), "{message}");
    let current = cluster.try_make("Pod", Some(&scheduler), &pod(&scheduler, &scheduler, 2));
    drop(current.expect("the leader may"));
    let others = cluster.try_make("Pod", Some(&scheduler), &pod(&scheduler, SCHEDULER, 0));
    drop(others.expect("it is of another scheduler"));
}
