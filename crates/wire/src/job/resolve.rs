//! How checked shapes become a [`JobSpec`].

use std::collections::BTreeMap;
use std::iter::successors;
use std::sync::Arc;

use het_core::{
    Access, Alternative, ArrayMember, BatchRange, Bytes, CheckpointSpec, Companions, Container,
    ContainerRuntime, DeviceClass, Domain, Drivers, Elastic, HostResources, JobId, JobSpec, Launch,
    LogFiles, LogRule, Millis, Mount, Name, OutputRule, PlannedSpeeds, Preemptible, RankRule,
    Selector, StageIndex, StageKind, StageSpec, StallRule, StartConditions, Volume, WriteMode,
};

use super::shape::{
    AlternativeFile, BatchFile, BatchRangeFile, BatchRuleFile, CheckpointFile, CheckpointFull,
    CommandFile, ContainerFile, ContainerFull, DomainFile, ElasticFile, JobFile, LogFilesFile,
    LogRuleFile, LogsFile, Needs, RanksFile, RuntimeFile, StageFile, StageKindFile, WriteModeFile,
};
use crate::{quantity, words};

/// What a job file is resolved for.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Absolute path of the job's own directory.
    pub workdir: &'a str,
    /// Absolute path that its programs start in.
    pub cwd: &'a str,
    /// Device classes of the cluster at hand.
    pub classes: &'a [DeviceClass],
    /// Names of the models whose training can be planned.
    pub models: &'a [&'a str],
    /// Variables of every program; the file's own win.
    pub env: &'a BTreeMap<String, String>,
    /// What submissions give beside the file.
    pub job: JobId,
    /// Its place in an array.
    pub array: Option<ArrayMember>,
    /// Absolute paths of the kept script, of a file that is read as standard input, and of the file
    /// with the variables of the submitter.
    pub script: Option<&'a str>,
    pub stdin: Option<&'a str>,
    pub environment: Option<&'a str>,
    /// The user of the machine as whom its programs run, where that is not the server's.
    pub user: Option<&'a str>,
    /// Disk space that a rank of stages may take up that do not say.
    pub scratch: Option<Bytes>,
    /// How many of the tasks that a node may run a rank counts as; 0 where there is no limit.
    pub tasks: u64,
    pub volumes: Volumes,
    /// The installed trainer, where programs of the job run on its machine and it said what it has.
    pub trainer: Option<Trainer<'a>>,
}

/// A program whose drivers nobody has to name.
#[derive(Debug, Clone, Copy)]
pub struct Trainer<'a> {
    /// Its absolute path.
    pub program: &'a str,
    pub drivers: &'a Drivers,
}

/// Whether containers can be given claims of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Volumes {
    /// Jobs run on a machine.
    #[default]
    Refused,
    Claims,
}

/// What names in the file may stand for; where nothing is known of a sort, all names will do.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known<'a> {
    pub classes: &'a [DeviceClass],
    pub models: &'a [&'a str],
}

impl<'a> Context<'a> {
    /// For a job that has no directory and no id yet.
    pub fn new(
        classes: &'a [DeviceClass],
        models: &'a [&'a str],
        env: &'a BTreeMap<String, String>,
    ) -> Self {
        Self {
            workdir: "/",
            cwd: "/",
            classes,
            models,
            env,
            job: JobId(0),
            array: None,
            script: None,
            stdin: None,
            environment: None,
            user: None,
            scratch: None,
            tasks: 0,
            volumes: Volumes::default(),
            trainer: None,
        }
    }

    pub(crate) fn known(&self) -> Known<'a> {
        Known { classes: self.classes, models: self.models }
    }
}

pub(super) fn named_outputs(word: &str) -> Vec<String> {
    let parts = word.split("{stage.").skip(1);
    parts.filter_map(|part| Some(part.split_once(".output}")?.0.to_owned())).collect()
}

/// Turns checked shapes into the vocabulary.
pub(crate) fn resolve(file: &JobFile, context: &Context<'_>) -> JobSpec {
    let stages = file.spec.stages.iter().map(|stage| resolve_stage(file, stage, context));
    JobSpec {
        name: file.metadata.name.as_str().into(),
        tenant: file.metadata.tenant.as_deref().unwrap_or("default").into(),
        priority: file.spec.priority.into(),
        stages: stages.collect(),
        time_limit: file.spec.time_limit.as_deref().and_then(quantity::duration),
        workdir: context.workdir.to_owned(),
        commit: None,
        start: StartConditions::default(),
        key: None,
    }
}

