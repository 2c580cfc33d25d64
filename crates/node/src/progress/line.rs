//! A line that a program writes to `HET_PROGRESS`, as JSON.
//!
//! An object with any of `step total loss samples tokens useful_ms checkpoint{step,path}
//! result{name:number} driver detail message done`; other keys are ignored.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Line {
    pub(super) step: Option<f64>,
    pub(super) total: Option<f64>,
    pub(super) loss: Option<f64>,
    pub(super) samples: Option<f64>,
    pub(super) tokens: Option<f64>,
    pub(super) useful_ms: Option<f64>,
    pub(super) checkpoint: Option<SavedCheckpoint>,
    pub(super) result: Option<BTreeMap<String, Value>>,
    pub(super) driver: Option<String>,
    pub(super) detail: Option<String>,
    pub(super) message: Option<String>,
    pub(super) done: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SavedCheckpoint {
    pub(super) step: u64,
    pub(super) path: String,
}

/// Python writes a loss that is not finite as `NaN` or `Infinity`, which is not JSON. Such values
/// become null; the rest of the line is kept.
pub(super) fn parse(line: &[u8]) -> Option<Line> {
    serde_json::from_slice(line).ok().or_else(|| {
        let text = std::str::from_utf8(line).ok()?;
        let text = text.replace("-Infinity", "null").replace("Infinity", "null");
        serde_json::from_str(&text.replace("NaN", "null")).ok()
    })
}

/// Counts may be written as `5.0`; a negative one is 0.
pub(super) fn whole(value: f64) -> u64 {
    value.round() as u64
}
