//! `het bench fidelity`: the same jobs on real processes and in the simulator, and how far apart
//! the two end. The processes sleep for known times on devices that are declared; everything else
//! is real: the server, its loop and store, launches, notices, checkpoints.

mod run;
mod trainer;
mod workload;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use het_control::{Controller, MemoryLog, Retention};
use het_core::{
    Action, Event, JobId, Millis, Quotas, ShareMillis, StageIndex, StageKey, State, Time,
};
use het_forecast::{Scenario, play};
use het_lab::{Completions, Draw};
use het_perf::Rates;
use het_policy::{Cadence, by_name};
use het_sim::Sim;
use serde::Serialize;

use crate::BenchError;
use run::Recorded;
pub use trainer::{TRAINER_COMMAND, trainer_main};
use workload::Job;

/// Simulations that a run is held against. Each has launches of its own: one that is a few
/// milliseconds longer tips a decision, and what follows is another run of the same policy.
const SIMULATIONS: u64 = 20;

/// What a launch takes a program before it begins to load, in milliseconds: measured on this kind
/// of run, from the plan to the first line of the program.
const LAUNCH_MS: (u64, u64) = (20, 40);

/// What is played.
#[derive(Debug, Clone)]
pub struct FidelityOptions {
    pub jobs: u32,
    pub seed: u64,
    /// How long a running stage is left alone; the policy says where there is none.
    pub quantum: Option<Millis>,
    /// Mean time between two submissions.
    pub interval: Millis,
}

/// Real over simulated, which is the mean of twenty simulations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fidelity {
    pub jobs: u32,
    pub devices: u32,
    /// Absent where the policy says how long it is.
    pub quantum_s: Option<f64>,
    pub seed: u64,
    /// Of the mean time from submission to end.
    pub jct_ratio: f64,
    /// The least and the greatest of the simulations, over their mean.
    pub jct_simulated_min: f64,
    pub jct_simulated_max: f64,
    pub makespan_ratio: f64,
    /// Of the device time held, over what there was until the last end.
    pub utilisation_ratio: f64,
    /// Rank correlation of first starts (Spearman 1904).
    pub start_order_correlation: f64,
    /// Stops of running stages, really and in the simulation.
    pub stops: usize,
    pub stops_simulated: usize,
    pub jct_s: f64,
    pub wall_s: f64,
}

/// Runs a mix of jobs through a server in an empty directory, and plays it again. `program` is this
/// program, which knows [`TRAINER_COMMAND`] and `server`.
///
/// # Errors
/// When the server cannot be used, or a job does not come to the end that it should.
pub fn bench_fidelity(
    dir: &Path,
    program: &Path,
    options: &FidelityOptions,
    mut say: impl FnMut(&str),
) -> Result<Fidelity, BenchError> {
    let begun = Instant::now();
    let jobs = workload::draw(options);
    say("running the jobs");
    let recorded = run::run(dir, program, options, &jobs)?;
    let wall_s = begun.elapsed().as_secs_f64();
    say("playing them in the simulator");
    let real = Summary::of(&recorded.state, &recorded.events);
    let simulated = (0..SIMULATIONS).map(|number| {
        let played = simulate(&recorded, &jobs, options, &mut Draw::new(options.seed, number))?;
        Ok(Summary::of(played.state(), &played.log().0))
    });
    let simulated: Vec<Summary> = simulated.collect::<Result<_, BenchError>>()?;
    for summary in simulated.iter().chain([&real]) {
        let done = summary.became.jobs_done;
        if done != jobs.len() {
            let what = format!("{done} of {} jobs succeeded", jobs.len());
            return Err(BenchError::Nothing { what });
        }
    }
    let mean = |of: &dyn Fn(&Summary) -> f64| {
        simulated.iter().map(of).sum::<f64>() / simulated.len() as f64
    };
    let jct_s = mean(&|one| one.became.avg_jct_s);
    let parts = || simulated.iter().map(|one| one.became.avg_jct_s / jct_s);
    Ok(Fidelity {
        jobs: options.jobs,
        devices: recorded.topology.accelerators().count() as u32,
        quantum_s: options.quantum.map(Millis::as_seconds),
        seed: options.seed,
        jct_ratio: real.became.avg_jct_s / jct_s,
        jct_simulated_min: parts().fold(1.0, f64::min),
        jct_simulated_max: parts().fold(1.0, f64::max),
        makespan_ratio: real.became.makespan_s / mean(&|one| one.became.makespan_s),
        utilisation_ratio: real.held_part() / mean(&Summary::held_part),
        start_order_correlation: mean(&|one| rank_correlation(&real.starts, &one.starts)),
        stops: real.stops,
        stops_simulated: mean(&|one| one.stops as f64).round() as usize,
        jct_s: real.became.avg_jct_s,
        wall_s,
    })
}

