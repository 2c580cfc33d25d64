//! What happened in a simulation, for reports: who stood where when, who waited, and why.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_control::Turn;
use het_core::{Action, Event, LeaseId, Name, Placement, Reason, StageKey, State, StopCause, Time};
use het_policy::Policy;

use crate::Scenario;
use crate::outcome::{Outcome, Tally};
use het_forecast::{PlayError, play_timed};

/// A stage on devices.
#[derive(Debug, Clone)]
pub struct Span {
    pub stage: StageKey,
    pub tenant: Name,
    pub placement: Arc<Placement>,
    pub from: Time,
    pub to: Time,
    /// Parts of the time in which its devices worked, and worked for something that counts.
    pub busy: f64,
    pub useful: f64,
}

/// Something that was decided about a stage.
#[derive(Debug, Clone)]
pub struct Decided {
    pub at: Time,
    pub stage: StageKey,
    pub what: Decision,
}

/// What it was.
#[derive(Debug, Clone)]
pub enum Decision {
    Start { placement: Arc<Placement>, reasons: Vec<Reason> },
    Stop { cause: StopCause, cost_device_s: Option<f64> },
    Wait { reasons: Vec<Reason> },
}

/// One run of one policy.
#[derive(Debug, Clone)]
pub struct Recording {
    pub outcome: Outcome,
    pub spans: Vec<Span>,
    /// How many stages waited from when on.
    pub waiting: Vec<(Time, usize)>,
    pub decisions: Vec<Decided>,
    /// Seconds from submit to end, and from submit to the first start, of every job that ended.
    pub completion_s: Vec<f64>,
    pub wait_s: Vec<f64>,
    /// When it was over.
    pub end: Time,
}

/// A lease that is not over yet.
struct Open {
    stage: StageKey,
    placement: Arc<Placement>,
    from: Time,
    busy_s: f64,
    useful_s: f64,
}

#[derive(Default)]
struct Recorder {
    open: BTreeMap<LeaseId, Open>,
    spans: Vec<Span>,
    waiting: Vec<(Time, usize)>,
    decisions: Vec<Decided>,
}

/// Plays a scenario under a policy, and keeps what happened.
///
/// # Errors
/// When the policy breaks a law that the check knows, or the scenario never ends.
pub fn record(scenario: &Scenario, policy: &'static dyn Policy) -> Result<Recording, PlayError> {
    let began = std::time::Instant::now();
    let mut tally = Tally::default();
    let mut recorder = Recorder::default();
    let control = play_timed(scenario, policy, (), |turn, took, state| {
        tally.count(turn, took);
        recorder.see(turn, state);
    })?;
    let state = control.state();
    let outcome = tally.sum_up(scenario, policy.name(), state, began.elapsed());
    let jobs = || state.jobs().values();
    let completion_s = jobs().filter_map(|job| Some(job.end?.0.since(job.submitted).as_seconds()));
    let wait_s = jobs().filter_map(|job| {
        let first = job.stages.iter().filter_map(|stage| stage.first_started).min()?;
        Some(first.since(job.submitted).as_seconds())
    });
    let end = jobs().filter_map(|job| Some(job.end?.0)).max().unwrap_or_default();
    Ok(Recording {
        outcome,
        completion_s: completion_s.collect(),
        wait_s: wait_s.collect(),
        end,
        spans: recorder.spans,
        waiting: recorder.waiting,
        decisions: recorder.decisions,
    })
}

impl Recorder {
    fn see(&mut self, turn: &Turn, state: &State) {
        for (at, event) in &turn.events {
            match event {
                Event::PlanCommitted { plan } => {
                    plan.actions.iter().for_each(|action| self.action(*at, action));
                    for (stage, reasons) in &plan.waits {
                        self.decided(*at, *stage, Decision::Wait { reasons: reasons.clone() });
                    }
                }
                Event::Progressed { lease, progress } => {
                    if let Some(open) = self.open.get_mut(lease) {
                        let (busy, useful) = progress.device_time(&open.placement);
                        let units = f64::from(open.placement.units().max(1));
                        open.busy_s = open.busy_s.max(busy.device_seconds() / units);
                        open.useful_s = open.useful_s.max(useful.device_seconds() / units);
                    }
                }
                Event::StageEnded { lease, .. } => self.close(*lease, *at, state),
                _ => {}
            }
        }
        let now = turn.events.last().map(|(at, _)| *at);
        let waiting = state.waiting_count();
        if let Some(at) = now.filter(|_| self.waiting.last().is_none_or(|(_, n)| *n != waiting)) {
            self.waiting.push((at, waiting));
        }
    }

    fn action(&mut self, at: Time, action: &Action) {
        match action {
            Action::Start { lease, stage, placement, reasons, .. } => {
                let open = Open {
                    stage: *stage,
                    placement: Arc::clone(placement),
                    from: at,
                    busy_s: 0.0,
                    useful_s: 0.0,
                };
                self.open.insert(*lease, open);
                let (placement, reasons) = (Arc::clone(placement), reasons.clone());
                self.decided(at, *stage, Decision::Start { placement, reasons });
            }
            Action::Stop { lease, cause, cost, .. } => {
                let Some(stage) = self.open.get(lease).map(|open| open.stage) else { return };
                let cost_device_s = cost.map(|cost| cost.cost.device_seconds());
                self.decided(at, stage, Decision::Stop { cause: *cause, cost_device_s });
            }
            Action::Claim { .. }
            | Action::Unclaim { .. }
            | Action::Prepare { .. }
            | Action::Unprepare { .. } => {}
        }
    }

    fn decided(&mut self, at: Time, stage: StageKey, what: Decision) {
        self.decisions.push(Decided { at, stage, what });
    }

    fn close(&mut self, lease: LeaseId, at: Time, state: &State) {
        let Some(open) = self.open.remove(&lease) else { return };
        let seconds = at.since(open.from).as_seconds().max(1e-3);
        let tenant = state.job(open.stage.job).map(|job| job.spec.tenant.clone());
        self.spans.push(Span {
            stage: open.stage,
            tenant: tenant.unwrap_or_default(),
            placement: open.placement,
            from: open.from,
            to: at,
            busy: (open.busy_s / seconds).min(1.0),
            useful: (open.useful_s / seconds).min(1.0),
        });
    }
}
