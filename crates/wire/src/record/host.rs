//! What nodes have and ranks hold beside devices, as it is stored.

use het_core::{Bytes, HostResources};
use serde::{Deserialize, Serialize};

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    #[serde(default)]
    memory_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    scratch_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    read_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    tasks: u64,
}

fn is_zero(amount: &u64) -> bool {
    *amount == 0
}

impl From<HostResources> for HostRecord {
    fn from(HostResources { memory, scratch, read, tasks }: HostResources) -> Self {
        Self { memory_bytes: memory.0, scratch_bytes: scratch.0, read_bytes: read.0, tasks }
    }
}

impl From<HostRecord> for HostResources {
    fn from(HostRecord { memory_bytes, scratch_bytes, read_bytes, tasks }: HostRecord) -> Self {
        let (memory, scratch) = (Bytes(memory_bytes), Bytes(scratch_bytes));
        Self { memory, scratch, read: Bytes(read_bytes), tasks }
    }
}

/// Nothing where nobody said how much there is.
pub(super) fn write_disk(bytes: Bytes) -> Option<u64> {
    (bytes != HostResources::UNLIMITED).then_some(bytes.0)
}

pub(super) fn read_disk(bytes: Option<u64>) -> Bytes {
    bytes.map_or(HostResources::UNLIMITED, Bytes)
}
