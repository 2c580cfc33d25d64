//! One turn of the loop.

use std::sync::Arc;

use het_core::{Event, Finding, State, Time};
use het_engine::Engine;
use het_perf::Rates;
use het_policy::Policy;
use het_scheduler::round;
use thiserror::Error;

use crate::learn;
use crate::{Log, LogError};

/// Facts taken in before a round is held; the rest wait for the next turn, so that a storm of
/// events cannot keep decisions from being made.
const BATCH_MAX: usize = 256;

/// Rounds in one turn. A round sees what the one before it started; a settled state needs one empty
/// round.
const ROUNDS_MAX: usize = 4;

/// Why the loop stopped.
#[derive(Debug, Error)]
pub enum ControlError {
    #[error(transparent)]
    Log(#[from] LogError),
    /// A defect of the policy: its plan was not committed.
    #[error("policy `{policy}` made a plan that breaks a law: {findings:?}")]
    BrokenLaw { policy: &'static str, findings: Vec<Finding> },
}

/// What one turn brought: its durable events, in order.
#[derive(Debug, Default)]
pub struct Turn {
    pub events: Vec<(Time, Event)>,
}

/// State, policy, log and engine, tied into a loop without threads.
pub struct Controller<E, L> {
    state: State,
    rates: Rates,
    policy: Arc<dyn Policy>,
    engine: E,
    log: L,
    accepted: Vec<Event>,
    wake_at: Option<Time>,
}

impl<E: Engine, L: Log> Controller<E, L> {
    pub fn new(state: State, rates: Rates, policy: Arc<dyn Policy>, engine: E, log: L) -> Self {
        let wake_at = None;
        Self { state, rates, policy, engine, log, accepted: Vec::new(), wake_at }
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// The engine's present.
    pub fn now(&self) -> Time {
        self.engine.now()
    }

    pub fn log(&self) -> &L {
        &self.log
    }

    /// When the policy wants to be asked again.
    pub fn wake_at(&self) -> Option<Time> {
        self.wake_at
    }

    /// Takes in a fact from outside the engine, for the next turn.
    pub fn accept(&mut self, event: Event) {
        self.accepted.push(event);
    }

    /// Waits for facts until `until` or the policy's wake-up, decides, and commits everything in
    /// one batch before the engine sees any of it.
    ///
    /// # Errors
    /// When the log cannot be written or the policy breaks a law; nothing was submitted then.
    pub fn turn(&mut self, until: Option<Time>) -> Result<Turn, ControlError> {
        let mut events = self.gather(until);
        for (at, event) in &events {
            learn::from_event(&mut self.rates, &self.state, *at, event);
            self.state.apply(*at, event);
        }
        let now = self.engine.now();
        let mut plans = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let round = round(&self.state, &*self.policy, &self.rates, now);
            if !round.findings.is_empty() {
                let findings = round.findings;
                return Err(ControlError::BrokenLaw { policy: self.policy.name(), findings });
            }
            self.wake_at = round.wake_at;
            if round.plan.is_empty() {
                break;
            }
            let plan = Arc::new(round.plan);
            let committed = Event::PlanCommitted { plan: Arc::clone(&plan) };
            self.state.apply(now, &committed);
            events.push((now, committed));
            plans.push(plan);
        }
        self.log.append(&events)?;
        for plan in plans {
            self.engine.submit(&plan);
        }
        Ok(Turn { events })
    }

    fn gather(&mut self, until: Option<Time>) -> Vec<(Time, Event)> {
        let now = self.engine.now();
        let mut events: Vec<_> = self.accepted.drain(..).map(|event| (now, event)).collect();
        if events.is_empty() {
            let wake = [until, self.wake_at].into_iter().flatten().min();
            events.extend(self.engine.next_event(wake));
        }
        while events.len() < BATCH_MAX
            && let Some(event) = self.engine.next_event(Some(self.engine.now()))
        {
            events.push(event);
        }
        events
    }
}

impl<E: std::fmt::Debug, L: std::fmt::Debug> std::fmt::Debug for Controller<E, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("policy", &self.policy.name())
            .field("engine", &self.engine)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}
