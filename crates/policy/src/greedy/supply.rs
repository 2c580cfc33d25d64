//! What is still to be had.

use std::collections::BTreeMap;

use het_core::{Placement, Reason, StageKey};

use crate::placement::AskId;
use crate::tenants::Tenants;
use crate::{Pool, View};

/// Whether anything of a footprint fits into the pool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Verdict {
    #[default]
    Unknown,
    /// It did when the pool had changed so often.
    Fits { changes: u64 },
    /// While the pool only shrinks that stays so.
    Unfit,
}

/// What is still to be had, and what was found out about it.
pub(super) struct Supply<'a> {
    pub pool: Pool<'a>,
    /// Where they have quotas.
    pub tenants: Option<Tenants<'a>>,
    /// What does not fit into the pool, on one class where one is named.
    pub unfit: BTreeMap<(AskId, Option<usize>), Reason>,
    /// Whether anything of a footprint fits, by its number.
    pub verdicts: Vec<Verdict>,
    /// Grows with every change of the pool.
    pub changes: u64,
    /// Units that stages wait for although others are free to them.
    pub ahead: u32,
}

impl<'a> Supply<'a> {
    pub fn of(view: &'a View<'a>, pool: Pool<'a>) -> Self {
        Self {
            pool,
            tenants: Tenants::of(view.state),
            unfit: BTreeMap::new(),
            verdicts: Vec::new(),
            changes: 0,
            ahead: 0,
        }
    }

    /// Uses a placement for a stage, or keeps it for it.
    pub fn take(&mut self, view: &View<'_>, key: StageKey, placement: &Placement) {
        self.changes += 1;
        self.pool.take(placement);
        if let Some(tenants) = &mut self.tenants {
            tenants.take(&view.state.stage(key).0.spec.tenant, placement);
        }
    }

    pub fn give_back(&mut self, view: &View<'_>, key: StageKey, placement: &Placement) {
        self.widen();
        self.pool.give_back(placement);
        if let Some(tenants) = &mut self.tenants {
            tenants.give_back(&view.state.stage(key).0.spec.tenant, placement);
        }
    }

    /// Something becomes free: what did not fit may do so now.
    pub fn widen(&mut self) {
        self.changes += 1;
        self.unfit.clear();
        self.verdicts.clear();
    }
}
