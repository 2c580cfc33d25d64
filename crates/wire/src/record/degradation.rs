//! What takes a part of a device's speed, as it is stored.

use het_core::{Degradation, DegradationCause, Micro};
use serde::{Deserialize, Serialize};

use super::occupant::{OccupantRecord, read_occupant, write_occupant};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DegradationRecord {
    /// In millionths of its usual speed.
    left: i64,
    #[serde(flatten)]
    cause: CauseRecord,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
enum CauseRecord {
    Contention {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<OccupantRecord>,
    },
    Throttling,
    MemoryPressure,
}

pub(super) fn write_degradation(degradation: &Degradation) -> DegradationRecord {
    let cause = match &degradation.cause {
        DegradationCause::Contention { by } => {
            CauseRecord::Contention { by: by.as_ref().map(write_occupant) }
        }
        DegradationCause::Throttling => CauseRecord::Throttling,
        DegradationCause::MemoryPressure => CauseRecord::MemoryPressure,
    };
    DegradationRecord { left: degradation.left.0, cause }
}

pub(super) fn read_degradation(record: &DegradationRecord) -> Degradation {
    let cause = match &record.cause {
        CauseRecord::Contention { by } => {
            DegradationCause::Contention { by: by.as_ref().map(read_occupant) }
        }
        CauseRecord::Throttling => DegradationCause::Throttling,
        CauseRecord::MemoryPressure => DegradationCause::MemoryPressure,
    };
    Degradation { left: Micro(record.left), cause }
}
