//! Nodes of a real API server, and others' pods on them, as the engine reports them.

use std::sync::Arc;

use het_core::{Event, NodeId, Share, State, Time};
use het_engine::Engine;
use het_kubernetes::{Binding, Kubernetes, KubernetesConfig, Nodes, Patience};
use serde_json::{Value, json};

use crate::rig::{Cluster, unique};

const PATIENCE_MS: u64 = 20_000;

/// An engine, and the state that hears it.
struct Heard {
    engine: Kubernetes,
    state: State,
}

impl Heard {
    fn of(cluster: &Cluster) -> Self {
        let scheduler = unique("nodes");
        let (way, leadership) = cluster.led(&scheduler);
        let config = KubernetesConfig {
            cluster: way,
            scheduler,
            leadership,
            binding: Binding::Own,
            supervisor: None,
            resources: Vec::new(),
            namespace: None,
            nodes: Nodes::Watched,
            begins_at: Time::ZERO,
            patience: Patience::default(),
        };
        let mut engine = Kubernetes::new(config);
        let state = State::new(Arc::default());
        engine.adopt(&state);
        Self { engine, state }
    }

    /// Hears and applies events until something is true of the state.
    #[track_caller]
    fn until(&mut self, what: &str, is_true: impl Fn(&State) -> bool) {
        let deadline = Time(self.engine.now().0 + PATIENCE_MS);
        while !is_true(&self.state) {
            assert!(self.engine.now() < deadline, "not seen: {what}");
            let Some((at, event)) = self.engine.next_event(Some(deadline)) else { continue };
            self.state.apply(at, &event);
            if matches!(event, Event::NodesJoined { .. } | Event::NodeRemoved { .. }) {
                self.engine.topology_changed(self.state.topology());
            }
        }
    }
}

fn node_id(state: &State, name: &str) -> Option<NodeId> {
    let topology = state.topology();
    let named = topology.node_ids().find(|id| topology.node(*id).name == *name);
    named.filter(|id| !state.is_removed(*id))
}

/// Free whole devices of a class on a node.
fn free(state: &State, node: &str, class: &str) -> u32 {
    let Some(id) = node_id(state, node) else { return 0 };
    let topology = state.topology();
    let of_class = topology.device_ids().filter(|device| {
        topology.device(*device).node == id && topology.class_of(*device).id == *class
    });
    of_class.map(|device| state.free().share(device)).sum::<Share>().whole_units()
}

fn pod_of_somebody(name: &str, node: &str, requests: &Value) -> Value {
    let resources = json!({ "requests": requests, "limits": requests });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": "c", "image": "none", "resources": resources }],
        },
    })
}

#[test]
fn nodes_and_what_others_take_of_them_are_reported() {
    let Some(cluster) = Cluster::find() else { return };
    let (gpus, npus) = (unique("gpus"), unique("npus"));
    let product = json!({ "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" });
    cluster.make_node(&gpus, &json!({ "cpu": "8", "pods": "9", "nvidia.com/gpu": "8" }), &product);
    let chip = json!({ "node.kubernetes.io/npu.chip.name": "910B4" });
    let has = json!({ "cpu": "8", "pods": "9", "huawei.com/Ascend910": "8" });
    cluster.make_node(&npus, &has, &chip);

    let mut heard = Heard::of(&cluster);
    heard.until("both nodes", |state| {
        free(state, &gpus, "h100-sxm5-80") == 8 && free(state, &npus, "ascend-910b4") == 8
    });

    let pod = pod_of_somebody(&gpus, &gpus, &json!({ "nvidia.com/gpu": "3", "cpu": "1" }));
    cluster.make("Pod", Some("default"), &pod);
    heard.until("a pod of somebody", |state| free(state, &gpus, "h100-sxm5-80") == 5);
    cluster.delete("Pod", Some("default"), &gpus);
    heard.until("its end", |state| free(state, &gpus, "h100-sxm5-80") == 8);

    cluster.patch("Node", &gpus, &json!({ "spec": { "unschedulable": true } }));
    let is_suspected =
        |state: &State| node_id(state, &gpus).is_some_and(|id| state.is_suspected(id));
    heard.until("the cordon", is_suspected);
    cluster.patch("Node", &gpus, &json!({ "spec": { "unschedulable": false } }));
    heard.until("its end", |state| !is_suspected(state));

    let ready = |is: &str| json!({ "metadata": { "annotations": { "heterosis.dev/ready": is } } });
    cluster.patch("Node", &npus, &ready("false"));
    let is_lost = |state: &State| node_id(state, &npus).is_some_and(|id| state.is_lost(id));
    heard.until("the loss", is_lost);
    cluster.delete("Node", None, &npus);
    heard.until("the end of the node", |state| node_id(state, &npus).is_none());
    cluster.delete("Node", None, &gpus);
}
