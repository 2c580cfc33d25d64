//! Namespaces that are handed over by a label: what is made there waits for this scheduler, whoever
//! makes it.

use het_wire::resource::GROUP;
use serde_json::{Value, json};

use super::ManifestOptions;
use crate::names::{Binding, GATE, SCHEDULER_LABEL};

/// Nothing where namespaces are not to be handed over.
pub(super) fn objects(options: &ManifestOptions, labels: &Value) -> Vec<Value> {
    if !options.handed_over {
        return Vec::new();
    }
    [of_pods(options), of_jobs(options)]
        .into_iter()
        .flat_map(|policy| policy.objects(options, labels))
        .collect()
}

/// What is changed of objects of one kind when they are made.
struct Mutation {
    /// Of group, version and plural.
    resource: (&'static str, &'static str, &'static str),
    conditions: Vec<Value>,
    /// A CEL expression: the fields that are set.
    set: String,
}

impl Mutation {
    fn objects(
        self,
        ManifestOptions { scheduler, .. }: &ManifestOptions,
        labels: &Value,
    ) -> [Value; 2] {
        let (group, version, plural) = self.resource;
        let api = "admissionregistration.k8s.io/v1";
        let metadata = json!({ "name": format!("{scheduler}.{plural}.{GROUP}"), "labels": labels });
        let rule = json!({
            "apiGroups": [group], "apiVersions": [version], "operations": ["CREATE"],
            "resources": [plural],
        });
        let policy = json!({
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "matchConstraints": {
                "namespaceSelector": { "matchLabels": { SCHEDULER_LABEL: scheduler } },
                "resourceRules": [rule],
            },
            "matchConditions": self.conditions,
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": { "expression": self.set },
            }],
        });
        let object = |kind: &str, spec: Value| {
            json!({
                "apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec,
            })
        };
        [
            object("MutatingAdmissionPolicy", policy),
            object("MutatingAdmissionPolicyBinding", json!({ "policyName": metadata["name"] })),
        ]
    }
}

fn of_pods(options: &ManifestOptions) -> Mutation {
    let is_of_daemon_set = "has(object.metadata.ownerReferences) && \
         object.metadata.ownerReferences.exists(owner, owner.kind == 'DaemonSet')";
    Mutation {
        resource: ("", "v1", "pods"),
        conditions: vec![
            names_nobody("object.spec"),
            // They are made for one node each.
            json!({ "name": "may-choose", "expression": format!("!({is_of_daemon_set})") }),
        ],
        set: format!("Object{{ {} }}", asks(options, "Object")),
    }
}

/// They are suspended, so that their pods start together.
fn of_jobs(options: &ManifestOptions) -> Mutation {
    let is_own = "!has(object.metadata.ownerReferences) || \
         object.metadata.ownerReferences.all(owner, owner.kind == 'CronJob')";
    let template = asks(options, "Object.spec.template");
    Mutation {
        resource: ("batch", "v1", "jobs"),
        conditions: vec![
            names_nobody("object.spec.template.spec"),
            // Whoever makes a job for others has it begin in its own time.
            json!({ "name": "is-nobodys", "expression": is_own }),
        ],
        set: format!(
            "Object{{ spec: Object.spec{{ suspend: true, template: Object.spec.template{{ \
             {template} }} }} }}"
        ),
    }
}

fn names_nobody(spec: &str) -> Value {
    let expression =
        format!("!has({spec}.schedulerName) || {spec}.schedulerName == 'default-scheduler'");
    json!({ "name": "names-nobody", "expression": expression })
}

/// The fields by which a pod, or the template of some, asks for this scheduler.
fn asks(ManifestOptions { scheduler, binding, .. }: &ManifestOptions, of: &str) -> String {
    match binding {
        Binding::Own => format!("spec: {of}.spec{{ schedulerName: '{scheduler}' }}"),
        Binding::KubeScheduler => format!(
            "metadata: {of}.metadata{{ labels: {{ '{SCHEDULER_LABEL}': '{scheduler}' }} }}, \
             spec: {of}.spec{{ schedulingGates: [{of}.spec.schedulingGates{{ name: '{GATE}' }}] }}"
        ),
    }
}