/// The first stage whose containers are given volumes.
pub(crate) fn stage_with_volumes(spec: &JobSpec) -> Option<&StageSpec> {
    let has_volumes = |one: &Alternative| {
        one.launch.container.as_ref().is_some_and(|container| !container.volumes.is_empty())
    };
    spec.stages.iter().find(|stage| stage.alternatives.iter().any(has_volumes))
}

/// What the programs of a job have in words, variables and paths, in bytes.
pub(crate) fn text_bytes(spec: &JobSpec) -> usize {
    let alternatives = spec.stages.iter().flat_map(|stage| &stage.alternatives);
    let of_launch = |launch: &Launch| -> usize {
        let words = launch.argv.iter().chain(&launch.resume);
        let variables = launch.env.iter().flat_map(|(name, value)| [name, value]);
        let paths = [&launch.cwd, &launch.workdir];
        words.chain(variables).chain(paths).chain(&launch.stdin).map(String::len).sum()
    };
    // Alternatives of one row share theirs.
    let mut launches: Vec<&Arc<Launch>> = alternatives.map(|one| &one.launch).collect();
    launches.dedup_by(|left, right| Arc::ptr_eq(left, right));
    launches.into_iter().map(|launch| of_launch(launch)).sum()
}

fn resolve_stage(file: &JobFile, stage: &StageFile, context: &Context<'_>) -> StageSpec {
    let kind = match stage.kind {
        StageKindFile::Preprocess => StageKind::Preprocess,
        StageKindFile::Load => StageKind::Load,
        StageKindFile::Train => StageKind::Train,
        StageKindFile::Validate => StageKind::Validate,
        StageKindFile::Custom => StageKind::Custom,
    };
    let index_of = |name: &String| {
        let index = file.spec.stages.iter().position(|other| other.name == *name);
        index.map(|index| StageIndex(index as u16))
    };
    let with = stage.needs.with.clone().unwrap_or_default();
    let within = stage.needs.topology.as_ref().map_or(DomainFile::Any, |topology| topology.within);
    let named = stage.needs.profile.clone();
    let mut profile = named.unwrap_or_else(|| format!("{}/{}", file.metadata.name, stage.name));
    if let Some(BatchRange { min, max }) = stage.needs.elastic.as_ref().and_then(batch_range) {
        // Its steps are others than those in batches of another range, or of a fixed size.
        profile = format!("{profile}/batch-{min}-{max}");
    }
    let size = |text: &Option<String>| text.as_deref().and_then(quantity::size).unwrap_or_default();
    StageSpec {
        name: stage.name.as_str().into(),
        kind,
        after: stage.after.iter().filter_map(index_of).collect(),
        follows: stage.follows.iter().filter_map(index_of).collect(),
        alternatives: alternatives(file, stage, kind, context),
        companions: Companions {
            cores: with.cores.unwrap_or(0),
            host: HostResources {
                memory: size(&with.memory),
                scratch: size(&with.scratch),
                read: with.read.as_deref().and_then(quantity::rate).unwrap_or_default(),
                tasks: context.tasks,
            },
        },
        within: match within {
            DomainFile::Node => Domain::Node,
            DomainFile::Rack => Domain::Rack,
            DomainFile::Pod => Domain::Pod,
            DomainFile::Any => Domain::Any,
        },
        ranks: rank_rule(&stage.needs),
        retries: stage.needs.retries.unwrap_or(0),
        restarts: stage.needs.restarts.unwrap_or(StageSpec::RESTARTS_DEFAULT),
        profile: profile.into(),
        steps: stage.needs.steps,
        preemptible: preemptible(&stage.needs),
        planned: PlannedSpeeds::default(),
    }
}

/// The disk space that a rank may take up, where the file says so.
pub fn scratch(stage: &StageFile) -> Option<Bytes> {
    quantity::size(stage.needs.with.as_ref()?.scratch.as_deref()?)
}

fn rank_rule(needs: &Needs) -> RankRule {
    match needs.ranks {
        Some(RanksFile::Device) => RankRule::PER_DEVICE,
        Some(RanksFile::Node) | None => RankRule::PerNode,
    }
}

fn preemptible(needs: &Needs) -> Preemptible {
    match needs.preemptible {
        Some(false) => Preemptible::Never,
        Some(true) | None => {
            let span = needs.min_runtime.as_deref().and_then(quantity::duration);
            Preemptible::After(span.unwrap_or(Millis::ZERO))
        }
    }
}

