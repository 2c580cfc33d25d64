//! API objects as they are needed here: what is read of them, and the small rows that are kept.

use std::collections::BTreeMap;

use het_core::{LeaseId, Name};
use k8s_openapi::api::core::v1;
use kube::api::{ApiResource, Object};
use serde::{Deserialize, Serialize};

use crate::names::{self, RankLabels};
use crate::quantity::amounts;

pub(crate) type PodObject = Object<PodSpec, PodStatus>;
pub(crate) type NodeObject = Object<NodeSpec, NodeStatus>;

/// Why a container waits that is on its way.
const USUAL: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];

/// The API that pods are asked of.
pub(crate) fn pods() -> ApiResource {
    ApiResource::erase::<v1::Pod>(&())
}

/// The API that nodes are asked of.
pub(crate) fn nodes() -> ApiResource {
    ApiResource::erase::<v1::Node>(&())
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
    effect: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatus {
    allocatable: BTreeMap<String, String>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    node_name: Option<String>,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    overhead: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    resources: Resources,
    /// `Always` of one that begins before the others and goes on beside them.
    restart_policy: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    phase: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    state: ContainerState,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Waiting>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: Option<String>,
    message: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    reason: Option<String>,
    message: Option<String>,
}

/// The name of an object in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    pub namespace: String,
    pub name: String,
}

/// What is kept of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodRow {
    pub key: ObjectKey,
    pub uid: String,
    pub node: Option<Name>,
    pub phase: PodPhase,
    /// Somebody asked for its deletion.
    pub is_deleting: bool,
    /// Of a rank that this scheduler started.
    pub rank: Option<RankLabels>,
    /// By resource, in thousandths.
    pub requests: BTreeMap<String, u64>,
    /// Why its containers do not begin, where that is more than that it takes a while.
    pub trouble: Option<String>,
}

/// How far a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodPhase {
    /// It has no node, or its containers do not run yet.
    Pending,
    Running,
    Succeeded,
    Failed(PodFailure),
}

impl PodPhase {
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed(_))
    }
}

/// What is kept of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeRow {
    pub name: Name,
    /// What pods may request of it together, by resource, in thousandths.
    pub allocatable: BTreeMap<String, u64>,
    pub labels: BTreeMap<String, String>,
    /// Its kubelet reports.
    pub is_ready: bool,
    /// Somebody cordoned it.
    pub is_cordoned: bool,
    /// Keys of taints that keep pods away which do not tolerate them.
    pub taints: Vec<String>,
}

impl NodeRow {
    /// `None` of an object without a name.
    pub fn of(node: NodeObject) -> Option<Self> {
        let status = node.status.unwrap_or_default();
        let is_ready = |it: &Condition| it.r#type == "Ready" && it.status == "True";
        let repels = |taint: &Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        let taints = node.spec.taints.into_iter().filter(repels).map(|taint| taint.key);
        Some(Self {
            name: node.metadata.name?.as_str().into(),
            allocatable: amounts(&status.allocatable),
            labels: node.metadata.labels.unwrap_or_default(),
            is_ready: status.conditions.iter().any(is_ready),
            is_cordoned: node.spec.unschedulable,
            taints: taints.collect(),
        })
    }
}

/// Why a pod failed, as the kubelet has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PodFailure {
    /// Of the pod: `Evicted`, `OutOfcpu`, …; empty where its program ended.
    pub reason: String,
    /// Of its container: `Error`, `OOMKilled`, …
    pub container_reason: String,
    pub message: String,
    pub exit_code: Option<i32>,
}

impl PodRow {
    /// The row of a pod as `scheduler` sees it; `None` of an object without a name.
    pub fn of(pod: PodObject, scheduler: &str) -> Option<Self> {
        let metadata = pod.metadata;
        let key =
            ObjectKey { namespace: metadata.namespace.unwrap_or_default(), name: metadata.name? };
        let requests = pod.spec.requests();
        let trouble = pod.status.as_ref().and_then(PodStatus::trouble);
        Some(Self {
            key,
            trouble,
            uid: metadata.uid.unwrap_or_default(),
            node: pod.spec.node_name.map(Name::from),
            phase: pod.status.map_or(PodPhase::Pending, PodStatus::phase),
            is_deleting: metadata.deletion_timestamp.is_some(),
            rank: names::rank_of(&metadata.labels.unwrap_or_default(), scheduler),
            requests,
        })
    }

