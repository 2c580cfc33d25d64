//! One job under an embedded control loop: submitted or continued, run to its end or to a hold.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use het_control::{ControlError, Controller};
use het_core::{
    Bytes, Checkpoint, Companions, Event, Isolation, JobEnd, JobId, JobSpec, Match, Outcome,
    StageIndex, StageSpec, StageState, State, Time, Topology,
};
use het_node::{Config, ControlGroups, Inlet, Node, NodeError};
use het_perf::Rates;
use het_policy::{Pool, place};
use het_wire::report::RunReport;
use thiserror::Error;

use crate::Scheduling;
use crate::lookout;
use crate::report::report;
use crate::{EventStore, HomeError, JobDir, Machine, StoreError, Turnstile};

/// Why a run cannot begin or go on.
#[derive(Debug, Error)]
pub enum RunError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("job {id} has succeeded, nothing is left to resume")]
    AlreadySucceeded { id: u64 },
    #[error("job {id} was never completely submitted")]
    NeverSubmitted { id: u64 },
}

/// A stage that this machine can never run, and what would let it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impossible {
    pub stage: String,
    /// As requested, alternatives joined by ` | `.
    pub request: String,
    pub remedy: Option<Remedy>,
}

/// What would let a stage run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// The nearest request that fits.
    Nearest(String),
    /// Less than this beside the devices, which alone would fit.
    LessBeside(Companions),
    /// A container: the devices are of those that no program can use without.
    Container,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, request, .. } = self;
        write!(f, "stage `{stage}` can never run here: this machine cannot give it `{request}`")?;
        match &self.remedy {
            Some(Remedy::Container) => write!(f, " without a container"),
            Some(Remedy::LessBeside(beside)) => match beside {
                Companions { cores: 0, memory } => write!(f, " with {memory} of memory"),
                Companions { cores, memory: Bytes::ZERO } => write!(f, " with {cores} cores"),
                Companions { cores, memory } => {
                    write!(f, " with {cores} cores and {memory} of memory")
                }
            },
            Some(Remedy::Nearest(_)) | None => Ok(()),
        }
    }
}

impl Impossible {
    pub fn hint(&self) -> String {
        match &self.remedy {
            Some(Remedy::Container) => {
                "they are virtual NPUs, which a program can use in a container only: add \
                 `container: IMAGE` (run by podman; Apptainer cannot show them)"
                    .to_owned()
            }
            Some(Remedy::LessBeside(_)) => {
                "the devices are there: ask for less beside them; `het devices -o wide` and \
                 `het topo this` show cores and memory"
                    .to_owned()
            }
            Some(Remedy::Nearest(nearest)) => {
                format!("the nearest request that fits is `devices: \"{nearest}\"`")
            }
            None => "`het devices` lists what this machine has".to_owned(),
        }
    }
}

/// Stages that no alternative could ever run on this machine.
pub fn impossible(topology: &Arc<Topology>, spec: &JobSpec) -> Vec<Impossible> {
    let state = State::new(Arc::clone(topology));
    let mut pool = Pool::empty_cluster(&state);
    let stages = spec.stages.iter().filter_map(|stage| {
        if fits(&mut pool, stage) {
            return None;
        }
        let shapes = stage.alternatives.iter();
        let request = shapes.map(|shape| format!("{}:{}", shape.selector.word, shape.count));
        let request = request.collect::<Vec<_>>().join(" | ");
        let remedy = remedy(&mut pool, stage);
        Some(Impossible { stage: stage.name.to_string(), request, remedy })
    });
    stages.collect()
}

/// Whether any alternative of a stage could run.
fn fits(pool: &mut Pool<'_>, stage: &StageSpec) -> bool {
    (0..stage.alternatives.len()).any(|index| place(pool, stage, index).is_ok())
}

fn remedy(pool: &mut Pool<'_>, stage: &StageSpec) -> Option<Remedy> {
    let mut contained = stage.clone();
    for shape in &mut contained.alternatives {
        shape.selector.isolation = Isolation::Container;
    }
    if fits(pool, &contained) {
        return Some(Remedy::Container);
    }
    if fits(pool, &StageSpec { companions: Companions::default(), ..stage.clone() }) {
        return Some(Remedy::LessBeside(stage.companions));
    }
    let mut relaxed = stage.clone();
    let mut largest = |relaxed: &mut StageSpec, index: usize| {
        let wanted = relaxed.alternatives[index].count;
        (1..=wanted).rev().find_map(|count| {
            relaxed.alternatives[index].count = count;
            let word = &relaxed.alternatives[index].selector.word;
            let nearest = format!("{word}:{count}");
            place(pool, relaxed, index).ok().map(|_| Remedy::Nearest(nearest))
        })
    };
    let fewer = (0..stage.alternatives.len()).find_map(|index| largest(&mut relaxed, index));
    fewer.or_else(|| {
        let mut any = stage.clone();
        any.alternatives.truncate(1);
        any.alternatives[0].selector.matches = Match::Kind("cpu".into());
        any.alternatives[0].selector.word = "cpu".into();
        largest(&mut any, 0)
    })
}

