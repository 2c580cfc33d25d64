//! What the ranks of a gang say of their progress, and what of that is passed on. No I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{Checkpoint, Event, LeaseId, Millis, Time};
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
    /// A rank that hangs, and for how long it has been silent.
    hung: Option<(u32, Millis)>,
}

impl Reports {
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn read(&mut self, rank: u32, row: &PodRow) {
        if let Some(report) = &row.report
            && self.last.get(&rank) != Some(report)
        {
            self.last.insert(rank, Arc::clone(report));
            self.pending.insert(rank, Arc::clone(report));
        }
    }

    /// A rank that hangs, as far as what it said was passed on.
    pub fn take_hung(&mut self) -> Option<(u32, Millis)> {
        self.hung.take()
    }

    /// What is to be passed on of a lease. A rank names its newest checkpoint again and again.
    pub fn take(&mut self, lease: LeaseId) -> Vec<Event> {
        for (rank, report) in std::mem::take(&mut self.pending) {
            self.tally.line(report.as_bytes());
            self.hung = self.tally.take_silent().map(|silent| (rank, silent)).or(self.hung);
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
