//! What an API server's audit log says of a scheduler: no device twice, no stage twice at a time,
//! no claim's device for another claim, no write of a leader after a later one's.
//!
//! A write takes effect between the moment its request came and the moment it was answered. What
//! is told here is broken whichever moment it was.

mod claims;

use std::collections::BTreeMap;

use serde_json::Value;

const EPOCH: &str = "heterosis.dev/epoch";
const LEASE: &str = "heterosis.dev/lease";
const GPU: &str = "nvidia.com/gpu";

const NOT_FOUND: u64 = 404;

/// A request that was taken, or whose object is not there any more.
struct Write<'a> {
    code: u64,
    received: &'a str,
    answered: &'a str,
    verb: &'a str,
    resource: &'a str,
    subresource: &'a str,
    /// Namespace and name.
    name: String,
    body: &'a Value,
}

/// What is known of a pod.
#[derive(Debug, Default)]
struct Pod {
    /// Whose stage it is a rank of, and by which lease.
    rank: Option<(String, String)>,
    gpus: u64,
    node: String,
    /// When it certainly had its node, and when it may have given it back.
    bound: Option<String>,
    freed: Option<String>,
    /// When somebody asked for its end first.
    deleted: Option<String>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    pub pods: usize,
    pub bound: usize,
    pub writes: usize,
    /// Devices that claims got.
    pub allocations: usize,
    /// Bindings of pods whose making is not in the log: an API server that is killed may have taken
    /// what it had no time to write down.
    pub unknown: usize,
    /// A sentence each.
    pub broken: Vec<String>,
}

/// Reads the lines of an audit log; a node has so many GPUs.
pub fn check(lines: &str, gpus: u64) -> Found {
    let events: Vec<Value> =
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let mut writes: Vec<Write<'_>> = events.iter().filter_map(write).collect();
    writes.sort_by_key(|write| write.received);
    let (pods, unknown) = pods(&writes);
    let mut broken = over_capacity(&pods, gpus);
    broken.extend(twice(&pods));
    broken.extend(stale(&writes));
    let (of_claims, allocations) = claims::twice(&writes);
    broken.extend(of_claims);
    let bound = pods.iter().filter(|(_, pod)| pod.bound.is_some()).count();
    Found { pods: pods.len(), bound, writes: writes.len(), allocations, unknown, broken }
}

fn write(event: &Value) -> Option<Write<'_>> {
    let code = event["responseStatus"]["code"].as_u64()?;
    let of = &event["objectRef"];
    let text = |value: &'static str| of[value].as_str().unwrap_or_default();
    // A pod that is made by `generateName` is named by its answer alone.
    let name = match text("name") {
        "" => event["requestObject"]["metadata"]["name"].as_str().unwrap_or_default(),
        name => name,
    };
    let counts = (200..300).contains(&code) || code == NOT_FOUND;
    (event["stage"] == "ResponseComplete" && counts).then_some(Write {
        code,
        received: event["requestReceivedTimestamp"].as_str()?,
        answered: event["stageTimestamp"].as_str()?,
        verb: event["verb"].as_str()?,
        resource: text("resource"),
        subresource: text("subresource"),
        name: format!("{}/{name}", text("namespace")),
        body: &event["requestObject"],
    })
}

