//! The suite that every engine passes.

use std::cell::RefCell;

use het_core::{Event, Launch, Millis, StageKey, Time};
use het_engine::Script;
use het_engine::contract::{Subject, check_all};
use het_kubernetes::{Binding, Kubernetes, KubernetesConfig, Nodes, Patience};
use serde_json::json;

use crate::rig::{Cluster, container, unique};

/// Nodes whose pods kwok plays.
struct Pods<'a> {
    cluster: &'a Cluster,
    /// Scheduler and namespace of the engine that was built last: each has its own.
    name: RefCell<String>,
}

impl Subject for Pods<'_> {
    type Engine = Kubernetes;

    fn build(&self, scripts: &[(StageKey, Script)]) -> (Kubernetes, Vec<Launch>) {
        *self.name.borrow_mut() = unique("contract");
        self.cluster.make_namespace(&self.name.borrow());
        let launches = scripts.iter().map(|(key, script)| launch(*key, script));
        (self.connect(), launches.collect())
    }

    fn crash(&self, engine: Kubernetes) -> Kubernetes {
        drop(engine);
        self.connect()
    }

    fn report(&self, engine: &mut Kubernetes, event: Event) {
        engine.event_sender().send(event);
    }
}

impl Pods<'_> {
    fn connect(&self) -> Kubernetes {
        let name = self.name.borrow().clone();
        let since = Time::ZERO + Millis(wall_time());
        let (way, leadership) = self.cluster.led(&name);
        let config = KubernetesConfig {
            cluster: way,
            scheduler: name.clone(),
            leadership,
            binding: Binding::Own,
            supervisor: None,
            resources: Vec::new(),
            namespace: Some(name),
            nodes: Nodes::Reported,
            begins_at: since,
            patience: Patience::default(),
        };
        Kubernetes::new(config)
    }
}

fn wall_time() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().expect("the clock is set").as_millis() as u64
}

/// What kwok does with the pod is said by its command: see `tests/kubernetes/kwok/pods.yaml`.
fn launch(key: StageKey, script: &Script) -> Launch {
    let words = match script {
        Script::Finish(after) => format!("finish {}ms", after.0),
        Script::UntilNotice => "until-notice".to_owned(),
        Script::Deaf => "deaf".to_owned(),
        Script::Fail(after, code) => format!("fail 0 {}ms {code}", after.0),
    };
    Launch {
        job: format!("job-{}", key.job).as_str().into(),
        stage: "train".into(),
        workdir: "/work".to_owned(),
        argv: words.split(' ').map(str::to_owned).collect(),
        container: Some(container()),
        ..Launch::default()
    }
}

#[test]
fn pods_keep_the_contract() {
    let Some(cluster) = Cluster::find() else { return };
    let has = json!({ "cpu": "8", "memory": "16Gi", "pods": "110" });
    for node in ["n0", "n1"] {
        cluster.make_node(node, &has, &json!({}));
    }
    check_all(&Pods { cluster: &cluster, name: RefCell::default() });
}
