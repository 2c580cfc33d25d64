//! A line that a program writes to `HET_PROGRESS`, or that stands in an annotation of its pod, as
//! JSON.
//!
//! An object with any of `step total loss samples tokens useful_ms checkpoint{step,path}
//! result{name:number} measured{batch,accumulation,step_s,exchange_s,gradient_noise} driver detail
//! message done silent_ms`; other keys are ignored. `silent_ms` is a supervisor's word: the program
//! hangs, and has given no sign of life for so long.

use std::collections::BTreeMap;

use het_core::{Checkpoint, Measured, Micro, Millis, Progress};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::LINE_BYTES_MAX;

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
    pub(super) silent_ms: Option<f64>,
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

/// The line that says the same as `progress`, but for what an engine measures, names a checkpoint,
/// and says for how long a program that hangs has been silent. Where that is too long for an
/// annotation, without its named figures and its message.
pub fn to_line(
    progress: &Progress,
    checkpoint: Option<&Checkpoint>,
    silent: Option<Millis>,
) -> String {
    let whole = line(progress, checkpoint, silent);
    if whole.len() <= LINE_BYTES_MAX {
        return whole;
    }
    let (results, message) = (BTreeMap::new(), None);
    line(&Progress { results, message, ..progress.clone() }, checkpoint, silent)
}

fn line(progress: &Progress, checkpoint: Option<&Checkpoint>, silent: Option<Millis>) -> String {
    let mut line = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        line.extend(value.map(|value| (name.to_owned(), value)));
    };
    put("step", progress.step.map(Value::from));
    put("total", progress.total.map(Value::from));
    put("loss", progress.loss.map(|loss| loss.as_f64().into()));
    put("samples", progress.samples.map(Value::from));
    put("tokens", progress.tokens.map(Value::from));
    put("useful_ms", progress.useful.map(|useful| useful.0.into()));
    put("checkpoint", checkpoint.map(|it| json!({ "step": it.step, "path": it.path })));
    let results = progress.results.iter();
    let results: Map<String, Value> =
        results.map(|(name, value)| (name.to_string(), value.as_f64().into())).collect();
    put("result", (!results.is_empty()).then_some(Value::Object(results)));
    put("measured", progress.measured.as_deref().map(measured_value));
    put("driver", progress.ran_on.as_ref().map(|ran_on| ran_on.as_str().into()));
    put("message", progress.message.clone().map(Value::from));
    put("silent_ms", silent.map(|silent| silent.0.into()));
    Value::Object(line).to_string()
}

fn measured_value(measured: &Measured) -> Value {
    json!({
        "batch": measured.batch, "accumulation": measured.accumulation,
        "step_s": measured.step.as_f64(), "exchange_s": measured.exchange.as_f64(),
        "gradient_noise": measured.gradient_noise.as_f64(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::progress::Tally;

    #[test]
    fn a_line_that_is_too_long_leaves_figures_away() {
        let name = |number: usize| format!("{number}{}", "x".repeat(200)).as_str().into();
        let results = (0..200).map(|number| (name(number), Micro(1))).collect();
        let progress = Progress { step: Some(7), results, ..Progress::default() };
        let line = to_line(&progress, None, None);
        assert_eq!(line, "{\"step\":7}");
    }

    proptest! {
        #[test]
        fn a_line_is_read_as_what_it_was_written_for(
            (step, total, loss) in (0u64..1 << 40, any::<Option<u32>>(), any::<Option<i32>>()),
            (name, value) in ("[a-z_]{1,9}", any::<i32>()),
            (message, path) in (any::<Option<u16>>(), "/[a-z/ü]{0,20}"),
            (batch, times) in (1u32..4_096, 1i64..1_000_000_000),
        ) {
            let measured = Measured {
                batch,
                accumulation: 3,
                step: Micro(times),
                exchange: Micro(times / 2),
                gradient_noise: Micro(times),
            };
            let progress = Progress {
                step: Some(step),
                total: total.map(u64::from),
                loss: loss.map(|loss| Micro(i64::from(loss))),
                useful: Some(Millis(step)),
                measured: Some(Box::new(measured)),
                results: [(name.as_str().into(), Micro(i64::from(value)))].into(),
                ran_on: Some("cuda".into()),
                message: message.map(|number| format!("epoch {number}")),
                ..Progress::default()
            };
            let checkpoint = Checkpoint { step, path };
            let mut tally = Tally::default();
            let silent = total.map(|total| Millis(u64::from(total)));
            tally.line(to_line(&progress, Some(&checkpoint), silent).as_bytes());
            prop_assert_eq!(tally.take(), (Some(progress), vec![checkpoint]));
            prop_assert_eq!(tally.take_silent(), silent);
        }
    }
}
