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
    pub(super) measured: Option<Value>,
    pub(super) driver: Option<String>,
    pub(super) detail: Option<String>,
    pub(super) message: Option<String>,
    pub(super) done: Option<bool>,
}

/// How a step goes whose batch follows the noise of its gradient. `None` where that cannot be true.
pub(super) fn measured(told: &Value) -> Option<Measured> {
    let number = |name: &str| told.get(name).map_or(Some(0.0), Value::as_f64);
    let micro = |name: &str| Micro::from_f64(number(name)?).filter(|value| *value >= Micro(0));
    let count = |name: &str| {
        let value = number(name)?.round();
        (0.0..=f64::from(u32::MAX)).contains(&value).then_some(value as u32)
    };
    let measured = Measured {
        batch: count("batch")?,
        accumulation: count("accumulation")?,
        step: micro("step_s")?,
        exchange: micro("exchange_s")?,
        gradient_noise: micro("gradient_noise")?,
    };
    let is_possible = measured.batch > 0
        && measured.step > Micro(0)
        && measured.exchange <= measured.step
        && told.get("gradient_noise").is_some();
    is_possible.then_some(measured)
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
