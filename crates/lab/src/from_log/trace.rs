//! A server's log as a trace: what jobs really were, as far as their steps tell.

use std::collections::BTreeMap;

use het_control::Past;
use het_core::{
    Event, Job, JobEnd, JobId, LeaseId, Locality, Name, Outcome, StageKey, StageSpec, State, Time,
};
use het_perf::Gang;

use crate::workload::{Speeds, TraceJob, TraceStage, Work};

/// Jobs that succeeded, by arrival, and how fast each of their stages really was.
#[derive(Debug, Default)]
pub struct LoggedTrace {
    pub jobs: Vec<TraceJob>,
    pub speeds: Speeds,
    /// Jobs that did not succeed.
    pub left_out: usize,
}

/// A class of devices and how many of them.
type Shape = (Name, u32);

/// What a lease has shown.
struct Attempt {
    stage: StageKey,
    shape: Shape,
    started: Time,
    first: Option<(Time, u64)>,
    last: (Time, u64),
}

#[derive(Default)]
struct Measured {
    /// Steps and the seconds that they took.
    by_shape: BTreeMap<(StageKey, Shape), (u64, f64)>,
    /// From the start to the end of the attempt that succeeded, and where.
    finished: BTreeMap<StageKey, (f64, Shape)>,
}

/// What `past` and the events after it say of jobs that were submitted in them. Speeds of shapes
/// that a stage never had are those that were known of its profile in the end.
pub fn trace_of_log(mut past: Past, events: &[(Time, Event)]) -> LoggedTrace {
    let (mut attempts, mut measured) = (BTreeMap::new(), Measured::default());
    let mut submitted: Vec<JobId> = Vec::new();
    for (at, event) in events {
        match event {
            // Ended jobs are what this is about.
            Event::JobRetired { .. } => continue,
            Event::JobSubmitted { job, .. } => submitted.push(*job),
            _ => measured.take_in(&mut attempts, &past.state, *at, event),
        }
        past.apply(*at, event);
    }
    let mut trace = LoggedTrace::default();
    for id in submitted {
        let Some(job) = past.state.job(id) else { continue };
        match job.end {
            Some((_, JobEnd::Succeeded)) => {
                let stages = job.spec.stage_indices().map(|stage| {
                    let key = StageKey { job: id, stage };
                    measured.stage(&mut trace.speeds, &past, job, key)
                });
                let Some(stages) = stages.collect::<Option<Vec<TraceStage>>>() else {
                    trace.left_out += 1;
                    continue;
                };
                trace.jobs.push(TraceJob {
                    name: job.spec.name.to_string(),
                    arrival_s: job.submitted.0 as f64 / 1e3,
                    tenant: job.spec.tenant.to_string(),
                    priority: job.spec.priority,
                    stages,
                });
            }
            _ => trace.left_out += 1,
        }
    }
    TraceJob::from_zero(&mut trace.jobs);
    trace
}

impl Measured {
    fn take_in(
        &mut self,
        attempts: &mut BTreeMap<LeaseId, Attempt>,
        state: &State,
        at: Time,
        event: &Event,
    ) {
        match event {
            Event::StageStarted { lease } => {
                let Some(held) = state.leases().get(lease) else { return };
                let Some(device) = held.placement.devices().next() else { return };
                let class = state.topology().class_of(device.device).id.clone();
                let shape = (class, held.placement.units());
                let (stage, last) = (held.stage, (at, 0));
                attempts.insert(*lease, Attempt { stage, shape, started: at, first: None, last });
            }
            Event::Progressed { lease, progress } => {
                let Some((attempt, step)) = attempts.get_mut(lease).zip(progress.step) else {
                    return;
                };
                attempt.first.get_or_insert((at, step));
                attempt.last = (at, step);
            }
            Event::StageEnded { lease, outcome } => {
                let Some(attempt) = attempts.remove(lease) else { return };
                let (Attempt { stage, shape, started, first, last }, ended) = (attempt, at);
                if let Some((from, step)) = first.filter(|(_, step)| last.1 > *step) {
                    let sums = self.by_shape.entry((stage, shape.clone())).or_default();
                    sums.0 += last.1 - step;
                    sums.1 += last.0.since(from).as_seconds();
                }
                if *outcome == Outcome::Finished {
                    self.finished.insert(stage, (ended.since(started).as_seconds(), shape));
                }
            }
            _ => {}
        }
    }

    /// `None` of a stage that ended in another life of the log.
    fn stage(
        &self,
        speeds: &mut Speeds,
        past: &Past,
        job: &Job,
        key: StageKey,
    ) -> Option<TraceStage> {
        let spec = job.spec.stage(key.stage);
        let (seconds, (class, units)) = self.finished.get(&key)?;
        let stage = TraceStage {
            kind: spec.kind,
            profile: None,
            units: *units,
            classes: vec![class.to_string()],
            apart: None,
            exchange: 0.0,
            cores: spec.companions.cores,
            work: Work::Seconds(seconds.max(0.001)),
        };
        let made = job.stages[key.stage.index()].progress.step.filter(|step| *step > 0);
        let measured: BTreeMap<&Shape, f64> = self
            .by_shape
            .range((key, (Name::default(), 0))..)
            .take_while(|((of, _), _)| *of == key)
            .filter(|(_, (_, seconds))| *seconds > 0.0)
            .map(|((_, shape), (steps, seconds))| (shape, *steps as f64 / seconds))
            .collect();
        let Some(steps) = made.filter(|_| !measured.is_empty()) else { return Some(stage) };
        let profile = format!("{} of job {}", spec.name, key.job);
        let mut counts = Vec::new();
        for (shape, rate) in rates(past, spec, &measured) {
            speeds.declare(&profile, shape.0.as_str(), shape.1, rate);
            counts.push(shape.1);
        }
        counts.dedup();
        Some(TraceStage {
            profile: Some(profile),
            // Any number that the profile has a speed for.
            units: if let [only] = counts[..] { only } else { 0 },
            classes: Vec::new(),
            work: Work::Steps(steps),
            ..stage
        })
    }
}

/// Of every shape that the stage may have and of which a speed is known.
fn rates(past: &Past, spec: &StageSpec, measured: &BTreeMap<&Shape, f64>) -> Vec<(Shape, f64)> {
    let topology = past.state.topology();
    let mut rates = BTreeMap::new();
    for alternative in &spec.alternatives {
        let classes = topology.classes.iter();
        for class in classes.filter(|class| alternative.selector.accepts_class(topology, &class.id))
        {
            let units = alternative.count;
            let shape = (class.id.clone(), units);
            let gang = Gang { class, units, locality: Locality::BEST };
            let known = || Some(past.rates.rate(&spec.profile, &spec.planned, gang)?.0);
            let rate = measured.get(&shape).copied().or_else(known);
            rates.extend(rate.filter(|rate| *rate > 0.0).map(|rate| (shape, rate)));
        }
    }
    rates.into_iter().collect()
}
