//! One turn of the loop.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use het_core::{Event, Finding, JobId, Millis, Plan, State, Time};
use het_engine::{Engine, Waker};
use het_perf::Rates;
use het_policy::{Cache, Cadence, Policy, View};
use het_scheduler::{Proposal, propose};
use thiserror::Error;

use crate::learn;
use crate::{Log, LogError, Past};

/// Facts taken in before a decision is made; the rest wait for the next turn, so that a storm of
/// events cannot keep decisions from being made.
const BATCH_MAX: usize = 4_096;

/// Decisions in one turn. Each sees what the one before it started; a settled state needs an empty
/// one.
const DECISIONS_MAX: usize = 4;

/// Why the loop stopped.
#[derive(Debug, Error)]
pub enum ControlError {
    #[error(transparent)]
    Log(#[from] LogError),
    /// A defect of the policy: its plan was not committed, but the facts before it were.
    #[error("policy `{policy}` made a plan that breaks a law: {findings:?}")]
    BrokenLaw { policy: &'static str, findings: Vec<Finding> },
}

/// How many ended jobs the state keeps before the oldest of them leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retention {
    #[default]
    All,
    Newest(usize),
}

/// What one turn brought.
#[derive(Debug, Default)]
pub struct Turn {
    /// Its durable events, in order.
    pub events: Vec<(Time, Event)>,
    /// How often the policy was asked, and how long it took altogether by the engine's clock.
    pub decisions: usize,
    pub decided_in: Millis,
}

/// Which events of a turn stay true where the turn is not made durable: those before `end` but for
/// `others`, which are what callers wanted and what followed from the state.
struct Facts {
    others: Range<usize>,
    end: usize,
}

/// State, policy, log and engine, tied into a loop without threads.
pub struct Controller<E, L> {
    state: State,
    rates: Rates,
    policy: &'static dyn Policy,
    cache: Cache,
    cadence: Cadence,
    retention: Retention,
    /// Jobs that have ended, in that order, where not all are kept.
    ended: VecDeque<JobId>,
    /// The boundary of the present round.
    boundary: Option<Time>,
    engine: E,
    log: L,
    /// Facts from outside the engine, for the next turn.
    accepted: Vec<Event>,
    /// What callers want changed, for the next turn.
    requested: Vec<Event>,
    /// What the engine reported and no turn has made durable yet.
    heard: Vec<(Time, Event)>,
    wake_at: Option<Time>,
    /// A decision was made: without news or a wake-up the next would be the same.
    has_looked: bool,
}

impl<E: Engine, L: Log> Controller<E, L> {
    pub fn new(
        state: State,
        rates: Rates,
        policy: &'static dyn Policy,
        mut engine: E,
        log: L,
    ) -> Self {
        engine.topology_changed(state.topology());
        Self {
            state,
            rates,
            policy,
            cache: Cache::default(),
            cadence: Cadence::default(),
            retention: Retention::All,
            ended: VecDeque::new(),
            boundary: None,
            engine,
            log,
            accepted: Vec::new(),
            requested: Vec::new(),
            heard: Vec::new(),
            wake_at: None,
            has_looked: false,
        }
    }

    /// Decides at this cadence.
    #[must_use]
    pub fn with_cadence(self, cadence: Cadence) -> Self {
        Self { cadence, ..self }
    }

    /// Lets ended jobs leave the state, at the earliest one turn after that in which they ended.
    #[must_use]
    pub fn with_retention(self, retention: Retention) -> Self {
        let ended = ended(&self.state, retention);
        Self { retention, ended, ..self }
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// A copy of both, as the log has them between two turns.
    pub fn past(&self) -> Past {
        Past { state: self.state.clone(), rates: self.rates.clone() }
    }

    pub fn policy(&self) -> &'static dyn Policy {
        self.policy
    }

    pub fn cadence(&self) -> Cadence {
        self.cadence
    }

    /// Ends a wait for facts from another thread.
    pub fn waker(&mut self) -> Waker {
        self.engine.waker()
    }

    /// Has the engine take up what runs according to the state.
    pub fn adopt(&mut self) {
        self.engine.adopt(&self.state);
    }

    /// The engine's present.
    pub fn now(&self) -> Time {
        self.engine.now()
    }

    pub fn log(&self) -> &L {
        &self.log
    }

    /// The log, to give it what belongs beside the events of the next turn.
    pub fn log_mut(&mut self) -> &mut L {
        &mut self.log
    }

    /// The engine alone, once nothing is to be decided any more.
    pub fn into_engine(self) -> E {
        self.engine
    }

    /// When the next decision is due, or a job may begin, even if nothing happens.
    pub fn wake_at(&self) -> Option<Time> {
        let decision = match self.cadence {
            Cadence::EveryEvent { .. } => self.wake_at,
            Cadence::Rounds(_) if self.is_idle() => None,
            Cadence::Rounds(every) => self.boundary.map(|boundary| boundary + every),
        };
        [decision, self.state.next_eligible()].into_iter().flatten().min()
    }

