//! The shapes of a job file. The JSON Schema is generated from these types, so what is documented,
//! checked and read cannot drift apart.

use std::collections::BTreeMap;

use het_core::Priority;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::file::{ApiVersion, Problem, Tree};

/// A training job: stages with their programs and the devices they accept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobFile {
    #[serde(rename = "apiVersion")]
    pub api_version: ApiVersion,
    pub kind: Kind,
    pub metadata: Metadata,
    pub spec: Spec,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Kind {
    TrainingJob,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Lower-case letters, digits and dashes.
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"))]
    pub name: String,
    /// Owner of the quota, `lab` or a part of it such as `lab/nlp`; `default` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9./-]{0,251}[a-z0-9])?$"))]
    pub tenant: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    #[serde(default)]
    pub priority: PriorityFile,
    /// Other jobs that must have come so far: `41`, `41:ok`, `prepare:any`, `41:fail`,
    /// `41:start+10m`; `,` between those that are all needed, `?` where one is enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AfterFile>,
    /// Not before this time: `18:00`, `tomorrow`, `now+1h`, `2026-12-24T18:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<String>,
    /// Values for `{param.NAME}`, which a submission may set; one without a value has to be set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, ParamFile>,
    /// In any order; `after` says what waits for what.
    #[schemars(length(min = 1, max = 64))]
    pub stages: Vec<StageFile>,
    /// Longest time from the first start to the end, for example `6h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<String>,
}

/// One text, or a list of which all are needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AfterFile {
    One(#[schemars(length(min = 1))] String),
    All(Vec<String>),
}

impl AfterFile {
    /// As [`super::parse_after`] reads it.
    pub fn text(&self) -> String {
        match self {
            Self::One(text) => text.clone(),
            Self::All(texts) => texts.join(","),
        }
    }
}

