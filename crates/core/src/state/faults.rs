//! What becomes of a stage whose gang failed: the cause of the end decides whether that counts
//! against its program, when it may begin again, and whether its checkpoint is to blame.

use std::collections::BTreeSet;

use super::{Job, Stage, StageState, State};
use crate::{
    Checkpoint, Event, Failure, FailureCause, JobId, Millis, Outcome, Placement, StageIndex,
    StageKey, StageSpec, StopCause, Time,
};

/// Complete checkpoints that a stage knows, the one that it goes on from included.
pub const CHECKPOINTS_KEPT: usize = 4;

/// The newest rejected checkpoints that are remembered.
const REJECTED_KEPT: usize = 8;

/// Before the second start in a row that failed; the first is tried again at once.
const BACKOFF_FIRST: Millis = Millis::seconds(5);
const BACKOFF_MAX: Millis = Millis::seconds(300);

/// Failures of a stage that were not its program's doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Faults {
    /// So many in a row, without new progress in between.
    pub count: u32,
    /// The farthest step that the program had reported when the newest of them happened.
    pub step: Option<u64>,
    /// The newest failure, whoever's doing it was; kept when there is progress again.
    pub last: Option<Failure>,
    /// It does not start before this time, which an event says has come.
    pub retry_at: Option<Time>,
    /// It does not start before somebody lets it, whatever it may do otherwise.
    pub is_quarantined: bool,
}

/// What the present or last attempt of a stage has shown so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attempt {
    /// The first step that it reported, and when.
    pub first_report: Option<(Time, u64)>,
    /// It completed a checkpoint.
    pub has_saved: bool,
}

/// Checkpoints beside the one that a stage goes on from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OtherCheckpoints {
    /// Complete ones that are older, with when they were completed, the newest last.
    pub older: Vec<(Checkpoint, Option<Time>)>,
    /// Those that were rejected, the newest last.
    pub rejected: Vec<Checkpoint>,
    /// An attempt that resumed from the newest failed before its first progress: the checkpoint is
    /// to be rejected before the stage may start again.
    pub is_doubted: bool,
}

/// Follows from the jobs of a state: stages about which a fact is due.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Recovering {
    retries: BTreeSet<(Time, StageKey)>,
    doubted: BTreeSet<StageKey>,
}

/// From the failure until the next start, after so many failures in a row.
pub(super) fn backoff(failures: u32) -> Millis {
    match failures {
        0 | 1 => Millis::ZERO,
        more => Millis(BACKOFF_FIRST.0 << (more - 2).min(16)).min(BACKOFF_MAX),
    }
}

impl State {
    /// Stages whose checkpoint is to be rejected, and those whose time to start again has come.
    pub(super) fn recovery_events(&self, now: Time) -> impl Iterator<Item = Event> + '_ {
        let rejected = self.recovering.doubted.iter().filter_map(|key| {
            let checkpoint = self.stage_record(*key).checkpoint.clone()?;
            Some(Event::CheckpointRejected { stage: *key, checkpoint })
        });
        let due = self.recovering.retries.iter().take_while(move |(at, _)| *at <= now);
        rejected.chain(due.map(|(_, stage)| Event::RetryDue { stage: *stage }))
    }

    /// When the next of these facts is due by time alone.
    pub(super) fn next_retry(&self) -> Option<Time> {
        let doubted = self.recovering.doubted.first().map(|_| self.now);
        doubted.or(self.recovering.retries.first().map(|(at, _)| *at))
    }

    /// What follows about a job from how its stages stand.
    pub(super) fn settle_recovery(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        for (index, stage) in job.stages.iter().enumerate() {
            let key = StageKey { job: id, stage: StageIndex(index as u16) };
            let stands = matches!(stage.state, StageState::Stopped { .. });
            if stands && stage.other_checkpoints.is_doubted {
                self.recovering.doubted.insert(key);
            } else {
                self.recovering.doubted.remove(&key);
            }
            if let Some(at) = stage.faults.retry_at {
                if stands {
                    self.recovering.retries.insert((at, key));
                } else {
                    self.recovering.retries.remove(&(at, key));
                }
            }
        }
    }

    /// A stage may start again.
    pub(super) fn retry(&mut self, key: StageKey) {
        if !self.has_stage(key) {
            return;
        }
        if let Some(at) = self.stage_mut(key).faults.retry_at.take() {
            self.recovering.retries.remove(&(at, key));
        }
        self.refresh(key.job);
    }

    /// The stage goes on from the checkpoint before, or from its beginning.
    pub(super) fn reject(&mut self, key: StageKey, checkpoint: &Checkpoint) {
        if !self.has_stage(key) {
            return;
        }
        let stage = self.stage_mut(key);
        let others = &mut stage.other_checkpoints;
        others.is_doubted = false;
        if stage.checkpoint.as_ref() == Some(checkpoint) {
            let older = others.older.pop();
            let rejected = std::mem::replace(
                &mut stage.checkpoint,
                older.as_ref().map(|(checkpoint, _)| checkpoint.clone()),
            );
            stage.checkpoint_at = older.and_then(|(_, at)| at);
            others.rejected.extend(rejected);
            let surplus = others.rejected.len().saturating_sub(REJECTED_KEPT);
            others.rejected.drain(..surplus);
        }
        self.refresh(key.job);
    }

    /// Somebody lets the job go on: what failed before does not count any more.
    pub(super) fn forgive(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id).map(std::sync::Arc::make_mut) else { return };
        for (index, stage) in job.stages.iter_mut().enumerate() {
            stage.faults.count = 0;
            stage.faults.is_quarantined = false;
            if let Some(at) = stage.faults.retry_at.take() {
                let key = StageKey { job: id, stage: StageIndex(index as u16) };
                self.recovering.retries.remove(&(at, key));
            }
        }
    }

    /// The failure with its cause as the state knows it better: a program whose device or node is
    /// known to have failed did not fail of itself.
    pub(super) fn outcome_by_evidence(&self, placement: &Placement, outcome: &Outcome) -> Outcome {
        let is_down = |placement: &Placement| {
            placement.grants().any(|grant| self.has_failed(grant.device))
                || placement.ranks.iter().any(|rank| self.lost[rank.node.index()])
        };
        match outcome {
            Outcome::Failed(failure)
                if failure.cause == FailureCause::Program && is_down(placement) =>
            {
                Outcome::Failed(Failure { cause: FailureCause::Device, ..failure.clone() })
            }
            other => other.clone(),
        }
    }

    fn has_stage(&self, key: StageKey) -> bool {
        self.jobs.get(&key.job).is_some_and(|job| key.stage.index() < job.stages.len())
    }
}

