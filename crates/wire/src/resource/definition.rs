//! The definition of the resource, as `kubectl apply` takes it.

use schemars::{JsonSchema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::canonical::{IMAGE_OF_A_MACHINE, OF_A_MACHINE};
use super::structural::structural;
use super::{GROUP, KIND, VERSION};
use crate::job::JobFile;

pub const PLURAL: &str = "trainingjobs";

/// Longest list of jobs or stages that another waits for: the server counts what a rule may cost.
const EDGES_MAX: u64 = 64;
/// Longest name of a stage.
const STAGE_NAME_MAX: u64 = 63;

/// How a job stands, as the scheduler last wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// Its number at the server that schedules it, as `het` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// `queued`, `running`, `succeeded`, …
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Why it waits or how it ended, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What it runs on: `8 × h100-sxm5-80`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub devices: String,
    /// Of its running stage: `1200/5000`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub progress: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageStatus>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// All that the next leader needs to go on with the job, for it alone to read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handover: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
}

impl TrainingJobStatus {
    /// Whether it says the same of its job, whoever wrote it.
    pub fn says_the_same(&self, other: &Self) -> bool {
        Self { written: None, ..self.clone() } == Self { written: None, ..other.clone() }
    }
}

/// By which leader a status was written, and which of its writes it was: no two are the same.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
pub struct Written {
    pub epoch: u64,
    pub revision: u64,
}

/// How a stage stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    pub name: String,
    pub state: String,
    /// Leases it has had.
    #[serde(default)]
    pub attempts: u32,
    /// The right to run that it has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// The node of each rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// What it would go on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

/// As conditions are everywhere in Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    pub reason: String,
    pub message: String,
    /// RFC 3339.
    pub last_transition_time: String,
}

/// The CustomResourceDefinition.
pub fn definition() -> Value {
    let text = |name, path| column(name, path, "string");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{PLURAL}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND, "plural": PLURAL, "singular": "trainingjob",
                "shortNames": ["tj"], "categories": ["all"],
            },
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema() },
                "subresources": { "status": {} },
                "additionalPrinterColumns": [
                    text("State", ".status.state"),
                    text("Reason", ".status.reason"),
                    text("Devices", ".status.devices"),
                    text("Progress", ".status.progress"),
                    column("Age", ".metadata.creationTimestamp", "date"),
                ],
            }],
        },
    })
}

pub(super) fn column(name: &str, path: &str, kind: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

fn schema() -> Value {
    let mut job = structural(schema_for!(JobFile));
    let mut spec = job["properties"]["spec"].take();
    adapt(&mut spec);
    let mut status = structural(schema_for!(TrainingJobStatus));
    status["properties"]["conditions"]["x-kubernetes-list-type"] = json!("map");
    status["properties"]["conditions"]["x-kubernetes-list-map-keys"] = json!(["type"]);
    json!({
        "type": "object",
        "description": job["description"],
        "required": ["spec"],
        "properties": { "spec": spec, "status": status },
    })
}

/// What differs from a file: fields of one machine are not there, lists have bounds, and the server
/// checks what a schema alone cannot say.
fn adapt(spec: &mut Value) {
    without(spec, &["params"]);
    spec["properties"]["after"]["maxItems"] = json!(EDGES_MAX);
    let stages = rule(
        "self.stages == oldSelf.stages",
        "the stages of a job cannot be changed: make another job",
    );
    let others = ["after", "begin", "time_limit"].map(stays);
    spec["x-kubernetes-validations"] = json!([&[stages], &others[..]].concat());
    let stages = &mut spec["properties"]["stages"];
    stages["x-kubernetes-list-type"] = json!("map");
    stages["x-kubernetes-list-map-keys"] = json!(["name"]);
    stages["x-kubernetes-validations"] = json!(["after", "follows"].map(names_a_stage));
    let stage = &mut stages["items"];
    without(stage, &OF_A_MACHINE);
    stage["properties"]["name"]["maxLength"] = json!(STAGE_NAME_MAX);
    for list in ["after", "follows"] {
        stage["properties"][list]["maxItems"] = json!(EDGES_MAX);
        stage["properties"][list]["items"]["maxLength"] = json!(STAGE_NAME_MAX);
    }
    stage["x-kubernetes-validations"] = json!([
        rule(
            "has(self.container) || (!has(self.devices) && has(self.alternatives) && \
             self.alternatives.all(a, has(a.container)))",
            "a stage needs an image: write for example `container: {image: example/train:1}`",
        ),
        rule(
            "!has(self.elastic) || (self.elastic.min >= 1 && self.elastic.min <= self.elastic.max)",
            "`elastic` needs numbers of devices: write for example `{min: 1, max: 8}`",
        ),
    ]);
    let alternatives = &mut stage["properties"]["alternatives"];
    alternatives["maxItems"] = json!(EDGES_MAX);
    without(&mut alternatives["items"]["properties"]["container"], &IMAGE_OF_A_MACHINE);
    without(&mut stage["properties"]["container"], &IMAGE_OF_A_MACHINE);
    // The only word of its other form says what is done without one.
    let batch = &mut stage["properties"]["elastic"]["properties"]["batch"];
    batch.as_object_mut().into_iter().for_each(|fields| drop(fields.remove("default")));
}

/// What nobody takes over after a job was made is not taken from anybody.
fn stays(field: &str) -> Value {
    rule(
        &format!(
            "has(self.{field}) == has(oldSelf.{field}) && \
             (!has(self.{field}) || self.{field} == oldSelf.{field})"
        ),
        &format!("`{field}` of a job cannot be changed: `het set` or another job may help"),
    )
}

fn names_a_stage(field: &str) -> Value {
    rule(
        &format!("self.all(s, !has(s.{field}) || s.{field}.all(n, self.exists(t, t.name == n)))"),
        &format!("`{field}` names a stage that the job does not have"),
    )
}

fn rule(rule: &str, message: &str) -> Value {
    json!({ "rule": rule, "message": message })
}

fn without(schema: &mut Value, fields: &[&str]) {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        fields.iter().for_each(|field| drop(properties.remove(*field)));
    }
}
