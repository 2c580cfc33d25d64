//! Plays a scenario through the control loop to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use het_control::{ControlError, Controller, Log, Turn};
use het_core::{Event, State};
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
pub enum PlayError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the scenario did not end within {TURNS_MAX} turns")]
    Endless,
}

/// Runs a scenario until nothing more can happen. `observe` gets every turn with the state after
/// it.
///
/// # Errors
/// When the policy breaks a law that the check knows, or the scenario never ends.
pub fn play<L: Log>(
    scenario: &Scenario,
    policy: &'static dyn Policy,
    log: L,
    mut observe: impl FnMut(&Turn, &State),
) -> Result<Controller<Sim, L>, PlayError> {
    play_timed(scenario, policy, log, |turn, _, state| observe(turn, state))
}

/// The same; `observe` also gets how long the turn really took.
///
/// # Errors
/// As [`play`].
pub fn play_timed<L: Log>(
    scenario: &Scenario,
    policy: &'static dyn Policy,
    log: L,
    mut observe: impl FnMut(&Turn, Duration, &State),
) -> Result<Controller<Sim, L>, PlayError> {
    let topology = Arc::new(scenario.topology.clone());
    let faults = scenario.faults.iter().cloned();
    let sim = Sim::new(Arc::clone(&topology), scenario.models.clone(), scenario.said(), faults);
    let state = State::new(topology);
    let mut control = Controller::new(state, scenario.rates.clone(), policy, sim, log)
        .with_cadence(scenario.cadence)
        .with_retention(scenario.retention);
    let mut quiet = 0;
    for _ in 0..TURNS_MAX {
        // Without a wake-up to wait for, a turn that brings nothing says that nothing is to come.
        let last = control.wake_at().is_none();
        let began = Instant::now();
        let turn = control.turn(None)?;
        observe(&turn, began.elapsed(), control.state());
        let only_remembers = |(_, event): &_| matches!(event, Event::PolicyRemembered { .. });
        let nothing = turn.events.iter().all(only_remembers);
        // A long stage may work through many rounds in silence.
        let at_work = !control.state().leases().is_empty();
        quiet = if nothing && !at_work { quiet + 1 } else { 0 };
        if (last && nothing) || quiet > QUIET_ROUNDS_MAX {
            return Ok(control);
        }
    }
    Err(PlayError::Endless)
}
