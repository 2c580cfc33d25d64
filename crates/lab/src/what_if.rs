//! What would happen: a workload on a cluster under assumptions, as a scenario for any policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_control::{Cadence, Retention};
use het_core::{
    Alternative, Bytes, CheckpointSpec, Companions, DeviceClass, Domain, Drivers, Isolation, JobId,
    JobSpec, Launch, Match, Micro, Millis, Name, Planned, PlannedSpeeds, Preemptible, Quotas,
    RankRule, Selector, Speeds, StageIndex, StageKey, StageSpec, StartConditions, Time, Topology,
};
use het_perf::Rates;
use het_sim::StageModel;
use thiserror::Error;

use crate::workload::{Apart, Speeds as Table, TraceJob, TraceStage, Work};
use crate::{Draw, Scenario};

/// What is assumed beside workload and cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumptions {
    pub cadence: Cadence,
    pub restart: Restart,
    /// The part of that pause in which programs need no devices yet, where they are started early:
    /// see [`het_core::Launch::warm`].
    pub warm: Option<Millis>,
    pub noise: Noise,
    pub checkpoint: CheckpointModel,
    pub seed: u64,
}

/// Checkpoints of rigid stages: every stage also saves when it is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckpointModel {
    /// How long one takes; the stage makes no step meanwhile.
    pub duration: Millis,
    /// Running time between two; never but at a stop where absent.
    pub interval: Option<Millis>,
}

/// Pause at every start, restart and change of devices, with the devices held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// The same for everybody.
    Fixed(Millis),
    /// That of the application, where its measurements name one.
    Profiled,
}

/// Errors in what policies are told: σ of a lognormal factor, drawn once a job and device class
/// (speed) and once a job (work).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Noise {
    pub speed: f64,
    pub work: f64,
}

/// Why a workload cannot run on a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WhatIfError {
    #[error("job {job} needs the speed of `{profile}`, which no throughput table has")]
    UnknownProfile { job: JobId, profile: String },
    #[error("job {job} needs {units} devices of one class, which this cluster never has")]
    NeverFits { job: JobId, units: u32 },
    #[error("job {job} has no known speed on any class of this cluster for `{profile}`")]
    NoSpeed { job: JobId, profile: String },
    #[error("job {job} asks for {units} devices, more than `{tenant}` may ever hold")]
    BeyondLimit { job: JobId, units: u32, tenant: Name },
}

/// First stream of the seed that belongs to a job.
const FIRST_JOB: u64 = 1_000;

/// Builds the scenario.
///
/// # Errors
/// Which job could never run, and why: none is dropped.
pub fn what_if(
    topology: &Topology,
    jobs: &[TraceJob],
    speeds: &Table,
    assumptions: &Assumptions,
) -> Result<Scenario, WhatIfError> {
    let mut builder = Builder {
        topology,
        speeds,
        assumptions,
        capacity: topology.units_by_class(),
        models: BTreeMap::new(),
        rates: Rates::default(),
    };
    let mut rows = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.iter().enumerate() {
        let spec = builder.job(index, job)?;
        rows.push((Time((job.arrival_s * 1e3).round() as u64), Arc::new(spec)));
    }
    Ok(Scenario {
        seed: assumptions.seed,
        topology: topology.clone(),
        jobs: rows,
        models: builder.models,
        rates: builder.rates,
        cadence: assumptions.cadence,
        retention: Retention::All,
        quotas: Quotas::default(),
        prices: BTreeMap::new(),
        faults: Vec::new(),
        words: Vec::new(),
    })
}

struct Builder<'a> {
    topology: &'a Topology,
    speeds: &'a Table,
    assumptions: &'a Assumptions,
    /// Units of each class.
    capacity: Vec<u32>,
    models: BTreeMap<StageKey, Arc<StageModel>>,
    rates: Rates,
}

