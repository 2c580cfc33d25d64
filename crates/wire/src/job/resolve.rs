//! Sense and resolution: what a schema cannot say, and how shapes become a [`JobSpec`].

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{
    Access, Alternative, Bytes, CheckpointSpec, Companions, Container, ContainerRuntime,
    DeviceClass, Domain, JobSpec, Launch, LogRule, Millis, Mount, Name, OutputRule, PlannedSpeeds,
    Preemptible, Priority, RankRule, Selector, StageIndex, StageKind, StageSpec,
};

use super::shape::{
    CheckpointFile, CheckpointFull, CommandFile, ContainerFile, ContainerFull, DomainFile, JobFile,
    LogsFile, Needs, PriorityFile, RanksFile, RuntimeFile, StageFile, StageKindFile, TrainsFile,
    TuningFile, is_long,
};
use crate::file::{Place, Problem, Severity, Tree};
use crate::quantity;
use crate::words::{self, closest};

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
    /// Environment of every program; the file's own wins.
    pub env: &'a BTreeMap<String, String>,
}

/// What names in the file may stand for; where nothing is known of a sort, all names will do.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known<'a> {
    pub classes: &'a [DeviceClass],
    pub models: &'a [&'a str],
}

impl<'a> Context<'a> {
    pub(crate) fn known(&self) -> Known<'a> {
        Known { classes: self.classes, models: self.models }
    }
}

/// Everything in the file that makes no sense.
pub(crate) fn problems(file: &JobFile, tree: &Tree, known: Known<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    let spec_tree = if is_long(tree) { tree.at("/spec") } else { tree };
    duration_at(&mut found, spec_tree, "time_limit");
    for (index, stage) in file.spec.stages.iter().enumerate() {
        let stage_tree = match is_long(tree) {
            true => tree.at(&format!("/spec/stages/{index}")),
            false => tree,
        };
        stage_problems(&mut found, file, index, stage, stage_tree, known);
    }
    found.extend(cycle(file, tree));
    found
}

fn stage_problems(
    found: &mut Vec<Problem>,
    file: &JobFile,
    index: usize,
    stage: &StageFile,
    tree: &Tree,
    known: Known<'_>,
) {
    if file.spec.stages[..index].iter().any(|other| other.name == stage.name) {
        let at = tree.get("name").unwrap_or(tree);
        found.push(at.problem(format!("two stages are named `{}`", stage.name), None));
    }
    let names = || file.spec.stages.iter().map(|stage| stage.name.as_str());
    for (field, others) in [("after", &stage.after), ("follows", &stage.follows)] {
        for (row, name) in others.iter().enumerate() {
            if !names().any(|known| known == name) {
                let at = tree.at(&format!("/{field}/{row}"));
                let hint = closest(name, names()).map(|near| format!("did you mean `{near}`?"));
                found.push(at.problem(format!("`{field}` names no stage `{name}`"), hint));
            }
        }
    }
    for (row, name) in stage.follows.iter().enumerate() {
        if stage.after.contains(name) {
            let at = tree.at(&format!("/follows/{row}"));
            let message = format!("`{name}` stands in `after` and in `follows`");
            let hint = "keep `follows` to read its output while it writes, `after` to wait for its \
                        end";
            found.push(at.problem(message, hint.to_owned()));
        }
    }
    if let Some(devices) = tree.get("devices") {
        device_words(
            found,
            devices,
            stage.needs.devices.as_deref().unwrap_or_default(),
            known.classes,
        );
    }
    for (row, alternative) in stage.needs.alternatives.iter().enumerate() {
        let at = tree.at(&format!("/alternatives/{row}/devices"));
        device_words(found, at, &alternative.devices, known.classes);
    }
    trains_problems(found, tree, stage.needs.trains.as_ref(), known.models);
    checkpoint_problems(found, tree);
    preemption_problems(found, &stage.needs, tree);
    unused_fields(found, tree);
    if let Some(with) = tree.get("with") {
        size_at(found, with, "memory");
        size_at(found, with, "scratch");
    }
    output_names(found, file, stage, tree);
}

