//! What a policy is shown and what it answers.

use std::sync::Arc;

use het_core::{
    Lease, LeaseId, Millis, Placement, PolicyMemory, Reason, StageKey, State, StopCause, StopCost,
    Time,
};
use het_perf::{Rates, stop_cost};

/// Everything a policy may look at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub state: &'a State,
    pub rates: &'a Rates,
    pub now: Time,
    pub cadence: Cadence,
}

/// When decisions are made, and how long equals are left alone by each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cadence {
    /// On every event. A running stage is left alone by its equals for its quantum; where that is
    /// not given it follows from what a stop costs.
    EveryEvent { quantum: Option<Millis> },
    /// At boundaries this far apart, as some published schedulers do, or earlier once nothing runs;
    /// what happens in between waits. A quantum is a round.
    Rounds(Millis),
}

impl Default for Cadence {
    fn default() -> Self {
        Self::EveryEvent { quantum: None }
    }
}

/// What should be. Active stages that are not mentioned go on as they are.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decision {
    /// In the order of the policy: every start and every claim, and every waiting stage about which
    /// there is something new to say. One that is not mentioned goes on waiting, without a claim,
    /// for the reasons that it has.
    pub wants: Vec<(StageKey, Want)>,
    pub stops: Vec<StopOrder>,
    /// The first of those who go on waiting, in the order in which they are looked at next, where
    /// something can be done for them before they have devices and the policy has such an order.
    pub next: Vec<StageKey>,
    /// What the next decision needs to know beside the state, where that has changed.
    pub remembers: Option<Arc<PolicyMemory>>,
    /// When to decide again even if nothing happens.
    pub wake_at: Option<Time>,
}

/// What a waiting stage is to get.
#[derive(Debug, Clone, PartialEq)]
pub enum Want {
    /// Run there: now, or as soon as the devices are free, which are claimed until then.
    Run {
        placement: Placement,
        reasons: Vec<Reason>,
    },
    Wait {
        reasons: Vec<Reason>,
    },
}

/// A running stage that is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopOrder {
    pub lease: LeaseId,
    pub cause: StopCause,
    pub cost: StopCost,
}

impl StopOrder {
    /// To stop `lease`, which is number `id`, at what that costs now.
    pub(crate) fn of(view: &View<'_>, id: LeaseId, lease: &Lease, cause: StopCause) -> Self {
        let (_, spec, stage) = view.state.stage(lease.stage);
        Self { lease: id, cause, cost: stop_cost(view.rates, spec, stage, lease, view.now) }
    }
}
