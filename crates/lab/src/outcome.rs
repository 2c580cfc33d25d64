//! What a simulated policy achieved.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use het_control::Turn;
use het_core::{Action, DeviceId, Event, JobEnd, ShareMillis, State, StopCause, Time, Topology};
use het_policy::Policy;
use het_wire::catalogue;
use serde::Serialize;

use crate::{Fairness, Scenario, fairness};
use het_forecast::{PlayError, play_timed};

/// Figures of one run. Times are in seconds, shares of device time are fractions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub policy: &'static str,
    pub jobs_total: usize,
    pub jobs_done: usize,
    pub avg_jct_s: f64,
    pub p50_jct_s: f64,
    pub p99_jct_s: f64,
    pub makespan_s: f64,
    pub utilisation: Utilisation,
    /// Part of the device time held that went into work that counts.
    pub effective_time: f64,
    /// Of the accelerators until the makespan; `None` where the power of one is unknown.
    pub energy_kwh: Option<f64>,
    pub finish_time_fairness: Fairness,
    /// Held, by accelerator class.
    pub device_hours: BTreeMap<String, f64>,
    /// Of those hours, at the scenario's prices; `None` where one is not named.
    pub price: Option<f64>,
    pub tenants: BTreeMap<String, TenantOutcome>,
    /// Stops for a job of higher priority.
    pub preemptions: usize,
    /// Stops that give back what was borrowed of a quota.
    pub reclaims: usize,
    /// Stops that share time between equals.
    pub suspensions: usize,
    /// Stops to go on elsewhere.
    pub migrations: usize,
    /// Device time in steps that were lost.
    pub lost_work_s: f64,
    /// Times the policy was asked.
    pub decisions: usize,
    pub decision_p50_ms: f64,
    pub decision_p99_ms: f64,
    /// Real time of the whole simulation.
    pub wall_s: f64,
    pub seed: u64,
}

/// Figures of the jobs of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TenantOutcome {
    pub jobs_done: usize,
    pub avg_jct_s: f64,
    /// Held, of whatever devices.
    pub device_hours: f64,
}

impl Outcome {
    /// Of running stages, for whatever cause.
    pub fn stops(&self) -> usize {
        self.preemptions + self.reclaims + self.suspensions + self.migrations
    }
}

/// Parts of the device time of all accelerators until the makespan.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Utilisation {
    pub allocated: f64,
    pub busy: f64,
    pub useful: f64,
}

/// What is counted while a scenario plays.
#[derive(Default)]
pub(crate) struct Tally {
    preemptions: usize,
    reclaims: usize,
    suspensions: usize,
    migrations: usize,
    decisions: Vec<Duration>,
}

/// Plays a scenario under a policy and sums it up.
///
/// # Errors
/// When the policy breaks a law that the check knows, or the scenario never ends.
pub fn simulate(scenario: &Scenario, policy: &'static dyn Policy) -> Result<Outcome, PlayError> {
    let began = Instant::now();
    let mut tally = Tally::default();
    let control = play_timed(scenario, policy, (), |turn, took, _| tally.count(turn, took))?;
    Ok(tally.sum_up(scenario, policy.name(), control.state(), began.elapsed()))
}

impl Tally {
    /// Counts what a turn brought that really took `took`.
    pub fn count(&mut self, turn: &Turn, took: Duration) {
        if turn.decisions > 0 {
            self.decisions.push(took);
        }
        turn.events.iter().for_each(|(_, event)| self.count_stops(event));
    }

    /// The figures of a run that ended in `state`.
    pub fn sum_up(
        mut self,
        scenario: &Scenario,
        policy: &'static str,
        state: &State,
        wall: Duration,
    ) -> Outcome {
        self.decisions.sort_unstable();
        sum_up(scenario, policy, state, &self, wall)
    }

    fn count_stops(&mut self, event: &Event) {
        let Event::PlanCommitted { plan } = event else { return };
        for action in &plan.actions {
            match action {
                Action::Stop { cause: StopCause::Priority { .. }, .. } => self.preemptions += 1,
                Action::Stop { cause: StopCause::Reclaim { .. }, .. } => self.reclaims += 1,
                Action::Stop { cause: StopCause::Quantum, .. } => self.suspensions += 1,
                Action::Stop { cause: StopCause::Migration | StopCause::Shrink { .. }, .. } => {
                    self.migrations += 1
                }
                _ => {}
            }
        }
    }

    fn decision_ms(&self, part: f64) -> f64 {
        let last = self.decisions.len().saturating_sub(1);
        let at = (last as f64 * part).round() as usize;
        self.decisions.get(at).map_or(0.0, |took| took.as_secs_f64() * 1e3)
    }
}

