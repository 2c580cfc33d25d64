//! A job that is kept, with all that happened to it.

use std::sync::Arc;

use het_core::{
    Attempt, Checkpoint, Failure, Faults, Job, JobEnd, LeaseId, Loss, Micro, Millis,
    OtherCheckpoints, Reason, Recoveries, Recovery, RecoveryPhase, ShareMillis, Stage, StageState,
    StepRate, Stop, Time,
};
use serde::{Deserialize, Serialize};

use super::RecordError;
use super::failure::{read_failure_cause, write_failure_cause};
use super::plan::{
    CauseRecord, CheckpointRecord, CostRecord, PlacementRecord, ReasonRecord, read_cause,
    read_checkpoint, read_cost, read_placement, read_reason, write_cause, write_checkpoint,
    write_cost, write_placement, write_reason,
};
use super::progress::{ProgressRecord, read_progress, write_progress};
use super::request::{RequestRecord, read_request, write_request};
use super::spec::{JobRecord, read_job, write_job};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptJobRecord {
    spec: JobRecord,
    submitted_ms: u64,
    held: bool,
    /// When it became eligible, where that was later than its submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eligible_ms: Option<u64>,
    /// Its start conditions are not met yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    waits_to_begin: bool,
    stages: Vec<KeptStageRecord>,
    end: Option<(u64, EndRecord)>,
    ending: Option<EndRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    requests: Vec<RequestRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EndRecord {
    Succeeded,
    Failed,
    Cancelled,
}

/// How fast its attempts make steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct StepRateRecord {
    /// Milliseconds and step.
    window: Option<(u64, u64)>,
    /// In millionths.
    usual: Option<i64>,
    slow: u8,
    is_inherited: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KeptStageRecord {
    state: StageStateRecord,
    attempts: u32,
    /// What the last of them has shown; as if it had progressed where earlier versions kept it.
    #[serde(default = "always", skip_serializing_if = "Clone::clone")]
    attempt_reported: bool,
    /// Absent in snapshots of version 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt_first_report: Option<(u64, u64)>,
    #[serde(default = "always", skip_serializing_if = "Clone::clone")]
    attempt_saved: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step_rate: Option<StepRateRecord>,
    preemptions: u32,
    fruitless: u32,
    failures: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    refusals: u32,
    #[serde(default, skip_serializing_if = "FaultsRecord::is_empty")]
    faults: FaultsRecord,
    recoveries: RecoveriesRecord,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    stops: Vec<StopRecord>,
    checkpoint: Option<CheckpointRecord>,
    checkpoint_at_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    older_checkpoints: Vec<(CheckpointRecord, Option<u64>)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rejected_checkpoints: Vec<CheckpointRecord>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    checkpoint_is_doubted: bool,
    checkpoints: u32,
    published: bool,
    progress: ProgressRecord,
    progressed_at_ms: Option<u64>,
    /// Of devices, in milliseconds of 1/10,000.
    charged: u64,
    busy: u64,
    useful: u64,
    first_started_ms: Option<u64>,
    ended_ms: Option<u64>,
    placement: Option<PlacementRecord>,
    start_reasons: Vec<ReasonRecord>,
    wait_reasons: Vec<ReasonRecord>,
}

/// Absent where nothing failed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
struct FaultsRecord {
    count: u32,
    step: Option<u64>,
    last: Option<FailureRecord>,
    retry_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    quarantined: bool,
}

impl FaultsRecord {
    fn is_empty(&self) -> bool {
        self.count == 0 && self.step.is_none() && self.last.is_none() && self.retry_at_ms.is_none()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FailureRecord {
    rank: u32,
    exit_code: i32,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StopRecord {
    cause: CauseRecord,
    at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expected: Option<CostRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss: Option<LossRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LossRecord {
    at_ms: u64,
    step: Option<u64>,
    checkpoint_step: Option<u64>,
    unsaved_ms: u64,
    cost: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StageStateRecord {
    Queued { since_ms: u64 },
    Active { lease: u64 },
    Stopped { cause: CauseRecord, since_ms: u64 },
    Succeeded,
    Failed(FailureRecord),
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecoveriesRecord {
    count: u32,
    reassign_ms: u64,
    restore_ms: u64,
    recompute_ms: u64,
    under_way: Option<RecoveryRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecoveryRecord {
    step: Option<u64>,
    phase: RecoveryPhaseRecord,
    since_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RecoveryPhaseRecord {
    Waits,
    Loads,
    Repeats,
}

fn always() -> bool {
    true
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

pub(super) fn write_kept_job(job: &Job) -> KeptJobRecord {
    KeptJobRecord {
        spec: write_job(&job.spec),
        submitted_ms: job.submitted.0,
        held: job.held,
        eligible_ms: job.eligible.filter(|at| *at != job.submitted).map(|at| at.0),
        waits_to_begin: job.eligible.is_none(),
        stages: job.stages.iter().map(write_stage).collect(),
        end: job.end.map(|(at, end)| (at.0, write_end(end))),
        ending: job.ending.map(write_end),
        requests: job.requests.iter().map(write_request).collect(),
    }
}

pub(super) fn read_kept_job(record: &KeptJobRecord) -> Result<Job, RecordError> {
    Ok(Job {
        spec: Arc::new(read_job(&record.spec)?),
        submitted: Time(record.submitted_ms),
        held: record.held,
        eligible: match record.waits_to_begin {
            true => None,
            false => Some(Time(record.eligible_ms.unwrap_or(record.submitted_ms))),
        },
        stages: record.stages.iter().map(read_stage).collect::<Result<_, _>>()?,
        end: record.end.map(|(at_ms, end)| (Time(at_ms), read_end(end))),
        ending: record.ending.map(read_end),
        requests: record.requests.iter().map(read_request).collect::<Result<_, _>>()?,
    })
}

fn write_stage(stage: &Stage) -> KeptStageRecord {
    let reasons = |reasons: &[Reason]| reasons.iter().map(write_reason).collect();
    let others = &stage.other_checkpoints;
    KeptStageRecord {
        state: write_stage_state(&stage.state),
        attempts: stage.attempts,
        attempt_reported: stage.attempt.first_report.is_some(),
        attempt_first_report: stage.attempt.first_report.map(|(at, step)| (at.0, step)),
        attempt_saved: stage.attempt.has_saved,
        step_rate: write_step_rate(stage.step_rate),
        preemptions: stage.preemptions,
        fruitless: stage.fruitless,
        failures: stage.failures,
        refusals: stage.refusals,
        faults: write_faults(&stage.faults),
        recoveries: write_recoveries(&stage.recoveries),
        stops: stage.stops.iter().map(write_stop).collect(),
        checkpoint: stage.checkpoint.as_ref().map(write_checkpoint),
        checkpoint_at_ms: stage.checkpoint_at.map(|at| at.0),
        older_checkpoints: others.older.iter().map(write_older).collect(),
        rejected_checkpoints: others.rejected.iter().map(write_checkpoint).collect(),
        checkpoint_is_doubted: others.is_doubted,
        checkpoints: stage.checkpoints,
        published: stage.published,
        progress: write_progress(&stage.progress),
        progressed_at_ms: stage.progressed_at.map(|at| at.0),
        charged: stage.charged.0,
        busy: stage.busy.0,
        useful: stage.useful.0,
        first_started_ms: stage.first_started.map(|at| at.0),
        ended_ms: stage.ended.map(|at| at.0),
        placement: stage.placement.as_deref().map(write_placement),
        start_reasons: reasons(&stage.start_reasons),
        wait_reasons: reasons(&stage.wait_reasons),
    }
}

fn write_step_rate(rate: StepRate) -> Option<StepRateRecord> {
    let StepRate { window, usual, slow, is_inherited } = rate;
    (rate != StepRate::default()).then_some(StepRateRecord {
        window: window.map(|(at, step)| (at.0, step)),
        usual: usual.map(|rate| rate.0),
        slow,
        is_inherited,
    })
}

fn read_step_rate(record: StepRateRecord) -> StepRate {
    let StepRateRecord { window, usual, slow, is_inherited } = record;
    let window = window.map(|(at, step)| (Time(at), step));
    StepRate { window, usual: usual.map(Micro), slow, is_inherited }
}

/// A snapshot of version 0.1 has only the newest report: what comes after it counts from there.
fn first_report(record: &KeptStageRecord) -> Option<(Time, u64)> {
    let newest = || Some((record.progressed_at_ms?, read_progress(&record.progress).step?));
    let first = record.attempt_first_report.or_else(newest).filter(|_| record.attempt_reported);
    first.map(|(at, step)| (Time(at), step))
}

fn read_stage(record: &KeptStageRecord) -> Result<Stage, RecordError> {
    let reasons = |reasons: &[ReasonRecord]| reasons.iter().map(read_reason).collect();
    Ok(Stage {
        state: read_stage_state(&record.state)?,
        attempts: record.attempts,
        attempt: Attempt { first_report: first_report(record), has_saved: record.attempt_saved },
        step_rate: record.step_rate.map(read_step_rate).unwrap_or_default(),
        preemptions: record.preemptions,
        fruitless: record.fruitless,
        failures: record.failures,
        refusals: record.refusals,
        faults: read_faults(&record.faults)?,
        recoveries: read_recoveries(&record.recoveries),
        stops: record.stops.iter().map(read_stop).collect(),
        checkpoint: record.checkpoint.as_ref().map(read_checkpoint),
        checkpoint_at: record.checkpoint_at_ms.map(Time),
        other_checkpoints: OtherCheckpoints {
            older: record.older_checkpoints.iter().map(read_older).collect(),
            rejected: record.rejected_checkpoints.iter().map(read_checkpoint).collect(),
            is_doubted: record.checkpoint_is_doubted,
        },
        checkpoints: record.checkpoints,
        published: record.published,
        progress: read_progress(&record.progress),
        progressed_at: record.progressed_at_ms.map(Time),
        charged: ShareMillis(record.charged),
        busy: ShareMillis(record.busy),
        useful: ShareMillis(record.useful),
        first_started: record.first_started_ms.map(Time),
        ended: record.ended_ms.map(Time),
        placement: record.placement.as_ref().map(|record| Arc::new(read_placement(record))),
        start_reasons: reasons(&record.start_reasons),
        wait_reasons: reasons(&record.wait_reasons),
    })
}

fn write_older((checkpoint, at): &(Checkpoint, Option<Time>)) -> (CheckpointRecord, Option<u64>) {
    (write_checkpoint(checkpoint), at.map(|at| at.0))
}

fn read_older((record, at_ms): &(CheckpointRecord, Option<u64>)) -> (Checkpoint, Option<Time>) {
    (read_checkpoint(record), at_ms.map(Time))
}

fn write_faults(faults: &Faults) -> FaultsRecord {
    FaultsRecord {
        count: faults.count,
        step: faults.step,
        last: faults.last.as_ref().map(write_failure),
        retry_at_ms: faults.retry_at.map(|at| at.0),
        quarantined: faults.is_quarantined,
    }
}

fn read_faults(record: &FaultsRecord) -> Result<Faults, RecordError> {
    Ok(Faults {
        count: record.count,
        step: record.step,
        last: record.last.as_ref().map(read_failure).transpose()?,
        retry_at: record.retry_at_ms.map(Time),
        is_quarantined: record.quarantined,
    })
}

fn write_failure(failure: &Failure) -> FailureRecord {
    FailureRecord {
        rank: failure.rank,
        exit_code: failure.exit_code,
        message: failure.message.clone(),
        cause: write_failure_cause(failure.cause),
    }
}

fn read_failure(record: &FailureRecord) -> Result<Failure, RecordError> {
    Ok(Failure {
        rank: record.rank,
        exit_code: record.exit_code,
        message: record.message.clone(),
        cause: read_failure_cause(record.cause.as_deref())?,
    })
}

fn write_stage_state(state: &StageState) -> StageStateRecord {
    match state {
        StageState::Queued { since } => StageStateRecord::Queued { since_ms: since.0 },
        StageState::Active { lease } => StageStateRecord::Active { lease: lease.0 },
        StageState::Stopped { cause, since } => {
            StageStateRecord::Stopped { cause: write_cause(*cause), since_ms: since.0 }
        }
        StageState::Succeeded => StageStateRecord::Succeeded,
        StageState::Failed(failure) => StageStateRecord::Failed(write_failure(failure)),
        StageState::Cancelled => StageStateRecord::Cancelled,
    }
}

fn read_stage_state(record: &StageStateRecord) -> Result<StageState, RecordError> {
    Ok(match record {
        StageStateRecord::Queued { since_ms } => StageState::Queued { since: Time(*since_ms) },
        StageStateRecord::Active { lease } => StageState::Active { lease: LeaseId(*lease) },
        StageStateRecord::Stopped { cause, since_ms } => {
            StageState::Stopped { cause: read_cause(*cause), since: Time(*since_ms) }
        }
        StageStateRecord::Succeeded => StageState::Succeeded,
        StageStateRecord::Failed(failure) => StageState::Failed(read_failure(failure)?),
        StageStateRecord::Cancelled => StageState::Cancelled,
    })
}

fn write_recoveries(told: &Recoveries) -> RecoveriesRecord {
    let under_way = told.under_way.map(|Recovery { step, phase }| {
        let (phase, since) = match phase {
            RecoveryPhase::Waits { since } => (RecoveryPhaseRecord::Waits, since),
            RecoveryPhase::Loads { since } => (RecoveryPhaseRecord::Loads, since),
            RecoveryPhase::Repeats { since } => (RecoveryPhaseRecord::Repeats, since),
        };
        RecoveryRecord { step, phase, since_ms: since.0 }
    });
    RecoveriesRecord {
        count: told.count,
        reassign_ms: told.reassign.0,
        restore_ms: told.restore.0,
        recompute_ms: told.recompute.0,
        under_way,
    }
}

fn read_recoveries(record: &RecoveriesRecord) -> Recoveries {
    let under_way = record.under_way.as_ref().map(|record| {
        let since = Time(record.since_ms);
        let phase = match record.phase {
            RecoveryPhaseRecord::Waits => RecoveryPhase::Waits { since },
            RecoveryPhaseRecord::Loads => RecoveryPhase::Loads { since },
            RecoveryPhaseRecord::Repeats => RecoveryPhase::Repeats { since },
        };
        Recovery { step: record.step, phase }
    });
    Recoveries {
        count: record.count,
        reassign: Millis(record.reassign_ms),
        restore: Millis(record.restore_ms),
        recompute: Millis(record.recompute_ms),
        under_way,
    }
}

fn write_stop(stop: &Stop) -> StopRecord {
    let loss = |loss: Loss| LossRecord {
        at_ms: loss.at.0,
        step: loss.step,
        checkpoint_step: loss.checkpoint_step,
        unsaved_ms: loss.unsaved.0,
        cost: loss.cost.0,
    };
    StopRecord {
        cause: write_cause(stop.cause),
        at_ms: stop.at.0,
        expected: stop.expected.map(write_cost),
        loss: stop.loss.map(loss),
    }
}

fn read_stop(record: &StopRecord) -> Stop {
    let loss = |record: &LossRecord| Loss {
        at: Time(record.at_ms),
        step: record.step,
        checkpoint_step: record.checkpoint_step,
        unsaved: Millis(record.unsaved_ms),
        cost: ShareMillis(record.cost),
    };
    Stop {
        cause: read_cause(record.cause),
        at: Time(record.at_ms),
        expected: record.expected.map(read_cost),
        loss: record.loss.as_ref().map(loss),
    }
}

fn write_end(end: JobEnd) -> EndRecord {
    match end {
        JobEnd::Succeeded => EndRecord::Succeeded,
        JobEnd::Failed => EndRecord::Failed,
        JobEnd::Cancelled => EndRecord::Cancelled,
    }
}

fn read_end(record: EndRecord) -> JobEnd {
    match record {
        EndRecord::Succeeded => JobEnd::Succeeded,
        EndRecord::Failed => JobEnd::Failed,
        EndRecord::Cancelled => JobEnd::Cancelled,
    }
}