fn device_words(found: &mut Vec<Problem>, at: &Tree, text: &str, classes: &[DeviceClass]) {
    if let Err((offset, error)) = words::alternatives(text, classes) {
        let rest = text[offset..].split('|').next().unwrap_or_default().trim();
        // A quoted text begins one column before its first character.
        let column = at.place.column + text[..offset].chars().count() + 1;
        let place = Place { line: at.place.line, column };
        let length = rest.chars().count().max(1);
        let (message, hint) = (error.to_string(), Some(error.hint()));
        let severity = Severity::Error;
        found.push(Problem { severity, place, length, message, hint });
    }
}

/// The model is known, and adapters have a rank where there are any.
fn trains_problems(
    found: &mut Vec<Problem>,
    tree: &Tree,
    trains: Option<&TrainsFile>,
    models: &[&str],
) {
    let (Some(tree), Some(trains)) = (tree.get("trains"), trains) else { return };
    let is_known = models.iter().any(|known| known.eq_ignore_ascii_case(&trains.model));
    if !models.is_empty() && !is_known {
        let at = tree.get("model").unwrap_or(tree);
        let near = closest(&trains.model, models.iter().copied());
        let hint = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are `{}`", models.join("`, `")),
        };
        found.push(at.problem(format!("`{}` is no model that is known", trains.model), hint));
    }
    if let (TuningFile::Full, Some(at)) = (trains.tuning, tree.get("rank")) {
        let hint = "say `tuning: lora` or `tuning: qlora`, or leave `rank` out".to_owned();
        found.push(at.problem("`rank` is of adapters, and all weights are trained", hint));
    }
}

fn checkpoint_problems(found: &mut Vec<Problem>, tree: &Tree) {
    let Some(checkpoint) = tree.get("checkpoint") else { return };
    duration_at(found, tree, "checkpoint");
    duration_at(found, checkpoint, "every");
    duration_at(found, checkpoint, "grace");
}

/// A least time to run says nothing about what runs to its end.
fn preemption_problems(found: &mut Vec<Problem>, needs: &Needs, tree: &Tree) {
    duration_at(found, tree, "min_runtime");
    if let (Some(false), Some(at)) = (needs.preemptible, tree.get("min_runtime")) {
        let message = "`min_runtime` means nothing beside `preemptible: false`";
        let hint = "leave one of them out: what is not preemptible runs to its end";
        found.push(at.problem(message, hint.to_owned()));
    }
}

/// A duration where the field holds a text.
fn duration_at(found: &mut Vec<Problem>, tree: &Tree, field: &str) {
    let Some(at) = tree.get(field) else { return };
    if let Some(text) = at.to_json().as_str()
        && quantity::duration(text).is_none()
    {
        let hint = "write for example `90s`, `10m` or `1h30m`".to_owned();
        found.push(at.problem(format!("`{text}` is not a duration"), hint));
    }
}

fn size_at(found: &mut Vec<Problem>, tree: &Tree, field: &str) {
    let Some(at) = tree.get(field) else { return };
    if let Some(text) = at.to_json().as_str()
        && quantity::size(text).is_none()
    {
        let hint = "write for example `64GiB`".to_owned();
        found.push(at.problem(format!("`{text}` is not a size"), hint));
    }
}

/// Fields of the format that this version reads but does not act on.
fn unused_fields(found: &mut Vec<Problem>, tree: &Tree) {
    let fields = [
        ("elastic", "the stage keeps the number of devices it asks for"),
        ("topology/prefer", "only `within` is honoured"),
        ("with/scratch", "no scratch space is reserved"),
        ("checkpoint/portable", "a checkpoint is taken to fit every alternative"),
    ];
    for (path, what) in fields {
        let mut steps = path.split('/');
        let first = steps.next().and_then(|step| tree.entry(step));
        let entry = match steps.next() {
            Some(step) => first.and_then(|entry| entry.value.entry(step)),
            None => first,
        };
        found.extend(entry.map(|entry| Problem {
            severity: Severity::Warning,
            place: entry.key_place,
            length: entry.key.chars().count(),
            message: format!("`{}` is not acted on yet: {what}", entry.key),
            hint: None,
        }));
    }
}