    /// Takes in a fact from outside the engine, for the next turn.
    pub fn accept(&mut self, event: Event) {
        self.accepted.push(event);
    }

    /// Takes in what a caller wants changed, for the next turn. Unlike a fact it never was where
    /// that turn cannot be made durable.
    pub fn request(&mut self, event: Event) {
        self.requested.push(event);
    }

    /// Undoes a turn whose events could not be made durable, as if it had never been: `past` is
    /// what the log adds up to. Facts are part of the next turn; changes and decisions are gone.
    pub fn roll_back(&mut self, Past { state, rates }: Past) {
        self.ended = ended(&state, self.retention);
        self.state = state;
        self.rates = rates;
        self.cache = Cache::default();
        self.boundary = None;
        self.wake_at = None;
        self.has_looked = false;
        self.engine.topology_changed(self.state.topology());
    }

    /// Waits for facts until `until`, and keeps them for the next turn: what there is to do while
    /// the log cannot be written. Of each lease the newest progress is kept.
    pub fn listen(&mut self, until: Time) {
        let mut event = self.engine.next_event(Some(until));
        while let Some((at, fact)) = event {
            hear(&mut self.heard, at, fact);
            event = self.engine.next_event(Some(self.engine.now()));
        }
    }

    /// Whether there are facts that more than the newest progress would be lost with.
    pub fn has_heard(&self) -> bool {
        let is_progress = |event: &Event| matches!(event, Event::Progressed { .. });
        !self.accepted.is_empty() || !self.heard.iter().all(|(_, event)| is_progress(event))
    }

    /// Makes the facts durable that are kept, and decides nothing: where there is little room in
    /// the log, it is for how things ended.
    ///
    /// # Errors
    /// When the log cannot be written: nothing is changed then, and the facts are kept.
    pub fn record(&mut self) -> Result<Turn, ControlError> {
        let events = self.take_facts();
        if let Err(error) = self.log.append(&events) {
            self.heard = events;
            return Err(error.into());
        }
        events.iter().for_each(|(at, event)| self.apply(*at, event));
        self.engine.committed();
        Ok(Turn { events, ..Turn::default() })
    }

    /// Waits for facts until `until` or the policy's wake-up, decides, and commits everything in
    /// one batch before the engine sees any of it.
    ///
    /// # Errors
    /// When the log cannot be written or the policy breaks a law; nothing was submitted then. After
    /// the first, [`Controller::roll_back`] has to follow before anything else is done.
    pub fn turn(&mut self, until: Option<Time>) -> Result<Turn, ControlError> {
        let (mut events, own) = self.gather(until);
        let revision = self.rates.revision();
        let slow = self.state.slow_devices().count();
        let mut is_news = !self.has_looked;
        for (at, event) in &events {
            is_news |= self.is_news(event);
            self.apply(*at, event);
        }
        let now = self.engine.now();
        is_news |= self.rates.revision() != revision;
        is_news |= self.state.slow_devices().count() != slow;
        if !is_news && self.wake_at().is_none_or(|at| now < at) {
            if !events.is_empty() {
                events = self.commit(events, Vec::new(), own)?;
            }
            return Ok(Turn { events, ..Turn::default() });
        }
        self.has_looked = true;
        let mut plans = Vec::new();
        let mut decisions = 0;
        while decisions < DECISIONS_MAX && self.is_due(now) {
            decisions += 1;
            let proposal = self.propose(now);
            if !proposal.findings.is_empty() {
                self.commit(events, plans, own)?;
                let findings = proposal.findings;
                return Err(ControlError::BrokenLaw { policy: self.policy.name(), findings });
            }
            self.wake_at = proposal.wake_at;
            let acts = !proposal.plan.is_empty();
            for event in proposal.into_events() {
                self.state.apply(now, &event);
                if let Event::PlanCommitted { plan } = &event {
                    plans.push(Arc::clone(plan));
                }
                events.push((now, event));
            }
            if !acts || self.is_settled() {
                break;
            }
        }
        let decided_in = Millis(self.engine.now().0.saturating_sub(now.0));
        let events = self.commit(events, plans, own)?;
        Ok(Turn { events, decisions, decided_in })
    }

    /// Whether a fact that is not applied yet may change what should be. A report of progress does
    /// not, unless it says for the first time how far there is to go; or speeds are known better
    /// by it.
    fn is_news(&self, event: &Event) -> bool {
        let Event::Progressed { lease, progress } = event else { return true };
        let Some(lease) = self.state.leases().get(lease) else { return false };
        let known = self.state.stage(lease.stage).2.progress.total;
        progress.total.is_some_and(|total| known != Some(total))
    }

    fn apply(&mut self, at: Time, event: &Event) {
        learn::from_event(&mut self.rates, &self.state, at, event);
        let job = self.ends_job(event);
        self.state.apply(at, event);
        if let Event::NodesJoined { .. } = event {
            // What is kept from decision to decision is kept by row.
            self.cache = Cache::default();
            self.engine.topology_changed(self.state.topology());
        }
        let ended = job.filter(|&id| self.state.job(id).is_some_and(|job| job.end.is_some()));
        self.ended.extend(ended);
    }

