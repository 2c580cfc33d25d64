//! What a cluster is given so that a server can schedule it: the definition of jobs, an account
//! with as few rights as the server needs, and the server itself. No I/O.

mod chart;
mod handed_over;
mod ranks;
mod server;

use std::collections::BTreeMap;

use het_wire::resource::{GROUP, PLURAL, QUOTAS_PLURAL, definition, quotas_definition};
use serde_json::{Value, json};

use crate::names::{Binding, EPOCH, NODE, SCHEDULER, SCHEDULER_LABEL, WRITE};
use crate::network::NetworkKind;
use crate::workload_kinds::WorkloadKind;

pub use chart::{ChartFile, chart};

/// The epoch before the leader's. The first epoch is 1, before the Lease has changed hands.
const NEWEST: &str = "(has(params.spec.leaseTransitions) ? params.spec.leaseTransitions : 0)";
/// Name of most objects of its namespace, and of the label that all have; those of the cluster are
/// named after the scheduler, for there may be several.
const NAME: &str = "heterosis";

/// What may differ from cluster to cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestOptions {
    /// Where the server runs.
    pub namespace: String,
    /// The image that it runs in, with `het` on its path; no server is among the objects without.
    pub image: Option<String>,
    /// The `schedulerName` of its pods.
    pub scheduler: String,
    /// Of the volume for the log, where one server runs.
    pub storage: String,
    /// Of several servers one leads and the others wait; none has a volume then.
    pub replicas: u32,
    pub binding: Binding,
    /// Where jobs are made whose ranks are supervised.
    pub jobs_namespaces: Vec<String>,
    /// Whether namespaces can be handed over by a label.
    pub handed_over: bool,
    /// The text of a file that says what resources of nodes are.
    pub device_table: Option<String>,
}

/// The objects, in an order in which they can be made.
pub fn manifests(options: &ManifestOptions) -> Vec<Value> {
    let ManifestOptions { namespace, scheduler, .. } = options;
    let labels = json!({ "app.kubernetes.io/name": NAME });
    let subject = json!({ "kind": "ServiceAccount", "name": NAME, "namespace": namespace });
    let mut objects = vec![
        definition(),
        quotas_definition(),
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": namespace,
                "labels": {
                    "app.kubernetes.io/name": NAME,
                    "pod-security.kubernetes.io/enforce": "restricted",
                },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": NAME, "namespace": namespace, "labels": labels },
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": scheduler, "labels": labels },
            "rules": rules(options.binding),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": scheduler, "labels": labels },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": scheduler,
            },
            "subjects": [subject],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": { "name": NAME, "namespace": namespace, "labels": labels },
            "rules": [{
                "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                "verbs": ["get", "create", "update"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": NAME, "namespace": namespace, "labels": labels },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME },
            "subjects": [subject],
        }),
    ];
    objects.extend(fence(options, &labels));
    objects.extend(fence_suspension(options, &labels));
    if options.binding == Binding::Own {
        objects.extend(fence_claims(options, &labels));
    }
    objects.extend(ranks::objects(options, &labels));
    objects.extend(handed_over::objects(options, &labels));
    objects.extend(flow_schemas(options, &labels));
    if let Some(image) = &options.image {
        objects.extend(only_the_server(options, &labels));
        objects.extend(server::objects(options, image, &labels));
    }
    objects
}

