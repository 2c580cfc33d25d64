//! What a policy remembers as it is stored.

use het_core::PolicyMemory;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PolicyMemoryRecord {
    pub policy: String,
    pub memory: Value,
}

/// # Panics
/// When a policy remembers something that is no JSON.
pub(super) fn write_memory(memory: &PolicyMemory) -> PolicyMemoryRecord {
    let value = serde_json::from_str(&memory.json).expect("policies remember JSON");
    PolicyMemoryRecord { policy: memory.policy.to_string(), memory: value }
}

pub(super) fn read_memory(policy: &str, memory: &Value) -> PolicyMemory {
    PolicyMemory { policy: policy.into(), json: memory.to_string() }
}
