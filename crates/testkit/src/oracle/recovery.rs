//! Failures: who starts again, when, and from which checkpoint (law 8).

use het_core::{Checkpoint, Failure, FailureCause, StageKey, Time};

use super::{Oracle, ShadowStage, Status};

/// Complete checkpoints that a stage is expected to know.
const KNOWN_MAX: usize = 4;

/// Seconds of rest after so many failures in a row; the last for all further ones.
const RESTS_S: [u64; 9] = [0, 0, 5, 10, 20, 40, 80, 160, 300];

/// What a failure makes of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Again,
    Over,
    /// Its job is held.
    GivenUp,
}

/// What is known of a stage that may have to start again.
#[derive(Debug, Clone, Default)]
pub(super) struct Trail {
    /// Complete and not rejected, the newest last.
    pub saved: Vec<Checkpoint>,
    rejected: Vec<Checkpoint>,
    /// The newest is to be rejected next.
    doubted: bool,
    rests_until: Option<Time>,
    in_a_row: u32,
    farthest: Option<u64>,
    reported: Option<u64>,
    /// Its attempt reported a step, or saved.
    moved: bool,
    reports: bool,
}

impl Trail {
    pub(super) fn begins(&mut self) {
        self.moved = false;
        self.reports = false;
    }

    pub(super) fn reported(&mut self, step: u64) {
        self.moved = true;
        self.reports = true;
        self.reported = Some(step);
        if self.farthest.is_none_or(|farthest| step > farthest) {
            self.further();
        }
    }

    fn further(&mut self) {
        self.in_a_row = 0;
        self.farthest = None;
    }

    pub(super) fn completed(&mut self, checkpoint: &Checkpoint) {
        let newest = self.saved.last().map(|newest| newest.step);
        let found_again = self.rejected.contains(checkpoint) && !self.reports;
        if found_again || newest.is_some_and(|newest| checkpoint.step < newest) {
            return;
        }
        self.moved = true;
        if newest.is_none_or(|newest| checkpoint.step > newest) {
            self.further();
        }
        self.rejected.retain(|other| other != checkpoint);
        if self.saved.last() != Some(checkpoint) {
            self.saved.push(checkpoint.clone());
        }
        if self.saved.len() > KNOWN_MAX {
            self.saved.remove(0);
        }
    }

    /// Neither rests nor has a checkpoint that is to be rejected.
    pub(super) fn is_ready(&self) -> bool {
        self.rests_until.is_none() && !self.doubted
    }

    pub(super) fn released(&mut self) {
        self.in_a_row = 0;
        self.rests_until = None;
    }
}

fn rest(count: u32, now: Time) -> Option<Time> {
    let seconds = RESTS_S[(count as usize).min(RESTS_S.len() - 1)];
    (seconds > 0).then(|| Time(now.0 + seconds * 1_000))
}

impl ShadowStage {
    /// However often, it only waits.
    pub(super) fn refused(&mut self, now: Time) {
        self.refusals += 1;
        self.trail.rests_until = rest(self.refusals, now);
    }

    pub(super) fn fails(
        &mut self,
        failure: &Failure,
        (retries, restarts): (u32, u32),
        now: Time,
    ) -> Verdict {
        let trail = &mut self.trail;
        let rest = |count| rest(count, now);
        if failure.cause == FailureCause::Quarantined {
            trail.in_a_row += 1;
            return Verdict::GivenUp;
        }
        let foreign = matches!(
            failure.cause,
            FailureCause::MachineMemory
                | FailureCause::Killed
                | FailureCause::Device
                | FailureCause::Unseen
                | FailureCause::Stalled
        );
        if foreign {
            trail.in_a_row += 1;
            trail.farthest = trail.farthest.max(trail.reported);
            trail.rests_until = rest(trail.in_a_row);
            return if trail.in_a_row > restarts { Verdict::GivenUp } else { Verdict::Again };
        }
        if failure.cause == FailureCause::Program && !trail.moved && !trail.saved.is_empty() {
            trail.doubted = true;
            return Verdict::Again;
        }
        self.failures += 1;
        if self.failures > retries {
            return Verdict::Over;
        }
        if failure.cause != FailureCause::Untold {
            trail.rests_until = rest(self.failures);
        }
        Verdict::Again
    }
}

impl Oracle {
    /// Once, right after an attempt from it failed before its first progress.
    pub(super) fn rejected(&mut self, key: StageKey, checkpoint: &Checkpoint) {
        let Some(stage) = self.stage_mut(key) else { return };
        let just = stage.trail.doubted
            && stage.status == Status::Idle
            && stage.trail.saved.last() == Some(checkpoint);
        stage.trail.doubted = false;
        stage.trail.rejected.extend(stage.trail.saved.pop());
        if !just {
            self.blame(8, format!("{key} rejects {checkpoint:?}, which nothing speaks against"));
        }
    }

    pub(super) fn retry_due(&mut self, key: StageKey) {
        let now = self.now;
        let Some(stage) = self.stage_mut(key) else { return };
        let due = stage.trail.rests_until.take();
        if due.is_none_or(|due| now < due) {
            self.blame(4, format!("{key} may start again before its time, {due:?}"));
        }
    }
}