impl Builder<'_> {
    fn job(&mut self, index: usize, job: &TraceJob) -> Result<JobSpec, WhatIfError> {
        let id = JobId(index as u64 + 1);
        let mut draw = Draw::new(self.assumptions.seed, FIRST_JOB + id.0);
        let mut stages = Vec::with_capacity(job.stages.len());
        for (row, stage) in job.stages.iter().enumerate() {
            let key = StageKey { job: id, stage: StageIndex(row as u16) };
            stages.push(self.stage(key, stage, &mut draw)?);
        }
        let name = if job.name.is_empty() { format!("job-{id}") } else { job.name.clone() };
        Ok(JobSpec {
            name: name.into(),
            tenant: job.tenant.as_str().into(),
            priority: job.priority,
            stages,
            time_limit: None,
            workdir: String::new(),
            commit: None,
            start: StartConditions::default(),
            key: None,
        })
    }

    fn stage(
        &mut self,
        key: StageKey,
        stage: &TraceStage,
        draw: &mut Draw,
    ) -> Result<StageSpec, WhatIfError> {
        let steps = match stage.work {
            Work::Steps(steps) => steps,
            Work::Seconds(seconds) => seconds.ceil() as u64,
            Work::Epochs => return self.elastic_stage(key, stage, draw),
        };
        let runs = self.runs(key.job, stage)?;
        let restart = match self.assumptions.restart {
            Restart::Fixed(pause) => pause,
            Restart::Profiled => Millis(0),
        };
        let noise = self.assumptions.noise;
        let told_steps = (steps as f64 * draw.lognormal(noise.work)).round().max(1.0) as u64;
        // With noise every job is told its own speeds.
        let shared = stage.profile.as_deref().unwrap_or("seconds");
        let profile: Name = match noise.speed > 0.0 {
            true => format!("{shared} of job {}", key.job).into(),
            false => shared.into(),
        };
        let mut model = StageModel {
            steps,
            load: restart,
            imports: self.imports(restart),
            save: Some(self.assumptions.checkpoint.duration),
            ..StageModel::default()
        };
        if let Some(every) = self.assumptions.checkpoint.interval {
            let fastest = runs.iter().map(|run| run.rate).fold(0.0, f64::max);
            model.checkpoint_every = (every.as_seconds() * fastest).round().max(1.0) as u64;
        }
        for Run { class, units, rate } in &runs {
            let told = rate * draw.lognormal(noise.speed);
            self.rates.declare(&profile, class, *units, told);
            let step_ns = (1e9 / rate).round() as u64;
            model.step_ns.entry(class.clone()).or_default().insert(*units, step_ns);
            if let Some(speeds) = speeds_by_locality(*rate, stage) {
                model.apart.insert(class.clone(), *units, Planned::Runs(speeds));
            }
        }
        let planned = model.apart.clone();
        self.rates.declare_restart(&profile, restart);
        self.models.insert(key, Arc::new(model));
        let shapes = runs.iter().map(|run| (run.class.clone(), run.units));
        let launch = self.launch();
        Ok(StageSpec { planned, ..spec(key, stage, shapes, (profile, launch), Some(told_steps)) })
    }

    /// A stage that may have more or fewer devices, of which nobody knows how long it will take.
    fn elastic_stage(
        &mut self,
        key: StageKey,
        stage: &TraceStage,
        draw: &mut Draw,
    ) -> Result<StageSpec, WhatIfError> {
        let name = stage.profile.as_deref().unwrap_or_default();
        let Some((application, pause)) = self.speeds.application(name) else {
            let profile = name.to_owned();
            return Err(WhatIfError::UnknownProfile { job: key.job, profile });
        };
        let restart = match self.assumptions.restart {
            Restart::Fixed(pause) => pause,
            Restart::Profiled => pause,
        };
        let measured = self.classes(stage).filter_map(|(class, &capacity)| {
            let limits = application.profile.classes.get(&class.id)?;
            Some((&class.id, sizes(limits.devices_per_node, capacity)))
        });
        let shapes: Vec<(Name, u32)> = measured
            .flat_map(|(class, sizes)| sizes.into_iter().map(|units| (class.clone(), units)))
            .collect();
        if shapes.is_empty() {
            return Err(WhatIfError::NeverFits { job: key.job, units: 1 });
        }
        let profile: Name = format!("{name} of job {}", key.job).into();
        self.rates.declare_elastic(&profile, application.profile.clone());
        self.rates.declare_restart(&profile, restart);
        let sigma = self.assumptions.noise.speed;
        let misread: BTreeMap<Name, f64> = match sigma > 0.0 {
            // The speed is a factor off, the time of a step its inverse.
            true => application
                .profile
                .classes
                .keys()
                .map(|class| (class.clone(), 1.0 / draw.lognormal(sigma)))
                .collect(),
            false => BTreeMap::new(),
        };
        let model = StageModel {
            steps: application.steps(),
            elastic: Some(Arc::clone(application)),
            misread,
            load: restart,
            imports: self.imports(restart),
            save: Some(Millis(0)),
            ..StageModel::default()
        };
        self.models.insert(key, Arc::new(model));
        Ok(spec(key, stage, shapes.into_iter(), (profile, self.launch()), None))
    }

    fn launch(&self) -> Arc<Launch> {
        let warm = self.assumptions.warm.is_some();
        Arc::new(Launch { checkpoint: Some(saves()), warm, ..Launch::default() })
    }

    fn imports(&self, restart: Millis) -> Millis {
        self.assumptions.warm.unwrap_or_default().min(restart)
    }

    /// Classes that will do for a stage, and the units of each.
    fn classes(&self, stage: &TraceStage) -> impl Iterator<Item = (&DeviceClass, &u32)> {
        let all = self.topology.classes.iter().zip(&self.capacity);
        all.filter(|(class, _)| {
            let named = |word: &String| class.id == **word || class.kind == **word;
            let any = stage.profile.is_some() || class.kind != "cpu";
            stage.classes.iter().any(named) || (stage.classes.is_empty() && any)
        })
    }

    /// Shapes that the stage runs in.
    fn runs(&self, job: JobId, stage: &TraceStage) -> Result<Vec<Run>, WhatIfError> {
        if let Some(profile) = stage.profile.as_ref().filter(|name| !self.speeds.knows(name)) {
            return Err(WhatIfError::UnknownProfile { job, profile: profile.clone() });
        }
        let mut runs = Vec::new();
        for (class, capacity) in self.classes(stage) {
            let sizes = match &stage.profile {
                Some(profile) if stage.units == 0 => self.speeds.sizes(profile, class.id.as_str()),
                _ => vec![stage.units],
            };
            for units in sizes.into_iter().filter(|units| units <= capacity) {
                let rate = match &stage.profile {
                    Some(profile) => self.speeds.rate(profile, class.id.as_str(), units),
                    None => Some(1.0),
                };
                runs.extend(rate.map(|rate| Run { class: class.id.clone(), units, rate }));
            }
        }
        match (runs.is_empty(), &stage.profile) {
            (false, _) => Ok(runs),
            // It may have any number of devices.
            (true, Some(profile)) if stage.units == 0 => {
                Err(WhatIfError::NoSpeed { job, profile: profile.clone() })
            }
            (true, _) => Err(WhatIfError::NeverFits { job, units: stage.units }),
        }
    }
}