impl Job {
    /// The stage that keeps the job on hold because it failed too often by what is not its
    /// program's doing.
    pub fn given_up(&self) -> Option<(StageIndex, &Failure)> {
        let stages = self.spec.stage_indices().zip(&self.stages).filter(|_| self.held);
        stages.into_iter().find_map(|(index, stage)| {
            let failure = stage.faults.last.as_ref()?;
            stage.is_given_up(self.spec.stage(index)).then_some((index, failure))
        })
    }
}

impl Attempt {
    /// There was progress since it began.
    pub(super) fn progressed(self) -> bool {
        self.first_report.is_some() || self.has_saved
    }
}

impl Stage {
    /// It failed more often in a row than it may, by what is not its program's doing, or is not to
    /// start before somebody has looked at it.
    pub fn is_given_up(&self, spec: &StageSpec) -> bool {
        let stands = matches!(self.state, StageState::Stopped { cause: StopCause::Fault, .. });
        stands && (self.faults.count > spec.restarts || self.faults.is_quarantined)
    }

    /// Neither waits for its time to start again, nor for a checkpoint to be rejected.
    pub(super) fn has_recovered(&self) -> bool {
        self.faults.retry_at.is_none() && !self.other_checkpoints.is_doubted
    }

    /// Whether this checkpoint was rejected, and nothing newer is known of it.
    pub fn has_rejected(&self, checkpoint: &Checkpoint) -> bool {
        self.other_checkpoints.rejected.contains(checkpoint)
    }

    /// There is progress that no attempt before had made.
    pub(super) fn got_further(&mut self) {
        self.faults.count = 0;
        self.faults.step = None;
    }

    /// What becomes of it after a failure of its attempt.
    pub(super) fn failed(&mut self, failure: &Failure, retries: u32, now: Time) -> StageState {
        let stopped = StageState::Stopped { cause: StopCause::Fault, since: now };
        self.faults.last = Some(failure.clone());
        match failure.cause {
            FailureCause::Untold => {
                self.failures += 1;
                if self.failures <= retries { stopped } else { StageState::Failed(failure.clone()) }
            }
            FailureCause::Quarantined => {
                self.faults.count += 1;
                self.faults.is_quarantined = true;
                stopped
            }
            cause if !cause.is_own() => {
                self.faults.count += 1;
                self.faults.step = self.faults.step.max(self.progress.step);
                self.rest(self.faults.count, now);
                stopped
            }
            FailureCause::Program if self.checkpoint.is_some() && !self.attempt.progressed() => {
                self.other_checkpoints.is_doubted = true;
                stopped
            }
            _ => {
                self.failures += 1;
                if self.failures > retries {
                    return StageState::Failed(failure.clone());
                }
                self.rest(self.failures, now);
                stopped
            }
        }
    }

    /// The engine could not begin it: that is never its failure, however often. It is tried again
    /// with growing rests.
    pub(super) fn refused(&mut self, reason: &str, now: Time) {
        self.refusals = self.refusals.saturating_add(1);
        let (exit_code, cause) = (Failure::CANNOT_RUN, FailureCause::Refused);
        let message = reason.to_owned();
        self.faults.last = Some(Failure { rank: 0, exit_code, message, cause });
        self.rest(self.refusals, now);
    }

    fn rest(&mut self, failures: u32, now: Time) {
        let span = backoff(failures);
        self.faults.retry_at = (span > Millis::ZERO).then(|| now + span);
    }

    /// Takes in a complete checkpoint, unless an older one than it has, or a rejected one that
    /// was found again.
    ///
    /// Returns whether it was taken in.
    pub(super) fn saved(&mut self, checkpoint: &Checkpoint, now: Time) -> bool {
        if self.has_rejected(checkpoint) && self.attempt.first_report.is_none() {
            return false;
        }
        let known = self.checkpoint.as_ref().map(|known| known.step);
        if known.is_some_and(|known| checkpoint.step < known) {
            return false;
        }
        if known.is_none_or(|known| checkpoint.step > known) {
            self.got_further();
        }
        self.attempt.has_saved = true;
        self.other_checkpoints.rejected.retain(|rejected| rejected != checkpoint);
        let before = self.checkpoint.replace(checkpoint.clone());
        let older = &mut self.other_checkpoints.older;
        older.extend(before.filter(|old| old != checkpoint).map(|old| (old, self.checkpoint_at)));
        let surplus = older.len().saturating_sub(CHECKPOINTS_KEPT - 1);
        older.drain(..surplus);
        self.checkpoint_at = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_tried_again_at_once_and_the_others_ever_later() {
        let seconds: Vec<u64> = (1..=9).map(|failures| backoff(failures).0 / 1_000).collect();
        assert_eq!(seconds, [0, 5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff(u32::MAX), BACKOFF_MAX);
    }
}
