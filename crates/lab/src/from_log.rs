//! A server's log as a scenario: its jobs as they were submitted, on the cluster that they met.
//!
//! What is played knows nothing of what happened. Lengths are those that jobs declared; speeds, and
//! times of starts and saves, those that were known when the first of them came. Jobs that say no
//! length, or of which no speed was known, are left out, and so are those that wait for one that is
//! left out.

mod trace;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use het_control::{Cadence, Past, Retention};
use het_core::{
    Event, JobEnd, JobId, JobSpec, Locality, Millis, Quotas, StageKey, StageSpec, State, Time,
    Topology,
};
use het_perf::{Gang, Rates, StopTimes};
use het_sim::StageModel;
use serde::Serialize;

use crate::Scenario;

pub use trace::{LoggedTrace, trace_of_log};

/// A log to be played again.
#[derive(Debug)]
pub struct LoggedRun {
    pub scenario: Scenario,
    pub left_out: Vec<(JobId, LeftOut)>,
    pub recorded: Completions,
}

/// Why a job is not played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    NoLength,
    NoSpeed,
    Waits,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLength => "a stage of it says no `steps:`",
            Self::NoSpeed => "no speed was known for a stage of it before",
            Self::Waits => "it waits for one that is left out, or was there before",
        })
    }
}

/// What really became of the jobs that are played.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Completions {
    /// Those that succeeded.
    pub jobs_done: usize,
    pub avg_jct_s: f64,
    pub makespan_s: f64,
}

/// The jobs of a log from `first` on, which is the first of all where it is absent. `past` is what
/// went before the events. `None` where no job can be played.
pub fn from_log(
    mut past: Past,
    events: &[(Time, Event)],
    first: Option<JobId>,
    cadence: Cadence,
) -> Option<LoggedRun> {
    let is_first = |(_, event): &(Time, Event)| match event {
        Event::JobSubmitted { job, .. } => first.is_none_or(|first| *job >= first),
        _ => false,
    };
    let begin = events.iter().position(is_first)?;
    let (before, after) = events.split_at(begin);
    before.iter().for_each(|(at, event)| past.apply(*at, event));
    let topology = Topology::clone(past.state.topology());
    let quotas = Quotas::clone(past.state.quotas());
    let mut builder = Builder {
        topology: &topology,
        rates: &past.rates,
        ids: BTreeMap::new(),
        models: BTreeMap::new(),
    };
    let zero = after[0].0;
    let (mut jobs, mut words, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for (at, event) in after {
        let at = Time(at.since(zero).0);
        match event {
            Event::JobSubmitted { job, spec, .. } => match builder.job(*job, spec, zero) {
                Ok(spec) => jobs.push((at, Arc::new(spec))),
                Err(why) => left_out.push((*job, why)),
            },
            Event::JobCancelled { job } => {
                let known = builder.ids.get(job);
                words.extend(known.map(|&job| (at, Event::JobCancelled { job })));
            }
            _ => {}
        }
    }
    let Builder { ids, models, .. } = builder;
    if jobs.is_empty() {
        return None;
    }
    let rates = past.rates.clone();
    let recorded = recorded(past, after, &ids);
    let scenario = Scenario {
        seed: 0,
        topology,
        jobs,
        models,
        rates,
        cadence,
        retention: Retention::All,
        quotas,
        prices: BTreeMap::new(),
        faults: Vec::new(),
        words,
    };
    Some(LoggedRun { scenario, left_out, recorded })
}

fn recorded(
    mut past: Past,
    events: &[(Time, Event)],
    played: &BTreeMap<JobId, JobId>,
) -> Completions {
    // Ended jobs are what this is about.
    let kept = events.iter().filter(|(_, event)| !matches!(event, Event::JobRetired { .. }));
    kept.for_each(|(at, event)| past.apply(*at, event));
    Completions::of(&past.state, |id| played.contains_key(&id))
}

impl Completions {
    /// Of those jobs of a state that count.
    pub fn of(state: &State, counts: impl Fn(JobId) -> bool) -> Self {
        let jobs = state.jobs().iter().filter(|(id, _)| counts(**id));
        let done = jobs.filter_map(|(_, job)| match job.end {
            Some((at, JobEnd::Succeeded)) => Some((job.submitted, at)),
            _ => None,
        });
        let done: Vec<(Time, Time)> = done.collect();
        let Some(first) = done.iter().map(|(from, _)| *from).min() else { return Self::default() };
        let last = done.iter().map(|(_, to)| *to).max().unwrap_or(first);
        let spans = done.iter().map(|(from, to)| to.since(*from).as_seconds());
        Self {
            jobs_done: done.len(),
            avg_jct_s: spans.sum::<f64>() / done.len() as f64,
            makespan_s: last.since(first).as_seconds(),
        }
    }
}

struct Builder<'a> {
    topology: &'a Topology,
    /// What was known before.
    rates: &'a Rates,
    /// Numbers of the log → numbers of the scenario, by arrival from 1.
    ids: BTreeMap<JobId, JobId>,
    models: BTreeMap<StageKey, Arc<StageModel>>,
}

