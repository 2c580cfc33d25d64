//! Whoever uses a device beside all jobs, as it is stored.

use het_core::Occupant;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OccupantRecord {
    process: u32,
    user: String,
    command: String,
}

pub(super) fn write_occupant(by: &Occupant) -> OccupantRecord {
    let Occupant { process, user, command } = by;
    OccupantRecord { process: *process, user: user.to_string(), command: command.to_string() }
}

pub(super) fn read_occupant(record: &OccupantRecord) -> Occupant {
    let OccupantRecord { process, user, command } = record;
    Occupant { process: *process, user: user.as_str().into(), command: command.as_str().into() }
}
