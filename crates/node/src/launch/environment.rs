//! The environment contract: the variables of every process of a gang.
//!
//! Later ones override earlier ones: defaults, then those of the submitter, then those of the job
//! file, then facts (ranks,
//! addresses, visible devices, `HET_*`), which the user cannot override.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::sync::Arc;

use het_core::{BatchRange, DeviceId, Elastic, Launch, LogRule, Millis};
use het_engine::fill;
use het_perf::{SAVE_DEFAULT, checkpoint_interval, mean_time_between_failures};
use serde::Serialize;

use super::launcher;
use super::spec::{Devices, GangSpec};
use crate::process::{Environments, Inherited, Variables};
use crate::resources::is_cpu;
use crate::run_dir::NOTICE;

/// The variable with the file that a program waits for which was started before it had devices.
const WARM: &str = "HET_WARM";

/// The driver whose variables hide every accelerator.
const NO_ACCELERATOR: &str = "cpu";

/// The variable with the rank of a process in its gang.
pub(crate) const RANK: &str = "RANK";

/// One device of `HET_DEVICES`.
#[derive(Debug, Serialize)]
struct DeviceRow<'a> {
    name: &'a str,
    kind: &'a str,
    driver: &'a str,
    class: &'a str,
    /// Granted cores of a CPU socket; 0 for an accelerator.
    cores: u32,
}

/// What was given to the programs of a job, as it lies in files beside the log.
pub(crate) struct Given {
    /// Those of whoever submitted it.
    pub(crate) inherited: Arc<Inherited>,
    /// Those of the job file, with placeholders.
    job_file: Option<Arc<Inherited>>,
}

impl Given {
    /// # Errors
    /// When a file cannot be read; its path.
    pub(crate) fn read<'a>(
        launch: &'a Launch,
        environments: &mut Environments,
    ) -> Result<Self, (&'a str, io::Error)> {
        let mut of = |file: Option<&'a str>| {
            environments.of(file).map_err(|error| (file.unwrap_or_default(), error))
        };
        let inherited = of(launch.environment.as_deref())?;
        let kept = launch.kept_env.as_ref().map(|kept| of(Some(&kept.file)));
        Ok(Self { inherited, job_file: kept.transpose()? })
    }
}

/// The variables that a rank has besides those of its submitter.
pub(crate) fn variables(spec: &GangSpec, rank: u32, given: &Given) -> Variables {
    let mut variables = Variables::new();
    let inherited = &given.inherited;
    add_defaults(&mut Defaults { variables: &mut variables, inherited }, spec, rank);
    let public = spec.launch.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in public.chain(given.job_file.iter().flat_map(|kept| kept.iter())) {
        variables.set(name, fill(value, spec.placeholders(rank)));
    }
    add_visible_devices(&mut variables, spec, rank);
    if spec.is_gang() {
        add_ranks(&mut variables, spec, rank);
    }
    add_heterosis(&mut variables, spec, rank);
    if spec.devices == Devices::Awaited {
        variables.set(WARM, spec.grant_file(rank).to_string_lossy());
    }
    variables
}

/// What a rank is told that was started before it had devices, as a shell reads it: variables that
/// take the place of those that it has. Its place among the ranks stays what it was: workers of a
/// launcher have other such variables, from that.
pub(crate) fn grant_text(spec: &GangSpec, rank: u32, given: &Given) -> String {
    let mut facts = Variables::new();
    let all = variables(spec, rank, given);
    // What hid devices, and what is known only now.
    let mut hidden = Variables::new();
    hide_devices(&mut hidden, spec, rank);
    for (name, _) in hidden.iter() {
        if let Some(value) = all.get(name).or_else(|| given.inherited.get(name)) {
            facts.set(name, value);
        }
    }
    add_visible_devices(&mut facts, spec, rank);
    add_heterosis(&mut facts, spec, rank);
    let unset = hidden.iter().filter(|(name, _)| facts.get(name).is_none());
    let unset = unset.map(|(name, _)| format!("unset {name}\n"));
    let quoted = |value: &str| value.replace('\'', r"'\''");
    let set = facts.iter().map(|(name, value)| format!("export {name}='{}'\n", quoted(value)));
    unset.chain(set).collect()
}

/// Variables of which the submitter's own win.
struct Defaults<'a> {
    variables: &'a mut Variables,
    inherited: &'a Inherited,
}

impl Defaults<'_> {
    fn set(&mut self, name: &str, value: impl Display) {
        if !self.inherited.has(name) {
            self.variables.set(name, value);
        }
    }
}

/// What the user may set otherwise. None of it changes what a program does alone.
fn add_defaults(variables: &mut Defaults<'_>, spec: &GangSpec, rank: u32) {
    // A log is read while it is written.
    variables.set("PYTHONUNBUFFERED", 1);
    if spec.devices == Devices::Awaited {
        // Asked whether there is a GPU, CUDA would read once and for all which it may use.
        variables.set("PYTORCH_NVML_BASED_CUDA_CHECK", 1);
    }
    // Of one process, `torchrun` heeds these where its words say nothing: two on a machine would
    // meet at the same port, and a worker for each device is what the devices are for.
    variables.set("MASTER_PORT", spec.port);
    variables.set("PET_MASTER_PORT", spec.port);
    let accelerators = spec.accelerator_count(rank);
    if accelerators > 0 {
        variables.set("PET_NPROC_PER_NODE", accelerators);
    } else {
        // DeepSpeed's launcher would show its processes the devices of others.
        variables.set("DS_ACCELERATOR", "cpu");
    }
    let processes = launcher::processes(&spec.argv(rank), accelerators);
    let threads = launcher::threads(spec.core_count(rank), spec.pinning(rank), processes);
    if let Some(threads) = threads {
        variables.set("OMP_NUM_THREADS", threads);
        variables.set("RAYON_NUM_THREADS", threads);
    }
}

