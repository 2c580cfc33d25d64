//! Plays a scenario through the control loop to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use het_control::{ControlError, Controller, Log, Turn};
use het_core::{Event, JobId, State, Time};
use het_policy::Policy;
use het_sim::Sim;
use thiserror::Error;

use crate::Scenario;

/// Turns after which a scenario is taken for endless.
const TURNS_MAX: usize = 10_000_000;

/// Rounds in a row without an event after which those who wait will wait for ever.
const QUIET_ROUNDS_MAX: usize = 1_000;

/// Why a scenario did not reach its end.
#[derive(Debug, Error)]
pub enum DriveError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the scenario did not end within {TURNS_MAX} turns")]
    Endless,
}

/// Runs a scenario until nothing more can happen. `see` is shown every turn with the state after
/// it.
///
/// # Errors
/// When the policy breaks a law that the check knows, or the scenario never ends.
pub fn drive<L: Log>(
    scenario: &Scenario,
    policy: &'static dyn Policy,
    log: L,
    mut see: impl FnMut(&Turn, &State),
) -> Result<Controller<Sim, L>, DriveError> {
    observe(scenario, policy, log, |turn, _, state| see(turn, state))
}

/// The same; `see` is also told how long the turn really took.
pub(crate) fn observe<L: Log>(
    scenario: &Scenario,
    policy: &'static dyn Policy,
    log: L,
    mut see: impl FnMut(&Turn, Duration, &State),
) -> Result<Controller<Sim, L>, DriveError> {
    let topology = Arc::new(scenario.topology.clone());
    let faults = scenario.faults.iter().copied();
    let sim = Sim::new(Arc::clone(&topology), scenario.models.clone(), said(scenario), faults);
    let state = State::new(topology);
    let mut control = Controller::new(state, scenario.rates.clone(), policy, sim, log)
        .with_cadence(scenario.cadence);
    let mut quiet = 0;
    for _ in 0..TURNS_MAX {
        // Without a wake-up to wait for, a turn that brings nothing says that nothing is to come.
        let last = control.wake_at().is_none();
        let began = Instant::now();
        let turn = control.turn(None)?;
        see(&turn, began.elapsed(), control.state());
        quiet = if turn.events.is_empty() { quiet + 1 } else { 0 };
        if (last && quiet > 0) || quiet > QUIET_ROUNDS_MAX {
            return Ok(control);
        }
    }
    Err(DriveError::Endless)
}

/// Submits and other words of users, by time.
fn said(scenario: &Scenario) -> Vec<(Time, Event)> {
    let submits = scenario.jobs.iter().enumerate().map(|(index, (at, spec))| {
        let event = Event::JobSubmitted {
            job: JobId(index as u64 + 1),
            spec: Arc::clone(spec),
            succeeded: Vec::new(),
            checkpoints: Vec::new(),
        };
        (*at, event)
    });
    let mut rows: Vec<_> = submits.chain(scenario.words.iter().cloned()).collect();
    rows.sort_by_key(|(at, _)| *at);
    rows
}