fn sum_up(
    scenario: &Scenario,
    policy: &'static str,
    state: &State,
    tally: &Tally,
    wall: Duration,
) -> Outcome {
    let mut jct: Vec<f64> = state
        .jobs()
        .values()
        .filter_map(|job| match job.end {
            Some((at, JobEnd::Succeeded)) => Some(at.since(job.submitted).as_seconds()),
            _ => None,
        })
        .collect();
    jct.sort_unstable_by(f64::total_cmp);
    let ends = state.jobs().values().filter_map(|job| job.end.map(|(at, _)| at));
    let makespan_s = ends.max().unwrap_or(Time::ZERO).since(Time::ZERO).as_seconds();
    let topology = &scenario.topology;
    let counted = accelerators(topology);
    let seconds = |part: fn(&State, DeviceId) -> ShareMillis| {
        counted.iter().map(|&id| part(state, id).device_seconds()).sum::<f64>()
    };
    let allocated = seconds(State::device_charged);
    let busy = seconds(|state, id| state.device_worked(id).0);
    let useful = seconds(|state, id| state.device_worked(id).1);
    let units: u32 = counted.iter().map(|&id| topology.device(id).capacity.whole_units()).sum();
    let whole = f64::from(units) * makespan_s.max(1e-9);
    let device_hours = device_hours(state, &counted);
    Outcome {
        policy,
        jobs_total: scenario.jobs.len(),
        jobs_done: jct.len(),
        avg_jct_s: jct.iter().sum::<f64>() / jct.len().max(1) as f64,
        p50_jct_s: percentile(&jct, 0.50),
        p99_jct_s: percentile(&jct, 0.99),
        makespan_s,
        utilisation: Utilisation {
            allocated: allocated / whole,
            busy: busy / whole,
            useful: useful / whole,
        },
        effective_time: useful / allocated.max(1e-9),
        energy_kwh: energy_kwh(state, &counted, makespan_s),
        finish_time_fairness: fairness::of(scenario, state),
        price: price(scenario, &device_hours),
        device_hours,
        tenants: tenants(state),
        preemptions: tally.preemptions,
        reclaims: tally.reclaims,
        suspensions: tally.suspensions,
        migrations: tally.migrations,
        lost_work_s: (busy - useful).max(0.0),
        decisions: tally.decisions.len(),
        decision_p50_ms: tally.decision_ms(0.50),
        decision_p99_ms: tally.decision_ms(0.99),
        wall_s: wall.as_secs_f64(),
        seed: scenario.seed,
    }
}

/// Part of its thermal design power that an idle accelerator draws, by vendors' data sheets about
/// 0.1 to 0.2.
const IDLE_POWER: f64 = 0.15;

/// A working device draws its thermal design power, one that waits [`IDLE_POWER`] of it.
fn energy_kwh(state: &State, devices: &[DeviceId], makespan_s: f64) -> Option<f64> {
    let watt_seconds = devices.iter().map(|&id| {
        let power_w = catalogue::figures(state.topology().class_of(id).id.as_str())?.power_w?;
        let busy_s = state.device_worked(id).0.device_seconds().min(makespan_s);
        Some(power_w * (busy_s + IDLE_POWER * (makespan_s - busy_s)))
    });
    Some(watt_seconds.sum::<Option<f64>>()? / 3.6e6)
}

/// What was held of each class, in hours of one device.
fn device_hours(state: &State, devices: &[DeviceId]) -> BTreeMap<String, f64> {
    let mut hours: BTreeMap<String, f64> = BTreeMap::new();
    for &id in devices {
        let class = state.topology().class_of(id).id.to_string();
        *hours.entry(class).or_default() += state.device_charged(id).device_seconds() / 3_600.0;
    }
    hours
}

fn tenants(state: &State) -> BTreeMap<String, TenantOutcome> {
    let mut tenants: BTreeMap<String, TenantOutcome> = BTreeMap::new();
    for job in state.jobs().values() {
        let tenant = tenants.entry(job.spec.tenant.to_string()).or_default();
        tenant.device_hours += job.charged().device_seconds() / 3_600.0;
        if let Some((at, JobEnd::Succeeded)) = job.end {
            tenant.jobs_done += 1;
            tenant.avg_jct_s += at.since(job.submitted).as_seconds();
        }
    }
    for tenant in tenants.values_mut() {
        tenant.avg_jct_s /= tenant.jobs_done.max(1) as f64;
    }
    tenants
}

fn price(scenario: &Scenario, device_hours: &BTreeMap<String, f64>) -> Option<f64> {
    let row = |(class, hours): (&String, &f64)| Some(scenario.prices.get(class.as_str())? * hours);
    if scenario.prices.is_empty() { None } else { device_hours.iter().map(row).sum() }
}

/// The devices that utilisation is about: accelerators, or all where there are none.
pub(crate) fn accelerators(topology: &Topology) -> Vec<DeviceId> {
    let found: Vec<DeviceId> = topology.accelerators().collect();
    if found.is_empty() { topology.device_ids().collect() } else { found }
}

/// The lower of the two values around `part` of the way from the least to the greatest, as the
/// published figures have it.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let index = (part * sorted.len().saturating_sub(1) as f64).floor() as usize;
    sorted.get(index).copied().unwrap_or(0.0)
}