    /// The job that may end by an event, where ends are kept account of.
    fn ends_job(&self, event: &Event) -> Option<JobId> {
        if self.retention == Retention::All {
            return None;
        }
        let id = match event {
            Event::StageEnded { lease, .. } => self.state.leases().get(lease)?.stage.job,
            Event::JobCancelled { job }
            | Event::DependencyFailed { job }
            | Event::JobSubmitted { job, .. } => *job,
            _ => return None,
        };
        let has_ended = self.state.job(id).is_some_and(|job| job.end.is_some());
        (!has_ended).then_some(id)
    }

    /// Makes the turn durable, and only then real; gives its events back. Where it cannot be made
    /// durable, the facts among them are kept.
    fn commit(
        &mut self,
        mut events: Vec<(Time, Event)>,
        plans: Vec<Arc<Plan>>,
        facts: Facts,
    ) -> Result<Vec<(Time, Event)>, ControlError> {
        if let Err(error) = self.log.append(&events) {
            events.truncate(facts.end);
            events.drain(facts.others);
            events.append(&mut self.heard);
            self.heard = events;
            return Err(error.into());
        }
        self.engine.committed();
        plans.iter().for_each(|plan| self.engine.submit(plan));
        Ok(events)
    }

    fn propose(&mut self, now: Time) -> Proposal {
        let Self { state, rates, cadence, .. } = self;
        let view = View { state, rates, now, cadence: *cadence };
        propose(&view, self.policy, &mut self.cache)
    }

    /// Nobody runs or waits: only an event can bring work.
    fn is_idle(&self) -> bool {
        self.state.leases().is_empty() && self.state.waiting_count() == 0
    }

    /// Whether another look could bring nothing: nobody waits, and nobody's time runs out.
    fn is_settled(&self) -> bool {
        self.state.waiting().next().is_none() && self.state.limited_jobs().next().is_none()
    }

    /// Whether a decision may be made now; opens the next round where its time has come.
    fn is_due(&mut self, now: Time) -> bool {
        let Cadence::Rounds(every) = self.cadence else { return true };
        let over = self.boundary.is_none_or(|boundary| now >= boundary + every);
        if over || self.state.leases().is_empty() {
            self.boundary = Some(now);
        }
        self.boundary == Some(now)
    }

    /// Facts about start conditions that are due.
    fn eligibility_events(&self) -> Vec<(Time, Event)> {
        let now = self.engine.now();
        self.state.eligibility_events(now).into_iter().map(|event| (now, event)).collect()
    }

    /// What a turn begins with, and which of it are facts.
    fn gather(&mut self, until: Option<Time>) -> (Vec<(Time, Event)>, Facts) {
        let mut events = self.take_facts();
        let mut first = events.len();
        let now = self.engine.now();
        events.extend(self.requested.drain(..).map(|event| (now, event)));
        if let Retention::Newest(kept) = self.retention {
            let leaving = self.ended.drain(..self.ended.len().saturating_sub(kept));
            events.extend(leaving.map(|job| (now, Event::JobRetired { job })));
        }
        events.extend(self.eligibility_events());
        if events.is_empty() {
            let wake = [until, self.wake_at()].into_iter().flatten().min();
            events.extend(self.engine.next_event(wake));
            first = events.len();
            events.extend(self.eligibility_events());
        }
        let others = first..events.len();
        while events.len() < BATCH_MAX
            && let Some(event) = self.engine.next_event(Some(self.engine.now()))
        {
            events.push(event);
        }
        let end = events.len();
        (events, Facts { others, end })
    }

    fn take_facts(&mut self) -> Vec<(Time, Event)> {
        let now = self.engine.now();
        let mut facts = std::mem::take(&mut self.heard);
        facts.extend(self.accepted.drain(..).map(|event| (now, event)));
        facts
    }
}

/// Jobs of a state that have ended, in that order, where not all are kept.
fn ended(state: &State, retention: Retention) -> VecDeque<JobId> {
    if retention == Retention::All {
        return VecDeque::new();
    }
    let ended = state.jobs().iter().filter_map(|(&id, job)| job.end.map(|(at, _)| (at, id)));
    let mut ended: Vec<(Time, JobId)> = ended.collect();
    ended.sort_unstable();
    ended.into_iter().map(|(_, id)| id).collect()
}

/// Keeps a fact; of the progress of a lease only what it adds up to.
fn hear(heard: &mut Vec<(Time, Event)>, at: Time, mut fact: Event) {
    if let Event::Progressed { lease, progress } = &mut fact {
        let is_older = |(_, event): &(Time, Event)| match event {
            Event::Progressed { lease: other, .. } => other == lease,
            _ => false,
        };
        if let Some(place) = heard.iter().rposition(is_older)
            && let (_, Event::Progressed { progress: mut sum, .. }) = heard.remove(place)
        {
            sum.merge(progress);
            *progress = sum;
        }
    }
    heard.push((at, fact));
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
