//! What the server's API takes and gives: `/api/v1`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::API_VERSION;
use crate::job::Override;

/// A job to be queued: the body of `POST /api/v1/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// The job file, YAML or JSON, long or short form.
    pub file: String,
    /// What messages call that file.
    #[serde(default = "Submission::default_source")]
    pub source: String,
    /// Absolute directory that programs start in and relative paths are taken from.
    pub cwd: String,
    /// `PATH` of the programs where `environment` says nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Variables of the programs. They are kept in a file that only the job's owner can read, and
    /// nothing tells them again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Variables that were named one by one: they win over `environment`, and are there in
    /// containers as well.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Absolute directory for outputs, logs and checkpoints; one of the server's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Values that take the places of the file's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    /// A script that is kept as it is now; the file calls it `{script}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ScriptText>,
    /// Absolute path of what its first processes read as standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The commit that the files of its directory are of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Its place among jobs that were submitted together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayPlace>,
    /// What happens once it is queued.
    #[serde(default)]
    pub begin: Begin,
}

/// A script of a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptText {
    /// Its file name, without a directory.
    pub name: String,
    pub text: String,
}

/// The place of a job in an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArrayPlace {
    /// The array's first job; absent in the submission of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    pub index: u32,
    /// How many jobs the array has, and the lowest, the highest and the distance of their indices.
    pub count: u32,
    pub min: u32,
    pub max: u32,
    pub step: u32,
    /// So many of them may run at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_max: Option<u32>,
}

/// Whether a queued job may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Begin {
    /// As soon as it is its turn.
    #[default]
    Queued,
    /// Only after somebody releases it.
    Held,
}

impl Submission {
    fn default_source() -> String {
        "job file".to_owned()
    }
}

/// The answer to a submission; the job is durable when it is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Submitted {
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    pub kind: String,
    pub id: u64,
    pub name: String,
    pub workdir: String,
    /// What is accepted but worth a word.
    pub warnings: Vec<String>,
    /// Whether it was submitted before, under the same key.
    #[serde(default)]
    pub known: bool,
}

/// One line of a list of jobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobRow {
    pub id: u64,
    pub name: String,
    pub tenant: String,
    pub priority: String,
    /// A job state of the design: `queued`, `running`, `succeeded`, …
    pub state: String,
    /// The stage that runs, or that is next.
    pub stage: Option<String>,
    /// `NODE/DEVICE` that it holds.
    pub devices: Vec<String>,
    pub step: Option<u64>,
    pub total: Option<u64>,
    /// RFC 3339, UTC.
    pub submitted_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub exit_code: Option<i32>,
    pub preemptions: u32,
    /// Why it waits.
    pub reason: Option<String>,
    /// The first job of the array that it is of, and its index there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_index: Option<u32>,
    /// Tenant and key of its submission, if it came with one, and in a second line the hash of the
    /// request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Jobs, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobList {
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    pub kind: String,
    pub items: Vec<JobRow>,
    /// Where the next page begins: its `after`; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl JobList {
    pub fn new(items: Vec<JobRow>, next: Option<u64>) -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: "JobList".to_owned(), items, next }
    }
}

/// Which logs of a job are wanted: the query of `GET /api/v1/jobs/{job}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogsQuery {
    pub stage: Option<String>,
    pub rank: Option<u32>,
    /// The last of each stage where it is `None`.
    pub attempt: Option<u32>,
    /// The last lines of each.
    pub tail: Option<u32>,
    /// What is written from then on as well, until the job has ended.
    pub follow: bool,
}

impl LogsQuery {
    /// Whether a rank of a stage is asked for.
    pub fn has(&self, stage: &str, rank: u32) -> bool {
        self.stage.as_ref().is_none_or(|it| it == stage) && self.rank.is_none_or(|it| it == rank)
    }
}

/// What the pods of a job wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobLogs {
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    pub kind: String,
    pub job: u64,
    pub tenant: String,
    /// By stage, attempt and rank.
    pub items: Vec<PodLog>,
}