/// `{stage.NAME.output}` names a stage of the job that runs before.
fn output_names(found: &mut Vec<Problem>, file: &JobFile, stage: &StageFile, tree: &Tree) {
    let Some(run) = tree.get("run") else { return };
    for word in command_words(&stage.needs.run) {
        for name in named_outputs(&word) {
            let known = file.spec.stages.iter().any(|other| other.name == name);
            if !known {
                let names = file.spec.stages.iter().map(|stage| stage.name.as_str());
                let hint = closest(&name, names).map(|near| format!("did you mean `{near}`?"));
                found.push(run.problem(format!("there is no stage `{name}` to read from"), hint));
            }
        }
    }
}

fn named_outputs(word: &str) -> Vec<String> {
    let parts = word.split("{stage.").skip(1);
    parts.filter_map(|part| Some(part.split_once(".output}")?.0.to_owned())).collect()
}

/// The first cycle of `after` and `follows`, told from its first stage in file order.
fn cycle(file: &JobFile, tree: &Tree) -> Option<Problem> {
    let stages = &file.spec.stages;
    let needs = |name: &str| {
        let stage = stages.iter().find(|stage| stage.name == name);
        stage.into_iter().flat_map(|stage| stage.after.iter().chain(&stage.follows))
    };
    for (index, stage) in stages.iter().enumerate() {
        let mut path = vec![stage.name.as_str()];
        if follow_cycle(&needs, &mut path, &stage.name) {
            let field = if stage.after.is_empty() { "follows" } else { "after" };
            let at = tree.at(&format!("/spec/stages/{index}/{field}"));
            let message = format!("`{field}` goes round in a circle: {}", path.join(" → "));
            let hint = format!("remove one of these `{field}`");
            return Some(at.problem(message, hint));
        }
    }
    None
}

