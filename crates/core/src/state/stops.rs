//! Stops of a stage: who wanted each, what it was expected to cost, and what was lost.

use super::{Lease, Stage, StageState};
use crate::{Millis, Outcome, Phase, Share, ShareMillis, StopCause, StopCost, Time};

/// The newest stops of a stage that are kept.
pub const STOPS_KEPT: usize = 8;

/// One stop of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    pub cause: StopCause,
    /// When it was decided; of a fault, when it happened.
    pub at: Time,
    /// As estimated then; `None` where nobody weighed it.
    pub expected: Option<StopCost>,
    /// `None` while its gang still saves.
    pub loss: Option<Loss>,
}

/// What a stop lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// When the gang was gone.
    pub at: Time,
    /// The last step that its program reported since it was started.
    pub step: Option<u64>,
    /// Of the checkpoint that it goes on from; `None` where there is none.
    pub checkpoint_step: Option<u64>,
    /// Since that checkpoint, or since it was started if that is later.
    pub unsaved: Millis,
    /// The same over the share held.
    pub cost: ShareMillis,
}

impl Stop {
    /// Whether a checkpoint was completed between the notice and the end; `None` where there was no
    /// notice, or no end yet.
    pub fn saved_at_notice(&self) -> Option<bool> {
        let loss = self.loss.filter(|_| self.cause != StopCause::Fault)?;
        Some(loss.unsaved <= loss.at.since(self.at))
    }
}

impl Loss {
    /// Steps that have to be made again; `None` where the program reported none.
    pub fn steps(&self) -> Option<u64> {
        Some(self.step?.saturating_sub(self.checkpoint_step.unwrap_or(0)))
    }

    /// Of a stage whose gang on `lease` is gone.
    fn of(stage: &Stage, lease: &Lease, now: Time) -> Self {
        let reported = stage.progressed_at.is_some_and(|at| at >= lease.since);
        let share: Share = lease.placement.grants().map(|grant| grant.share).sum();
        let unsaved = stage.unsaved(lease.since, now);
        Self {
            at: now,
            step: stage.progress.step.filter(|_| reported),
            checkpoint_step: stage.checkpoint.as_ref().map(|checkpoint| checkpoint.step),
            unsaved,
            cost: share.over(unsaved),
        }
    }
}

impl Stage {
    /// Time since the newest complete checkpoint, or since it was started if that is later: what a
    /// stop loses unless it saves at the notice.
    pub fn unsaved(&self, since: Time, now: Time) -> Millis {
        now.since(self.checkpoint_at.map_or(since, |at| at.max(since)))
    }

    /// Whether it completed a checkpoint when it was last told to stop; `None` where it never was.
    pub fn saved_at_notice(&self) -> Option<bool> {
        self.stops.iter().rev().find_map(Stop::saved_at_notice)
    }

    pub(super) fn stop_decided(&mut self, cause: StopCause, at: Time, cost: Option<StopCost>) {
        self.keep(Stop { cause, at, expected: cost, loss: None });
    }

    /// Its gang on `lease` is gone, and it stands as its state says.
    pub(super) fn stop_ended(&mut self, lease: &Lease, outcome: &Outcome, now: Time) {
        let loss = Some(Loss::of(self, lease, now));
        match (lease.phase, &self.state) {
            // It came to its end before it could be stopped.
            (Phase::Stopping { .. }, StageState::Succeeded) => {
                self.stops.pop();
            }
            (Phase::Stopping { .. }, _) => {
                if let Some(stop) = self.stops.last_mut() {
                    stop.loss = loss;
                }
            }
            (_, StageState::Stopped { cause, .. })
                if !matches!(outcome, Outcome::Refused { .. }) =>
            {
                self.keep(Stop { cause: *cause, at: now, expected: None, loss });
            }
            _ => {}
        }
    }

    fn keep(&mut self, stop: Stop) {
        if self.stops.len() == STOPS_KEPT {
            self.stops.remove(0);
        }
        self.stops.push(stop);
    }
}
