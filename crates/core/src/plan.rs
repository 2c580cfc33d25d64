//! Plans: ordered actions that leave no choice to the engine.

use std::sync::Arc;

use crate::{Generation, Launch, LeaseId, Millis, Placement, Reason, ShareMillis, StageKey};

/// Saved training state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint {
    pub step: u64,
    pub path: String,
}

/// Why a running stage is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StopCause {
    /// Preemption for a stage of a job of higher priority.
    Priority { preemptor: StageKey },
    /// Borrowed quota goes back to a stage of a tenant that is entitled to it.
    Reclaim { preemptor: StageKey },
    /// A stage that may have fewer devices gives some to one that is more urgent or entitled to
    /// them, and goes on with the rest.
    Shrink { preemptor: StageKey },
    /// Time sharing between equals.
    Quantum,
    /// It moves to other devices.
    Migration,
    /// Its node or device is being emptied.
    Drain,
    /// A device of it works slower than it did.
    Slow,
    /// A rank, node or device failed.
    Fault,
    /// The user stops or cancels the job.
    User,
    /// The job ran for longer than its `time_limit`.
    TimeLimit,
    /// Another stage of the job failed for good.
    JobFailed,
}

impl StopCause {
    /// The stage stops only to go on elsewhere.
    pub fn moves(self) -> bool {
        matches!(self, Self::Migration | Self::Drain | Self::Slow | Self::Shrink { .. })
    }

    /// The stage that is to have what the stop frees.
    pub fn preemptor(self) -> Option<StageKey> {
        match self {
            Self::Priority { preemptor }
            | Self::Reclaim { preemptor }
            | Self::Shrink { preemptor } => Some(preemptor),
            _ => None,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Priority { .. } => "priority",
            Self::Reclaim { .. } => "reclaim",
            Self::Shrink { .. } => "shrink",
            Self::Quantum => "quantum",
            Self::Migration => "migration",
            Self::Drain => "drain",
            Self::Slow => "slow",
            Self::Fault => "fault",
            Self::User => "user",
            Self::TimeLimit => "time_limit",
            Self::JobFailed => "job_failed",
        }
    }
}

/// What a stop is expected to cost and bring, in device time; recorded with every preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StopCost {
    pub save: Millis,
    pub load: Millis,
    /// Work since the newest complete checkpoint that will be done again.
    pub lost: Millis,
    /// All three over the share held.
    pub cost: ShareMillis,
    /// Waiting that the preemptor is spared, weighted by priority, over the share it needs.
    pub gain: ShareMillis,
}

/// One thing an engine does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start all ranks of a stage, or resume it from `resume`.
    Start {
        lease: LeaseId,
        stage: StageKey,
        attempt: u32,
        placement: Arc<Placement>,
        launch: Arc<Launch>,
        resume: Option<Checkpoint>,
        reasons: Vec<Reason>,
    },
    /// Notify every rank, wait for a checkpoint and exit, kill the group after `grace`.
    Stop { lease: LeaseId, cause: StopCause, grace: Millis, cost: Option<StopCost> },
    /// Reserve devices that are being freed, so that nobody else grabs them.
    Claim { stage: StageKey, placement: Arc<Placement>, reasons: Vec<Reason> },
    /// Give a claim up.
    Unclaim { stage: StageKey },
    /// Begin with what a waiting stage can do before its devices are free: read its inputs, and
    /// start its program where that waits for them ([`Launch::warm`]). The placement is where it is
    /// likely to start, and is not given to it. A `Start` of the same lease on the same node goes
    /// on with it.
    Prepare {
        lease: LeaseId,
        stage: StageKey,
        attempt: u32,
        placement: Arc<Placement>,
        launch: Arc<Launch>,
        resume: Option<Checkpoint>,
    },
    /// Give a preparation up: its program is killed.
    Unprepare { stage: StageKey, lease: LeaseId },
}

/// The ordered actions of one round, and the reasons of the stages that go on waiting where those
/// changed since the last round.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    pub generation: Generation,
    pub actions: Vec<Action>,
    pub waits: Vec<(StageKey, Vec<Reason>)>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty() && self.waits.is_empty()
    }
}
