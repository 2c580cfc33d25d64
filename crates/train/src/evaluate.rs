//! Held-out loss, and how many generated job files the real parser accepts.

use crate::batch::{Batch, Sequence};
use crate::cpu::generate::generate;
use crate::cpu::model::Model;
use crate::dataset::Example;
use crate::error::{Error, Result};
use crate::progress::{Progress, Totals};
use crate::split::Split;
use crate::steps::Executor;
use crate::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::ops::Range;

/// Tokens that are scored at once.
const TOKENS_AT_ONCE: usize = 1024;

/// Mean loss over all scored tokens, of which there must be some. One group of sequences is in
/// memory at a time.
pub fn loss(
    executor: &mut Executor,
    data: &Split,
    length_max: usize,
    totals: &mut Totals,
    progress: &mut Progress,
) -> Result<f64> {
    data.check_scored(length_max)?;
    let groups = by_tokens(data, length_max, TOKENS_AT_ONCE);
    let (mut sum, mut scored) = (0.0, 0);
    for (index, group) in groups.iter().enumerate() {
        let read = group.clone().map(|index| data.sequence(index, length_max));
        let batch = Batch::pack(&read.collect::<Result<Vec<Sequence>>>()?, length_max);
        let loss = totals.time(|| executor.loss(&batch))?;
        if !loss.is_finite() {
            let what = format!("the loss of batch {} of {}", index + 1, groups.len());
            return Err(Error::NotFinite { what });
        }
        sum += loss;
        scored += batch.rows.len();
        totals.samples += batch.sequences() as u64;
        totals.tokens += batch.tokens.len() as u64;
        progress.send(&totals.report(index as u64 + 1, groups.len() as u64));
    }
    Ok(sum / scored as f64)
}

/// Consecutive sequences that are computed at once: of so many tokens, or one alone.
pub fn by_tokens(data: &Split, length_max: usize, at_once: usize) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut tokens = usize::MAX;
    for index in 0..data.count() {
        let length = data.length(index).min(length_max);
        if tokens.saturating_add(length) > at_once {
            groups.push(index..index);
            tokens = 0;
        }
        tokens += length;
        if let Some(group) = groups.last_mut() {
            group.end = index + 1;
        }
    }
    groups
}

/// One generated file beside the wanted one.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    pub request: String,
    pub wanted: String,
    pub generated: String,
    pub valid: bool,
    pub exact: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Generates a job file for every example and judges it.
pub fn samples(
    model: &mut Model,
    tokenizer: &Tokenizer,
    examples: &[Example],
    new_max: usize,
) -> Result<Vec<Sample>> {
    let prompts = examples.iter().map(|example| tokenizer.prompt(&example.request));
    let prompts = prompts.collect::<Result<Vec<_>>>()?;
    let answers = generate(model, &prompts, tokenizer.end(), new_max)?;
    let judged = examples.iter().zip(answers).map(|(example, answer)| {
        let generated = tokenizer.decode(&answer)?;
        let problem = problem(&generated);
        let valid = problem.is_none();
        let exact = valid && same_intent(&generated, &example.job);
        let Example { request, job } = example.clone();
        Ok(Sample { request, wanted: job, generated, valid, exact, problem })
    });
    judged.collect()
}

/// The share of samples for which `wanted` holds.
pub fn share(samples: &[Sample], wanted: impl Fn(&Sample) -> bool) -> f64 {
    let count = samples.iter().filter(|sample| wanted(sample)).count();
    count as f64 / samples.len().max(1) as f64
}

fn problem(job: &str) -> Option<String> {
    het_wire::job::parse(job, "generated.yaml").err().map(|problems| problems.to_string())
}

/// Whether two files ask for the same devices, priority and checkpoints.
fn same_intent(generated: &str, wanted: &str) -> bool {
    let intent = |text: &str| -> Option<[Json; 3]> {
        let fields: BTreeMap<String, Json> = serde_saphyr::from_str(text).ok()?;
        let text = |key: &str| fields.get(key).and_then(Json::as_str);
        let devices = text("devices").map(|devices| {
            devices.split('|').map(|shape| shape.trim().to_lowercase()).collect::<Vec<_>>()
        });
        let every = text("checkpoint").map(seconds);
        Some([json!(devices), json!(text("priority")), json!(every)])
    };
    matches!((intent(generated), intent(wanted)), (Some(a), Some(b)) if a == b)
}

/// A duration such as `1h30m` in seconds; `None` for anything else.
fn seconds(text: &str) -> Option<u64> {
    let (mut total, mut number) = (0u64, None::<u64>);
    for character in text.chars() {
        if let Some(digit) = character.to_digit(10) {
            number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(digit.into())?);
            continue;
        }
        let unit = match character {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return None,
        };
        total = total.checked_add(number.take()?.checked_mul(unit)?)?;
    }
    if number.is_none() { Some(total) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intent_ignores_spelling_but_not_meaning() {
        let wanted = "name: a\nrun: x\ndevices: \"h100:8 | a100:16\"\ncheckpoint: 90m\n";
        let spelled = "name: b\nrun: y\ndevices: \"H100:8|a100:16\"\ncheckpoint: 1h30m\n";
        assert!(same_intent(spelled, wanted));
        assert!(!same_intent(&spelled.replace("16", "8"), wanted));
        assert!(!same_intent(&format!("{spelled}priority: high\n"), wanted));
    }
}