/// What the server does, and nothing else: it reads nodes, their devices, how they are connected,
/// pods and their logs, makes, binds, evicts and deletes pods and their services, makes and
/// allocates claims on devices, suspends workloads of others, and tells jobs, quotas, waiting pods
/// and whoever looks at them how they stand.
fn rules(binding: Binding) -> Vec<Value> {
    let mut of_pods = vec!["get", "list", "watch", "create", "delete"];
    let mut of_groups = vec!["list", "watch"];
    if binding == Binding::KubeScheduler {
        // To remove a gate.
        of_pods.push("patch");
        // Of gangs of jobs.
        of_groups.extend(["create", "delete"]);
    }
    let own = json!([
        { "apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"] },
        { "apiGroups": [""], "resources": ["pods"], "verbs": of_pods },
        { "apiGroups": [""], "resources": ["pods/binding", "pods/eviction"], "verbs": ["create"] },
        { "apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"] },
        { "apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"] },
        { "apiGroups": [""], "resources": ["services"], "verbs": ["create", "delete"] },
        {
            "apiGroups": [GROUP], "resources": [PLURAL],
            "verbs": ["get", "list", "watch", "create"],
        },
        { "apiGroups": [GROUP], "resources": [QUOTAS_PLURAL], "verbs": ["list", "watch"] },
        {
            "apiGroups": [GROUP], "verbs": ["patch"],
            "resources": [format!("{PLURAL}/status"), format!("{QUOTAS_PLURAL}/status")],
        },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"] },
        {
            "apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"],
            "verbs": ["list", "watch"],
        },
        { "apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": of_groups },
        {
            "apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups/status"],
            "verbs": ["patch"],
        },
    ]);
    let of_workloads = of_workloads().into_iter().map(|(group, plurals)| {
        let verbs = ["get", "list", "watch", "patch"];
        json!({ "apiGroups": [group], "resources": plurals, "verbs": verbs })
    });
    let of_network = NetworkKind::ALL.map(|kind| {
        let (group, plural) = kind.rights();
        json!({ "apiGroups": [group], "resources": [plural], "verbs": ["list", "watch"] })
    });
    let of_claims = match binding {
        Binding::Own => rules_of_claims(),
        Binding::KubeScheduler => Vec::new(),
    };
    let own = own.as_array().cloned().unwrap_or_default();
    own.into_iter().chain(of_claims).chain(of_workloads).chain(of_network).collect()
}

/// An allocation needs a right of its own (`resourceclaims/binding`) from Kubernetes 1.36 on.
fn rules_of_claims() -> Vec<Value> {
    let rule = |resources: &[&str], verbs: &[&str]| {
        let groups = ["resource.k8s.io"];
        json!({ "apiGroups": groups, "resources": resources, "verbs": verbs })
    };
    vec![
        rule(&["resourceslices", "deviceclasses", "devicetaintrules"], &["list", "watch"]),
        rule(&["resourceclaims"], &["get", "list", "watch", "create", "patch"]),
        rule(&["resourceclaims/status", "resourceclaims/binding"], &["patch"]),
    ]
}

/// By group, the kinds of workloads of others that are suspended, and have to go on again.
fn of_workloads() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut plurals: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (group, plural) in WorkloadKind::resources() {
        plurals.entry(group).or_default().push(plural);
    }
    plurals
}

/// What a leader before the newest one still makes is refused: it stood still, and does not know.
fn fence(options: &ManifestOptions, labels: &Value) -> Vec<Value> {
    let ManifestOptions { namespace, scheduler, .. } = options;
    let metadata = json!({ "name": format!("{scheduler}.epoch.{GROUP}"), "labels": labels });
    let is_ours = format!(
        "has(object.metadata.labels) && '{SCHEDULER_LABEL}' in object.metadata.labels && \
         object.metadata.labels['{SCHEDULER_LABEL}'] == '{scheduler}' && \
         has(object.metadata.annotations) && '{EPOCH}' in object.metadata.annotations"
    );
    let is_newest = format!("int(object.metadata.annotations['{EPOCH}']) > {NEWEST}");
    let mut acts = vec![json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["pods", "pods/binding"],
    })];
    let mut conditions = vec![json!({ "name": "made-by-a-leader", "expression": is_ours })];
    if options.binding == Binding::KubeScheduler {
        acts.push(json!({
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
            "resources": ["pods"],
        }));
        // Of changes the one that removes the last gate.
        let has_gates = |object: &str| {
            format!(
                "(has({object}.spec.schedulingGates) && size({object}.spec.schedulingGates) > 0)"
            )
        };
        let removes_gate = format!(
            "request.operation == 'CREATE' || ({} && !{})",
            has_gates("oldObject"),
            has_gates("object")
        );
        conditions.push(json!({ "name": "removes-the-gate", "expression": removes_gate }));
    }
    let policy = json!({
        "failurePolicy": "Fail",
        "paramKind": { "apiVersion": "coordination.k8s.io/v1", "kind": "Lease" },
        "matchConstraints": { "resourceRules": acts },
        "matchConditions": conditions,
        "validations": [{
            "expression": is_newest, "reason": "Forbidden",
            "message": "another server leads since the one that made this",
        }],
    });
    let lease = json!({
        "name": scheduler, "namespace": namespace, "parameterNotFoundAction": "Allow",
    });
    admission(&metadata, policy, Some(lease))
}