/// A job and the loop that runs it.
#[derive(Debug)]
pub struct Embedded {
    control: Controller<Node, EventStore>,
    inlet: Inlet,
    job: JobId,
    dir: JobDir,
    resumes: Option<u64>,
    /// Held until the run is over.
    _turnstile: Turnstile,
}

impl Embedded {
    /// Submits a new job. Nothing is acknowledged before it is durable.
    ///
    /// # Errors
    /// When files or the engine cannot be set up.
    pub fn submit(
        machine: &Machine,
        scheduling: Scheduling,
        dir: JobDir,
        spec: JobSpec,
        turnstile: Turnstile,
    ) -> Result<Self, RunError> {
        let event = Event::JobSubmitted {
            job: JobId(dir.id),
            spec: Arc::new(spec),
            succeeded: Vec::new(),
            checkpoints: Vec::new(),
        };
        Self::begin(machine, scheduling, dir, event, turnstile)
    }

    fn begin(
        machine: &Machine,
        scheduling: Scheduling,
        dir: JobDir,
        submitted: Event,
        turnstile: Turnstile,
    ) -> Result<Self, RunError> {
        let store = EventStore::create(&dir.store(), &machine.topology)?;
        let state = State::new(Arc::clone(&machine.topology));
        let job = JobId(dir.id);
        let mut run = Self::assemble(machine, scheduling, (state, store), job, dir, turnstile)?;
        run.control.accept(submitted);
        Ok(run)
    }

    /// Continues the job of `dir`. A job that was held or whose supervisor died goes on as it is;
    /// one that ended is continued by a new job in the directory that `new_dir` makes, which keeps
    /// what succeeded and starts the rest from their newest complete checkpoints.
    ///
    /// # Errors
    /// When there is nothing to continue, or files or the engine cannot be set up.
    pub fn resume(
        machine: &Machine,
        scheduling: Scheduling,
        dir: JobDir,
        new_dir: impl FnOnce() -> Result<JobDir, HomeError>,
        turnstile: Turnstile,
    ) -> Result<Self, RunError> {
        let store = EventStore::open(&dir.store())?;
        let state = store.replay()?;
        let id = JobId(dir.id);
        let job = state.job(id).ok_or(RunError::NeverSubmitted { id: id.0 })?;
        let spec = Arc::clone(&job.spec);
        Node::reap(&dir.run)?;
        match job.end {
            Some((_, JobEnd::Succeeded)) => Err(RunError::AlreadySucceeded { id: id.0 }),
            Some(_) => {
                let (succeeded, checkpoints) = carried(&state, id);
                let new = new_dir()?;
                let event =
                    Event::JobSubmitted { job: JobId(new.id), spec, succeeded, checkpoints };
                let mut run = Self::begin(machine, scheduling, new, event, turnstile)?;
                run.resumes = Some(id.0);
                Ok(run)
            }
            None => {
                let facts = missed(&state, id);
                let mut run =
                    Self::assemble(machine, scheduling, (state, store), id, dir, turnstile)?;
                facts.into_iter().for_each(|fact| run.control.accept(fact));
                Ok(run)
            }
        }
    }

    fn assemble(
        machine: &Machine,
        scheduling: Scheduling,
        (state, store): (State, EventStore),
        job: JobId,
        dir: JobDir,
        turnstile: Turnstile,
    ) -> Result<Self, RunError> {
        let mut node = Node::new(Config {
            topology: Arc::clone(state.topology()),
            node: het_core::NodeId(0),
            cores: machine.discovery.cores.clone(),
            visible_env: het_devices::visible_devices,
            container_access: het_devices::container_access,
            run_dir: dir.run.clone(),
            control_groups: ControlGroups::Auto,
            health_check: None,
            exits: None,
        })?;
        let inlet = node.inlet();
        let watch = lookout::watch(
            &machine.system,
            &machine.discovery,
            &state,
            dir.run.clone(),
            inlet.clone(),
        );
        let mut control = Controller::new(state, Rates::default(), scheduling.policy, node, store)
            .with_cadence(scheduling.cadence);
        watch.first.into_iter().for_each(|event| control.accept(event));
        Ok(Self { control, inlet, job, dir, resumes: None, _turnstile: turnstile })
    }

