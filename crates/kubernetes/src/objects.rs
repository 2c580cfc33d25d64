//! API objects as they are needed here: what is read of them, and the small rows that are kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{LeaseId, Name, Priority};
use het_wire::progress::LINE_BYTES_MAX;
use k8s_openapi::api::core::v1;
use kube::api::{ApiResource, Object};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::names::{self, Binding, GATE, ObjectKey, RankLabels, Scheduler};
use crate::needs::{self, NodeRule, Operator, PodNeeds, Requirement, Tolerated};
use crate::quantity::{Amount, amounts};
use crate::resources::{PODS, is_device};
use crate::workload_kinds::{WorkloadName, controller_of};

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

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
    effect: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatus {
    allocatable: BTreeMap<String, Amount>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SchedulingGate {
    name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    node_name: Option<String>,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    overhead: BTreeMap<String, Amount>,
    /// Of the whole pod, in place of what its containers request.
    resources: Resources,
    tolerations: Vec<Toleration>,
    scheduler_name: Option<String>,
    priority: Option<i64>,
    priority_class_name: Option<String>,
    node_selector: BTreeMap<String, String>,
    affinity: Affinity,
    scheduling_gates: Vec<SchedulingGate>,
    scheduling_group: Option<SchedulingGroup>,
    resource_claims: Vec<PodClaimSpec>,
    topology_spread_constraints: Vec<SpreadConstraint>,
    volumes: Vec<PodVolume>,
}

/// The group that a pod says it is of.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SchedulingGroup {
    pod_group_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodClaimSpec {
    name: String,
    resource_claim_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Toleration {
    key: String,
    operator: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    node_affinity: NodeAffinity,
    pod_affinity: PodAffinity,
    pod_anti_affinity: PodAffinity,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: NodeSelector,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeSelector {
    node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeSelectorTerm {
    match_expressions: Vec<MatchExpression>,
    match_fields: Vec<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct MatchExpression {
    key: String,
    operator: String,
    values: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Vec<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpreadConstraint {
    when_unsatisfiable: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodVolume {
    ephemeral: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    resources: Resources,
    ports: Vec<ContainerPort>,
    /// `Always` of one that begins before the others and goes on beside them.
    restart_policy: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort {
    host_port: Option<u32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, Amount>,
    limits: BTreeMap<String, Amount>,
}

impl Resources {
    /// In thousandths. Who says a limit alone requests that; the API server writes it into pods,
    /// and not into their templates.
    fn requested(&self) -> BTreeMap<String, u64> {
        let mut requested = amounts(&self.limits);
        requested.extend(amounts(&self.requests));
        requested
    }

    fn is_readable(&self) -> bool {
        let mut amounts = self.requests.values().chain(self.limits.values());
        amounts.all(|amount| amount.milli().is_some())
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    phase: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
    resource_claim_statuses: Vec<PodClaimSpec>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    state: ContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Waiting>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: Option<String>,
    message: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    reason: Option<String>,
    message: Option<String>,
}

/// What is kept of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodRow {
    pub key: ObjectKey,
    pub uid: String,
    /// That it has, or that its gate was removed for.
    pub node: Option<Name>,
    pub phase: PodPhase,
    /// Somebody asked for its deletion.
    pub is_deleting: bool,
    /// Of a rank that this scheduler started.
    pub rank: Option<RankLabels>,
    /// By resource, in thousandths.
    pub requests: BTreeMap<String, u64>,
    /// Names of its claims on devices; `None` of one that its controller has still to make.
    pub claims: Vec<Option<String>>,
    /// Why its containers do not begin, where that is more than that it takes a while.
    pub trouble: Option<String>,
    /// Of a pod of somebody else that asks this scheduler for a node.
    pub needs: Option<Arc<PodNeeds>>,
    /// What its program said last of its progress.
    pub report: Option<Arc<str>>,
    /// The workload of somebody else that its labels say it is of.
    pub workload: Option<Arc<WorkloadName>>,
    /// The name of the group of pods of its namespace that it is of, where it asks this scheduler.
    pub group: Option<Arc<str>>,
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
    /// The row of a pod as a scheduler sees it; `None` of an object without a name.
    pub fn of(pod: PodObject, scheduler: &Scheduler) -> Option<Self> {
        let metadata = pod.metadata;
        let key =
            ObjectKey { namespace: metadata.namespace.unwrap_or_default(), name: metadata.name? };
        let requests = pod.spec.requests();
        let claims = pod.spec.claims(pod.status.as_ref());
        let labels = metadata.labels.unwrap_or_default();
        let rank = names::rank_of(&labels, &scheduler.name);
        let is_deleting = metadata.deletion_timestamp.is_some();
        let phase = pod.status.as_ref().map_or(PodPhase::Pending, PodStatus::phase);
        let is_ours = pod.spec.is_for(&labels, scheduler);
        let owners = metadata.owner_references;
        let workload = is_ours
            .then(|| {
                WorkloadName::of_pod(&key.namespace, &labels, controller_of(owners.as_deref()))
            })
            .flatten();
        let is_free = rank.is_none() && !is_deleting;
        let asks = is_ours && is_free && pod.spec.awaits_node(scheduler.binding);
        let annotations = metadata.annotations.unwrap_or_default();
        let needs = (asks && !phase.has_ended()).then(|| {
            let profile = metadata.generate_name.as_deref().map(|name| name.trim_end_matches('-'));
            let profile = profile.unwrap_or(&key.name);
            pod.spec.needs(profile, &annotations, scheduler)
        });
        let report = annotations.get(names::PROGRESS).filter(|_| is_ours);
        let report = report.filter(|text| text.len() <= LINE_BYTES_MAX);
        // Nobody puts a gate back: so it holds its devices there, bound or not.
        let is_ungated = scheduler.binding == Binding::KubeScheduler
            && is_ours
            && pod.spec.scheduling_gates.is_empty()
            && annotations.contains_key(names::EPOCH);
        let ungated_for = annotations.get(names::NODE).filter(|_| is_ungated).cloned();
        let group = pod.spec.scheduling_group.as_ref().filter(|_| is_ours && rank.is_none());
        let group = group.and_then(|group| group.pod_group_name.as_deref()).map(Arc::from);
        let trouble = pod.status.as_ref().and_then(|status| status.trouble(scheduler.binding));
        Some(Self {
            key,
            trouble,
            uid: metadata.uid.unwrap_or_default(),
            node: pod.spec.node_name.or(ungated_for).map(Name::from),
            phase,
            is_deleting,
            rank,
            requests,
            claims,
            needs: needs.map(Arc::new),
            report: report.map(|text| text.as_str().into()),
            workload: workload.map(Arc::new),
            group,
        })
    }

    pub fn lease(&self) -> Option<LeaseId> {
        self.rank.as_ref().map(|rank| rank.lease)
    }
}

/// Pods as somebody describes those that are to be made.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PodTemplate {
    #[serde(default)]
    metadata: TemplateMetadata,
    spec: PodSpec,
    #[serde(skip)]
    is_bad: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct TemplateMetadata {
    labels: BTreeMap<String, String>,
}

impl PodTemplate {
    /// Of what the API server would not take for one it is known whose pods they would be, as far
    /// as it says so, and nothing else.
    pub fn of(value: &Value) -> Self {
        match Self::deserialize(value) {
            Ok(template) if template.spec.is_readable() => template,
            _ => Self {
                metadata: TemplateMetadata::default(),
                spec: PodSpec {
                    scheduler_name: value["spec"]["schedulerName"].as_str().map(str::to_owned),
                    ..PodSpec::default()
                },
                is_bad: true,
            },
        }
    }

    /// It cannot be read.
    pub fn is_bad(&self) -> bool {
        self.is_bad
    }

    /// Whether its pods will wait for this scheduler to choose a node.
    pub fn is_for(&self, scheduler: &Scheduler) -> bool {
        let is_ours = self.spec.is_for(&self.metadata.labels, scheduler);
        is_ours && self.spec.awaits_node(scheduler.binding)
    }

    pub fn wants_devices(&self) -> bool {
        self.requests().iter().any(|(name, amount)| *amount > 0 && is_device(name))
    }

    pub fn requests(&self) -> BTreeMap<String, u64> {
        self.spec.requests()
    }

    pub fn has_claims(&self) -> bool {
        !self.spec.resource_claims.is_empty()
    }

    pub fn priority_class(&self) -> Option<String> {
        self.spec.priority_class_name.clone()
    }

    /// `annotations` are those of whoever makes the pods.
    pub fn needs(
        &self,
        profile: &str,
        annotations: &BTreeMap<String, String>,
        scheduler: &Scheduler,
    ) -> PodNeeds {
        let mut needs = self.spec.needs(profile, annotations, scheduler);
        if self.spec.scheduling_group.is_some() {
            // They start together as it is, and what else their group says is not read.
            let what = "pods of a workload that are of a group, too (`schedulingGroup`)";
            needs.not_supported.get_or_insert_with(|| what.to_owned());
        }
        needs
    }
}

impl PodSpec {
    fn is_readable(&self) -> bool {
        let containers = self.init_containers.iter().chain(&self.containers);
        let mut resources = containers.map(|it| &it.resources).chain([&self.resources]);
        resources.all(Resources::is_readable)
    }

    /// Whether this scheduler is asked, by name or, where kube-scheduler binds, by a label.
    fn is_for(&self, labels: &BTreeMap<String, String>, scheduler: &Scheduler) -> bool {
        match scheduler.binding {
            Binding::Own => self.scheduler_name.as_deref() == Some(&*scheduler.name),
            Binding::KubeScheduler => names::is_for(Some(labels), &scheduler.name),
        }
    }

    /// Whether nothing is missing but that a node is chosen.
    fn awaits_node(&self, binding: Binding) -> bool {
        let is_last_gate = match (binding, self.scheduling_gates.as_slice()) {
            (Binding::Own, gates) => gates.is_empty(),
            (Binding::KubeScheduler, [gate]) => gate.name == GATE,
            (Binding::KubeScheduler, _) => false,
        };
        self.node_name.is_none() && is_last_gate
    }

    fn needs(
        &self,
        profile: &str,
        annotations: &BTreeMap<String, String>,
        scheduler: &Scheduler,
    ) -> PodNeeds {
        let required = &self.affinity.node_affinity.required;
        let terms = required.node_selector_terms.iter().map(NodeSelectorTerm::requirements);
        let nodes = NodeRule {
            labels: self.node_selector.clone(),
            terms: terms.map(|term| term.unwrap_or_default()).collect(),
            tolerates: self.tolerated(),
        };
        let is_long = nodes.words() > NodeRule::WORDS_MAX;
        let too_long = is_long.then(|| "a node affinity as long as that".to_owned());
        let word = annotations.get(names::PRIORITY);
        let said = word.and_then(|word| Priority::ALL.into_iter().find(|it| it.word() == word));
        let unknown = word.filter(|_| said.is_none()).map(|word| {
            let words = Priority::ALL.map(Priority::word).join(", ");
            format!("`{word}` as `{}`: it is one of {words}", names::PRIORITY)
        });
        let not_supported = self.not_supported(scheduler).map(str::to_owned);
        PodNeeds {
            profile: profile.into(),
            priority: said.unwrap_or(needs::priority(self.priority.unwrap_or_default())),
            preemptible: annotations.get(names::PREEMPTIBLE).is_some_and(|value| value == "true"),
            nodes: if is_long { NodeRule::default() } else { nodes },
            not_supported: not_supported.or(too_long).or(unknown),
        }
    }

    /// Of a toleration the key alone counts: what the value of a taint says is for its kubelet.
    fn tolerated(&self) -> Tolerated {
        let is_of_all = |it: &Toleration| it.key.is_empty() && it.operator == "Exists";
        match self.tolerations.iter().any(is_of_all) {
            true => Tolerated::All,
            false => Tolerated::Keys(self.tolerations.iter().map(|it| it.key.clone()).collect()),
        }
    }

    /// What it asks for that is not considered here, so that no node would be known to do.
    fn not_supported(&self, scheduler: &Scheduler) -> Option<&'static str> {
        let names_us = self.scheduler_name.as_deref() == Some(&*scheduler.name);
        let affinity = &self.affinity;
        let terms = &affinity.node_affinity.required.node_selector_terms;
        let containers = || self.init_containers.iter().chain(&self.containers);
        let mut ports = containers().flat_map(|container| &container.ports);
        let mut spread = self.topology_spread_constraints.iter();
        let rules = [
            (!affinity.pod_affinity.required.is_empty(), "a required pod affinity"),
            (!affinity.pod_anti_affinity.required.is_empty(), "a required pod anti-affinity"),
            (
                terms.iter().any(|term| term.requirements().is_none()),
                "a node affinity by fields, or by an operator that is not known",
            ),
            (
                spread.any(|one| one.when_unsatisfiable != "ScheduleAnyway"),
                "a topology spread constraint with `DoNotSchedule`",
            ),
            (ports.any(|port| port.host_port.is_some_and(|port| port > 0)), "a port of the host"),
            (
                scheduler.binding == Binding::KubeScheduler && names_us,
                "a `schedulerName` that nobody binds for: gates are for kube-scheduler's pods",
            ),
            (
                scheduler.binding == Binding::KubeScheduler && !self.resource_claims.is_empty(),
                "resource claims, where kube-scheduler binds",
            ),
            (self.resource_claims.len() > 1, "several resource claims"),
            (
                self.scheduling_group.is_some() && !self.resource_claims.is_empty(),
                "resource claims of pods of a group",
            ),
            (
                self.scheduling_group.as_ref().is_some_and(|it| it.pod_group_name.is_none()),
                "a `schedulingGroup` that names no PodGroup",
            ),
            (self.volumes.iter().any(|it| it.ephemeral.is_some()), "a generic ephemeral volume"),
        ];
        rules.into_iter().find_map(|(is_asked, what)| is_asked.then_some(what))
    }

    fn claims(&self, status: Option<&PodStatus>) -> Vec<Option<String>> {
        let made = |of: &PodClaimSpec| {
            let mut statuses = status.into_iter().flat_map(|it| &it.resource_claim_statuses);
            statuses.find(|it| it.name == of.name)?.resource_claim_name.clone()
        };
        let claims = self.resource_claims.iter();
        claims.map(|of| of.resource_claim_name.clone().or_else(|| made(of))).collect()
    }

    /// What the kubelet keeps for the pod, by resource, in thousandths: what its containers request
    /// together, or one that runs before them with those that went on by then, where that is more.
    fn requests(&self) -> BTreeMap<String, u64> {
        let of = |container: &Container| container.resources.requested();
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
        requests.extend(self.resources.requested());
        add(&mut requests, &amounts(&self.overhead));
        requests.insert(PODS.to_owned(), 1_000);
        requests
    }
}

fn add(sums: &mut BTreeMap<String, u64>, amounts: &BTreeMap<String, u64>) {
    for (name, amount) in amounts {
        let sum = sums.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

impl NodeSelectorTerm {
    /// `None` where it asks for what is not known here.
    fn requirements(&self) -> Option<Vec<Requirement>> {
        let known = self.match_fields.is_empty();
        known.then(|| self.match_expressions.iter().map(MatchExpression::requirement).collect())?
    }
}

impl MatchExpression {
    fn requirement(&self) -> Option<Requirement> {
        let operator = match self.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt,
            "Lt" => Operator::Lt,
            _ => return None,
        };
        Some(Requirement { key: self.key.clone(), operator, values: self.values.clone() })
    }
}

impl PodStatus {
    fn phase(&self) -> PodPhase {
        match self.phase.as_deref() {
            Some("Running") => PodPhase::Running,
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed(self.failure()),
            _ => PodPhase::Pending,
        }
    }

    /// What the kubelet says while it tries again and again, and kube-scheduler where that binds.
    fn trouble(&self, binding: Binding) -> Option<String> {
        let refuses = |it: &&Condition| it.r#type == "PodScheduled" && it.reason == "Unschedulable";
        if binding == Binding::KubeScheduler
            && let Some(condition) = self.conditions.iter().find(refuses)
        {
            return Some(format!("kube-scheduler: {}", condition.message));
        }
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
    fn failure(&self) -> PodFailure {
        let mut ended =
            self.container_statuses.iter().filter_map(|it| it.state.terminated.as_ref());
        let container = ended.find(|it| it.exit_code != 0);
        let reason = self.reason.clone().unwrap_or_default();
        let message = self.message.clone().unwrap_or_default();
        match container {
            None => PodFailure { reason, message, ..PodFailure::default() },
            Some(container) => PodFailure {
                reason,
                container_reason: container.reason.clone().unwrap_or_default(),
                message: container.message.clone().unwrap_or(message),
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