impl Builder<'_> {
    fn job(&mut self, logged: JobId, spec: &JobSpec, zero: Time) -> Result<JobSpec, LeftOut> {
        let mut spec = spec.clone();
        for dependency in &mut spec.start.dependencies.on {
            dependency.job = *self.ids.get(&dependency.job).ok_or(LeftOut::Waits)?;
        }
        if let Some(array) = &mut spec.start.array {
            // Its first member may be left out: the next of them is as good a name.
            let own = JobId(self.ids.len() as u64 + 1);
            array.array = self.ids.get(&array.array).copied().unwrap_or(own);
        }
        spec.start.begin = spec.start.begin.map(|at| Time(at.since(zero).0));
        let models = spec.stages.iter().map(|stage| self.model(stage));
        let models: Vec<StageModel> = models.collect::<Result<_, _>>()?;
        let id = JobId(self.ids.len() as u64 + 1);
        for (stage, model) in spec.stage_indices().zip(models) {
            self.models.insert(StageKey { job: id, stage }, Arc::new(model));
        }
        self.ids.insert(logged, id);
        Ok(spec)
    }

    fn model(&self, stage: &StageSpec) -> Result<StageModel, LeftOut> {
        let steps = stage.steps.ok_or(LeftOut::NoLength)?;
        let mut model = StageModel { steps, apart: stage.planned.clone(), ..StageModel::default() };
        let mut fastest: f64 = 0.0;
        for alternative in &stage.alternatives {
            let units = alternative.count;
            for class in &self.topology.classes {
                if !alternative.selector.accepts_class(self.topology, &class.id) {
                    continue;
                }
                let gang = Gang { class, units, locality: Locality::BEST };
                let known = self.rates.rate(&stage.profile, &stage.planned, gang);
                let Some((rate, _)) = known.filter(|(rate, _)| *rate > 0.0) else { continue };
                fastest = fastest.max(rate);
                let step_ns = (1e9 / rate).round() as u64;
                model.step_ns.entry(class.id.clone()).or_default().insert(units, step_ns);
            }
        }
        if fastest == 0.0 {
            return Err(LeftOut::NoSpeed);
        }
        let first = &stage.alternatives[0];
        let StopTimes { save, load } = self.rates.stop_times(stage, first.count);
        let checkpoint = first.launch.checkpoint.as_ref();
        let every = checkpoint.and_then(|checkpoint| checkpoint.every);
        let steps_between = |every: Millis| (every.as_seconds() * fastest).round().max(1.0) as u64;
        model.load = load;
        model.save = checkpoint.map(|_| save);
        model.checkpoint_every = every.map_or(u64::MAX, steps_between);
        Ok(model)
    }
}