    pub fn lease(&self) -> Option<LeaseId> {
        self.rank.as_ref().map(|rank| rank.lease)
    }
}

impl PodSpec {
    /// What the kubelet keeps for the pod, by resource, in thousandths: what its containers request
    /// together, or one that runs before them with those that went on by then, where that is more.
    fn requests(&self) -> BTreeMap<String, u64> {
        let of = |container: &Container| amounts(&container.resources.requests);
        let (mut beside, mut before) = (BTreeMap::new(), BTreeMap::new());
        for container in &self.init_containers {
            if container.restart_policy.as_deref() == Some("Always") {
                add(&mut beside, &of(container));
            }
            let mut now = beside.clone();
            if container.restart_policy.as_deref() != Some("Always") {
                add(&mut now, &of(container));
            }
            for (name, amount) in now {
                let most: &mut u64 = before.entry(name).or_default();
                *most = amount.max(*most);
            }
        }
        let mut requests = beside;
        self.containers.iter().for_each(|container| add(&mut requests, &of(container)));
        for (name, amount) in before {
            let most = requests.entry(name).or_default();
            *most = amount.max(*most);
        }
        add(&mut requests, &amounts(&self.overhead));
        requests
    }
}

fn add(sums: &mut BTreeMap<String, u64>, amounts: &BTreeMap<String, u64>) {
    for (name, amount) in amounts {
        let sum = sums.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

impl PodStatus {
    fn phase(self) -> PodPhase {
        match self.phase.as_deref() {
            Some("Running") => PodPhase::Running,
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed(self.failure()),
            _ => PodPhase::Pending,
        }
    }

    /// What the kubelet says while it tries again and again.
    fn trouble(&self) -> Option<String> {
        let waiting = self.container_statuses.iter().filter_map(|it| it.state.waiting.as_ref());
        waiting.into_iter().find_map(|waiting| {
            let reason = waiting.reason.as_deref().unwrap_or_default();
            let message = waiting.message.as_deref().unwrap_or_default();
            let first = message.lines().next().unwrap_or_default();
            match (USUAL.contains(&reason), first) {
                (true, _) => None,
                (false, "") => Some(reason.to_owned()),
                (false, first) => Some(format!("{reason}: {first}")),
            }
        })
    }

    /// Of the container that failed first in its list; the kubelet's word where none ran.
    fn failure(self) -> PodFailure {
        let ended = self.container_statuses.into_iter().filter_map(|it| it.state.terminated);
        let container = ended.into_iter().find(|it| it.exit_code != 0);
        let reason = self.reason.unwrap_or_default();
        let message = self.message.unwrap_or_default();
        match container {
            None => PodFailure { reason, message, ..PodFailure::default() },
            Some(container) => PodFailure {
                reason,
                container_reason: container.reason.unwrap_or_default(),
                message: container.message.unwrap_or(message),
                exit_code: Some(container.exit_code),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(spec: serde_json::Value, cpu: u64) {
        let spec: PodSpec = serde_json::from_value(spec).expect("it is one");
        assert_eq!(spec.requests().get("cpu").copied().unwrap_or_default(), cpu);
    }

    fn container(cpu: &str, policy: Option<&str>) -> serde_json::Value {
        json!({ "resources": { "requests": { "cpu": cpu } }, "restartPolicy": policy })
    }

    #[test]
    fn a_pod_takes_what_its_containers_take_at_most_at_a_time() {
        let two = [container("1", None), container("2", None)];
        check(json!({ "containers": two }), 3_000);
        let small = [container("2", None), container("1", None)];
        check(json!({ "containers": two, "initContainers": small }), 3_000);
        let large = [container("5", None)];
        check(json!({ "containers": two, "initContainers": large }), 5_000);
        let sidecar = [container("1", Some("Always")), container("3", None)];
        check(json!({ "containers": two, "initContainers": sidecar }), 4_000);
        let overhead = json!({ "cpu": "250m" });
        check(json!({ "containers": two, "overhead": overhead }), 3_250);
    }
}