/// What a pod wrote last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PodLog {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    pub stage: String,
    pub attempt: u32,
    pub rank: u32,
    pub text: String,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// A piece of what a pod writes: the data of an event `log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogPiece {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    pub stage: String,
    pub attempt: u32,
    pub rank: u32,
    /// How many ranks its attempt has, as far as they were seen.
    pub ranks: u32,
    /// Whole lines, but for one that is very long.
    pub text: String,
    /// Nothing follows of this pod.
    pub ended: bool,
    /// Why there is not more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// What comes next of logs that are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowedLogs {
    Piece(LogPiece),
    /// The job has ended, and all of it was told.
    End,
}

impl JobLogs {
    pub fn new(job: u64, tenant: String, items: Vec<PodLog>) -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: "JobLogs".to_owned(), job, tenant, items }
    }
}

/// What is to be different about a job: the body of `PATCH /api/v1/jobs/{job}`. What is absent
/// stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobChanges {
    /// `urgent`, `high`, `normal` or `low`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// From its first start to its end, for example `6h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<String>,
}

/// What stopping a running stage for another one costs and brings; one that is stopped for nobody
/// is told by what it would cost.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PreemptionRow {
    /// Job and stage that the question is about.
    pub id: u64,
    pub stage: String,
    /// What becomes of that stage. One that runs `goes_on`, makes room `on_request`, is
    /// `not_preemptible` or `stops`; one that waits `starts`, `starts_once_released`, `waits`, or
    /// is `pending` on others of its job; or it has `ended`.
    #[serde(default)]
    pub outlook: String,
    /// Why it waits or may not be stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Job and stage that stops or would; `null` where nobody does, or where the caller may not
    /// look at that job.
    #[serde(default)]
    pub victim: Option<u64>,
    #[serde(default)]
    pub victim_stage: Option<String>,
    /// Why, as [`crate::report::StopReport`] names causes.
    #[serde(default)]
    pub cause: Option<String>,
    /// Job and stage that would get the room; `null` where the caller may not look at that job.
    pub preemptor: Option<u64>,
    pub preemptor_stage: Option<String>,
    /// The same under the names of version 0.1, which go with 0.3.
    pub beneficiary: Option<u64>,
    pub beneficiary_stage: Option<String>,
    pub save_s: f64,
    pub load_s: f64,
    /// Work since the newest checkpoint that would be done again.
    pub lost_s: f64,
    /// All three over the devices held, in device-seconds.
    pub cost_device_s: f64,
    /// Waiting that the preemptor is spared, weighted by priority, in device-seconds.
    pub gain_device_s: f64,
    /// The gain is larger: a policy that preempts would do it by itself.
    pub pays: bool,
    pub preemptions: u32,
    pub preemptions_max: u32,
}

impl PreemptionRow {
    /// The same with who would get the room, by job and stage.
    #[must_use]
    pub fn for_preemptor(self, preemptor: Option<(u64, String)>) -> Self {
        let (job, stage) = preemptor.unzip();
        Self {
            preemptor: job,
            preemptor_stage: stage.clone(),
            beneficiary: job,
            beneficiary_stage: stage,
            ..self
        }
    }
}

/// The running stages of a job and what making room would cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PreemptionList {
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    pub kind: String,
    pub items: Vec<PreemptionRow>,
}

impl PreemptionList {
    pub fn new(items: Vec<PreemptionRow>) -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: "PreemptionList".to_owned(), items }
    }
}

/// A device of the server and how much of it is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceRow {
    /// `NODE/DEVICE`.
    pub name: String,
    pub class: String,
    pub kind: String,
    pub units: u32,
    pub held: u32,
    pub state: DeviceState,
    /// Of one that is slow, percent of its usual pace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace_pct: Option<u32>,
    /// Why it is slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_cause: Option<SlowCause>,
    /// Who uses it, or most of it, beside all jobs: `USER: COMMAND (PROCESS)`; absent where the
    /// caller may look at its own jobs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occupant: Option<String>,
    /// Percent of the last seconds in which it worked; absent where nothing measures it, as the
    /// next two are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_pct: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Its clock, in percent of the rated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_pct: Option<u32>,
}

/// What takes a part of the speed of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SlowCause {
    /// Unknown: a program makes fewer steps there than it did.
    Steps,
    /// Processes of no job work there.
    Contention,
    /// Heat or a lack of power holds its clock down.
    Throttling,
    /// Programs of its node wait for memory.
    MemoryPressure,
}

