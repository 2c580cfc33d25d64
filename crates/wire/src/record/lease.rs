//! A live right to run, as it is stored.

use std::sync::Arc;

use het_core::{Lease, Phase, Time};
use serde::{Deserialize, Serialize};

use super::plan::{
    CauseRecord, KeyRecord, PlacementRecord, read_cause, read_key, read_placement, write_cause,
    write_key, write_placement,
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeaseRecord {
    stage: KeyRecord,
    attempt: u32,
    placement: PlacementRecord,
    since_ms: u64,
    phase: PhaseRecord,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PhaseRecord {
    Starting,
    Running { since_ms: u64 },
    Stopping { cause: CauseRecord },
}

pub(super) fn write_lease(lease: &Lease) -> LeaseRecord {
    LeaseRecord {
        stage: write_key(lease.stage),
        attempt: lease.attempt,
        placement: write_placement(&lease.placement),
        since_ms: lease.since.0,
        phase: write_phase(lease.phase),
    }
}

pub(super) fn read_lease(record: &LeaseRecord) -> Lease {
    Lease {
        stage: read_key(record.stage),
        attempt: record.attempt,
        placement: Arc::new(read_placement(&record.placement)),
        since: Time(record.since_ms),
        phase: read_phase(record.phase),
    }
}

pub(super) fn write_phase(phase: Phase) -> PhaseRecord {
    match phase {
        Phase::Starting => PhaseRecord::Starting,
        Phase::Running { since } => PhaseRecord::Running { since_ms: since.0 },
        Phase::Stopping { cause } => PhaseRecord::Stopping { cause: write_cause(cause) },
    }
}

pub(super) fn read_phase(record: PhaseRecord) -> Phase {
    match record {
        PhaseRecord::Starting => Phase::Starting,
        PhaseRecord::Running { since_ms } => Phase::Running { since: Time(since_ms) },
        PhaseRecord::Stopping { cause } => Phase::Stopping { cause: read_cause(cause) },
    }
}
