//! The report of a run: what `het run -o json` prints and what `report.json` holds.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One run, finished or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunReport {
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    pub kind: String,
    pub id: u64,
    pub name: String,
    pub tenant: String,
    pub priority: String,
    /// A job state of the design: `succeeded`, `failed`, `held`, …
    pub state: String,
    /// Code that `het run` ends with; `null` while the job goes on.
    pub exit_code: Option<i32>,
    pub policy: String,
    pub workdir: String,
    /// The commit of the files in the directory that it was submitted from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The job that this one continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumes: Option<u64>,
    /// RFC 3339, UTC.
    pub submitted_at: String,
    pub ended_at: Option<String>,
    pub wall_s: f64,
    pub device_seconds: f64,
    pub stages: Vec<StageReport>,
    /// The newest changes that somebody asked for, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<RequestReport>,
    pub utilisation: Utilisation,
    /// Figures that stages reported by name, for example `loss_after`. In an object of their own: a
    /// program names them, and is to change nothing else of the report.
    #[serde(default, rename = "result", skip_serializing_if = "BTreeMap::is_empty")]
    pub results: BTreeMap<String, f64>,
}

/// Who asked for a change of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestReport {
    /// RFC 3339, UTC.
    pub at: String,
    /// `submit`, `hold`, `release`, `cancel`, `change` or `preempt`.
    pub what: String,
    /// What `het server tokens` calls the token that came with the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The user of the server's machine who asked through its socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Absent where whoever asks may look at its own jobs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// One stage of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageReport {
    pub name: String,
    pub state: String,
    /// `NODE/DEVICE`, with `:UNITS` for parts of a CPU.
    pub devices: Vec<String>,
    /// What really ran, in the program's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_on: Option<String>,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub wall_s: f64,
    pub device_seconds: f64,
    pub exit_code: Option<i32>,
    pub attempts: u32,
    /// What coming back after faults took; absent where there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recoveries: Option<RecoveryReport>,
    /// The newest stops, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<StopReport>,
    /// How long it has run without saving anything, where that is long: a stop loses all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub never_saved_s: Option<f64>,
    pub checkpoints: u32,
    /// Step of the newest complete checkpoint.
    pub checkpoint_step: Option<u64>,
    pub step: Option<u64>,
    pub total: Option<u64>,
    pub loss: Option<f64>,
    /// What its program says of its work, since it began; absent of a program that says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// In steps that count: not loading, saving or redone work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub useful_s: Option<f64>,
    /// Why it ran where it ran, or why it waits.
    pub reasons: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A stop of a stage: for whom, what it was expected to cost, and what was lost. Times that nobody
/// estimated, or that are not known yet, are absent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StopReport {
    /// `priority`, `reclaim`, `shrink`, `quantum`, `migration`, `drain`, `slow`, `fault`, `user`,
    /// `time_limit` or `job_failed`.
    pub cause: String,
    /// When it was decided, RFC 3339, UTC.
    pub at: String,
    /// The job that got the devices; absent where there is none, or where whoever asks may not look
    /// at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptor: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptor_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<StopEstimate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<StopLoss>,
}

/// What a stop was expected to cost when it was decided.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StopEstimate {
    pub save_s: f64,
    pub load_s: f64,
    /// Work since the newest checkpoint.
    pub lost_s: f64,
    /// All three over the devices held.
    pub device_s: f64,
}

/// What a stop lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StopLoss {
    /// When its processes were gone.
    pub at: String,
    /// The last step that its program reported.
    pub step: Option<u64>,
    /// Of the checkpoint that it goes on from.
    pub checkpoint_step: Option<u64>,
    /// The difference: steps that are made again.
    pub steps: Option<u64>,
    /// Since that checkpoint, or since its start.
    pub unsaved_s: f64,
    pub device_s: f64,
}

/// The time to repair, by its parts, summed over all faults of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecoveryReport {
    /// Gangs that ended by a fault and began again.
    pub count: u32,
    /// Until devices were found.
    pub reassign_s: f64,
    /// From then to the first step.
    pub restore_s: f64,
    /// From the first step to where the one before had failed.
    pub recompute_s: f64,
}

