//! Tokens and mean next-token loss of every line of a JSONL file.

use crate::architecture::Architecture;
use crate::batch::{Batch, Sequence};
use crate::error::{Error, IoContext, Result};
use crate::steps::Executor;
use crate::tokenizer::Tokenizer;
use crate::weights::Source;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::path::Path;

/// One line's tokens, every one but the first of them scored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Counted from 1
    pub number: usize,
    pub tokens: Vec<u32>,
}

/// What is said of a line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Item {
    pub line: usize,
    /// How many tokens it has; one less are predicted.
    pub tokens: usize,
    /// Mean over the predicted tokens, in nats
    pub loss: f64,
}

/// A line as it is written: one of both.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    text: Option<String>,
    tokens: Option<Vec<u32>>,
}

/// Reads and checks all lines, so that none is found broken after others were computed.
///
/// Empty lines are skipped. The tokenizer is opened only where a line has text.
pub fn read(path: &Path, source: &Source) -> Result<Vec<Line>> {
    let architecture = source.architecture()?;
    let file = std::fs::File::open(path).at("open", path)?;
    let mut tokenizer = None;
    let mut lines = Vec::new();
    for (index, text) in BufReader::new(file).lines().enumerate() {
        let number = index + 1;
        let wrong = |what: String| Error::ScoreLine { path: path.to_owned(), number, what };
        let text = text.map_err(|error| wrong(format!("it cannot be read: {error}")))?;
        if text.trim().is_empty() {
            continue;
        }
        // A list of two would be read by the order of the fields.
        if !text.trim_start().starts_with('{') {
            return Err(wrong("it is not a JSON object".into()));
        }
        let given: Given = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let tokens = match (given.text, given.tokens) {
            (None, Some(tokens)) => tokens,
            (Some(text), None) => {
                let tokenizer = match &mut tokenizer {
                    Some(tokenizer) => tokenizer,
                    none => none.insert(Tokenizer::of(source)?),
                };
                tokenizer.encode_whole(&text)?
            }
            _ => return Err(wrong("it has not one of `text` and `tokens`".into())),
        };
        check(&tokens, &architecture).map_err(wrong)?;
        lines.push(Line { number, tokens });
    }
    match lines.is_empty() {
        true => Err(Error::Usage {
            what: format!("`{}` holds no lines to score", path.display()),
            hint: r#"write lines of {"text": …} or {"tokens": […]} to it"#,
        }),
        false => Ok(lines),
    }
}

fn check(tokens: &[u32], architecture: &Architecture) -> std::result::Result<(), String> {
    let (count, positions) = (tokens.len(), architecture.positions_max);
    if count < 2 {
        return Err(format!("its {count} tokens leave nothing to predict"));
    }
    if count > positions {
        return Err(format!("its {count} tokens are more than the {positions} positions"));
    }
    let vocabulary = architecture.vocabulary;
    match tokens.iter().find(|&&token| token as usize >= vocabulary) {
        Some(token) => Err(format!("token {token} is beyond the vocabulary of {vocabulary}")),
        None => Ok(()),
    }
}

/// One line at a time, so that a line's figures never depend on its neighbours.
pub fn score(executor: &mut Executor, path: &Path, lines: &[Line]) -> Result<Vec<Item>> {
    let items = lines.iter().map(|Line { number, tokens }| {
        let scored = vec![true; tokens.len()];
        let sequence = Sequence { tokens: tokens.clone(), scored };
        let batch = Batch::pack([&sequence], tokens.len());
        let loss = executor.loss(&batch)? / batch.rows.len() as f64;
        if !loss.is_finite() {
            let what = format!("the loss of line {number} of `{}`", path.display());
            return Err(Error::NotFinite { what });
        }
        Ok(Item { line: *number, tokens: tokens.len(), loss })
    });
    items.collect()
}