/// The jobs as they were submitted, when they were: what is played knows nothing else of the run.
fn simulate(
    recorded: &Recorded,
    jobs: &[Job],
    options: &FidelityOptions,
    launches: &mut Draw,
) -> Result<Controller<Sim, MemoryLog>, BenchError> {
    let submitted = recorded.events.iter().filter_map(|(at, event)| match event {
        Event::JobSubmitted { job, spec, .. } => Some((*at, *job, Arc::clone(spec))),
        _ => None,
    });
    let submitted: Vec<_> = submitted.collect();
    let first = submitted.first().map_or(Time::ZERO, |(at, ..)| *at);
    let models = submitted.iter().enumerate().map(|(index, (_, job, _))| {
        let key = StageKey { job: *job, stage: StageIndex(0) };
        let mut model = jobs[index].model();
        model.load += Millis(launches.between(LAUNCH_MS.0, LAUNCH_MS.1));
        (key, Arc::new(model))
    });
    let scenario = Scenario {
        seed: options.seed,
        topology: recorded.topology.clone(),
        models: models.collect(),
        jobs: submitted
            .iter()
            .map(|(at, _, spec)| (Time(at.since(first).0), Arc::clone(spec)))
            .collect(),
        rates: Rates::default(),
        cadence: Cadence::EveryEvent { quantum: options.quantum },
        retention: Retention::All,
        quotas: Quotas::default(),
        prices: BTreeMap::new(),
        faults: Vec::new(),
        words: Vec::new(),
    };
    let policy = by_name("adaptive").expect("it is the default");
    let played = play(&scenario, policy, MemoryLog::default(), |_, _| ());
    played.map_err(|error| BenchError::Nothing { what: error.to_string() })
}

/// What a run comes to.
struct Summary {
    became: Completions,
    /// Device time of accelerators.
    held_s: f64,
    starts: BTreeMap<JobId, Time>,
    stops: usize,
}

impl Summary {
    /// Of all events of a run, and what they add up to.
    fn of(state: &State, events: &[(Time, Event)]) -> Self {
        let held = state.topology().accelerators().map(|id| state.device_charged(id));
        let (mut starts, mut stops) = (BTreeMap::new(), 0);
        let plans = events.iter().filter_map(|(at, event)| match event {
            Event::PlanCommitted { plan } => Some((at, plan)),
            _ => None,
        });
        for (at, action) in plans.flat_map(|(at, plan)| plan.actions.iter().map(move |a| (at, a))) {
            match action {
                Action::Start { stage, .. } => {
                    starts.entry(stage.job).or_insert(*at);
                }
                Action::Stop { .. } => stops += 1,
                Action::Claim { .. }
                | Action::Unclaim { .. }
                | Action::Prepare { .. }
                | Action::Unprepare { .. } => {}
            }
        }
        Self {
            became: Completions::of(state, |_| true),
            held_s: held.map(ShareMillis::device_seconds).sum(),
            starts,
            stops,
        }
    }

    /// Device time held over what there was, for as many devices as both runs have.
    fn held_part(&self) -> f64 {
        self.held_s / self.became.makespan_s
    }
}

/// Spearman's, of two orders of the same keys.
fn rank_correlation(one: &BTreeMap<JobId, Time>, other: &BTreeMap<JobId, Time>) -> f64 {
    let ranks = |of: &BTreeMap<JobId, Time>| -> BTreeMap<JobId, f64> {
        let mut rows: Vec<(Time, JobId)> = of.iter().map(|(job, at)| (*at, *job)).collect();
        rows.sort_unstable();
        rows.into_iter().enumerate().map(|(rank, (_, job))| (job, rank as f64)).collect()
    };
    let (one, other) = (ranks(one), ranks(other));
    let squares = one.iter().filter_map(|(job, rank)| Some((rank - other.get(job)?).powi(2)));
    let count = one.len() as f64;
    1.0 - 6.0 * squares.sum::<f64>() / (count * (count * count - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_orders_correlate_and_reversed_ones_do_not() {
        let order = |times: [u64; 4]| -> BTreeMap<JobId, Time> {
            (1..).map(JobId).zip(times.map(Time)).collect()
        };
        let one = order([1, 2, 3, 4]);
        assert_eq!(rank_correlation(&one, &order([10, 20, 30, 40])), 1.0);
        assert_eq!(rank_correlation(&one, &order([4, 3, 2, 1])), -1.0);
        assert!((rank_correlation(&one, &order([2, 1, 3, 4])) - 0.8).abs() < 1e-12);
    }
}