/// Shares of the device time of the devices that the run used at all. `null` where nothing measured
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Utilisation {
    /// Somebody held the device.
    pub allocated: f64,
    /// A processor worked on it.
    pub busy: Option<f64>,
    /// It worked on steps that count.
    pub useful: Option<f64>,
}

/// Why the stages of a job stand where they stand, or everything that stands against them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplanationReport {
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    pub kind: String,
    pub id: u64,
    pub name: String,
    pub state: String,
    pub priority: String,
    pub stages: Vec<StageExplanation>,
}

/// The same of one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageExplanation {
    pub name: String,
    pub state: String,
    pub start_reasons: Vec<String>,
    pub wait_reasons: Vec<String>,
    /// What is begun for it while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparation: Option<String>,
    /// Stages of the job that have to succeed first.
    pub after: Vec<String>,
    /// Stages of the job that have to run and to have published some output first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub follows: Vec<String>,
    /// Place in the order of the policy, from 1; `null` while it does not wait.
    pub position: Option<usize>,
    /// Devices that its alternatives do not take because no driver of its program reaches them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<String>,
    /// One an alternative, in file order.
    pub blockers: Vec<BlockerReport>,
    /// What would start it.
    pub what_if: Vec<String>,
    /// What the planner could not make fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The newest stops, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<StopReport>,
    /// What a stop of it is expected to take, where its alternatives were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_times: Option<StopTimesReport>,
    /// Its alternatives and what they are weighed by, in file order, where that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateReport>,
    /// How it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// What stopping a stage and starting it again takes on the devices that it has, or asks for first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StopTimesReport {
    /// From the notice to the end of a gang that saves.
    pub save_s: f64,
    /// Whether that was measured; it is assumed otherwise.
    pub save_measured: bool,
    /// From a start to the first step.
    pub load_s: f64,
    pub load_measured: bool,
}

/// An alternative and what it is weighed by; `null` is unknown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateReport {
    /// `WORD:COUNT`.
    pub devices: String,
    /// `runs`, `free` or `waits`.
    pub state: String,
    /// How many it stands in, or would now.
    pub nodes: Option<u32>,
    /// Where a speed is from: `table`, `history`, `plan`, `scaled`, `extrapolated`.
    pub known_by: Option<String>,
    /// In the best place that there could be for it, and where it stands.
    pub best_steps_per_s: Option<f64>,
    pub steps_per_s: Option<f64>,
    /// Of the peak of the whole cluster, a fraction.
    pub cluster_part: Option<f64>,
    /// Seconds that a second of it costs all together.
    pub price: Option<f64>,
    /// Seconds that a step costs all together: the least is best.
    pub step_cost_s: Option<f64>,
    pub ends_in_s: Option<f64>,
    /// The two of its devices in one node that are joined worst, how (`LINK` by links of their own,
    /// else as `nvidia-smi topo` says it), and what it carries in one direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest_link: Option<String>,
    /// That it stands apart and is slower for it, or why there is no room, or what it lacks.
    pub remarks: Vec<String>,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What stands against one alternative.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockerReport {
    pub word: String,
    pub need: u32,
    pub free: u32,
    /// Units that the cluster has.
    pub total: u32,
    /// Of these, units that others use, nobody knows of which devices.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub used_by_others: u32,
    /// Units of devices that are down, or that somebody took out of service.
    #[serde(default)]
    pub out_of_service: u32,
    /// Of those, the ones that processes of no job use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub occupied: Vec<OccupiedReport>,
    /// The devices would do, if it were not for the cores, memory, disk or tasks of nodes that it
    /// asks for beside them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacks_beside: bool,
    /// It could not run even on the empty cluster.
    pub never: bool,
    pub held_by: Vec<HolderReport>,
}

/// A device that a process of no job uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OccupiedReport {
    pub device: String,
    /// Absent where whoever asks may not look at it.
    #[serde(flatten)]
    pub by: Option<OccupantReport>,
}

/// A process of no job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OccupantReport {
    pub process: u32,
    pub user: String,
    pub command: String,
}

/// Who holds devices that a stage could use. All jobs that whoever asks may not look at are one
/// holder, of which only the units are told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HolderReport {
    pub job: Option<u64>,
    pub name: Option<String>,
    pub stage: Option<String>,
    pub units: u32,
}