/// What a leader said of its last write of an object.
fn write(object: &str) -> String {
    format!(
        "(has({object}.metadata.annotations) && '{WRITE}' in {object}.metadata.annotations ? \
         {object}.metadata.annotations['{WRITE}'] : '0')"
    )
}

/// The same of workloads of others, which it starts and stops.
fn fence_suspension(options: &ManifestOptions, labels: &Value) -> Vec<Value> {
    let ManifestOptions { namespace, scheduler, .. } = options;
    let metadata = json!({ "name": format!("{scheduler}.suspension.{GROUP}"), "labels": labels });
    let is_ours = format!(
        "has(object.metadata.annotations) && '{SCHEDULER_LABEL}' in object.metadata.annotations \
         && object.metadata.annotations['{SCHEDULER_LABEL}'] == '{scheduler}'"
    );
    let acts = of_workloads().into_iter().map(|(group, plurals)| {
        json!({
            "apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"],
            "resources": plurals,
        })
    });
    let policy = json!({
        "failurePolicy": "Fail",
        "paramKind": { "apiVersion": "coordination.k8s.io/v1", "kind": "Lease" },
        "matchConstraints": { "resourceRules": acts.collect::<Vec<_>>() },
        "matchConditions": [
            { "name": "by-a-leader", "expression": is_ours },
            // What others change of it says whose word was the last.
            {
                "name": "says-when",
                "expression": format!("{} != {}", write("object"), write("oldObject")),
            },
        ],
        "validations": [{
            "expression": format!("int({}.split('-')[0]) > {NEWEST}", write("object")),
            "reason": "Forbidden",
            "message": "another server leads since the one that made this",
        }],
    });
    let lease = json!({
        "name": scheduler, "namespace": namespace, "parameterNotFoundAction": "Allow",
    });
    admission(&metadata, policy, Some(lease))
}

/// The same of claims on devices, which it allocates, and of which it says so before it gives
/// devices back. Whoever else gives them back is not meant.
fn fence_claims(options: &ManifestOptions, labels: &Value) -> Vec<Value> {
    let ManifestOptions { namespace, scheduler, .. } = options;
    let metadata = json!({ "name": format!("{scheduler}.claims.{GROUP}"), "labels": labels });
    let is_ours = format!(
        "has(object.metadata.labels) && '{SCHEDULER_LABEL}' in object.metadata.labels && \
         object.metadata.labels['{SCHEDULER_LABEL}'] == '{scheduler}' && \
         has(object.metadata.annotations) && '{EPOCH}' in object.metadata.annotations"
    );
    let acts = format!(
        "(has(object.status) && has(object.status.allocation) && \
         !(has(oldObject.status) && has(oldObject.status.allocation))) || {} != {}",
        write("object"),
        write("oldObject")
    );
    let policy = json!({
        "failurePolicy": "Fail",
        "paramKind": { "apiVersion": "coordination.k8s.io/v1", "kind": "Lease" },
        "matchConstraints": { "resourceRules": [{
            "apiGroups": ["resource.k8s.io"], "apiVersions": ["*"], "operations": ["UPDATE"],
            "resources": ["resourceclaims", "resourceclaims/status"],
        }] },
        "matchConditions": [
            { "name": "by-a-leader", "expression": is_ours },
            { "name": "acts", "expression": acts },
        ],
        "validations": [{
            "expression": format!("int(object.metadata.annotations['{EPOCH}']) > {NEWEST}"),
            "reason": "Forbidden",
            "message": "another server leads since the one that made this",
        }],
    });
    let lease = json!({
        "name": scheduler, "namespace": namespace, "parameterNotFoundAction": "Allow",
    });
    admission(&metadata, policy, Some(lease))
}

