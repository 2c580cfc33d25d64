//! A committed plan as it is stored.

use std::sync::Arc;

use het_core::{
    Action, Checkpoint, DeviceId, Generation, Grant, JobId, LeaseId, Millis, NodeId, Placement,
    Plan, Rank, Reason, Share, ShareMillis, StageIndex, StageKey, StopCause, StopCost,
};
use serde::{Deserialize, Serialize};

use super::host::HostRecord;
use super::spec::{LaunchRecord, read_launch, write_launch};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlanRecord {
    generation: u64,
    actions: Vec<ActionRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waits: Vec<WaitRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WaitRecord {
    stage: KeyRecord,
    reasons: Vec<ReasonRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyRecord {
    job: u64,
    stage: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum ActionRecord {
    Start {
        lease: u64,
        stage: KeyRecord,
        attempt: u32,
        placement: PlacementRecord,
        launch: LaunchRecord,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume: Option<CheckpointRecord>,
        reasons: Vec<ReasonRecord>,
    },
    Stop {
        lease: u64,
        cause: CauseRecord,
        grace_ms: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<CostRecord>,
    },
    Claim {
        stage: KeyRecord,
        placement: PlacementRecord,
        reasons: Vec<ReasonRecord>,
    },
    Unclaim {
        stage: KeyRecord,
    },
    Prepare {
        lease: u64,
        stage: KeyRecord,
        attempt: u32,
        placement: PlacementRecord,
        launch: LaunchRecord,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume: Option<CheckpointRecord>,
    },
    Unprepare {
        stage: KeyRecord,
        lease: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckpointRecord {
    step: u64,
    path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlacementRecord {
    alternative: usize,
    ranks: Vec<RankRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RankRecord {
    node: u32,
    /// Pairs of device id and share in 1/10,000.
    grants: Vec<(u32, u32)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    companions: Vec<(u32, u32)>,
    #[serde(flatten)]
    host: HostRecord,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CauseRecord {
    Priority { beneficiary: KeyRecord },
    Reclaim { beneficiary: KeyRecord },
    Shrink { beneficiary: KeyRecord },
    Quantum,
    Migration,
    Drain,
    Slow,
    Fault,
    User,
    TimeLimit,
    JobFailed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CostRecord {
    save_ms: u64,
    load_ms: u64,
    lost_ms: u64,
    cost: u64,
    gain: u64,
}

/// The typed reason, readable by programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub(super) enum ReasonRecord {
    OnlyAlternative {
        word: String,
    },
    FastestFinish {
        word: String,
    },
    BestUse {
        word: String,
    },
    FreeNow {
        word: String,
    },
    FirstPossible {
        word: String,
    },
    FixedAtSubmission {
        word: String,
    },
    Backfilled,
    ClaimReady,
    ItsTurn {
        word: String,
    },
    OnSuspected {
        word: String,
    },
    Resumed {
        step: u64,
    },
    Aged {
        seconds: u64,
    },
    SpreadOver {
        count: u32,
        domain: String,
        slower_pct: u32,
    },
    NotEnough {
        word: String,
        need: u32,
    },
    TooSpread {
        word: String,
        need: u32,
        domain: String,
    },
    NoCompanions {
        word: String,
    },
    NeverFits {
        word: String,
        need: u32,
        largest: u32,
    },
    NoDriver {
        word: String,
        drivers: Vec<String>,
    },
    HeadOfLine {
        blocker: KeyRecord,
    },
    NotItsTurn,
    ClaimPending,
    BetterToWait {
        word: String,
    },
    PreemptionTooDear,
    WouldDelay {
        blocker: KeyRecord,
    },
    OverLimit {
        tenant: String,
        class: String,
        limit: u32,
    },
    KeptForOthers {
        class: String,
    },
    MayNotBorrow {
        tenant: String,
        class: String,
    },
    MakesRoom {
        #[serde(rename = "beneficiary")]
        preemptor: KeyRecord,
    },
}

pub(super) fn write_plan(plan: &Plan) -> PlanRecord {
    let waits = plan.waits.iter().map(|(stage, reasons)| WaitRecord {
        stage: write_key(*stage),
        reasons: reasons.iter().map(write_reason).collect(),
    });
    PlanRecord {
        generation: plan.generation.0,
        actions: plan.actions.iter().map(write_action).collect(),
        waits: waits.collect(),
    }
}

pub(super) fn read_plan(record: &PlanRecord) -> Plan {
    let waits = record
        .waits
        .iter()
        .map(|wait| (read_key(wait.stage), wait.reasons.iter().map(read_reason).collect()));
    Plan {
        generation: Generation(record.generation),
        actions: record.actions.iter().map(read_action).collect(),
        waits: waits.collect(),
    }
}

pub(super) fn write_key(key: StageKey) -> KeyRecord {
    KeyRecord { job: key.job.0, stage: key.stage.0 }
}

pub(super) fn read_key(record: KeyRecord) -> StageKey {
    StageKey { job: JobId(record.job), stage: StageIndex(record.stage) }
}

pub(super) fn write_checkpoint(checkpoint: &Checkpoint) -> CheckpointRecord {
    CheckpointRecord { step: checkpoint.step, path: checkpoint.path.clone() }
}

pub(super) fn read_checkpoint(record: &CheckpointRecord) -> Checkpoint {
    Checkpoint { step: record.step, path: record.path.clone() }
}

fn write_action(action: &Action) -> ActionRecord {
    match action {
        Action::Start { lease, stage, attempt, placement, launch, resume, reasons } => {
            ActionRecord::Start {
                lease: lease.0,
                stage: write_key(*stage),
                attempt: *attempt,
                placement: write_placement(placement),
                launch: write_launch(launch),
                resume: resume.as_ref().map(write_checkpoint),
                reasons: reasons.iter().map(write_reason).collect(),
            }
        }
        Action::Stop { lease, cause, grace, cost } => ActionRecord::Stop {
            lease: lease.0,
            cause: write_cause(*cause),
            grace_ms: grace.0,
            cost: cost.map(write_cost),
        },
        Action::Claim { stage, placement, reasons } => ActionRecord::Claim {
            stage: write_key(*stage),
            placement: write_placement(placement),
            reasons: reasons.iter().map(write_reason).collect(),
        },
        Action::Unclaim { stage } => ActionRecord::Unclaim { stage: write_key(*stage) },
        Action::Prepare { lease, stage, attempt, placement, launch, resume } => {
            ActionRecord::Prepare {
                lease: lease.0,
                stage: write_key(*stage),
                attempt: *attempt,
                placement: write_placement(placement),
                launch: write_launch(launch),
                resume: resume.as_ref().map(write_checkpoint),
            }
        }
        Action::Unprepare { stage, lease } => {
            ActionRecord::Unprepare { stage: write_key(*stage), lease: lease.0 }
        }
    }
}

fn read_action(record: &ActionRecord) -> Action {
    match record {
        ActionRecord::Start { lease, stage, attempt, placement, launch, resume, reasons } => {
            Action::Start {
                lease: LeaseId(*lease),
                stage: read_key(*stage),
                attempt: *attempt,
                placement: Arc::new(read_placement(placement)),
                launch: Arc::new(read_launch(launch)),
                resume: resume.as_ref().map(read_checkpoint),
                reasons: reasons.iter().map(read_reason).collect(),
            }
        }
        ActionRecord::Stop { lease, cause, grace_ms, cost } => Action::Stop {
            lease: LeaseId(*lease),
            cause: read_cause(*cause),
            grace: Millis(*grace_ms),
            cost: cost.map(read_cost),
        },
        ActionRecord::Claim { stage, placement, reasons } => Action::Claim {
            stage: read_key(*stage),
            placement: Arc::new(read_placement(placement)),
            reasons: reasons.iter().map(read_reason).collect(),
        },
        ActionRecord::Unclaim { stage } => Action::Unclaim { stage: read_key(*stage) },
        ActionRecord::Prepare { lease, stage, attempt, placement, launch, resume } => {
            Action::Prepare {
                lease: LeaseId(*lease),
                stage: read_key(*stage),
                attempt: *attempt,
                placement: Arc::new(read_placement(placement)),
                launch: Arc::new(read_launch(launch)),
                resume: resume.as_ref().map(read_checkpoint),
            }
        }
        ActionRecord::Unprepare { stage, lease } => {
            Action::Unprepare { stage: read_key(*stage), lease: LeaseId(*lease) }
        }
    }
}

pub(super) fn write_cost(cost: StopCost) -> CostRecord {
    CostRecord {
        save_ms: cost.save.0,
        load_ms: cost.load.0,
        lost_ms: cost.lost.0,
        cost: cost.cost.0,
        gain: cost.gain.0,
    }
}

pub(super) fn read_cost(record: CostRecord) -> StopCost {
    StopCost {
        save: Millis(record.save_ms),
        load: Millis(record.load_ms),
        lost: Millis(record.lost_ms),
        cost: ShareMillis(record.cost),
        gain: ShareMillis(record.gain),
    }
}

pub(super) fn write_placement(placement: &Placement) -> PlacementRecord {
    let pairs = |grants: &[Grant]| grants.iter().map(|g| (g.device.0, g.share.0)).collect();
    let ranks = placement.ranks.iter().map(|rank| RankRecord {
        node: rank.node.0,
        grants: pairs(&rank.grants),
        companions: pairs(&rank.companions),
        host: rank.host.into(),
    });
    PlacementRecord { alternative: placement.alternative, ranks: ranks.collect() }
}

pub(super) fn read_placement(record: &PlacementRecord) -> Placement {
    let grants = |pairs: &[(u32, u32)]| {
        let grant = |&(device, share)| Grant { device: DeviceId(device), share: Share(share) };
        pairs.iter().map(grant).collect()
    };
    let ranks = record.ranks.iter().map(|rank| Rank {
        node: NodeId(rank.node),
        grants: grants(&rank.grants),
        companions: grants(&rank.companions),
        host: rank.host.into(),
    });
    Placement { alternative: record.alternative, ranks: ranks.collect() }
}

pub(super) fn write_cause(cause: StopCause) -> CauseRecord {
    match cause {
        StopCause::Priority { preemptor } => {
            CauseRecord::Priority { beneficiary: write_key(preemptor) }
        }
        StopCause::Reclaim { preemptor } => {
            CauseRecord::Reclaim { beneficiary: write_key(preemptor) }
        }
        StopCause::Shrink { preemptor } => {
            CauseRecord::Shrink { beneficiary: write_key(preemptor) }
        }
        StopCause::Quantum => CauseRecord::Quantum,
        StopCause::Migration => CauseRecord::Migration,
        StopCause::Drain => CauseRecord::Drain,
        StopCause::Slow => CauseRecord::Slow,
        StopCause::Fault => CauseRecord::Fault,
        StopCause::User => CauseRecord::User,
        StopCause::TimeLimit => CauseRecord::TimeLimit,
        StopCause::JobFailed => CauseRecord::JobFailed,
    }
}

pub(super) fn read_cause(record: CauseRecord) -> StopCause {
    match record {
        CauseRecord::Priority { beneficiary } => {
            StopCause::Priority { preemptor: read_key(beneficiary) }
        }
        CauseRecord::Reclaim { beneficiary } => {
            StopCause::Reclaim { preemptor: read_key(beneficiary) }
        }
        CauseRecord::Shrink { beneficiary } => {
            StopCause::Shrink { preemptor: read_key(beneficiary) }
        }
        CauseRecord::Quantum => StopCause::Quantum,
        CauseRecord::Migration => StopCause::Migration,
        CauseRecord::Drain => StopCause::Drain,
        CauseRecord::Slow => StopCause::Slow,
        CauseRecord::Fault => StopCause::Fault,
        CauseRecord::User => StopCause::User,
        CauseRecord::TimeLimit => StopCause::TimeLimit,
        CauseRecord::JobFailed => StopCause::JobFailed,
    }
}

macro_rules! reasons {
    ($($variant:ident { $($name:ident: $write:expr => $read:expr),* })*) => {
        pub(super) fn write_reason(reason: &Reason) -> ReasonRecord {
            match reason {
                $(Reason::$variant { $($name),* } => {
                    ReasonRecord::$variant { $($name: $write($name)),* }
                })*
                Reason::Backfilled => ReasonRecord::Backfilled,
                Reason::ClaimReady => ReasonRecord::ClaimReady,
                Reason::ClaimPending => ReasonRecord::ClaimPending,
                Reason::NotItsTurn => ReasonRecord::NotItsTurn,
                Reason::PreemptionTooDear => ReasonRecord::PreemptionTooDear,
            }
        }

        pub(super) fn read_reason(record: &ReasonRecord) -> Reason {
            match record {
                $(ReasonRecord::$variant { $($name),* } => {
                    Reason::$variant { $($name: $read($name)),* }
                })*
                ReasonRecord::Backfilled => Reason::Backfilled,
                ReasonRecord::ClaimReady => Reason::ClaimReady,
                ReasonRecord::ClaimPending => Reason::ClaimPending,
                ReasonRecord::NotItsTurn => Reason::NotItsTurn,
                ReasonRecord::PreemptionTooDear => Reason::PreemptionTooDear,
            }
        }
    };
}

fn text(name: &het_core::Name) -> String {
    name.to_string()
}

fn name(text: &str) -> het_core::Name {
    text.into()
}

fn texts(names: &[het_core::Name]) -> Vec<String> {
    names.iter().map(text).collect()
}

fn names(texts: &[String]) -> Vec<het_core::Name> {
    texts.iter().map(|text| text.as_str().into()).collect()
}

fn same<T: Copy>(value: &T) -> T {
    *value
}

fn key_out(key: &StageKey) -> KeyRecord {
    write_key(*key)
}

fn key_in(record: &KeyRecord) -> StageKey {
    read_key(*record)
}

reasons! {
    OnlyAlternative { word: text => name }
    FastestFinish { word: text => name }
    BestUse { word: text => name }
    FreeNow { word: text => name }
    FirstPossible { word: text => name }
    FixedAtSubmission { word: text => name }
    ItsTurn { word: text => name }
    OnSuspected { word: text => name }
    Resumed { step: same => same }
    Aged { seconds: same => same }
    SpreadOver { count: same => same, domain: text => name, slower_pct: same => same }
    NotEnough { word: text => name, need: same => same }
    TooSpread { word: text => name, need: same => same, domain: text => name }
    NoCompanions { word: text => name }
    NeverFits { word: text => name, need: same => same, largest: same => same }
    NoDriver { word: text => name, drivers: texts => names }
    HeadOfLine { blocker: key_out => key_in }
    BetterToWait { word: text => name }
    WouldDelay { blocker: key_out => key_in }
    OverLimit { tenant: text => name, class: text => name, limit: same => same }
    KeptForOthers { class: text => name }
    MayNotBorrow { tenant: text => name, class: text => name }
    MakesRoom { preemptor: key_out => key_in }
}