/// Extends `path` until it comes back to `goal`; leaves it as it was where it does not.
fn follow_cycle<'a, Needs: Iterator<Item = &'a String>>(
    needs: &impl Fn(&str) -> Needs,
    path: &mut Vec<&'a str>,
    goal: &str,
) -> bool {
    let Some(last) = path.last() else { return false };
    for next in needs(last) {
        if next == goal {
            path.push(next);
            return true;
        }
        if path.contains(&next.as_str()) {
            continue;
        }
        path.push(next);
        if follow_cycle(needs, path, goal) {
            return true;
        }
        path.pop();
    }
    false
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

/// Turns checked shapes into the vocabulary.
pub(crate) fn resolve(file: &JobFile, context: &Context<'_>) -> JobSpec {
    let stages = file.spec.stages.iter().map(|stage| resolve_stage(file, stage, context));
    JobSpec {
        name: file.metadata.name.as_str().into(),
        tenant: file.metadata.tenant.as_deref().unwrap_or("default").into(),
        priority: match file.spec.priority {
            PriorityFile::Urgent => Priority::Urgent,
            PriorityFile::High => Priority::High,
            PriorityFile::Normal => Priority::Normal,
            PriorityFile::Low => Priority::Low,
        },
        stages: stages.collect(),
        time_limit: file.spec.time_limit.as_deref().and_then(quantity::duration),
        workdir: context.workdir.to_owned(),
        key: None,
    }
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
    let profile = format!("{}/{}", file.metadata.name, stage.name);
    StageSpec {
        name: stage.name.as_str().into(),
        kind,
        after: stage.after.iter().filter_map(index_of).collect(),
        follows: stage.follows.iter().filter_map(index_of).collect(),
        alternatives: alternatives(file, stage, kind, context),
        companions: Companions {
            cores: with.cores.unwrap_or(0),
            memory: with.memory.as_deref().and_then(quantity::size).unwrap_or(Bytes::ZERO),
        },
        within: match within {
            DomainFile::Node => Domain::Node,
            DomainFile::Rack => Domain::Rack,
            DomainFile::Pod => Domain::Pod,
            DomainFile::Any => Domain::Any,
        },
        ranks: match stage.needs.ranks {
            Some(RanksFile::Device) => RankRule::PerDevice,
            Some(RanksFile::Node) | None => RankRule::PerNode,
        },
        retries: stage.needs.retries.unwrap_or(0),
        profile: stage.needs.profile.clone().unwrap_or(profile).into(),
        steps: stage.needs.steps,
        preemptible: preemptible(&stage.needs),
        planned: PlannedSpeeds::default(),
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
    plain
        .into_iter()
        .chain(long)
        .flat_map(|(text, row)| {
            let mut needs = needs.clone();
            if let Some(row) = row {
                needs.run = row.run.clone().unwrap_or(needs.run);
                needs.env.extend(row.env.clone());
                needs.container = row.container.clone().or(needs.container);
                needs.precision = row.precision.clone().or(needs.precision);
            }
            let launch = Arc::new(launch(file, stage, &needs, context));
            let words = words::alternatives(text, context.classes).unwrap_or_default();
            let isolation = launch.isolation();
            words.into_iter().map(move |(selector, count)| Alternative {
                selector: Selector { isolation, ..selector },
                count,
                launch: Arc::clone(&launch),
            })
        })
        .collect()
}

fn launch(file: &JobFile, stage: &StageFile, needs: &Needs, context: &Context<'_>) -> Launch {
    let fill = |text: &str| fill_in(text, context.workdir);
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
        resume: match &needs.resume {
            Some(CommandFile::Line(line)) => line.split_whitespace().map(fill).collect(),
            Some(CommandFile::Words(words)) => words.iter().map(|word| fill(word)).collect(),
            None => Vec::new(),
        },
        checkpoint,
        precision: needs.precision.as_deref().map(Name::from),
        log: match needs.logs {
            Some(LogsFile::None) => LogRule::Discard,
            Some(LogsFile::Ranks) | None => LogRule::EachRank,
        },
        output: match file.spec.stages.iter().any(|other| other.follows.contains(&stage.name)) {
            true => OutputRule::Streamed,
            false => OutputRule::AtTheEnd,
        },
        container: needs.container.as_ref().map(|container| resolve_container(container, &fill)),
    }
}

fn resolve_container(file: &ContainerFile, fill: &impl Fn(&str) -> String) -> Container {
    let full = match file {
        ContainerFile::Image(image) => {
            ContainerFull { image: image.clone(), runtime: None, mounts: Vec::new() }
        }
        ContainerFile::Full(full) => full.clone(),
    };
    Container {
        image: fill(&full.image),
        runtime: full.runtime.map(|runtime| match runtime {
            RuntimeFile::Podman => ContainerRuntime::Podman,
            RuntimeFile::Apptainer => ContainerRuntime::Apptainer,
        }),
        mounts: full.mounts.iter().map(|text| mount(text)).collect(),
    }
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
fn command_words(command: &CommandFile) -> Vec<String> {
    match command {
        CommandFile::Words(words) => words.clone(),
        CommandFile::Line(line) => ["/bin/sh", "-c", line].map(str::to_owned).to_vec(),
    }
}

/// Fills `{workdir}` and `{stage.NAME.output}`; the engine fills the rest.
fn fill_in(text: &str, workdir: &str) -> String {
    let mut filled = text.replace("{workdir}", workdir);
    for name in named_outputs(text) {
        filled = filled.replace(&format!("{{stage.{name}.output}}"), &format!("{workdir}/{name}"));
    }
    filled
}