/// A policy that denies what it does not allow, everywhere.
fn admission(metadata: &Value, policy: Value, parameter: Option<Value>) -> Vec<Value> {
    let api = "admissionregistration.k8s.io/v1";
    let mut binding = json!({ "policyName": metadata["name"], "validationActions": ["Deny"] });
    if let Some(parameter) = parameter {
        binding["paramRef"] = parameter;
    }
    let object = |kind: &str, spec: Value| {
        json!({
            "apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec,
        })
    };
    vec![
        object("ValidatingAdmissionPolicy", policy),
        object("ValidatingAdmissionPolicyBinding", binding),
    ]
}

/// Statuses, and what says that a leader made or placed a pod, are what the next leader goes by:
/// nobody but the server writes them. A server outside the cluster has another account, so this
/// comes with the server.
fn only_the_server(options: &ManifestOptions, labels: &Value) -> Vec<Value> {
    let ManifestOptions { namespace, scheduler, .. } = options;
    let metadata = json!({ "name": format!("{scheduler}.status.{GROUP}"), "labels": labels });
    let is_ours = format!(
        "(has(object.metadata.labels) && '{SCHEDULER_LABEL}' in object.metadata.labels ? \
         object.metadata.labels['{SCHEDULER_LABEL}'] : '{SCHEDULER}') == '{scheduler}'"
    );
    let is_server =
        format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{NAME}'");
    let policy = |rule: Value, condition: Value, message: &str| {
        json!({
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [rule] },
            "matchConditions": [condition],
            "validations": [{ "expression": is_server, "reason": "Forbidden", "message": message }],
        })
    };
    let of_status = policy(
        json!({
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["UPDATE"],
            "resources": [format!("{PLURAL}/status")],
        }),
        json!({ "name": "of-this-scheduler", "expression": is_ours }),
        "the scheduler alone says how its jobs stand",
    );
    let word = |object: &str, name: &str| {
        format!(
            "({object} != null && has({object}.metadata.annotations) && '{name}' in \
             {object}.metadata.annotations ? {object}.metadata.annotations['{name}'] : '')"
        )
    };
    let says_otherwise =
        |name: &str| format!("{} != {}", word("object", name), word("oldObject", name));
    let of_pods = policy(
        json!({
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
            "resources": ["pods"],
        }),
        json!({
            "name": "says-who-placed-it",
            "expression": format!(
                "(has(object.metadata.labels) && '{SCHEDULER_LABEL}' in object.metadata.labels && \
                 object.metadata.labels['{SCHEDULER_LABEL}'] == '{scheduler}') && ({} || {})",
                says_otherwise(EPOCH),
                says_otherwise(NODE)
            ),
        }),
        "the scheduler alone says where it placed a pod",
    );
    let pods = json!({ "name": format!("{scheduler}.placement.{GROUP}"), "labels": labels });
    [admission(&metadata, of_status, None), admission(&pods, of_pods, None)].concat()
}

/// The server's requests wait behind nobody's but their own.
fn flow_schemas(options: &ManifestOptions, labels: &Value) -> Vec<Value> {
    let ManifestOptions { namespace, scheduler, .. } = options;
    let account = json!({
        "kind": "ServiceAccount",
        "serviceAccount": { "name": NAME, "namespace": namespace },
    });
    let schema = |name: &str, level: &str, precedence: u32, rule: Value| {
        json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
            "metadata": { "name": name, "labels": labels },
            "spec": {
                "priorityLevelConfiguration": { "name": level },
                "matchingPrecedence": precedence,
                "distinguisherMethod": { "type": "ByUser" },
                "rules": [{ "subjects": [account], "resourceRules": [rule] }],
            },
        })
    };
    let leases = json!({
        "verbs": ["get", "create", "update"], "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"], "namespaces": [namespace],
    });
    let all = json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
        "clusterScope": true, "namespaces": ["*"],
    });
    vec![
        schema(&format!("{scheduler}-leader-election"), "leader-election", 150, leases),
        schema(scheduler, "workload-high", 850, all),
    ]
}
