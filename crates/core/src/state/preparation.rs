//! What is begun for stages while the devices that they wait for are still in use.

use std::sync::Arc;

use super::State;
use crate::{Action, Checkpoint, LeaseId, Placement, PreparationEnd, StageKey, StageSpec, Time};

/// What was begun for a waiting stage before it has devices: its inputs are read, and its program
/// may be running up to where it needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preparation {
    /// The lease of the start that goes on with it.
    pub lease: LeaseId,
    /// Where it is likely to start. It holds nothing of it.
    pub placement: Arc<Placement>,
    /// The checkpoint that its program was told to resume from.
    pub resume: Option<Checkpoint>,
    pub since: Time,
    pub outcome: PreparationOutcome,
}

/// Whether a preparation is still of use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreparationOutcome {
    Pending,
    /// The engine could not begin it, or its program ended before it had devices, and why. The
    /// stage starts without it, and no other is made until then.
    Failed {
        reason: String,
    },
}

impl Preparation {
    /// Whether a start of the stage at a placement goes on with it: the same program, on the same
    /// node, from the same checkpoint.
    pub fn serves(
        &self,
        spec: &StageSpec,
        placement: &Placement,
        resume: Option<&Checkpoint>,
    ) -> bool {
        let ranks = |placement: &Placement| -> Vec<_> {
            placement.ranks.iter().map(|rank| (rank.node, rank.host)).collect()
        };
        let of = |placement: &Placement| &spec.alternatives[placement.alternative];
        let (ours, theirs) = (of(&self.placement), of(placement));
        let same_program = self.placement.alternative == placement.alternative
            || (ours.launch == theirs.launch && ours.launch.elastic.is_none());
        self.outcome == PreparationOutcome::Pending
            && same_program
            && self.resume.as_ref() == resume
            && ranks(&self.placement) == ranks(placement)
    }
}

impl StageSpec {
    /// Whether anything of it can be done before it has devices.
    pub fn is_preparable(&self) -> bool {
        let launches = self.alternatives.iter().map(|alternative| &alternative.launch);
        launches.into_iter().any(|launch| {
            launch.warm || !launch.inputs.is_empty() || !launch.seen_inputs.is_empty()
        })
    }
}

impl State {
    /// What was begun for stages that have no devices yet.
    pub fn preparations(&self) -> impl Iterator<Item = (StageKey, &Preparation)> + '_ {
        self.preparations.iter().map(|(key, preparation)| (*key, preparation))
    }

    pub fn preparation(&self, key: StageKey) -> Option<&Preparation> {
        self.preparations.get(&key)
    }

    /// Stages that wait and of which something can be done before they have devices.
    pub fn preparable(&self) -> impl Iterator<Item = StageKey> + '_ {
        self.preparable.iter().copied()
    }

    pub(super) fn prepare(&mut self, action: &Action) {
        let Action::Prepare { lease, stage, placement, resume, .. } = action else { return };
        self.draw_lease(*lease);
        let preparation = Preparation {
            lease: *lease,
            placement: Arc::clone(placement),
            resume: resume.clone(),
            since: self.now,
            outcome: PreparationOutcome::Pending,
        };
        self.preparations.insert(*stage, preparation);
    }

    pub(super) fn unprepare(&mut self, key: StageKey) {
        self.preparations.remove(&key);
    }

    /// A start that goes on with the preparation of its stage has its lease.
    pub(super) fn draw_lease_of_start(&mut self, id: LeaseId, key: StageKey) {
        if self.preparations.remove(&key).is_none_or(|preparation| preparation.lease != id) {
            self.draw_lease(id);
        }
    }

    fn draw_lease(&mut self, id: LeaseId) {
        assert!(id >= self.next_lease, "lease {id} was used before");
        self.next_lease = LeaseId(id.0 + 1);
    }

    pub(super) fn preparation_ended(&mut self, id: LeaseId, end: &PreparationEnd) {
        match end {
            PreparationEnd::Lost => self.preparations.retain(|_, of| of.lease != id),
            PreparationEnd::Failed { reason } => {
                let mut all = self.preparations.values_mut();
                if let Some(preparation) = all.find(|preparation| preparation.lease == id) {
                    let reason = reason.clone();
                    preparation.outcome = PreparationOutcome::Failed { reason };
                }
            }
        }
    }
}
