//! What becomes of jobs and pods, as `kubectl describe` and `kubectl get events` show it. No I/O.

use het_wire::resource::{GROUP, KIND, TrainingJobStatus, VERSION};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::owners::JobOwner;

/// Longest note of an event.
const NOTE_BYTES_MAX: usize = 1_024;

/// What an event says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventText<'a> {
    pub is_warning: bool,
    /// One word, with a capital.
    pub reason: &'a str,
    pub note: &'a str,
}

/// Where events of a namespace are made.
pub(crate) fn path(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")
}

/// The event that a job came into its state at `at`.
pub(crate) fn event(owner: &JobOwner, status: &TrainingJobStatus, at: (&str, Timestamp)) -> Value {
    let regarding = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": KIND,
        "name": owner.name, "namespace": owner.namespace, "uid": owner.uid,
    });
    let (reason, note) = (reason(status), note(status));
    let text = EventText { is_warning: is_warning(status), reason: &reason, note: &note };
    made((owner, regarding), text, at)
}

pub(crate) fn is_warning(status: &TrainingJobStatus) -> bool {
    matches!(status.state.as_str(), "failed" | "refused" | "preempted" | "restarting")
}

/// Its state, in one word with a capital.
pub(crate) fn reason(status: &TrainingJobStatus) -> String {
    let mut letters = status.state.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// An event about an object.
pub(crate) fn made(
    (object, regarding): (&JobOwner, Value),
    text: EventText<'_>,
    (scheduler, at): (&str, Timestamp),
) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {
            "generateName": format!("{}-", object.name), "namespace": object.namespace,
        },
        "eventTime": format!("{at:.6}"),
        "type": if text.is_warning { "Warning" } else { "Normal" },
        "reason": text.reason,
        "action": "Scheduling",
        "note": text.note[..text.note.floor_char_boundary(NOTE_BYTES_MAX)],
        "reportingController": format!("{GROUP}/{scheduler}"),
        "reportingInstance": scheduler,
        "regarding": regarding,
    })
}

/// One sentence: why, or on what.
pub(crate) fn note(status: &TrainingJobStatus) -> String {
    let nodes = status.stages.iter().flat_map(|stage| &stage.nodes);
    let nodes: Vec<&str> = nodes.map(String::as_str).collect();
    match (status.reason.as_str(), status.devices.as_str()) {
        ("", "") => format!("the job is {}", status.state),
        ("", devices) => format!("{devices} on {}", nodes.join(", ")),
        (reason, _) => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_why_or_on_what() {
        let status = TrainingJobStatus {
            state: "queued".to_owned(),
            reason: "needs 8 × h100, 3 free".to_owned(),
            ..TrainingJobStatus::default()
        };
        let (namespace, name) = ("research".to_owned(), "llama".to_owned());
        let owner = JobOwner { namespace, name, uid: "u".to_owned() };
        let made = event(&owner, &status, ("heterosis", Timestamp::UNIX_EPOCH));
        assert_eq!(made["note"], "needs 8 × h100, 3 free");
        assert_eq!((&made["reason"], &made["type"]), (&json!("Queued"), &json!("Normal")));
        assert_eq!(made["eventTime"], "1970-01-01T00:00:00.000000Z");
        let long = TrainingJobStatus { reason: "ü".repeat(900), ..status };
        let made = event(&owner, &long, ("heterosis", Timestamp::UNIX_EPOCH));
        assert!(made["note"].as_str().is_some_and(|note| note.len() <= NOTE_BYTES_MAX));
    }
}
