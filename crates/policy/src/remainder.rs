//! What a decision leaves: free devices, and stages that wait for some.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use het_core::{Placement, StageKey, State};

use crate::tenants::Tenants;
use crate::{Decision, Pool, Want};

/// Waiting stages that are looked at, so that it stays short however long the queue is.
const LOOKS_MAX: usize = 256;

/// What is neither held nor claimed, less what a decision gives and what is given out since.
#[derive(Debug)]
pub struct Remainder<'a> {
    state: &'a State,
    pub pool: Pool<'a>,
    /// Where they have quotas.
    pub(crate) tenants: Option<Tenants<'a>>,
    served: BTreeSet<StageKey>,
}

impl<'a> Remainder<'a> {
    /// Of what a pool has beside all claims.
    pub fn of(pool: Pool<'a>, decision: &Decision) -> Self {
        let state = pool.state();
        let served = state.claims().keys().copied().collect();
        let mut remainder = Self { state, pool, tenants: Tenants::of(state), served };
        for (key, want) in &decision.wants {
            if let Want::Run { placement, .. } = want {
                if let Some(claim) = state.claims().get(key) {
                    remainder.take_back(*key, &claim.placement);
                }
                remainder.give(*key, placement);
            }
        }
        remainder
    }

    /// Whether a stage has a claim, or was given something.
    pub fn serves(&self, key: StageKey) -> bool {
        self.served.contains(&key)
    }

    pub fn give(&mut self, key: StageKey, placement: &Placement) {
        self.served.insert(key);
        self.pool.take(placement);
        let tenant = &self.state.stage(key).0.spec.tenant;
        self.tenants.iter_mut().for_each(|tenants| tenants.take(tenant, placement));
    }

    fn take_back(&mut self, key: StageKey, placement: &Placement) {
        self.pool.give_back(placement);
        let tenant = &self.state.stage(key).0.spec.tenant;
        self.tenants.iter_mut().for_each(|tenants| tenants.give_back(tenant, placement));
    }

    /// The first of those that wait for something and pass a test, by priority and by the time that
    /// they waited.
    pub fn waiting(&self, passes: impl Fn(StageKey) -> bool) -> Vec<StageKey> {
        let unserved = self.state.waiting().filter(|key| !self.serves(*key) && passes(*key));
        let mut first: Vec<StageKey> = unserved.collect();
        let order = |key: &StageKey| {
            let job = self.state.stage(*key).0;
            (Reverse(job.priority()), job.waiting_since(key.stage), *key)
        };
        if first.len() > LOOKS_MAX {
            first.select_nth_unstable_by_key(LOOKS_MAX, order);
            first.truncate(LOOKS_MAX);
        }
        first.sort_unstable_by_key(order);
        first
    }
}
