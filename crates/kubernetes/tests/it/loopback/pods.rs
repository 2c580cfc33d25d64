//! What the objects of pods say.

use serde_json::Value;

use super::ask::text;

/// Of every node.
pub const NODE_CORES: u64 = 4;

pub fn lease_of(pod: &Value) -> Option<u64> {
    text(pod, "/metadata/labels/heterosis.dev~1lease")?.parse().ok()
}

pub fn rank_of(pod: &Value) -> Option<u64> {
    text(pod, "/metadata/labels/heterosis.dev~1rank")?.parse().ok()
}

pub fn uid_of(pod: &Value) -> &str {
    text(pod, "/metadata/uid").unwrap_or_default()
}

/// The uid of the job's object.
pub fn owner_of(object: &Value) -> Option<&str> {
    text(object, "/metadata/ownerReferences/0/uid")
}

pub fn node_of(pod: &Value) -> Option<&str> {
    text(pod, "/spec/nodeName")
}

pub fn phase_of(pod: &Value) -> &str {
    text(pod, "/status/phase").unwrap_or_default()
}

pub fn has_ended(pod: &Value) -> bool {
    matches!(phase_of(pod), "Succeeded" | "Failed")
}

pub fn is_deleting(pod: &Value) -> bool {
    pod.pointer("/metadata/deletionTimestamp").is_some()
}

/// Its program runs, or may.
pub fn is_live_on_node(pod: &Value) -> bool {
    node_of(pod).is_some() && !has_ended(pod)
}

pub fn cores_of(pod: &Value) -> u64 {
    let cores = text(pod, "/spec/containers/0/resources/requests/cpu");
    cores.and_then(|cores| cores.parse().ok()).unwrap_or(0)
}

/// Cores and devices together.
pub fn units_of(pod: &Value) -> u64 {
    let requests = pod.pointer("/spec/containers/0/resources/requests").and_then(Value::as_object);
    let requests = requests.into_iter().flatten();
    let units = requests.filter(|(name, _)| *name == "cpu" || name.contains('/'));
    units.filter_map(|(_, amount)| amount.as_str()?.parse::<u64>().ok()).sum()
}

pub fn command_of(pod: &Value) -> Vec<&str> {
    let command = pod.pointer("/spec/containers/0/command").and_then(Value::as_array);
    command.into_iter().flatten().filter_map(Value::as_str).collect()
}