/// A shape and its true speed, in steps per second.
struct Run {
    class: Name,
    units: u32,
    rate: f64,
}

/// Steps per second by how well the gang stands; `None` where that does not matter.
fn speeds_by_locality(rate: f64, stage: &TraceStage) -> Option<Speeds> {
    if stage.apart.is_none() && stage.exchange == 0.0 {
        return None;
    }
    let Apart { rack, pod, any } = stage.apart.unwrap_or(Apart::NOWHERE);
    let speed = |part: f64| Micro::from_f64(rate * part).unwrap_or_default();
    let speeds = Speeds::new([1.0, rack, pod, any].map(speed))?;
    Some(speeds.exchanging(Micro::from_f64(stage.exchange)?))
}

/// Numbers of devices that an elastic stage may have: powers of two inside a node, whole nodes
/// beyond.
fn sizes(devices_per_node: u32, capacity: u32) -> Vec<u32> {
    let inside = (0..).map(|power| 1 << power).take_while(|&units| units < devices_per_node);
    let beyond = (1..).map(|nodes| nodes * devices_per_node);
    inside.chain(beyond.take_while(|&units| units <= capacity)).filter(|u| *u <= capacity).collect()
}

/// One alternative a shape; each stage waits for the one before it.
fn spec(
    key: StageKey,
    stage: &TraceStage,
    shapes: impl Iterator<Item = (Name, u32)>,
    (profile, launch): (Name, Arc<Launch>),
    steps: Option<u64>,
) -> StageSpec {
    let after = key.stage.0.checked_sub(1).map(StageIndex);
    StageSpec {
        name: format!("{}-{}", stage.kind.word(), key.stage).into(),
        kind: stage.kind,
        after: after.into_iter().collect(),
        follows: Vec::new(),
        alternatives: shapes.map(|(class, units)| on(&class, units, &launch)).collect(),
        companions: Companions { cores: stage.cores, ..Companions::default() },
        within: Domain::Any,
        ranks: RankRule::PerNode,
        retries: 0,
        restarts: StageSpec::RESTARTS_DEFAULT,
        profile,
        steps,
        preemptible: Preemptible::default(),
        planned: PlannedSpeeds::default(),
    }
}

fn saves() -> CheckpointSpec {
    CheckpointSpec {
        dir: String::new(),
        every: None,
        notice: "SIGTERM".into(),
        grace: CheckpointSpec::GRACE_DEFAULT,
    }
}

fn on(class: &Name, units: u32, launch: &Arc<Launch>) -> Alternative {
    Alternative {
        selector: Selector {
            word: class.clone(),
            matches: Match::Classes(vec![class.clone()]),
            memory_min: Bytes::ZERO,
            isolation: Isolation::Process,
            drivers: Drivers::Unknown,
        },
        count: units,
        launch: Arc::clone(launch),
    }
}
