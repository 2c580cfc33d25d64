//! Decides again what a log says was decided.

use std::sync::Arc;

use het_core::{Event, Plan, PolicyMemory, Time};
use het_policy::{Cache, Cadence, Policy, View};
use het_scheduler::propose;

use crate::Past;

/// A decision that comes out differently from how it was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub at: Time,
    pub committed: Commit,
    pub decided: Commit,
}

/// What is committed of one decision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commit {
    pub plan: Option<Arc<Plan>>,
    pub memory: Option<Arc<PolicyMemory>>,
}

impl Commit {
    /// Takes in an event if it is the next part of the same decision.
    fn add(&mut self, event: &Event) -> bool {
        match event {
            Event::PlanCommitted { plan } if self.plan.is_none() && self.memory.is_none() => {
                self.plan = Some(Arc::clone(plan));
            }
            Event::PolicyRemembered { memory } if self.memory.is_none() => {
                self.memory = Some(Arc::clone(memory));
            }
            _ => return false,
        }
        true
    }
}

/// Decides anew before every decision in `events`, which follow on `past`, from the events before
/// it and nothing else. Also how many decisions there are.
pub fn redecide(
    mut past: Past,
    events: &[(Time, Event)],
    policy: &dyn Policy,
    cadence: Cadence,
) -> (usize, Vec<Difference>) {
    let (mut decisions, mut differences) = (0, Vec::new());
    let mut rest = events;
    while let Some((at, event)) = rest.first() {
        let mut committed = Commit::default();
        let parts = rest.iter().take_while(|(when, part)| when == at && committed.add(part));
        let parts = parts.count();
        if parts == 0 {
            past.apply(*at, event);
            rest = &rest[1..];
            continue;
        }
        let view = View { state: &past.state, rates: &past.rates, now: *at, cadence };
        let mut decided = Commit::default();
        for event in propose(&view, policy, &mut Cache::default()).into_events() {
            decided.add(&event);
        }
        decisions += 1;
        if decided != committed {
            differences.push(Difference { at: *at, committed, decided });
        }
        rest[..parts].iter().for_each(|(at, event)| past.apply(*at, event));
        rest = &rest[parts..];
    }
    (decisions, differences)
}
