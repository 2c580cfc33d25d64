//! What a driver is given: sequences laid end to end, and which predictions count.

use crate::error::{Error, Result};
use std::ops::Range;

/// One tokenised example: `scored[i]` says whether predicting `tokens[i]` counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sequence {
    pub tokens: Vec<u32>,
    pub scored: Vec<bool>,
}

/// Sequences packed without padding.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub tokens: Vec<u32>,
    /// Sequence `i` is `tokens[bounds[i]..bounds[i + 1]]`.
    pub bounds: Vec<usize>,
    /// Rows whose next token is scored, ascending.
    pub rows: Vec<usize>,
    /// The token that should follow each of `rows`.
    pub targets: Vec<u32>,
}

impl Batch {
    /// Whether sequences lie end to end and rows are rows, as in every batch that was packed.
    pub fn is_whole(&self) -> bool {
        let Self { tokens, bounds, rows, targets } = self;
        bounds.first() == Some(&0)
            && bounds.last() == Some(&tokens.len())
            && bounds.is_sorted()
            && rows.iter().all(|row| *row < tokens.len())
            && rows.len() == targets.len()
    }

    /// Packs `sequences`, each cut to `length_max` tokens.
    pub fn pack<'a>(sequences: impl IntoIterator<Item = &'a Sequence>, length_max: usize) -> Self {
        let mut batch = Batch { bounds: vec![0], ..Batch::default() };
        for sequence in sequences {
            let start = batch.tokens.len();
            let length = sequence.tokens.len().min(length_max);
            batch.tokens.extend(&sequence.tokens[..length]);
            for position in 1..length {
                if sequence.scored[position] {
                    batch.rows.push(start + position - 1);
                    batch.targets.push(sequence.tokens[position]);
                }
            }
            batch.bounds.push(batch.tokens.len());
        }
        batch
    }

    pub fn sequences(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Some of its sequences, as a batch of their own.
    pub fn part(&self, sequences: Range<usize>) -> Self {
        let (start, end) = (self.bounds[sequences.start], self.bounds[sequences.end]);
        let rows = self.rows.partition_point(|row| *row < start)
            ..self.rows.partition_point(|row| *row < end);
        Self {
            tokens: self.tokens[start..end].to_vec(),
            bounds: self.bounds[sequences.start..=sequences.end]
                .iter()
                .map(|at| at - start)
                .collect(),
            rows: self.rows[rows.clone()].iter().map(|row| row - start).collect(),
            targets: self.targets[rows].to_vec(),
        }
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        self.bounds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    /// Refuses tokens that the vocabulary does not have.
    pub fn check_vocabulary(&self, vocabulary: usize) -> Result<()> {
        match self.tokens.iter().find(|&&token| token as usize >= vocabulary) {
            None => Ok(()),
            Some(token) => Err(Error::Usage {
                what: format!("token {token} is beyond the vocabulary of {vocabulary}"),
                hint: "tokenize again with the same `--weights`",
            }),
        }
    }
}
