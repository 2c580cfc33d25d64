//! The smallest engine that obeys the contract: scripted stages in virtual time.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{
    Action, Event, Failure, Generation, LeaseId, Millis, Outcome, Phase, Plan, StageKey, State,
    Time,
};

use crate::Engine;

/// What the program of a stage does, as far as the contract can see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// Ends its work after this long.
    Finish(Millis),
    /// Works until it is stopped, and obeys a notice at once.
    UntilNotice,
    /// Works on and ignores every notice.
    Deaf,
    /// One rank exits with this code after this long; the other ranks would go on.
    Fail(Millis, i32),
}

/// An engine that runs [`Script`]s. A stage without a script finishes at once.
#[derive(Debug, Default)]
pub struct Fake {
    scripts: BTreeMap<StageKey, Script>,
    now: Time,
    generation: Generation,
    live: BTreeMap<LeaseId, Script>,
    /// In order of time, then lease, then position in a lease's life.
    queue: BTreeSet<(Time, LeaseId, u8)>,
    endings: BTreeMap<LeaseId, Outcome>,
    /// Ends that were reported and may not be durable yet.
    uncommitted: Vec<(LeaseId, Outcome)>,
}

const STARTED: u8 = 0;
const ENDED: u8 = 1;

impl Fake {
    pub fn new(scripts: impl IntoIterator<Item = (StageKey, Script)>) -> Self {
        Self { scripts: scripts.into_iter().collect(), ..Self::default() }
    }

    fn start(&mut self, lease: LeaseId, stage: StageKey) {
        let script = self.scripts.get(&stage).copied().unwrap_or(Script::Finish(Millis(0)));
        self.live.insert(lease, script);
        self.queue.insert((self.now, lease, STARTED));
        match script {
            Script::Finish(after) => self.end_at(self.now + after, lease, Outcome::Finished),
            Script::Fail(after, exit_code) => {
                let failure = Failure { rank: 0, exit_code, message: "scripted".to_owned() };
                self.end_at(self.now + after, lease, Outcome::Failed(failure));
            }
            Script::UntilNotice | Script::Deaf => {}
        }
    }

    fn stop(&mut self, lease: LeaseId, grace: Millis) {
        let wait = match self.live.get(&lease) {
            Some(Script::Deaf) => grace,
            Some(_) => Millis(0),
            None => return,
        };
        self.end_at(self.now + wait, lease, Outcome::Stopped);
    }

    fn end_at(&mut self, at: Time, lease: LeaseId, outcome: Outcome) {
        self.queue.retain(|&(_, other, part)| (other, part) != (lease, ENDED));
        self.queue.insert((at, lease, ENDED));
        self.endings.insert(lease, outcome);
    }
}

impl Engine for Fake {
    fn adopt(&mut self, state: &State) {
        self.generation = state.generation();
        for (lease, outcome) in std::mem::take(&mut self.uncommitted) {
            self.end_at(self.now, lease, outcome);
        }
        for (&lease, held) in state.leases() {
            if self.live.contains_key(&lease) {
                if held.phase == Phase::Starting {
                    self.queue.insert((self.now, lease, STARTED));
                }
            } else if held.phase == Phase::Starting {
                self.start(lease, held.stage);
            } else if !self.endings.contains_key(&lease) {
                self.end_at(self.now, lease, Outcome::Lost);
            }
            if held.phase.is_stopping() {
                self.stop(lease, Millis(0));
            }
        }
        let known = |lease: &LeaseId| state.leases().contains_key(lease);
        self.live.retain(|lease, _| known(lease));
        self.endings.retain(|lease, _| known(lease));
        self.queue.retain(|(_, lease, _)| known(lease));
    }

    fn submit(&mut self, plan: &Plan) {
        if plan.generation <= self.generation {
            return;
        }
        self.generation = plan.generation;
        for action in &plan.actions {
            match action {
                Action::Start { lease, stage, .. } => self.start(*lease, *stage),
                Action::Stop { lease, grace, .. } => self.stop(*lease, *grace),
                Action::Claim { .. } | Action::Unclaim { .. } => {}
            }
        }
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        let due = self.queue.first().copied().filter(|&(at, ..)| until.is_none_or(|u| at <= u));
        let Some((at, lease, part)) = due else {
            self.now = self.now.max(until.unwrap_or(self.now));
            return None;
        };
        self.queue.pop_first();
        self.now = at;
        if part == STARTED {
            return Some((at, Event::StageStarted { lease }));
        }
        self.live.remove(&lease);
        let outcome = self.endings.remove(&lease).expect("an ending is stored with its row");
        self.uncommitted.push((lease, outcome.clone()));
        Some((at, Event::StageEnded { lease, outcome }))
    }

    fn committed(&mut self) {
        self.uncommitted.clear();
    }

    fn now(&self) -> Time {
        self.now
    }
}