    pub fn job(&self) -> JobId {
        self.job
    }

    pub fn dir(&self) -> &JobDir {
        &self.dir
    }

    /// A handle to stop the job from another thread, for example on an interrupt.
    pub fn inlet(&self) -> Inlet {
        self.inlet.clone()
    }

    /// Runs until the job has ended, or stands still because its user holds it. `observe` sees
    /// every batch of facts with the report after it.
    ///
    /// # Errors
    /// When the log cannot be written; running processes are stopped then.
    pub fn run(
        mut self,
        mut observe: impl FnMut(&State, &[(Time, Event)], &RunReport),
    ) -> Result<RunReport, RunError> {
        loop {
            let turn = self.control.turn(None)?;
            let report = self.report();
            let path = self.dir.report();
            let text = serde_json::to_string_pretty(&report).unwrap_or_default();
            self.dir.write_report(&text).map_err(|source| RunError::Io { path, source })?;
            let state = self.control.state();
            observe(state, &turn.events, &report);
            let job = &state.jobs()[&self.job];
            if job.end.is_some() || (job.held && state.leases().is_empty()) {
                return Ok(report);
            }
        }
    }

    fn report(&self) -> RunReport {
        let state = self.control.state();
        let policy = self.control.policy().name();
        let now = self.control.now();
        let report = report(state, self.job, policy, now);
        let report = report.expect("the first turn submits the job of this run");
        RunReport { resumes: self.resumes, ..report }
    }
}

/// What an ended job leaves to the one that continues it.
pub(crate) type Carried = (Vec<StageIndex>, Vec<(StageIndex, Checkpoint)>);

pub(crate) fn carried(state: &State, id: JobId) -> Carried {
    let job = &state.jobs()[&id];
    let (mut succeeded, mut checkpoints) = (Vec::new(), Vec::new());
    for index in job.spec.stage_indices() {
        if job.stages[index.index()].state == StageState::Succeeded {
            succeeded.push(index);
        } else if let Some(checkpoint) = newest_checkpoint(job, index) {
            checkpoints.push((index, checkpoint));
        }
    }
    (succeeded, checkpoints)
}

/// What happened while nobody watched: live leases are gone, newer checkpoints may be complete, and
/// the user wants the job to go on.
fn missed(state: &State, id: JobId) -> Vec<Event> {
    let job = &state.jobs()[&id];
    let mut facts = Vec::new();
    for (&lease, held) in state.leases() {
        if let Some(checkpoint) = newest_checkpoint(job, held.stage.stage)
            && job.stages[held.stage.stage.index()].checkpoint.as_ref() != Some(&checkpoint)
        {
            facts.push(Event::Checkpointed { lease, checkpoint });
        }
        facts.push(Event::StageEnded { lease, outcome: Outcome::Lost });
    }
    if job.held {
        facts.push(Event::JobReleased { job: id });
    }
    facts
}

/// The newest checkpoint that the log or the disk knows. On disk only directories count that were
/// finished: het-train renames them into place with their `state.json`, Hugging Face writes
/// `trainer_state.json` last.
fn newest_checkpoint(job: &het_core::Job, index: StageIndex) -> Option<Checkpoint> {
    let logged = job.stages[index.index()].checkpoint.clone();
    let launches = job.spec.stage(index).alternatives.iter().map(|shape| &shape.launch);
    let dirs = launches.filter_map(|launch| Some(launch.checkpoint.as_ref()?.dir.clone()));
    let on_disk = dirs.flat_map(|dir| complete_checkpoints(Path::new(&dir)));
    logged.into_iter().chain(on_disk).max_by_key(|checkpoint| checkpoint.step)
}

fn complete_checkpoints(dir: &Path) -> Vec<Checkpoint> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let complete = entries.filter_map(|entry| {
        let path = entry.path();
        let step = entry.file_name().to_str()?.strip_prefix("checkpoint-")?.parse().ok()?;
        let finished = ["state.json", "trainer_state.json"].iter();
        let finished = finished.map(|name| path.join(name)).any(|marker| marker.exists());
        finished.then(|| Checkpoint { step, path: path.to_string_lossy().into_owned() })
    });
    complete.collect()
}