/// The value of a parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ParamFile {
    Unset,
    Flag(bool),
    Number(serde_json::Number),
    Text(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PriorityFile {
    Urgent,
    High,
    #[default]
    Normal,
    Low,
}

impl From<PriorityFile> for Priority {
    fn from(word: PriorityFile) -> Self {
        match word {
            PriorityFile::Urgent => Self::Urgent,
            PriorityFile::High => Self::High,
            PriorityFile::Normal => Self::Normal,
            PriorityFile::Low => Self::Low,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StageKindFile {
    Preprocess,
    Load,
    Train,
    Validate,
    #[default]
    Custom,
}

/// A phase of the job with its own needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageFile {
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"))]
    pub name: String,
    /// What the stage is for: sets its order inside the job and the devices it gets when it names
    /// none.
    #[serde(default)]
    pub kind: StageKindFile,
    /// Stages that must have succeeded before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Stages whose output is read while they run: this one starts once they have published a
    /// first shard.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub follows: Vec<String>,
    #[serde(flatten)]
    pub needs: Needs,
}

/// What a stage runs and what it needs: the part that long and short form share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Needs {
    /// The program: a list of words, or one line that is split as a shell splits it. Placeholders:
    /// `{workdir}`, `{checkpoint}`, `{stage.NAME.output}`, `{param.NAME}`, `{rank}`, `{world}`,
    /// `{port}`, `{node}`, `{job}`, `{script}`.
    pub run: CommandFile,
    /// Acceptable devices, `WORD:COUNT[:MEMORY]`, with ` | ` between alternatives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<String>,
    /// Further alternatives that need another program or environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<AlternativeFile>,
    /// What its program can compute with, in the words of `het devices`, the preferred one first:
    /// `[cuda, vulkan, cpu]`. It is given only devices that one of these reaches. If absent, the
    /// `het-train` beside `het` is asked which it has, and any other program may get any device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16), inner(regex(pattern = r"^[a-z0-9][a-z0-9._-]*$")))]
    pub drivers: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The image that the program runs in, if not on the machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerFile>,
    /// Needs beside the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<CompanionsFile>,
    /// One process a node (for `torchrun`) or one a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RanksFile>,
    /// How many devices of each class it may have, instead of exactly as many as it asks for. It is
    /// stopped and started again from its newest checkpoint when that number changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<ElasticFile>,
    /// What its program reads while it starts: files, directories, or models of the Hugging Face
    /// cache by name. While the stage waits for its devices they are copied to a local disk if they
    /// lie on another machine's file system, and read into memory, as far as there is room;
    /// `HET_INPUTS` says where they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub inputs: Vec<String>,
    /// Its program waits for its devices at the file that `HET_WARM` names, as
    /// `heterosis.wait_for_devices()` and `het-train` do: it is started while they are still in
    /// use, and has its imports done when they are free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologyFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointFile>,
    /// Words added to `run` when it starts from a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<CommandFile>,
    /// What its program is told to compute in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<NumberFormatFile>,
    /// How often a failed program is started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub retries: Option<u32>,
    /// How often in a row, without new progress, it is started again after failures that were not
    /// its program's doing (killed from outside, a lost device, an end that nobody saw, a stall)
    /// before the job is held; 5 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub restarts: Option<u32>,
    /// After which silence a program that had reported steps is started again from its checkpoint,
    /// for example `30m`; `never` for one that may be silent for any time. If absent: ten minutes,
    /// or ten times its longest silence so far where that is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<String>,
    /// Whether others may have it stopped for themselves. With `false` nobody preempts or suspends
    /// it; where tenants have quotas it then runs only on what its tenant is entitled to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
    /// How long it is left alone after each start, for example `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_runtime: Option<String>,
    /// A file that its processes read as standard input; nothing if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// What becomes of what its processes write: `ranks` for a file of each rank, `none`, or files
    /// of your own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<LogsFile>,
    /// Optimiser steps, where they are known: lets the scheduler estimate the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// What it trains, where that is a known model: lets the scheduler plan how fast it is on which
    /// devices, and how much slower apart, before anybody has measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trains: Option<TrainsFile>,
    /// Under which name its speed is remembered; the job's and stage's names if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

/// A model and how a step of it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainsFile {
    /// Name of a known model, as `het size --model` takes it.
    pub model: String,
    /// Samples of an optimiser step, over all devices.
    #[schemars(range(min = 1))]
    pub batch: u32,
    /// Tokens of a sample; as the model was trained at first if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub sequence: Option<u32>,
    #[serde(default)]
    pub precision: PrecisionFile,
    #[serde(default)]
    pub tuning: TuningFile,
    /// Of the adapters; 16 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub rank: Option<u32>,
}

/// A format of numbers that a program can be told to compute in, as `HET_PRECISION`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NumberFormatFile {
    Fp64,
    Fp32,
    Tf32,
    Bf16,
    Fp16,
    Fp8,
    Int8,
    Int4,
}

impl NumberFormatFile {
    pub fn word(self) -> &'static str {
        match self {
            Self::Fp64 => "fp64",
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionFile {
    Fp32,
    Fp16,
    #[default]
    Bf16,
    Fp8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TuningFile {
    /// All weights.
    #[default]
    Full,
    /// Low-rank adapters.
    Lora,
    /// The same over weights of 4 bits.
    Qlora,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LogsFile {
    Rule(LogRuleFile),
    Files(LogFilesFile),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogRuleFile {
    /// `logs/STAGE/attempt-N/rank-N.log` in the job's directory.
    Ranks,
    None,
}

/// Files below the directory that the program starts in, or absolute paths. Placeholders: `{job}`,
/// `{array}`, `{index}`, `{rank}`, `{node}`, `{user}`; `{job:5}` has at least five digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogFilesFile {
    pub stdout: String,
    /// The same as `stdout` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// What becomes of what the files held before.
    #[serde(default)]
    pub mode: WriteModeFile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WriteModeFile {
    #[default]
    Truncate,
    Append,
}

/// A list of words or one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum CommandFile {
    Line(#[schemars(length(min = 1))] String),
    Words(#[schemars(length(min = 1))] Vec<String>),
}

impl Default for CommandFile {
    fn default() -> Self {
        Self::Words(Vec::new())
    }
}

/// An acceptable shape of the request with its own program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlternativeFile {
    pub devices: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<CommandFile>,
    /// If absent those of the stage, unless `run` or `container` name another program here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16), inner(regex(pattern = r"^[a-z0-9][a-z0-9._-]*$")))]
    pub drivers: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<NumberFormatFile>,
}

/// An image, or an image with how it is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ContainerFile {
    Image(#[schemars(length(min = 1))] String),
    Full(ContainerFull),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContainerFull {
    /// As its runtime names images: `docker.io/library/debian:12`, `/images/train.sif`.
    #[schemars(length(min = 1))]
    pub image: String,
    /// The first that the machine has if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeFile>,
    /// Further directories of the machine, `/SOURCE[:/TARGET][:ro]`: where the job was submitted
    /// and its own directory are there anyway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^/[^:]*(:/[^:]*)?(:ro)?$")))]
    pub mounts: Vec<String>,
    /// Persistent volume claims of the job's namespace, `CLAIM:/TARGET[:ro]`: of a cluster only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z0-9][-a-z0-9.]*:/[^:]*(:ro)?$")))]
    pub volumes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeFile {
    Podman,
    Apptainer,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompanionsFile {
    /// Cores a rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4096))]
    pub cores: Option<u32>,
    /// Memory a rank, for example `64GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Disk space for the stage's output, checkpoints and logs, a rank, for example `200GiB`. A
    /// stage that takes up more is ended and fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<String>,
    /// What it reads a second from the node's disk, a rank, for example `2GB/s`: stages are not
    /// started beside each other where they would read more than it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RanksFile {
    Node,
    Device,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ElasticFile {
    pub min: u32,
    pub max: u32,
    #[serde(default)]
    pub batch: BatchFile,
}

/// What becomes of the global batch at other sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BatchFile {
    Rule(BatchRuleFile),
    Range(BatchRangeFile),
}

impl Default for BatchFile {
    fn default() -> Self {
        Self::Rule(BatchRuleFile::Keep)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BatchRuleFile {
    /// It stays what it is on as many devices as the stage asks for: the program accumulates more
    /// gradients on fewer devices. A step is the same work at every size.
    Keep,
}

/// It follows the noise of the gradient between these numbers of samples, as
/// `heterosis.AdaptiveBatches` does. Steps are counted in batches of `min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRangeFile {
    #[schemars(range(min = 1, max = 1_048_576))]
    pub min: u32,
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopologyFile {
    /// All ranks stand inside one such domain.
    #[serde(default)]
    pub within: DomainFile,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefer: Option<DomainFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DomainFile {
    Node,
    Rack,
    Pod,
    #[default]
    Any,
}

/// Where, how often and how the program saves; a bare duration is `every`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum CheckpointFile {
    Every(String),
    Full(CheckpointFull),
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointFull {
    /// `{workdir}/STAGE/checkpoints` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// Signal of the preemption notice; `SIGTERM` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<NoticeFile>,
    /// From the notice to the kill; `30s` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<String>,
    /// Drivers between which a checkpoint can move.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub portable: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NoticeFile {
    #[serde(rename = "SIGTERM")]
    Term,
    #[serde(rename = "SIGINT")]
    Int,
    #[serde(rename = "SIGHUP")]
    Hup,
    #[serde(rename = "SIGUSR1")]
    Usr1,
    #[serde(rename = "SIGUSR2")]
    Usr2,
}

impl NoticeFile {
    pub fn word(self) -> &'static str {
        match self {
            Self::Term => "SIGTERM",
            Self::Int => "SIGINT",
            Self::Hup => "SIGHUP",
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
        }
    }
}

/// A job of one stage, without ceremony.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShortJob {
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"))]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9./-]{0,251}[a-z0-9])?$"))]
    pub tenant: Option<String>,
    #[serde(default)]
    pub priority: PriorityFile,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<String>,
    /// Other jobs that must have come so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AfterFile>,
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<String>,
    /// Values for `{param.NAME}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, ParamFile>,
    #[serde(default = "train")]
    pub kind: StageKindFile,
    #[serde(flatten)]
    pub needs: Needs,
}

fn train() -> StageKindFile {
    StageKindFile::Train
}

/// True for a file in the long form.
pub(crate) fn is_long(tree: &Tree) -> bool {
    ["apiVersion", "metadata", "spec"].iter().any(|key| tree.get(key).is_some())
}

/// Reads a tree that passed the schema.
pub(crate) fn read(tree: &Tree) -> Result<JobFile, Problem> {
    let json = tree.to_json();
    let read = if is_long(tree) {
        serde_json::from_value(json)
    } else {
        serde_json::from_value(json).map(long_form)
    };
    read.map_err(|error| tree.problem(error.to_string(), "see `het schema job`".to_owned()))
}

/// The long form of a short job: one stage, named after its kind.
pub(crate) fn long_form(short: ShortJob) -> JobFile {
    let stage = StageFile {
        name: stage_name(short.kind).to_owned(),
        kind: short.kind,
        after: Vec::new(),
        follows: Vec::new(),
        needs: short.needs,
    };
    JobFile {
        api_version: ApiVersion::V1Alpha1,
        kind: Kind::TrainingJob,
        metadata: Metadata { name: short.name, tenant: short.tenant },
        spec: Spec {
            priority: short.priority,
            after: short.after,
            begin: short.begin,
            params: short.params,
            stages: vec![stage],
            time_limit: short.time_limit,
        },
    }
}

fn stage_name(kind: StageKindFile) -> &'static str {
    match kind {
        StageKindFile::Preprocess => "preprocess",
        StageKindFile::Load => "load",
        StageKindFile::Train => "train",
        StageKindFile::Validate => "validate",
        StageKindFile::Custom => "main",
    }
}