/// The word for a stage that may be silent for any time.
pub(super) const STALL_NEVER: &str = "never";

fn stall_rule(needs: &Needs) -> StallRule {
    match needs.stall.as_deref() {
        None => StallRule::Measured,
        Some(STALL_NEVER) => StallRule::Never,
        Some(text) => quantity::duration(text).map_or(StallRule::Measured, StallRule::After),
    }
}

/// What a stage of this kind gets when it names no devices.
fn default_devices(kind: StageKind) -> &'static str {
    match kind {
        StageKind::Train => "gpu:1 | npu:1 | cpu:1",
        StageKind::Validate => "npu:1 | gpu:1 | cpu:1",
        StageKind::Preprocess | StageKind::Load | StageKind::Custom => "cpu:1",
    }
}

fn alternatives(
    file: &JobFile,
    stage: &StageFile,
    kind: StageKind,
    context: &Context<'_>,
) -> Vec<Alternative> {
    let needs = &stage.needs;
    let only_long = needs.devices.is_none() && !needs.alternatives.is_empty();
    let plain = needs.devices.as_deref().unwrap_or(default_devices(kind));
    let plain = if only_long { None } else { Some((plain, None)) };
    let long = needs.alternatives.iter().map(|row| (row.devices.as_str(), Some(row)));
    let rows: Vec<_> = plain.into_iter().chain(long).collect();
    let words = |text: &str| words::alternatives(text, context.classes).unwrap_or_default();
    let counts = rows.iter().flat_map(|(text, _)| words(text));
    let counts = counts.flat_map(|(_, count)| sizes(needs.elastic.as_ref(), count));
    let ranks_max = rank_rule(needs).ranks_max(counts);
    rows.into_iter()
        .flat_map(|(text, row)| {
            let needs = row.map_or_else(|| needs.clone(), |row| needs_of_row(needs, row));
            let launch = Arc::new(launch(file, stage, &needs, ranks_max, context));
            let (isolation, drivers) = (launch.isolation(), launch.drivers.clone());
            words(text).into_iter().flat_map(move |(selector, reference)| {
                let selector = Selector { isolation, drivers: drivers.clone(), ..selector };
                let launch = match &needs.elastic {
                    Some(file) => {
                        let elastic = Some(Elastic { reference, batch: batch_range(file) });
                        Arc::new(Launch { elastic, ..(*launch).clone() })
                    }
                    None => Arc::clone(&launch),
                };
                let of_size = move |count| Alternative {
                    selector: selector.clone(),
                    count,
                    launch: Arc::clone(&launch),
                };
                sizes(needs.elastic.as_ref(), reference).into_iter().map(of_size)
            })
        })
        .collect()
}

/// What a stage needs in a row of its `alternatives`.
fn needs_of_row(of_stage: &Needs, row: &AlternativeFile) -> Needs {
    let mut needs = of_stage.clone();
    // Drivers are a program's: those of the stage say nothing of another one.
    if !row.drivers.is_empty() || row.run.is_some() || row.container.is_some() {
        needs.drivers.clone_from(&row.drivers);
    }
    needs.run = row.run.clone().unwrap_or(needs.run);
    needs.env.extend(row.env.clone());
    needs.container = row.container.clone().or(needs.container);
    needs.precision = row.precision.or(needs.precision);
    needs
}

/// What a program can compute with: what the file says, or what the trainer said, where it is that.
fn drivers(needs: &Needs, trainer: Option<Trainer<'_>>) -> Drivers {
    if !needs.drivers.is_empty() {
        return needs.drivers.iter().map(String::as_str).collect();
    }
    let trainer = trainer.filter(|trainer| leaves_to_trainer(needs, trainer.program));
    trainer.map_or(Drivers::Unknown, |trainer| trainer.drivers.clone())
}

/// The name under which programs of a job find the trainer.
pub const TRAINER: &str = "het-train";

/// Whether the file leaves the drivers of a program to this trainer to say.
fn leaves_to_trainer(needs: &Needs, trainer: &str) -> bool {
    let is_it = |word: &str| word == TRAINER || word == trainer;
    needs.drivers.is_empty()
        && needs.container.is_none()
        && only_program(&needs.run).is_some_and(is_it)
}

