//! What becomes of jobs, as `kubectl describe` and `kubectl get events` show it. No I/O.

use het_wire::resource::{GROUP, KIND, TrainingJobStatus, VERSION};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::jobs::JobOwner;

/// Longest note of an event.
const NOTE_BYTES_MAX: usize = 1_024;

/// The event that a job came into its state at `at`.
pub(crate) fn event(
    owner: &JobOwner,
    status: &TrainingJobStatus,
    (scheduler, at): (&str, Timestamp),
) -> Value {
    let is_warning =
        matches!(status.state.as_str(), "failed" | "refused" | "preempted" | "restarting");
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {
            "generateName": format!("{}-", owner.name), "namespace": owner.namespace,
        },
        "eventTime": format!("{at:.6}"),
        "type": if is_warning { "Warning" } else { "Normal" },
        "reason": capitalized(&status.state),
        "action": "Scheduling",
        "note": note(status),
        "reportingController": format!("{GROUP}/{scheduler}"),
        "reportingInstance": scheduler,
        "regarding": {
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": KIND,
            "name": owner.name, "namespace": owner.namespace, "uid": owner.uid,
        },
    })
}

/// One sentence: why, or on what.
fn note(status: &TrainingJobStatus) -> String {
    let nodes = status.stages.iter().flat_map(|stage| &stage.nodes);
    let nodes: Vec<&str> = nodes.map(String::as_str).collect();
    let text = match (status.reason.as_str(), status.devices.as_str()) {
        ("", "") => format!("the job is {}", status.state),
        ("", devices) => format!("{devices} on {}", nodes.join(", ")),
        (reason, _) => reason.to_owned(),
    };
    text[..text.floor_char_boundary(NOTE_BYTES_MAX)].to_owned()
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
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