/// By name, in the order in which they were made: a name may come again once its pod is gone. Also
/// how many bindings are of others.
fn pods(writes: &[Write<'_>]) -> (Vec<(String, Pod)>, usize) {
    let mut pods: Vec<(String, Pod)> = Vec::new();
    let mut unknown = 0;
    let mut latest: BTreeMap<&str, usize> = BTreeMap::new();
    for write in writes.iter().filter(|write| write.resource == "pods") {
        let known = latest.get(write.name.as_str()).copied();
        if write.code == NOT_FOUND || write.verb == "delete" {
            let pod = known.and_then(|at| pods.get_mut(at));
            pod.into_iter().for_each(|(_, pod)| pod.asked_to_end(write));
        }
        if write.code == NOT_FOUND {
            continue;
        }
        match (write.verb, write.subresource) {
            ("create", "") => {
                latest.insert(&write.name, pods.len());
                pods.push((write.name.clone(), made(write.body)));
            }
            ("create", "binding") => {
                let Some((_, pod)) = known.and_then(|at| pods.get_mut(at)) else {
                    unknown += 1;
                    continue;
                };
                pod.bound = Some(write.answered.to_owned());
                pod.node = write.body["target"]["name"].as_str().unwrap_or_default().to_owned();
            }
            _ if ends(write) => {
                if let Some((_, pod)) = known.and_then(|at| pods.get_mut(at)) {
                    pod.freed.get_or_insert_with(|| write.received.to_owned());
                }
            }
            _ => {}
        }
    }
    (pods, unknown)
}

impl Pod {
    /// A pod may be gone at once though it was given time: the API server decides so by what it
    /// read before a binding. Whoever asks later finds that it is not there.
    fn asked_to_end(&mut self, write: &Write<'_>) {
        if write.code == NOT_FOUND {
            let since = self.deleted.clone().unwrap_or_else(|| write.received.to_owned());
            self.freed.get_or_insert(since);
        } else {
            self.deleted.get_or_insert_with(|| write.received.to_owned());
        }
    }
}

fn made(object: &Value) -> Pod {
    let labels = &object["metadata"]["labels"];
    let label = |name: &str| labels[name].as_str().map(str::to_owned);
    // A job that begins anew after its leader has another number, and is the same.
    let owner = object["metadata"]["ownerReferences"][0]["uid"].as_str().map(str::to_owned);
    let stage = owner.or(label("heterosis.dev/job")).zip(label("heterosis.dev/stage"));
    let gpus = &object["spec"]["containers"][0]["resources"]["requests"][GPU];
    Pod {
        rank: stage.map(|(job, stage)| format!("{job}/{stage}")).zip(label(LEASE)),
        gpus: gpus.as_str().and_then(|count| count.parse().ok()).unwrap_or(0),
        ..Pod::default()
    }
}

/// Whether a pod takes nothing after it: it has ended, or is gone at once.
fn ends(write: &Write<'_>) -> bool {
    let phase = write.body["status"]["phase"].as_str();
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    let is_at_once = write.verb == "delete" && write.body["gracePeriodSeconds"] == 0;
    (write.subresource == "status" && is_over) || is_at_once
}

/// Nodes that certainly had more on them than they have.
fn over_capacity(pods: &[(String, Pod)], gpus: u64) -> Vec<String> {
    let mut changes: BTreeMap<&str, Vec<(&str, i64, &str)>> = BTreeMap::new();
    for (name, pod) in pods {
        let Some(bound) = &pod.bound else { continue };
        let of_node = changes.entry(&pod.node).or_default();
        if pod.freed.as_ref().is_none_or(|freed| freed > bound) {
            of_node.push((bound, pod.gpus as i64, name));
            of_node.extend(pod.freed.iter().map(|freed| (freed.as_str(), -(pod.gpus as i64), "")));
        }
    }
    let mut broken = Vec::new();
    for (node, mut changes) in changes {
        changes.sort();
        let mut taken = 0;
        for (at, change, pod) in changes {
            taken += change;
            if taken > gpus as i64 {
                broken.push(format!("{at}: `{pod}` makes {taken} of {gpus} GPUs of `{node}`"));
            }
        }
    }
    broken
}

/// Stages that certainly ran by two leases at a time.
fn twice(pods: &[(String, Pod)]) -> Vec<String> {
    let mut by_stage: BTreeMap<&str, Vec<(&str, &Pod)>> = BTreeMap::new();
    for (_, pod) in pods {
        if let Some((stage, lease)) = &pod.rank {
            by_stage.entry(stage).or_default().push((lease, pod));
        }
    }
    let overlap = |one: &Pod, other: &Pod| {
        let (Some(bound), Some(other_bound)) = (&one.bound, &other.bound) else { return false };
        other.freed.as_ref().is_none_or(|freed| bound < freed)
            && one.freed.as_ref().is_none_or(|freed| other_bound < freed)
    };
    let mut broken = Vec::new();
    for (stage, pods) in by_stage {
        for (at, (lease, pod)) in pods.iter().enumerate() {
            let others = pods[..at].iter().filter(|(other, _)| other != lease);
            let other = others.clone().find(|(_, other)| overlap(pod, other));
            broken.extend(
                other.map(|(other, _)| format!("stage {stage} ran by leases {other} and {lease}")),
            );
        }
    }
    broken
}

/// Writes of a leader that came when one of a later leader had been answered.
fn stale(writes: &[Write<'_>]) -> Vec<String> {
    // What one leader may write says nothing of what another may about another object: pods are
    // refused by the API server, statuses are compared and swapped.
    let mut newest: BTreeMap<String, Vec<(&str, u64)>> = BTreeMap::new();
    let mut broken = Vec::new();
    for write in writes.iter().filter(|write| write.code != NOT_FOUND) {
        let Some((of, epoch)) = epoch(write) else { continue };
        let before = newest.entry(of).or_default();
        let later = before.iter().find(|(answered, of)| *of > epoch && *answered < write.received);
        broken.extend(later.map(|(answered, later)| {
            let (name, at) = (&write.name, write.received);
            format!("{at}: epoch {epoch} wrote `{name}`, epoch {later} had by {answered}")
        }));
        before.push((write.answered, epoch));
    }
    broken
}

/// What a leader's write is ordered with, and its epoch.
fn epoch(write: &Write<'_>) -> Option<(String, u64)> {
    let annotation = write.body["metadata"]["annotations"][EPOCH].as_str();
    match (write.resource, write.subresource) {
        ("pods", "" | "binding") => Some(("pods".to_owned(), annotation?.parse().ok()?)),
        ("trainingjobs", "status") => {
            let operations = write.body.as_array()?;
            let status = operations.iter().find(|it| it["path"] == "/status")?;
            let epoch = status["value"]["written"]["epoch"].as_u64()?;
            Some((format!("status of {}", write.name), epoch))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    pub(super) fn line(at: u32, verb: &str, of: (&str, &str), body: &Value) -> String {
        answered(at, verb, of, (body, 200))
    }

    /// A request at a second, answered a half later.
    fn answered(
        at: u32,
        verb: &str,
        (resource, name): (&str, &str),
        (body, code): (&Value, u64),
    ) -> String {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let event = json!({
            "stage": "ResponseComplete", "verb": verb, "responseStatus": { "code": code },
            "requestReceivedTimestamp": format!("2026-01-01T00:00:{at:02}.000000Z"),
            "stageTimestamp": format!("2026-01-01T00:00:{at:02}.500000Z"),
            "objectRef": {
                "resource": resource, "subresource": subresource, "namespace": "n", "name": name,
            },
            "requestObject": body,
        });
        format!("{event}\n")
    }

    fn pod(at: u32, name: &str, lease: &str, epoch: u64) -> String {
        let body = json!({
            "metadata": {
                "annotations": { EPOCH: epoch.to_string() },
                "labels": { "heterosis.dev/job": "1", "heterosis.dev/stage": "t", LEASE: lease },
            },
            "spec": { "containers": [{ "resources": { "requests": { GPU: "2" } } }] },
        });
        let binding = json!({ "target": { "name": "node" } });
        line(at, "create", ("pods", name), &body)
            + &line(at + 1, "create", ("pods/binding", name), &binding)
    }

    fn ended(at: u32, name: &str) -> String {
        line(at, "patch", ("pods/status", name), &json!({ "status": { "phase": "Succeeded" } }))
    }

    #[track_caller]
    fn check_that(log: &str, expected: &[&str]) {
        let broken = check(log, 3).broken;
        assert_eq!(broken.len(), expected.len(), "{broken:?}");
        for (broken, expected) in broken.iter().zip(expected) {
            assert!(broken.contains(expected), "{broken}");
        }
    }

    #[test]
    fn a_log_says_what_was_held_twice_and_written_late() {
        check_that(&(pod(1, "a", "7", 1) + &ended(4, "a") + &pod(5, "b", "8", 1)), &[]);
        // Which was first while both are under way nobody can say.
        check_that(&(pod(1, "a", "7", 1) + &pod(3, "b", "8", 1) + &ended(4, "a")), &[]);
        let log = pod(1, "a", "7", 1) + &pod(3, "b", "8", 1) + &ended(6, "a");
        check_that(&log, &["4 of 3 GPUs", "leases 7 and 8"]);
        // It was given time, and was gone at once.
        let delete = line(3, "delete", ("pods", "a"), &json!({ "gracePeriodSeconds": 5 }));
        let gone = answered(6, "delete", ("pods", "a"), (&json!({ "gracePeriodSeconds": 0 }), 404));
        check_that(&(pod(1, "a", "7", 1) + &delete + &pod(3, "b", "8", 1) + &gone), &[]);
        let log = pod(1, "a", "7", 2) + &ended(3, "a") + &pod(4, "b", "8", 1);
        check_that(&log, &["epoch 1 wrote `n/b`, epoch 2 had"]);
    }
}
