//! A line that a program writes to `HET_PROGRESS`, as JSON.
//!
//! An object with any of `step total loss samples tokens useful_ms checkpoint{step,path}
//! result{name:number} measured{batch,accumulation,step_s,exchange_s,gradient_noise} driver detail
//! message done`; other keys are ignored.

use std::collections::BTreeMap;

use het_core::{Measured, Micro};
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
    pub(super) measured: Option<MeasuredStep>,
    pub(super) driver: Option<String>,
    pub(super) detail: Option<String>,
    pub(super) message: Option<String>,
    pub(super) done: Option<bool>,
}

/// How a step goes whose batch follows the noise of its gradient; see [`Measured`].
#[derive(Debug, Deserialize)]
pub(super) struct MeasuredStep {
    batch: u32,
    #[serde(default)]
    accumulation: u32,
    step_s: f64,
    #[serde(default)]
    exchange_s: f64,
    gradient_noise: f64,
}

impl MeasuredStep {
    /// `None` where it cannot be true.
    pub(super) fn read(&self) -> Option<Measured> {
        let possible = self.batch > 0
            && self.step_s > 0.0
            && (0.0..=self.step_s).contains(&self.exchange_s)
            && self.gradient_noise >= 0.0;
        possible.then_some(())?;
        Some(Measured {
            batch: self.batch,
            accumulation: self.accumulation,
            step: Micro::from_f64(self.step_s)?,
            exchange: Micro::from_f64(self.exchange_s)?,
            gradient_noise: Micro::from_f64(self.gradient_noise)?,
        })
    }
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
