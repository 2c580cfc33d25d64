//! One decision: what should be becomes what to do.
//!
//! Knows: how a decision is reconciled with the state into a plan, the check of every plan against
//! the laws, and how to explain one stage's fate.
//! Must never know: threads, async, storage, or which engine acts.

mod check;
mod explain;
mod impossible;
mod prepare;
mod preview;
mod reconcile;
mod yielding;

pub use check::check;
pub use explain::{Blocker, Explanation, Holder, PassedOver, Situation, WhatIf, explain};
pub use impossible::{Impossible, Remedy, impossible};
pub use preview::{Outlook, Preview, Stopping, preview};
pub use reconcile::reconcile;
pub use yielding::{Yielding, yielding};

use std::sync::Arc;

use het_core::{Event, Finding, Plan, PolicyMemory, StageKey, Time};
use het_policy::{Cache, Decision, Policy, View, on_suspected};

/// What one decision came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    pub plan: Plan,
    /// Broken laws; a plan with any must not be committed.
    pub findings: Vec<Finding>,
    /// What the next decision needs to know beside the state, where that has changed.
    pub remembers: Option<Arc<PolicyMemory>>,
    /// When to decide again even if nothing happens.
    pub wake_at: Option<Time>,
}

impl Proposal {
    /// What is to be committed, in this order.
    pub fn into_events(self) -> impl Iterator<Item = Event> {
        let plan = (!self.plan.is_empty()).then(|| Arc::new(self.plan));
        let plan = plan.map(|plan| Event::PlanCommitted { plan });
        let memory = self.remembers.map(|memory| Event::PolicyRemembered { memory });
        plan.into_iter().chain(memory)
    }
}

/// Decides, reconciles and checks.
pub fn propose(view: &View<'_>, policy: &dyn Policy, cache: &mut Cache) -> Proposal {
    settle(view, policy.decide(view, cache))
}

/// What a decision comes to.
fn settle(view: &View<'_>, mut decision: Decision) -> Proposal {
    let View { state, rates, now, .. } = *view;
    yielding::heed(view, &mut decision);
    let given = on_suspected(view, &decision);
    let is_given = |key: &StageKey| given.iter().any(|(of, _)| of == key);
    decision.wants.retain(|(key, _)| !is_given(key));
    decision.wants.extend(given);
    let mut plan = reconcile(state, rates, &decision, now);
    prepare::prepare(view, &decision, &mut plan);
    let findings = check(state, &plan, now);
    let limits = reconcile::time_limits(state).map(|(_, at)| at).filter(|at| *at > now);
    let wake_at = limits.chain(decision.wake_at).min();
    Proposal { plan, findings, remembers: decision.remembers, wake_at }
}