/// Whether something may start on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    Up,
    /// Out of service, and still in use.
    Draining,
    Drained,
    /// A process that is of no job uses it.
    Occupied,
    /// Programs hung on it more than once: only work that can afford it is started there.
    Suspected,
    /// Has not all of its speed: gets work only where nothing else is free.
    Slow,
    /// It or its node is down, or is going to be.
    Failed,
    /// The machine has it no longer.
    Gone,
}

impl DeviceState {
    pub fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Occupied => "occupied",
            Self::Suspected => "suspected",
            Self::Slow => "slow",
            Self::Failed => "failed",
            Self::Gone => "gone",
        }
    }
}

/// Devices: `GET /api/v1/devices`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceList {
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    pub kind: String,
    pub items: Vec<DeviceRow>,
}

impl DeviceList {
    pub fn new(items: Vec<DeviceRow>) -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: "DeviceList".to_owned(), items }
    }
}

/// A quota file: the body of `PUT /api/v1/quotas`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotasText {
    /// YAML or JSON: see `het schema quotas`.
    pub file: String,
    /// What messages call that file.
    #[serde(default = "QuotasText::default_source")]
    pub source: String,
}

impl QuotasText {
    fn default_source() -> String {
        "quota file".to_owned()
    }
}

/// What one tenant may have of one device class, and has, in units.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaRow {
    pub tenant: String,
    pub weight: u32,
    pub class: String,
    pub quota: Option<u32>,
    pub limit: Option<u32>,
    pub held: u32,
}

/// Quotas: `GET /api/v1/quotas`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaList {
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    pub kind: String,
    pub items: Vec<QuotaRow>,
}

impl QuotaList {
    pub fn new(items: Vec<QuotaRow>) -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: "QuotaList".to_owned(), items }
    }
}

/// What is wrong with a request, for programs (`code`) and for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// Stays the same between versions: `not_found`, `bad_job_file`, …
    pub code: String,
    /// One sentence; for job files the whole report with lines and carets.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// One event of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventRow {
    pub sequence: u64,
    /// The event with its time, as it was written.
    pub record: serde_json::Value,
    /// SHA-256, in hexadecimal digits, of the hash of the event before (zeros for the first) and
    /// the record's compact JSON.
    pub hash: String,
    /// The hash of the event before, where that event is not kept any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// From where on no event of a log is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChainStart {
    pub sequence: u64,
    /// The hash of the event before; zeros where this is the first of all.
    pub before: String,
}

/// Events in order: `GET /api/v1/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventPage {
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    pub kind: String,
    /// Of events before it those are kept that jobs need which are kept.
    pub chain: ChainStart,
    pub items: Vec<EventRow>,
    /// Where the next page begins: its `from`; absent where there may be none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl EventPage {
    pub fn new(items: Vec<EventRow>, chain: ChainStart, next: Option<u64>) -> Self {
        let (api_version, kind) = (API_VERSION.to_owned(), "EventPage".to_owned());
        Self { api_version, kind, chain, items, next }
    }
}

/// What a server says of itself: `GET /api/v1/server`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerInfo {
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    pub kind: String,
    pub version: String,
    pub pid: u32,
    pub policy: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub jobs_live: usize,
    /// Events in the log.
    pub events: u64,
    /// Why nothing can be changed at present; absent where the store can be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// What of the cluster cannot be followed at present: what became of it since is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch_errors: Vec<WatchError>,
}

/// A watch on objects of a cluster that fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchError {
    /// `pods`, `jobsets.jobset.x-k8s.io`.
    pub resource: String,
    /// As the API server names it: `Forbidden`; `Unreachable` where it does not answer.
    pub reason: String,
    pub message: String,
}

/// What is in an event store: `GET /api/v1/server/check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreCheck {
    pub path: String,
    pub events: u64,
    pub snapshots: u64,
    /// Last lines of jobs that ended long ago.
    pub rows: u64,
    /// What is not what was written, a sentence each.
    pub damage: Vec<String>,
}

/// A backup that was written: `POST /api/v1/server/backup`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Backup {
    /// On the server's machine.
    pub path: String,
    /// In its log.
    pub events: u64,
}

/// The answer to `POST /api/v1/server/stop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerStopped {
    pub stopped: bool,
    /// Jobs that go on and are taken up by the next server.
    pub jobs_running: usize,
}

/// A change of one job, as `GET /api/v1/watch` sends it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Number of the log's newest event at this change.
    pub sequence: u64,
    pub job: JobRow,
}
