//! A resolved job as it is stored.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use het_core::{
    Access, Alternative, BatchRange, Bytes, CheckpointSpec, Companions, Container,
    ContainerRuntime, Domain, Drivers, Elastic, JobSpec, KeptVariables, Launch, LogFiles, LogRule,
    Match, Micro, Millis, Mount, Name, OutputRule, Planned, PlannedSpeeds, Preemptible, Priority,
    RankRule, Selector, Speeds, StageIndex, StageKind, StageSpec, StallRule, TrainingFiles, Volume,
    WriteMode,
};
use serde::{Deserialize, Serialize};

use super::error::RecordError;
use super::host::HostRecord;
use super::start::{StartRecord, read_start, write_start};
use super::words::by_word;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobRecord {
    name: String,
    tenant: String,
    priority: String,
    stages: Vec<StageRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_limit_ms: Option<u64>,
    workdir: String,
    #[serde(default, skip_serializing_if = "is_default")]
    start: StartRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StageRecord {
    name: String,
    kind: String,
    after: Vec<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    follows: Vec<u16>,
    alternatives: Vec<AlternativeRecord>,
    cores: u32,
    #[serde(flatten)]
    host: HostRecord,
    within: String,
    rank_per_device: bool,
    /// Where a rank has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    units_per_rank: Option<NonZeroU32>,
    retries: u32,
    #[serde(default = "restarts_default", skip_serializing_if = "is_restarts_default")]
    restarts: u32,
    profile: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    steps: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    preemptible: PreemptibleRecord,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    planned: Vec<PlannedRecord>,
    /// Bytes of the weights and of a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    files: Option<(u64, u64)>,
}

fn restarts_default() -> u32 {
    StageSpec::RESTARTS_DEFAULT
}

fn is_zero(part: &i64) -> bool {
    *part == 0
}

fn is_restarts_default(restarts: &u32) -> bool {
    *restarts == StageSpec::RESTARTS_DEFAULT
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PreemptibleRecord {
    AfterMs(u64),
    Never,
}

impl Default for PreemptibleRecord {
    fn default() -> Self {
        Self::AfterMs(0)
    }
}

/// A gang and what the planner says of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PlannedRecord {
    class: String,
    units: u32,
    #[serde(flatten)]
    says: SaysRecord,
    /// In millionths.
    #[serde(default, skip_serializing_if = "is_zero")]
    exchange: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SaysRecord {
    /// In millionths, in the order of [`Domain::ALL`].
    StepsPerSecond([i64; Domain::ALL.len()]),
    LacksBytes(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct AlternativeRecord {
    word: String,
    matches: MatchRecord,
    memory_min_bytes: u64,
    count: u32,
    launch: LaunchRecord,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MatchRecord {
    Any,
    Kind(String),
    Driver(String),
    Classes(Vec<String>),
}

/// Variables of a launch. Versions that knew only of values in the record cannot read the second
/// form, and refuse the store rather than start a program without its variables. Those that knew
/// nothing of users cannot read the third, and do not start a program as their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum VariablesRecord {
    Open(BTreeMap<String, String>),
    Kept { open: BTreeMap<String, String>, file: String, names: Vec<String> },
    OfUser { of_user: UserVariablesRecord },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct UserVariablesRecord {
    user: String,
    variables: Box<VariablesRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ElasticRecord {
    reference: u32,
    /// Least and largest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    batch: Option<(u32, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LaunchRecord {
    job: String,
    stage: String,
    cwd: String,
    workdir: String,
    argv: Vec<String>,
    env: VariablesRecord,
    resume: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoint: Option<CheckpointRecord>,
    #[serde(default, skip_serializing_if = "is_default")]
    ranks_max: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    precision: Option<String>,
    /// Absent where nobody said which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drivers: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    elastic: Option<ElasticRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    seen_inputs: Vec<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    warm: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scratch_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    log: LogRecord,
    #[serde(default, skip_serializing_if = "is_default")]
    stall: StallRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stdin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    environment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept_script: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log_files: Option<LogFilesRecord>,
    #[serde(default, skip_serializing_if = "is_default")]
    output: OutputRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<ContainerRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ContainerRecord {
    image: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    runtime: Option<RuntimeRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<MountRecord>,
    /// Whose sources are claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    volumes: Vec<MountRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RuntimeRecord {
    Podman,
    Apptainer,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MountRecord {
    source: String,
    target: String,
    read_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LogRecord {
    #[default]
    EachRank,
    Discard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StallRecord {
    #[default]
    Measured,
    AfterMs(u64),
    Never,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LogFilesRecord {
    stdout: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stderr: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    append: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutputRecord {
    #[default]
    AtTheEnd,
    Streamed,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CheckpointRecord {
    dir: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every_ms: Option<u64>,
    notice: String,
    grace_ms: u64,
}

pub(super) fn write_job(spec: &JobSpec) -> JobRecord {
    JobRecord {
        name: spec.name.to_string(),
        tenant: spec.tenant.to_string(),
        priority: spec.priority.word().to_owned(),
        stages: spec.stages.iter().map(write_stage).collect(),
        time_limit_ms: spec.time_limit.map(|limit| limit.0),
        workdir: spec.workdir.clone(),
        start: write_start(&spec.start),
        commit: spec.commit.as_ref().map(ToString::to_string),
        key: spec.key.as_ref().map(ToString::to_string),
    }
}

pub(super) fn read_job(record: &JobRecord) -> Result<JobSpec, RecordError> {
    let stages: Result<_, _> = record.stages.iter().map(read_stage).collect();
    Ok(JobSpec {
        name: record.name.as_str().into(),
        tenant: record.tenant.as_str().into(),
        priority: by_word(&Priority::ALL, |priority| priority.word(), &record.priority)?,
        stages: stages?,
        time_limit: record.time_limit_ms.map(Millis),
        workdir: record.workdir.clone(),
        start: read_start(&record.start)?,
        commit: record.commit.as_deref().map(Name::from),
        key: record.key.as_deref().map(Name::from),
    })
}

fn write_stage(spec: &StageSpec) -> StageRecord {
    StageRecord {
        name: spec.name.to_string(),
        kind: spec.kind.word().to_owned(),
        after: spec.after.iter().map(|index| index.0).collect(),
        follows: spec.follows.iter().map(|index| index.0).collect(),
        alternatives: spec.alternatives.iter().map(write_alternative).collect(),
        cores: spec.companions.cores,
        host: spec.companions.host.into(),
        within: spec.within.word().to_owned(),
        rank_per_device: spec.ranks != RankRule::PerNode,
        units_per_rank: match spec.ranks {
            RankRule::PerUnits(each) if spec.ranks != RankRule::PER_DEVICE => Some(each),
            _ => None,
        },
        retries: spec.retries,
        restarts: spec.restarts,
        profile: spec.profile.to_string(),
        steps: spec.steps,
        preemptible: match spec.preemptible {
            Preemptible::After(span) => PreemptibleRecord::AfterMs(span.0),
            Preemptible::Never => PreemptibleRecord::Never,
        },
        planned: write_planned(&spec.planned),
        files: spec.planned.files.map(|files| (files.weights.0, files.checkpoint.0)),
    }
}

fn read_stage(record: &StageRecord) -> Result<StageSpec, RecordError> {
    Ok(StageSpec {
        name: record.name.as_str().into(),
        kind: by_word(&StageKind::ALL, |kind| kind.word(), &record.kind)?,
        after: record.after.iter().copied().map(StageIndex).collect(),
        follows: record.follows.iter().copied().map(StageIndex).collect(),
        alternatives: record.alternatives.iter().map(read_alternative).collect(),
        companions: Companions { cores: record.cores, host: record.host.into() },
        within: by_word(&Domain::ALL, |domain| domain.word(), &record.within)?,
        ranks: match record.rank_per_device {
            true => RankRule::PerUnits(record.units_per_rank.unwrap_or(NonZeroU32::MIN)),
            false => RankRule::PerNode,
        },
        retries: record.retries,
        restarts: record.restarts,
        profile: record.profile.as_str().into(),
        steps: record.steps,
        preemptible: match record.preemptible {
            PreemptibleRecord::AfterMs(span) => Preemptible::After(Millis(span)),
            PreemptibleRecord::Never => Preemptible::Never,
        },
        planned: read_planned(&record.planned, record.files),
    })
}

fn write_planned(planned: &PlannedSpeeds) -> Vec<PlannedRecord> {
    let says = |planned| match planned {
        Planned::Runs(speeds) => {
            SaysRecord::StepsPerSecond(Domain::ALL.map(|domain| Speeds::within(speeds, domain).0))
        }
        Planned::Lacks(bytes) => SaysRecord::LacksBytes(bytes.0),
    };
    let record = |(class, units, planned): (&Name, u32, Planned)| PlannedRecord {
        class: class.to_string(),
        units,
        says: says(planned),
        exchange: match planned {
            Planned::Runs(speeds) => speeds.exchange().0,
            Planned::Lacks(_) => 0,
        },
    };
    planned.iter().map(record).collect()
}

fn read_planned(records: &[PlannedRecord], files: Option<(u64, u64)>) -> PlannedSpeeds {
    let mut planned = PlannedSpeeds::default();
    planned.files = files.map(|(weights, checkpoint)| TrainingFiles {
        weights: Bytes(weights),
        checkpoint: Bytes(checkpoint),
    });
    for record in records {
        let says = match record.says {
            SaysRecord::StepsPerSecond(speeds) => Speeds::new(speeds.map(Micro))
                .map(|speeds| Planned::Runs(speeds.exchanging(Micro(record.exchange)))),
            SaysRecord::LacksBytes(bytes) => Some(Planned::Lacks(Bytes(bytes))),
        };
        if let Some(says) = says {
            planned.insert(record.class.as_str().into(), record.units, says);
        }
    }
    planned
}

fn write_alternative(alternative: &Alternative) -> AlternativeRecord {
    let selector = &alternative.selector;
    AlternativeRecord {
        word: selector.word.to_string(),
        matches: match &selector.matches {
            Match::Any => MatchRecord::Any,
            Match::Kind(kind) => MatchRecord::Kind(kind.to_string()),
            Match::Driver(driver) => MatchRecord::Driver(driver.to_string()),
            Match::Classes(ids) => {
                MatchRecord::Classes(ids.iter().map(ToString::to_string).collect())
            }
        },
        memory_min_bytes: selector.memory_min.0,
        count: alternative.count,
        launch: write_launch(&alternative.launch),
    }
}

fn read_alternative(record: &AlternativeRecord) -> Alternative {
    let matches = match &record.matches {
        MatchRecord::Any => Match::Any,
        MatchRecord::Kind(kind) => Match::Kind(kind.as_str().into()),
        MatchRecord::Driver(driver) => Match::Driver(driver.as_str().into()),
        MatchRecord::Classes(ids) => {
            Match::Classes(ids.iter().map(|id| id.as_str().into()).collect())
        }
    };
    let memory_min = Bytes(record.memory_min_bytes);
    let launch = read_launch(&record.launch);
    let isolation = launch.isolation();
    let (word, drivers) = (record.word.as_str().into(), launch.drivers.clone());
    Alternative {
        selector: Selector { word, matches, memory_min, isolation, drivers },
        count: record.count,
        launch: Arc::new(launch),
    }
}

pub(super) fn write_launch(launch: &Launch) -> LaunchRecord {
    LaunchRecord {
        job: launch.job.to_string(),
        stage: launch.stage.to_string(),
        cwd: launch.cwd.clone(),
        workdir: launch.workdir.clone(),
        argv: launch.argv.clone(),
        env: write_variables(launch),
        resume: launch.resume.clone(),
        checkpoint: launch.checkpoint.as_ref().map(|spec| CheckpointRecord {
            dir: spec.dir.clone(),
            every_ms: spec.every.map(|every| every.0),
            notice: spec.notice.to_string(),
            grace_ms: spec.grace.0,
        }),
        ranks_max: launch.ranks_max,
        precision: launch.precision.as_ref().map(ToString::to_string),
        drivers: launch
            .drivers
            .named()
            .map(|drivers| drivers.iter().map(ToString::to_string).collect()),
        elastic: launch.elastic.map(|Elastic { reference, batch }| ElasticRecord {
            reference,
            batch: batch.map(|BatchRange { min, max }| (min, max)),
        }),
        inputs: launch.inputs.clone(),
        seen_inputs: launch.seen_inputs.clone(),
        warm: launch.warm,
        scratch_bytes: launch.scratch.map(|bytes| bytes.0),
        log: match launch.log {
            LogRule::EachRank => LogRecord::EachRank,
            LogRule::Discard => LogRecord::Discard,
        },
        stall: match launch.stall {
            StallRule::Measured => StallRecord::Measured,
            StallRule::After(span) => StallRecord::AfterMs(span.0),
            StallRule::Never => StallRecord::Never,
        },
        stdin: launch.stdin.clone(),
        environment: launch.environment.clone(),
        kept_script: launch.kept_script.clone(),
        log_files: launch.log_files.as_ref().map(|files| LogFilesRecord {
            stdout: files.stdout.clone(),
            stderr: files.stderr.clone(),
            append: files.mode == WriteMode::Append,
        }),
        output: match launch.output {
            OutputRule::AtTheEnd => OutputRecord::AtTheEnd,
            OutputRule::Streamed => OutputRecord::Streamed,
        },
        container: launch.container.as_ref().map(write_container),
    }
}

fn write_variables(launch: &Launch) -> VariablesRecord {
    let open = launch.env.clone();
    let variables = match &launch.kept_env {
        None => VariablesRecord::Open(open),
        Some(KeptVariables { file, names }) => VariablesRecord::Kept {
            open,
            file: file.clone(),
            names: names.iter().map(ToString::to_string).collect(),
        },
    };
    match &launch.user {
        None => variables,
        Some(user) => VariablesRecord::OfUser {
            of_user: UserVariablesRecord { user: user.to_string(), variables: Box::new(variables) },
        },
    }
}

fn read_variables(record: &VariablesRecord) -> (BTreeMap<String, String>, Option<KeptVariables>) {
    match record {
        VariablesRecord::Open(open) => (open.clone(), None),
        VariablesRecord::Kept { open, file, names } => {
            let names = names.iter().map(|name| name.as_str().into()).collect();
            (open.clone(), Some(KeptVariables { file: file.clone(), names }))
        }
        // One user has them, and never a second.
        VariablesRecord::OfUser { of_user } => read_variables(&of_user.variables),
    }
}

pub(super) fn read_launch(record: &LaunchRecord) -> Launch {
    let (variables, user) = match &record.env {
        VariablesRecord::OfUser { of_user } => {
            (&*of_user.variables, Some(of_user.user.as_str().into()))
        }
        variables => (variables, None),
    };
    let (env, kept_env) = read_variables(variables);
    Launch {
        job: record.job.as_str().into(),
        stage: record.stage.as_str().into(),
        cwd: record.cwd.clone(),
        workdir: record.workdir.clone(),
        argv: record.argv.clone(),
        env,
        kept_env,
        resume: record.resume.clone(),
        checkpoint: record.checkpoint.as_ref().map(|spec| CheckpointSpec {
            dir: spec.dir.clone(),
            every: spec.every_ms.map(Millis),
            notice: spec.notice.as_str().into(),
            grace: Millis(spec.grace_ms),
        }),
        ranks_max: record.ranks_max,
        precision: record.precision.as_deref().map(Into::into),
        drivers: record
            .drivers
            .as_ref()
            .map_or(Drivers::Unknown, |drivers| drivers.iter().map(String::as_str).collect()),
        elastic: record.elastic.map(|ElasticRecord { reference, batch }| Elastic {
            reference,
            batch: batch.map(|(min, max)| BatchRange { min, max }),
        }),
        inputs: record.inputs.clone(),
        seen_inputs: record.seen_inputs.clone(),
        warm: record.warm,
        scratch: record.scratch_bytes.map(Bytes),
        log: match record.log {
            LogRecord::EachRank => LogRule::EachRank,
            LogRecord::Discard => LogRule::Discard,
        },
        stall: match record.stall {
            StallRecord::Measured => StallRule::Measured,
            StallRecord::AfterMs(span) => StallRule::After(Millis(span)),
            StallRecord::Never => StallRule::Never,
        },
        stdin: record.stdin.clone(),
        environment: record.environment.clone(),
        kept_script: record.kept_script.clone(),
        log_files: record.log_files.as_ref().map(|files| LogFiles {
            stdout: files.stdout.clone(),
            stderr: files.stderr.clone(),
            mode: if files.append { WriteMode::Append } else { WriteMode::Truncate },
        }),
        output: match record.output {
            OutputRecord::AtTheEnd => OutputRule::AtTheEnd,
            OutputRecord::Streamed => OutputRule::Streamed,
        },
        container: record.container.as_ref().map(read_container),
        user,
    }
}

fn write_container(container: &Container) -> ContainerRecord {
    let mount = |mount: &Mount| MountRecord {
        source: mount.source.clone(),
        target: mount.target.clone(),
        read_only: mount.access == Access::ReadOnly,
    };
    let volume = |volume: &Volume| MountRecord {
        source: volume.claim.to_string(),
        target: volume.target.clone(),
        read_only: volume.access == Access::ReadOnly,
    };
    ContainerRecord {
        image: container.image.clone(),
        runtime: container.runtime.map(|runtime| match runtime {
            ContainerRuntime::Podman => RuntimeRecord::Podman,
            ContainerRuntime::Apptainer => RuntimeRecord::Apptainer,
        }),
        mounts: container.mounts.iter().map(mount).collect(),
        volumes: container.volumes.iter().map(volume).collect(),
    }
}

fn read_container(record: &ContainerRecord) -> Container {
    let mount = |mount: &MountRecord| Mount {
        source: mount.source.clone(),
        target: mount.target.clone(),
        access: if mount.read_only { Access::ReadOnly } else { Access::ReadWrite },
    };
    let volume = |record: &MountRecord| {
        let Mount { source, target, access } = mount(record);
        Volume { claim: source.as_str().into(), target, access }
    };
    Container {
        image: record.image.clone(),
        runtime: record.runtime.map(|runtime| match runtime {
            RuntimeRecord::Podman => ContainerRuntime::Podman,
            RuntimeRecord::Apptainer => ContainerRuntime::Apptainer,
        }),
        mounts: record.mounts.iter().map(mount).collect(),
        volumes: record.volumes.iter().map(volume).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_planned_is_read_back_as_it_was_written() {
        let speeds = Speeds::new([9, 8, 5, 5].map(Micro)).expect("a speed");
        let speeds = speeds.exchanging(Micro(200_000));
        let mut planned = PlannedSpeeds::default();
        planned.insert("h100-sxm5-80".into(), 16, Planned::Runs(speeds));
        planned.insert("t4".into(), 1, Planned::Lacks(Bytes::gib(3)));
        let text = serde_json::to_string(&write_planned(&planned)).expect("plain data");
        let records: Vec<PlannedRecord> = serde_json::from_str(&text).expect("as it was written");
        assert_eq!(read_planned(&records, None), planned);
    }

    #[test]
    fn drivers_are_read_back_as_they_were_written() {
        let named = |words: &[&str]| words.iter().copied().collect::<Drivers>();
        for drivers in [Drivers::Unknown, named(&[]), named(&["vulkan", "cpu"])] {
            let launch = Arc::new(Launch { drivers: drivers.clone(), ..Launch::default() });
            let (word, isolation) = ("gpu".into(), launch.isolation());
            let (matches, memory_min) = (Match::Any, Bytes::ZERO);
            let selector = Selector { word, matches, memory_min, isolation, drivers };
            let alternative = Alternative { selector, count: 1, launch };
            let text = serde_json::to_string(&write_alternative(&alternative)).expect("plain data");
            let record: AlternativeRecord = serde_json::from_str(&text).expect("as written");
            assert_eq!(read_alternative(&record), alternative);
        }
    }
}
