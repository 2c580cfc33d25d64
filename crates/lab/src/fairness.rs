//! Finish-time fairness (Mahajan et al., NSDI 2020, "Themis"): how much longer a job took than it
//! would have on an equal part of the cluster to itself.

use het_core::{Job, JobId, Locality, StageKey, State, Time};
use serde::Serialize;

use crate::Scenario;

/// Time to finish shared, over time to finish alone on an equal part of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fairness {
    pub mean: f64,
    pub worst: f64,
}

/// Mean and worst over the jobs that ended. The equal part is one over the mean number of jobs in
/// the system while the job was there.
pub(crate) fn of(scenario: &Scenario, state: &State) -> Fairness {
    let crowd = Crowd::of(state);
    let units = scenario.topology.units_by_class();
    let everything = f64::from(units.iter().sum::<u32>());
    let parts: Vec<f64> = units.iter().map(|&units| f64::from(units) / everything).collect();
    let ratios = state.jobs().iter().filter_map(|(id, job)| {
        let (end, _) = job.end?;
        let alone = alone_seconds(scenario, &parts, *id, job)?;
        let others = crowd.mean(job.submitted, end).max(1.0);
        let units = f64::from(job.spec.stages[0].alternatives[0].count);
        let part = (everything / units / others).min(1.0);
        Some(end.since(job.submitted).as_seconds() / (alone / part))
    });
    let ratios: Vec<f64> = ratios.collect();
    let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
    Fairness { mean, worst: ratios.into_iter().fold(0.0, f64::max) }
}

/// Seconds at the mean speed over all devices of the cluster, of which each class has a part.
fn alone_seconds(scenario: &Scenario, parts: &[f64], id: JobId, job: &Job) -> Option<f64> {
    let mut seconds = 0.0;
    for stage in job.spec.stage_indices() {
        let model = scenario.models.get(&StageKey { job: id, stage })?;
        let classes = scenario.topology.classes.iter().zip(parts);
        let rate = classes.filter_map(|(class, part)| {
            let units = job.spec.stage(stage).alternatives[0].count;
            model
                .step_on(&class.id, units, Locality::BEST)
                .map(|step_ns| part * 1e9 / step_ns as f64)
        });
        seconds += model.steps as f64 / rate.sum::<f64>();
    }
    Some(seconds).filter(|seconds| seconds.is_finite())
}

/// How many jobs were in the system when.
struct Crowd {
    /// Time and the number from then on, by time.
    changes: Vec<(u64, i64)>,
    /// Integral of the number up to each change, in job-milliseconds.
    area: Vec<f64>,
}

impl Crowd {
    fn of(state: &State) -> Self {
        let jobs = state.jobs().values();
        let mut steps: Vec<(u64, i64)> = jobs
            .flat_map(|job| {
                let left = job.end.map(|(at, _)| (at.0, -1));
                std::iter::once((job.submitted.0, 1)).chain(left)
            })
            .collect();
        steps.sort_unstable();
        let (mut changes, mut area): (Vec<(u64, i64)>, Vec<f64>) = (Vec::new(), Vec::new());
        let (mut present, mut sum, mut last) = (0, 0.0, 0);
        for (at, change) in steps {
            sum += present as f64 * (at - last) as f64;
            present += change;
            last = at;
            changes.push((at, present));
            area.push(sum);
        }
        Self { changes, area }
    }

    fn until(&self, at: Time) -> f64 {
        let after = self.changes.partition_point(|(time, _)| *time <= at.0);
        let Some(index) = after.checked_sub(1) else { return 0.0 };
        let (time, present) = self.changes[index];
        self.area[index] + present as f64 * (at.0 - time) as f64
    }

    fn mean(&self, from: Time, to: Time) -> f64 {
        let span = to.since(from).0.max(1) as f64;
        (self.until(to) - self.until(from)) / span
    }
}
