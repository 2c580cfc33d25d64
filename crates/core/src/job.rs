//! What a user asks for, after parsing: nothing here is "maybe invalid".

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::{
    Bytes, DeviceId, Domain, Drivers, HostResources, Millis, Name, PlannedSpeeds, StageIndex,
    StartConditions, Time, Topology,
};

/// urgent > high > normal > low.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    Low,
    #[default]
    Normal,
    High,
    Urgent,
}

impl Priority {
    pub const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Normal, Self::Low];

    pub fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
            Self::Urgent => "urgent",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A submitted job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    pub name: Name,
    pub tenant: Name,
    pub priority: Priority,
    /// In file order; `after` and `follows` name earlier or later stages, never a cycle.
    pub stages: Vec<StageSpec>,
    pub time_limit: Option<Millis>,
    /// Absolute path of the job's own directory.
    pub workdir: String,
    /// The commit of the files in the directory that it was submitted from, where they are of one.
    pub commit: Option<Name>,
    /// What must be so before it may ask for devices.
    pub start: StartConditions,
    /// What its submitter calls the submission, and which request that was: a second one of the
    /// same key is the same job.
    pub key: Option<Name>,
}

/// What a phase of a job is for; gives default device rules and the order inside a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum StageKind {
    Preprocess,
    Load,
    Train,
    Validate,
    #[default]
    Custom,
}

impl StageKind {
    pub const ALL: [Self; 5] =
        [Self::Preprocess, Self::Load, Self::Train, Self::Validate, Self::Custom];

    pub fn word(self) -> &'static str {
        match self {
            Self::Preprocess => "preprocess",
            Self::Load => "load",
            Self::Train => "train",
            Self::Validate => "validate",
            Self::Custom => "custom",
        }
    }

    /// Order between ready stages of equal jobs, first to run first: the parameter update is what
    /// a job waits for, validation can trail.
    pub fn urgency(self) -> u8 {
        match self {
            Self::Train => 0,
            Self::Load => 1,
            Self::Preprocess => 2,
            Self::Custom => 3,
            Self::Validate => 4,
        }
    }
}

/// A phase of a job with its own needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageSpec {
    pub name: Name,
    pub kind: StageKind,
    /// Stages that must have succeeded before this one may start.
    pub after: Vec<StageIndex>,
    /// Stages whose output it reads while they write it: it may start once they have published some
    /// and run, or have succeeded.
    pub follows: Vec<StageIndex>,
    /// At least one; an earlier one is preferred only where speeds are unknown.
    pub alternatives: Vec<Alternative>,
    pub companions: Companions,
    /// All ranks stand inside one such domain.
    pub within: Domain,
    pub ranks: RankRule,
    /// How often a failed program is started again.
    pub retries: u32,
    /// How often in a row, without new progress, it is started again after failures that were not
    /// its program's doing, before its job is held.
    pub restarts: u32,
    /// Key of its speed in throughput tables and history.
    pub profile: Name,
    /// Optimiser steps (or other units of work) it needs, where declared.
    pub steps: Option<u64>,
    pub preemptible: Preemptible,
    /// What the planner expected of it when it was submitted. Kept here, so that a log that is
    /// replayed gives the same decisions whatever planner replays it.
    pub planned: PlannedSpeeds,
}

/// When a running stage may be stopped for the sake of others: preempted, suspended or moved. Its
/// user, faults, drains and time limits stop any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Preemptible {
    /// Once it has had its devices for so long. What it borrowed goes back at any time.
    After(Millis),
    /// Not before it ends. It never borrows: what is lent has to come back.
    Never,
}

impl Default for Preemptible {
    fn default() -> Self {
        Self::After(Millis::ZERO)
    }
}

impl Preemptible {
    /// The first moment at which a stage that has had its devices `since` then may be stopped.
    pub fn from(self, since: Time) -> Option<Time> {
        match self {
            Self::After(span) => Some(since + span),
            Self::Never => None,
        }
    }

    /// Whether a stage that has had its devices `since` then may be stopped `now`.
    pub fn allows(self, since: Time, now: Time) -> bool {
        self.from(since).is_some_and(|from| from <= now)
    }
}

/// One acceptable shape of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternative {
    pub selector: Selector,
    /// Whole units: accelerators, or cores of a CPU.
    pub count: u32,
    pub launch: Arc<Launch>,
}

/// What a program that may have more or fewer devices is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elastic {
    /// Devices that its file asks for: its global batch and the words of its launcher are meant for
    /// so many.
    pub reference: u32,
    /// Between which sizes its global batch may follow the noise of its gradient; `None` where it
    /// stays what it is.
    pub batch: Option<BatchRange>,
}

/// Sizes of the global batch, in samples, `min` at least 1. Steps are counted in batches of `min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRange {
    pub min: u32,
    pub max: u32,
}

