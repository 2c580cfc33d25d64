//! What goes wrong: drawn from published failure rates, or read from a list.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use het_core::{DeviceId, Event, Millis, NodeId, Share, Time, Topology};
use het_perf::FAILURES_PER_DEVICE_DAY;
use het_sim::Fault;
use serde::Deserialize;

use crate::Draw;
use crate::workload::{Spot, TraceError, WorkloadError, read_text};

/// How often machines of a kind fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultRates {
    pub name: &'static str,
    /// Failures that interrupt a job, per accelerator and day.
    pub per_device_day: f64,
}

/// Published rates: that of Llama-3 405B, and those of RSC-1 and RSC-2, 6.50 and 2.34 per 1,000
/// node-days of eight devices (Kokolis et al. 2024, "Revisiting reliability in large-scale machine
/// learning research clusters").
pub const FAULT_RATES: [FaultRates; 3] = [
    FaultRates { name: "llama3", per_device_day: FAILURES_PER_DEVICE_DAY },
    FaultRates { name: "rsc1", per_device_day: 6.50 / 1_000.0 / 8.0 },
    FaultRates { name: "rsc2", per_device_day: 2.34 / 1_000.0 / 8.0 },
];

/// How failures go on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultCourse {
    /// Until a failed node is back.
    pub repair: Millis,
    /// Part of the failures that something announces.
    pub foreseen: f64,
    /// How long before.
    pub warning: Millis,
}

/// First stream of the seed that belongs to a node.
const FIRST_NODE: u64 = 1 << 32;

/// Failures of every node until `until`, with exponential times between them, one stream of the
/// seed a node.
pub fn draw_faults(
    topology: &Topology,
    rates: &FaultRates,
    course: &FaultCourse,
    until: Time,
    seed: u64,
) -> Vec<(Time, Fault)> {
    let mut devices: BTreeMap<NodeId, u32> = BTreeMap::new();
    for id in topology.accelerators() {
        *devices.entry(topology.device(id).node).or_default() += 1;
    }
    let mut faults = Vec::new();
    for (&node, &count) in &devices {
        let mut draw = Draw::new(seed, FIRST_NODE + u64::from(node.0));
        let mean_ms = 86_400e3 / (rates.per_device_day * f64::from(count));
        let mut at = draw.exponential(mean_ms);
        while at < until.0 as f64 {
            let fails = Time(at as u64);
            let back = fails + course.repair;
            if draw.part() < course.foreseen {
                let warned = Time(fails.0.saturating_sub(course.warning.0));
                faults.push((warned, Fault::NodeSuspected { node }));
                faults.push((back, Fault::NodeCleared { node }));
            }
            faults.push((fails, Fault::NodeLost { node }));
            faults.push((back, Fault::NodeReturned { node }));
            at = back.0 as f64 + draw.exponential(mean_ms);
        }
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// A line of a list of faults: when, where, what, and its figures.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultRecord {
    at_s: f64,
    /// Name of the node.
    node: String,
    kind: String,
    /// Of `slow` and `slow-link`: of the normal step time.
    percent: Option<u64>,
    /// Name of the device, of kinds that begin with `device-`.
    device: Option<String>,
    /// Of `hang` and `corrupt`.
    noticed_after_s: Option<f64>,
    /// Of `taken`: class of the node's devices, and how many units of it others use.
    class: Option<String>,
    units: Option<u32>,
}

/// Reads a list of faults, JSON Lines: `{"at_s": 60, "node": "gpu-3", "kind": "lost"}`. Kinds:
/// `lost`, `returned`, `suspected`, `cleared`; `device-failed`, `device-repaired`, `device-drained`
/// and `device-undrained` with `device`; `removed` and `joined` of a node that leaves the cluster
/// and joins it as it was; `taken` with `class` and `units`, which others use from then on;
/// `slow` and `slow-link` with `percent`, `hang` and `corrupt` with `noticed_after_s`.
///
/// # Errors
/// When the file cannot be read, or with the place of the first malformed line.
pub fn read_faults(path: &Path, topology: &Topology) -> Result<Vec<(Time, Fault)>, WorkloadError> {
    let text = read_text(path)?;
    let rows = topology.nodes.iter().enumerate();
    let nodes: BTreeMap<&str, NodeId> =
        rows.map(|(row, node)| (node.name.as_str(), NodeId(row as u32))).collect();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut faults = Vec::new();
    for (index, line) in lines {
        let wrong = |column: usize, reason: String| {
            let spot = Spot { path: path.to_owned(), line: index + 1, column };
            TraceError { spot, reason }
        };
        let record: FaultRecord = serde_json::from_str(line)
            .map_err(|error| wrong(error.column().max(1), error.to_string()))?;
        let at = Time((record.at_s.max(0.0) * 1e3).round() as u64);
        let fault = fault(&record, topology, &nodes).map_err(|reason| wrong(1, reason))?;
        faults.push((at, fault));
    }
    faults.sort_by_key(|(at, _)| *at);
    Ok(faults)
}

fn fault(
    record: &FaultRecord,
    topology: &Topology,
    nodes: &BTreeMap<&str, NodeId>,
) -> Result<Fault, String> {
    let node = *nodes
        .get(record.node.as_str())
        .ok_or_else(|| format!("the cluster has no node `{}`", record.node))?;
    let percent = || record.percent.ok_or_else(|| format!("`{}` needs `percent`", record.kind));
    let noticed = || {
        let seconds = record.noticed_after_s;
        let seconds =
            seconds.ok_or_else(|| format!("`{}` needs `noticed_after_s`", record.kind))?;
        Ok::<_, String>(Millis((seconds.max(0.0) * 1e3).round() as u64))
    };
    let device = || {
        let name = record.device.as_deref();
        let name = name.ok_or_else(|| format!("`{}` needs `device`", record.kind))?;
        let is_it = |id: &DeviceId| {
            let device = topology.device(*id);
            device.node == node && device.name == *name
        };
        let found = topology.device_ids().find(is_it);
        found.ok_or_else(|| format!("node `{}` has no device `{name}`", record.node))
    };
    Ok(match record.kind.as_str() {
        "lost" => Fault::NodeLost { node },
        "removed" => Fault::Reported(Event::NodeRemoved { name: record.node.as_str().into() }),
        "joined" => Fault::Reported(Event::NodesJoined { nodes: Arc::new(topology.only(node)) }),
        "taken" => {
            let word = record.class.as_deref().ok_or("`taken` needs `class`")?;
            let known = topology.classes.iter().position(|class| class.id == *word);
            let class = known.ok_or_else(|| format!("the cluster has no class `{word}`"))?;
            let units = record.units.ok_or("`taken` needs `units`")?;
            Fault::Reported(Event::CapacityTaken { node, class, amount: Share::units(units) })
        }
        "device-failed" => Fault::DeviceFailed { device: device()? },
        "device-repaired" => Fault::DeviceRepaired { device: device()? },
        "device-drained" => Fault::DeviceDrained { device: device()? },
        "device-undrained" => Fault::DeviceUndrained { device: device()? },
        "returned" => Fault::NodeReturned { node },
        "suspected" => Fault::NodeSuspected { node },
        "cleared" => Fault::NodeCleared { node },
        "slow" => Fault::Slowed { node, percent: percent()? },
        "slow-link" => Fault::LinkSlowed { node, percent: percent()? },
        "hang" => Fault::Hung { node, noticed_after: noticed()? },
        "corrupt" => Fault::Corrupted { node, noticed_after: noticed()? },
        other => return Err(format!("there is no fault `{other}`")),
    })
}
