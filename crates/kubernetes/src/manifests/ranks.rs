//! What supervisors of ranks may do: say how far the program of their own pod is, and nothing else.

use het_wire::resource::GROUP;
use serde_json::{Value, json};

use super::{ManifestOptions, admission};
use crate::names::{PROGRESS, RANK_ACCOUNT};

/// What a token says of the pod that it is bound to.
const POD: &str = "authentication.kubernetes.io/pod-name";

/// Nothing where no namespace has jobs with supervisors.
pub(super) fn objects(options: &ManifestOptions, labels: &Value) -> Vec<Value> {
    if options.jobs_namespaces.is_empty() {
        return Vec::new();
    }
    let metadata =
        json!({ "name": format!("{}.ranks.{GROUP}", options.scheduler), "labels": labels });
    let accounts = options.jobs_namespaces.iter().flat_map(|name| account(name, labels));
    // Nobody has the right before it is bounded.
    admission(&metadata, policy(), None).into_iter().chain(accounts).collect()
}

fn policy() -> Value {
    let is_own = format!(
        "'{POD}' in request.userInfo.extra && \
         request.userInfo.extra['{POD}'].exists(name, name == request.name)"
    );
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
            "resources": ["pods"],
        }] },
        "matchConditions": [{
            "name": "by-a-rank",
            "expression": format!("request.userInfo.username.endsWith(':{RANK_ACCOUNT}')"),
        }],
        "validations": [
            {
                "expression": is_own, "reason": "Forbidden",
                "message": "a rank says something of its own pod alone",
            },
            {
                "expression": only_progress(), "reason": "Forbidden",
                "message": format!("a rank changes the annotation `{PROGRESS}` alone"),
            },
        ],
    })
}

fn only_progress() -> String {
    let same = |field: &str| {
        format!(
            "has(object.{field}) == has(oldObject.{field}) && \
             (!has(object.{field}) || object.{field} == oldObject.{field})"
        )
    };
    let annotations = "metadata.annotations";
    let others_stay = |one: &str, other: &str| {
        format!(
            "(!has({one}.{annotations}) || {one}.{annotations}.all(name, \
             name == '{PROGRESS}' || (has({other}.{annotations}) && \
             name in {other}.{annotations} && \
             {one}.{annotations}[name] == {other}.{annotations}[name])))"
        )
    };
    let rules = [
        same("metadata.labels"),
        same("metadata.finalizers"),
        same("metadata.ownerReferences"),
        "object.spec == oldObject.spec".to_owned(),
        others_stay("object", "oldObject"),
        others_stay("oldObject", "object"),
    ];
    rules.join(" && ")
}

/// The account of a namespace, and its right.
fn account(namespace: &str, labels: &Value) -> [Value; 3] {
    let metadata = json!({ "name": RANK_ACCOUNT, "namespace": namespace, "labels": labels });
    let rbac = "rbac.authorization.k8s.io";
    let api = format!("{rbac}/v1");
    [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }),
        json!({
            "apiVersion": api, "kind": "Role", "metadata": metadata,
            "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["patch"] }],
        }),
        json!({
            "apiVersion": api, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": rbac, "kind": "Role", "name": RANK_ACCOUNT },
            "subjects": [{
                "kind": "ServiceAccount", "name": RANK_ACCOUNT, "namespace": namespace,
            }],
        }),
    ]
}