/// Which devices a word like `h100:24GiB` stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// As written, for messages.
    pub word: Name,
    pub matches: Match,
    /// Least memory of each device.
    pub memory_min: Bytes,
    /// What its program can be given: a device may be reached from containers only.
    pub isolation: Isolation,
    /// Those of its program, one of which has to be a device's.
    pub drivers: Drivers,
}

/// How a selector recognises a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Every device that is not imitated by software.
    Any,
    /// A kind: `cpu`, `gpu`, `npu`.
    Kind(Name),
    /// A driver: `cuda`, `vulkan`.
    Driver(Name),
    /// Classes of the catalogue or of the cluster.
    Classes(Vec<Name>),
}

impl StageSpec {
    /// Restarts of a stage that names no number.
    pub const RESTARTS_DEFAULT: u32 = 5;

    /// Whether its program can be stopped in that shape without losing all its work.
    pub fn saves(&self, alternative: usize) -> bool {
        self.alternatives[alternative].launch.checkpoint.is_some()
    }

    /// Whether it may have more or fewer devices.
    pub fn has_sizes(&self) -> bool {
        self.alternatives.iter().any(|other| other.count != self.alternatives[0].count)
    }
}

impl Selector {
    pub fn accepts(&self, topology: &Topology, id: DeviceId) -> bool {
        let device = topology.device(id);
        let class = topology.class_of(id);
        let kind_fits = match &self.matches {
            Match::Any => !class.software,
            Match::Kind(kind) => !class.software && class.kind == *kind,
            Match::Driver(driver) => !class.software && device.drivers.contains(driver),
            Match::Classes(ids) => ids.contains(&class.id),
        };
        let reached = match self.isolation {
            Isolation::Process => !device.needs_container(),
            Isolation::Container => true,
        };
        let driven = self.drivers.reach(device);
        kind_fits && topology.memory_of(id) >= self.memory_min && reached && driven
    }

    /// Whether any device of a class will do.
    pub fn accepts_class(&self, topology: &Topology, class: &Name) -> bool {
        let mut devices = topology.device_ids();
        devices.any(|id| topology.class_of(id).id == *class && self.accepts(topology, id))
    }
}

/// What a rank needs beside its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Companions {
    pub cores: u32,
    pub host: HostResources,
}

/// How many processes a gang has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum RankRule {
    /// One process on each node, which sees all its devices there (`torchrun` starts the rest).
    #[default]
    PerNode,
    /// One process for each so many units, all of one node; a stage asks for a multiple of them.
    PerUnits(NonZeroU32),
}

impl RankRule {
    /// One process for each device.
    pub const PER_DEVICE: Self = Self::PerUnits(NonZeroU32::MIN);

    /// Processes of so many units on one node.
    pub fn ranks_on_node(self, units: u32) -> u32 {
        match self {
            Self::PerNode => 1,
            Self::PerUnits(each) => units / each,
        }
    }

    /// As many of these units of one node as make whole processes.
    pub fn whole(self, units: u32) -> u32 {
        match self {
            Self::PerNode => units,
            Self::PerUnits(each) => units - units % each,
        }
    }

    /// Most ranks of a stage whose alternatives ask for these amounts. How many nodes a stage with
    /// one process a node gets is for its placement to say: by request it is one process.
    pub fn ranks_max(self, counts: impl Iterator<Item = u32>) -> u32 {
        match self {
            Self::PerNode => 1,
            Self::PerUnits(each) => counts.max().map_or(1, |units| units / each),
        }
    }
}