/// The same of any program of a job.
pub(crate) fn asks_trainer(file: &JobFile, trainer: &str) -> bool {
    file.spec.stages.iter().any(|StageFile { needs, .. }| {
        let of_row = |row| leaves_to_trainer(&needs_of_row(needs, row), trainer);
        leaves_to_trainer(needs, trainer) || needs.alternatives.iter().any(of_row)
    })
}

/// The program of a command that runs one only; a line may run more than one with these letters.
fn only_program(run: &CommandFile) -> Option<&str> {
    match run {
        CommandFile::Words(words) => words.first().map(String::as_str),
        CommandFile::Line(line) if line.contains([';', '|', '&', '\n', '`', '(']) => None,
        CommandFile::Line(line) => line.split_whitespace().next(),
    }
}

/// Numbers of devices that a stage may have which asks for so many: that one first, then smaller
/// ones, then larger ones; from the least on each is twice the one before.
fn sizes(elastic: Option<&ElasticFile>, count: u32) -> Vec<u32> {
    let Some(&ElasticFile { min, max, .. }) = elastic else { return vec![count] };
    let doubled = successors(Some(min.max(1)), |size| size.checked_mul(2));
    let mut sizes: Vec<u32> = doubled.take_while(|size| *size < max).chain([count, max]).collect();
    sizes.sort_unstable_by_key(|&size| (size > count, count.abs_diff(size)));
    sizes.dedup();
    sizes
}

fn batch_range(file: &ElasticFile) -> Option<BatchRange> {
    match file.batch {
        BatchFile::Rule(BatchRuleFile::Keep) => None,
        BatchFile::Range(BatchRangeFile { min, max }) => Some(BatchRange { min, max }),
    }
}

fn launch(
    file: &JobFile,
    stage: &StageFile,
    needs: &Needs,
    ranks_max: u32,
    context: &Context<'_>,
) -> Launch {
    let fill = |text: &str| fill_in(text, context);
    let mut env = context.env.clone();
    env.extend(needs.env.iter().map(|(key, value)| (key.clone(), fill(value))));
    let checkpoint = needs.checkpoint.as_ref().map(|checkpoint| {
        let full = match checkpoint {
            CheckpointFile::Every(every) => {
                CheckpointFull { every: Some(every.clone()), ..CheckpointFull::default() }
            }
            CheckpointFile::Full(full) => full.clone(),
        };
        let dir = full.dir.unwrap_or_else(|| format!("{{workdir}}/{}/checkpoints", stage.name));
        let millis = |text: Option<String>| -> Option<Millis> { quantity::duration(&text?) };
        CheckpointSpec {
            dir: fill(&dir),
            every: millis(full.every),
            notice: full.notice.map_or("SIGTERM", |notice| notice.word()).into(),
            grace: millis(full.grace).unwrap_or(CheckpointSpec::GRACE_DEFAULT),
        }
    });
    Launch {
        job: file.metadata.name.as_str().into(),
        stage: stage.name.as_str().into(),
        cwd: context.cwd.to_owned(),
        workdir: context.workdir.to_owned(),
        argv: command_words(&needs.run).iter().map(|word| fill(word)).collect(),
        env,
        kept_env: None,
        resume: match &needs.resume {
            Some(CommandFile::Line(line)) => line.split_whitespace().map(fill).collect(),
            Some(CommandFile::Words(words)) => words.iter().map(|word| fill(word)).collect(),
            None => Vec::new(),
        },
        checkpoint,
        ranks_max,
        precision: needs.precision.map(|format| Name::from(format.word())),
        drivers: drivers(needs, context.trainer),
        elastic: None,
        inputs: needs.inputs.iter().map(|text| fill(text)).collect(),
        seen_inputs: Vec::new(),
        warm: needs.warm == Some(true),
        scratch: scratch(stage).or(context.scratch),
        log: match needs.logs {
            Some(LogsFile::Rule(LogRuleFile::None)) => LogRule::Discard,
            Some(LogsFile::Rule(LogRuleFile::Ranks) | LogsFile::Files(_)) | None => {
                LogRule::EachRank
            }
        },
        stall: stall_rule(needs),
        stdin: needs.stdin.as_deref().map(fill).or_else(|| context.stdin.map(str::to_owned)),
        environment: context.environment.map(str::to_owned),
        kept_script: context.script.filter(|_| names_script(needs)).map(str::to_owned),
        log_files: match &needs.logs {
            Some(LogsFile::Files(files)) => Some(log_files(files, &fill)),
            Some(LogsFile::Rule(_)) | None => None,
        },
        output: match file.spec.stages.iter().any(|other| other.follows.contains(&stage.name)) {
            true => OutputRule::Streamed,
            false => OutputRule::AtTheEnd,
        },
        container: needs.container.as_ref().map(|container| resolve_container(container, &fill)),
        user: context.user.map(Name::from),
    }
}

