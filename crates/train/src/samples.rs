//! What a model is asked before and after training, and what it answers.

use crate::architecture::Architecture;
use crate::error::Result;
use crate::report::Sample;
use crate::split::{self, Split};
use crate::tokenizer::Tokenizer;
use crate::training::Prompts;
use std::path::Path;

/// Longest answer in tokens
const NEW_MAX: usize = 48;
/// What is given of a sequence that is text from its beginning, in tokens
const TEXT_PROMPT: usize = 16;

/// The beginnings of the first `count` held-out sequences, up to what is to be learned of them; of
/// the training data where nothing is held out. Those that the model does not fit are left out.
pub fn prompts(
    count: usize,
    directory: &Path,
    data: &Split,
    tokenizer: &Tokenizer,
    architecture: &Architecture,
) -> Result<Prompts> {
    let held_out = Split::open(directory, split::HELD_OUT, tokenizer).ok();
    let data = held_out.as_ref().unwrap_or(data);
    let length_max = architecture.positions_max.saturating_sub(NEW_MAX);
    let mut prompts = Vec::new();
    for index in 0..count.min(data.count()) {
        let sequence = data.sequence(index, length_max)?;
        let first = sequence.scored.iter().position(|&scored| scored);
        let length = match first.unwrap_or(sequence.tokens.len()) {
            0 | 1 => TEXT_PROMPT.min(sequence.tokens.len()),
            first => first,
        };
        let prompt = sequence.tokens[..length].to_vec();
        if !prompt.is_empty() && prompt.iter().all(|t| (*t as usize) < architecture.vocabulary) {
            prompts.push(prompt);
        }
    }
    Ok(Prompts { prompts, end: tokenizer.end(), new_max: NEW_MAX })
}

/// Prompts with what was written before and after; none where nothing was written.
pub fn decoded(
    prompts: &Prompts,
    [before, after]: &[Vec<Vec<u32>>; 2],
    tokenizer: &Tokenizer,
) -> Result<Vec<Sample>> {
    let answers = prompts.prompts.iter().zip(before.iter().zip(after));
    let samples = answers.map(|(prompt, (before, after))| {
        let prompt = tokenizer.decode(prompt)?;
        let (before, after) = (tokenizer.decode(before)?, tokenizer.decode(after)?);
        Ok(Sample { prompt, before, after })
    });
    samples.collect()
}