/// How to start the program of a stage. Placeholders that only the engine knows (`{checkpoint}`,
/// `{port}`, `{rank}`, `{world}`, `{node}`, `{user}`, `{restarts}`) are left for it; all others are
/// resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Launch {
    /// Name of the job and of the stage, for the program's environment and for paths.
    pub job: Name,
    pub stage: Name,
    /// Absolute path that the program starts in: where the user submitted.
    pub cwd: String,
    /// Absolute path of the job's own directory; logs go to `logs/STAGE/` below it.
    pub workdir: String,
    pub argv: Vec<String>,
    /// Variables whose values anybody may read: what the server itself sets. Stores of earlier
    /// versions hold here what the job file set, too.
    pub env: BTreeMap<String, String>,
    /// Variables of the job file, whose values may be secrets. They win over those in `env`.
    pub kept_env: Option<KeptVariables>,
    /// Appended to `argv` when it starts from a checkpoint.
    pub resume: Vec<String>,
    pub checkpoint: Option<CheckpointSpec>,
    /// Most ranks that the stage may get by its request, with any of its alternatives; 0 in stores
    /// of earlier versions. A program that may be one of several is told its rank also when it is
    /// alone.
    pub ranks_max: u32,
    pub precision: Option<Name>,
    /// Those of the program; on each device it is told to use the first of them that is there.
    pub drivers: Drivers,
    /// Of a stage that may have more or fewer devices.
    pub elastic: Option<Elastic>,
    /// Files and directories that it reads while it starts, by paths below the directory that it
    /// starts in or absolute ones, and models of the Hugging Face cache by name.
    pub inputs: Vec<String>,
    /// What programs of its profile read while they started, where it names no inputs: paths.
    pub seen_inputs: Vec<String>,
    /// Its program waits for its devices at the file that `HET_WARM` names, so it can be started
    /// before they are free.
    pub warm: bool,
    /// Disk space that its output, checkpoints and logs may take up, a rank; None for any.
    pub scratch: Option<Bytes>,
    pub log: LogRule,
    pub stall: StallRule,
    /// Absolute path of a file that its processes read as standard input, where there is one.
    pub stdin: Option<String>,
    /// Absolute path of a file with the variables that its submitter had. It is no part of the
    /// specification: what is in it is nobody else's business.
    pub environment: Option<String>,
    /// Absolute path of the script that came with the submission, where `argv` names one.
    pub kept_script: Option<String>,
    /// Files of the user that it writes to instead of its log.
    pub log_files: Option<LogFiles>,
    pub output: OutputRule,
    /// Where the program lies and runs, if not on the machine itself.
    pub container: Option<Container>,
    /// The user of the machine that it runs as; the server's own where there is none.
    pub user: Option<Name>,
}

/// Variables whose values lie in a file beside the log, and in no event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeptVariables {
    /// Absolute path of the file; values may hold placeholders that only the engine knows.
    pub file: String,
    /// In ascending order.
    pub names: Vec<Name>,
}

/// After which silence a program that had reported steps is taken for hung and started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum StallRule {
    /// As its own silences so far have it.
    #[default]
    Measured,
    After(Millis),
    Never,
}

/// What becomes of what the processes of a stage write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum LogRule {
    /// A file for each rank.
    #[default]
    EachRank,
    Discard,
}

/// Files of the user that a program writes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFiles {
    /// Absolute paths or paths below the directory that it starts in, with placeholders of the
    /// engine. What it writes to standard error goes to the first where the second is absent.
    pub stdout: String,
    pub stderr: Option<String>,
    pub mode: WriteMode,
}

/// What becomes of what a file held before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum WriteMode {
    /// It is gone, unless an earlier attempt of the same job wrote it.
    #[default]
    Truncate,
    Append,
}

/// An image that a program runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// As its runtime names images: `docker.io/library/debian:12`, `/images/train.sif`.
    pub image: String,
    /// The first that the machine has, where none is named.
    pub runtime: Option<ContainerRuntime>,
    pub mounts: Vec<Mount>,
    pub volumes: Vec<Volume>,
}

/// Whether the device nodes that a program sees can be chosen for it, names included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Isolation {
    /// It sees those of the machine: without a container, or in one of Apptainer, which shows
    /// `/dev` as it is.
    #[default]
    Process,
    Container,
}

/// What starts programs in images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerRuntime {
    Podman,
    /// And Singularity, which it was.
    Apptainer,
}

impl Launch {
    pub fn isolation(&self) -> Isolation {
        match self.container.as_ref().map(|container| container.runtime) {
            None | Some(Some(ContainerRuntime::Apptainer)) => Isolation::Process,
            Some(None | Some(ContainerRuntime::Podman)) => Isolation::Container,
        }
    }
}

/// A directory of the machine that is seen inside of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Absolute paths, outside and inside.
    pub source: String,
    pub target: String,
    pub access: Access,
}

/// A claim of a namespace of a cluster that is seen inside of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub claim: Name,
    /// Absolute path inside.
    pub target: String,
    pub access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}

/// Who reads what a stage writes, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum OutputRule {
    /// Somebody may, once it has ended.
    #[default]
    AtTheEnd,
    /// Others follow it: its first shard is told of, and its end is written down beside the shards.
    Streamed,
}

/// Where and how a stage saves its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSpec {
    pub dir: String,
    pub every: Option<Millis>,
    /// Signal of the preemption notice, for example `SIGTERM`.
    pub notice: Name,
    /// From the notice to the kill.
    pub grace: Millis,
}

impl CheckpointSpec {
    /// Grace for a stage that names none: torchrun and Kubernetes both give 30 s.
    pub const GRACE_DEFAULT: Millis = Millis::seconds(30);
}

impl JobSpec {
    pub fn stage(&self, index: StageIndex) -> &StageSpec {
        &self.stages[index.index()]
    }

    pub fn stage_indices(&self) -> impl Iterator<Item = StageIndex> + use<> {
        (0..self.stages.len() as u16).map(StageIndex)
    }
}
