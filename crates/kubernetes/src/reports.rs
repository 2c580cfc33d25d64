//! What the ranks of a gang say of their progress, and what of that is passed on. No I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{Checkpoint, Event, LeaseId, Time};
use het_wire::progress::Tally;

use crate::objects::PodRow;

/// What the ranks of a gang say of their progress.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    tally: Tally,
    /// By rank: what each said last, and what of that was not passed on.
    last: BTreeMap<u32, Arc<str>>,
    pending: BTreeMap<u32, Arc<str>>,
    /// Nothing is passed on before, unless it ends.
    pub next: Time,
    /// It was passed on.
    checkpoint: Option<Checkpoint>,
}

impl Reports {
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn hear(&mut self, rank: u32, row: &PodRow) {
        if let Some(report) = &row.report
            && self.last.get(&rank) != Some(report)
        {
            self.last.insert(rank, Arc::clone(report));
            self.pending.insert(rank, Arc::clone(report));
        }
    }

    /// What is to be passed on of a lease. A rank names its newest checkpoint again and again.
    pub fn take(&mut self, lease: LeaseId) -> Vec<Event> {
        for report in std::mem::take(&mut self.pending).into_values() {
            self.tally.line(report.as_bytes());
        }
        let (progress, mut checkpoints) = self.tally.take();
        checkpoints.retain(|checkpoint| self.checkpoint.as_ref() != Some(checkpoint));
        self.checkpoint = checkpoints.last().cloned().or(self.checkpoint.take());
        let progress = progress.map(|progress| Event::Progressed { lease, progress });
        let saved = checkpoints.into_iter();
        let saved = saved.map(|checkpoint| Event::Checkpointed { lease, checkpoint });
        progress.into_iter().chain(saved).collect()
    }
}