/// Whether the words of a program have the script in them that came with the submission.
fn names_script(needs: &Needs) -> bool {
    command_words(&needs.run).iter().any(|word| word.contains("{script}"))
}

fn log_files(files: &LogFilesFile, fill: &impl Fn(&str) -> String) -> LogFiles {
    LogFiles {
        stdout: fill(&files.stdout),
        stderr: files.stderr.as_deref().map(fill),
        mode: match files.mode {
            WriteModeFile::Truncate => WriteMode::Truncate,
            WriteModeFile::Append => WriteMode::Append,
        },
    }
}

fn resolve_container(file: &ContainerFile, fill: &impl Fn(&str) -> String) -> Container {
    let full = match file {
        ContainerFile::Image(image) => ContainerFull {
            image: image.clone(),
            runtime: None,
            mounts: Vec::new(),
            volumes: Vec::new(),
        },
        ContainerFile::Full(full) => full.clone(),
    };
    Container {
        image: fill(&full.image),
        runtime: full.runtime.map(|runtime| match runtime {
            RuntimeFile::Podman => ContainerRuntime::Podman,
            RuntimeFile::Apptainer => ContainerRuntime::Apptainer,
        }),
        mounts: full.mounts.iter().map(|text| mount(text)).collect(),
        volumes: full.volumes.iter().map(|text| volume(text)).collect(),
    }
}

/// `CLAIM:/TARGET[:ro]`, as the schema has it.
fn volume(text: &str) -> Volume {
    let Mount { source, target, access } = mount(text);
    Volume { claim: source.as_str().into(), target, access }
}

/// `/SOURCE[:/TARGET][:ro]`, as the schema has it.
fn mount(text: &str) -> Mount {
    let (paths, access) = match text.strip_suffix(":ro") {
        Some(paths) => (paths, Access::ReadOnly),
        None => (text, Access::ReadWrite),
    };
    let (source, target) = paths.split_once(':').unwrap_or((paths, paths));
    Mount { source: source.to_owned(), target: target.to_owned(), access }
}

/// A list is run as it is; a text is a line for the shell.
pub(super) fn command_words(command: &CommandFile) -> Vec<String> {
    match command {
        CommandFile::Words(words) => words.clone(),
        CommandFile::Line(line) => ["/bin/sh", "-c", line].map(str::to_owned).to_vec(),
    }
}

/// Bytes from which on nothing more is filled in: the job is refused for its size.
const FILLED_BYTES_MAX: usize = 2 << 20;

/// Digits that a number can be filled up to.
const WIDTH_MAX: usize = 10;

/// Fills what is known at submission, in one pass, so that what is filled in stays as it is; the
/// engine fills the rest.
fn fill_in(text: &str, context: &Context<'_>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while out.len() < FILLED_BYTES_MAX
        && let Some(open) = rest.find('{')
    {
        out.push_str(&rest[..open]);
        let (value, length) = rest[open..]
            .split_once('}')
            .and_then(|(word, _)| Some((value_of(&word[1..], context)?, word.len() + 1)))
            .unwrap_or_else(|| ("{".to_owned(), 1));
        out.push_str(&value);
        rest = &rest[open + length..];
    }
    out.push_str(rest);
    out
}

fn value_of(word: &str, context: &Context<'_>) -> Option<String> {
    let (name, width) = match word.split_once(':') {
        Some((name, width)) => (name, width.parse().ok().filter(|width| *width <= WIDTH_MAX)?),
        None => (word, 0),
    };
    let number = |number: u64| Some(format!("{number:0width$}"));
    match name {
        "job" => number(context.job.0),
        "array" => number(context.array.map_or(context.job, |member| member.array).0),
        "index" => context.array.map(|member| format!("{:0width$}", member.index)),
        "workdir" if width == 0 => Some(context.workdir.to_owned()),
        "script" if width == 0 => context.script.map(str::to_owned),
        _ => {
            let stage = word.strip_prefix("stage.")?.strip_suffix(".output")?;
            Some(format!("{}/{stage}", context.workdir))
        }
    }
}
