//! Runs as a trace in Chrome's event format, which Perfetto opens: a process a policy, a track a
//! device.

use het_core::Topology;
use serde_json::{Value, json};

use super::PolicyRuns;

pub(super) fn perfetto(topology: &Topology, runs: &[PolicyRuns]) -> String {
    let mut events: Vec<Value> = Vec::new();
    for (process, runs) in runs.iter().enumerate() {
        let policy = runs.recording.outcome.policy;
        events.push(json!({
            "ph": "M", "name": "process_name", "pid": process, "args": { "name": policy },
        }));
        for id in topology.device_ids() {
            let device = topology.device(id);
            let name = format!("{}/{}", topology.node(device.node).name, device.name);
            events.push(json!({
                "ph": "M", "name": "thread_name", "pid": process, "tid": id.0,
                "args": { "name": name },
            }));
        }
        for span in &runs.recording.spans {
            for grant in span.placement.devices() {
                events.push(json!({
                    "ph": "X", "name": format!("job {}", span.stage), "cat": "stage",
                    "pid": process, "tid": grant.device.0,
                    "ts": span.from.0 * 1_000, "dur": span.to.since(span.from).0 * 1_000,
                    "args": { "busy": span.busy, "useful": span.useful },
                }));
            }
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
}
