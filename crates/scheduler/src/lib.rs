//! One round: what should be becomes what to do.
//!
//! Knows: how a decision is reconciled with the state into a plan, the check of every plan against
//! the laws, and how to explain one stage's fate.
//! Must never know: threads, async, storage, or which engine acts.

mod check;
mod explain;
mod reconcile;
mod yielding;

pub use check::check;
pub use explain::{Blocker, Explanation, Holder, Situation, WhatIf, explain};
pub use reconcile::reconcile;
pub use yielding::{Yielding, yielding};

use het_core::{Finding, Plan, Time};
use het_policy::{Memory, Policy, View};

/// What one round came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Round {
    pub plan: Plan,
    /// Broken laws; a plan with any must not be committed.
    pub findings: Vec<Finding>,
    /// When to hold the next round even if nothing happens.
    pub wake_at: Option<Time>,
}

/// Decides, reconciles and checks.
pub fn round(view: &View<'_>, policy: &dyn Policy, memory: &mut Memory) -> Round {
    let View { state, now, .. } = *view;
    let mut decision = policy.decide(view, memory);
    yielding::heed(view, &mut decision);
    let plan = reconcile(state, &decision, now);
    let findings = check(state, &plan);
    let limits = reconcile::time_limits(state).map(|(_, at)| at).filter(|at| *at > now);
    let wake_at = limits.chain(decision.wake_at).min();
    Round { plan, findings, wake_at }
}