/// Makes the granted accelerators visible. A rank without any gets the variables of its CPU, which
/// hide every accelerator.
fn add_visible_devices(variables: &mut Variables, spec: &GangSpec, rank: u32) {
    if spec.devices == Devices::Awaited {
        return hide_devices(variables, spec, rank);
    }
    for (driver, ids) in spec.visible_devices(rank) {
        for (name, value) in (spec.visible_env)(driver, &ids) {
            variables.set(&name, value);
        }
    }
}

/// Hides every accelerator, and of the drivers of those that a rank is likely to have also what no
/// table knows how to hide.
fn hide_devices(variables: &mut Variables, spec: &GangSpec, rank: u32) {
    for (driver, ids) in spec.visible_devices(rank) {
        let none = (spec.visible_env)(driver, &[]);
        for (name, _) in (spec.visible_env)(driver, &ids) {
            let known = none.iter().find(|(of, _)| *of == name);
            variables.set(&name, known.map_or("", |(_, value)| value.as_str()));
        }
    }
    for (name, value) in (spec.visible_env)(NO_ACCELERATOR, &[]) {
        variables.set(&name, value);
    }
}

/// The rendezvous of `torch.distributed`, and the same for `torchrun`, of which each rank is an
/// agent that starts a worker for each device.
fn add_ranks(variables: &mut Variables, spec: &GangSpec, rank: u32) {
    let world = spec.world();
    let rows = [
        ("MASTER_PORT", u32::from(spec.port)),
        ("PET_MASTER_PORT", u32::from(spec.port)),
        ("WORLD_SIZE", world),
        (RANK, rank),
        ("LOCAL_RANK", rank),
        ("LOCAL_WORLD_SIZE", world),
        ("NODE_RANK", 0),
        ("NNODES", 1),
        ("PET_NNODES", world),
        ("PET_NODE_RANK", rank),
        ("PET_NPROC_PER_NODE", (spec.rank(rank).grants.len() as u32).max(1)),
    ];
    for (name, value) in rows {
        variables.set(name, value);
    }
    if spec.launch.log == LogRule::EachRank {
        variables.set("TORCHELASTIC_ERROR_FILE", spec.error_file(rank).to_string_lossy());
    }
    variables.set("MASTER_ADDR", "127.0.0.1");
    variables.set("PET_MASTER_ADDR", "127.0.0.1");
}

fn add_heterosis(variables: &mut Variables, spec: &GangSpec, rank: u32) {
    variables.set("HET_JOB", &spec.launch.job);
    variables.set("HET_STAGE", &spec.launch.stage);
    variables.set("HET_ATTEMPT", spec.attempt);
    if spec.devices == Devices::Granted {
        variables.set("HET_DEVICES", devices(spec, rank));
    }
    variables.set(NOTICE, spec.notice_file().to_string_lossy());
    variables.set("HET_PROGRESS", spec.progress_file().to_string_lossy());
    variables.set("HET_OUTPUT", spec.output_dir().to_string_lossy());
    if !spec.launch.inputs.is_empty() {
        let filled = |text: &str| fill(text, spec.placeholders(rank));
        variables.set("HET_INPUTS", spec.local_inputs.text(&spec.launch, filled));
    }
    if let Some(dir) = spec.checkpoint_dir() {
        variables.set("HET_CHECKPOINT_DIR", dir.to_string_lossy());
    }
    if let Some(checkpoint) = &spec.launch.checkpoint {
        add_checkpointing(variables, spec, checkpoint.every);
    }
    if let Some(checkpoint) = &spec.resume {
        variables.set("HET_RESUME_FROM", &checkpoint.path);
    }
    if let Some(precision) = &spec.launch.precision {
        variables.set("HET_PRECISION", precision);
    }
    if let Some(Elastic { reference, batch }) = spec.launch.elastic {
        variables.set("HET_DEVICE_COUNT", spec.placement.units());
        variables.set("HET_BATCH_DEVICES", reference);
        if let Some(BatchRange { min, max }) = batch {
            variables.set("HET_BATCH_MIN", min);
            variables.set("HET_BATCH_MAX", max);
        }
    }
}

/// How often to save. Where the job does not set it, also the mean time between failures, so that a
/// program that knows the duration of its saves can compute its own interval.
fn add_checkpointing(variables: &mut Variables, spec: &GangSpec, every: Option<Millis>) {
    let devices: BTreeSet<DeviceId> = spec.placement.devices().map(|grant| grant.device).collect();
    let mean = mean_time_between_failures(devices.len() as u32);
    let interval = every.unwrap_or_else(|| checkpoint_interval(SAVE_DEFAULT, mean));
    variables.set("HET_CHECKPOINT_EVERY", interval.as_seconds());
    if every.is_none() {
        variables.set("HET_MEAN_TIME_BETWEEN_FAILURES", mean.as_seconds().round());
    }
}

fn devices(spec: &GangSpec, rank: u32) -> String {
    let topology = &spec.topology;
    let rows: Vec<DeviceRow<'_>> = spec
        .rank(rank)
        .grants
        .iter()
        .map(|grant| {
            let device = topology.device(grant.device);
            let class = topology.class_of(grant.device);
            let cores = if is_cpu(topology, grant.device) { grant.share.whole_units() } else { 0 };
            DeviceRow {
                name: device.name.as_str(),
                kind: class.kind.as_str(),
                driver: spec.launch.drivers.used_on(device).map_or("", |driver| driver.as_str()),
                class: class.id.as_str(),
                cores,
            }
        })
        .collect();
    serde_json::to_string(&rows).expect("text and numbers always become JSON")
}
