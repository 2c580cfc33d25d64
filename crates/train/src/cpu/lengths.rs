//! How many values the buffers of a batch have: what layers keep, and what is there for a moment.

use super::ends::HEAD_ROWS;
use crate::architecture::{Architecture, PostNorms};

/// Bytes of a value.
pub const VALUE: u64 = 4;

/// What of a batch decides its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lengths {
    tokens: u64,
    /// Σ length²
    squares: u64,
}

impl Lengths {
    pub fn of(lengths: impl Iterator<Item = usize>) -> Self {
        lengths.fold(Self::default(), |Self { tokens, squares }, length| {
            let length = length as u64;
            Self { tokens: tokens + length, squares: squares + length * length }
        })
    }

    /// What has room for either.
    pub fn max(self, other: Self) -> Self {
        let (tokens, squares) = (self.tokens, self.squares);
        Self { tokens: tokens.max(other.tokens), squares: squares.max(other.squares) }
    }

    /// Values of a layer's input.
    pub fn input(self, architecture: &Architecture) -> u64 {
        self.tokens * architecture.hidden as u64
    }

    /// Values of a layer's input and tape (`cpu::layer::Tape`).
    pub fn layer(self, architecture: &Architecture) -> u64 {
        let Architecture { hidden, attention, mlp, post_norms, .. } = architecture;
        let results = if *post_norms == PostNorms::Both { 2 * hidden } else { 0 };
        let projected = attention.norm.map_or(0, |_| attention.qkv_width());
        let row = 2 * hidden
            + results
            + attention.qkv_width()
            + projected
            + attention.q_width()
            + mlp.up_width();
        self.tokens * row as u64 + self.squares * attention.heads as u64
    }

    /// Values that the largest product in bf16 packs of its first factor: rows of a batch, or of
    /// the head's logits where their gradient is one.
    pub fn packed(self, Architecture { attention, mlp, vocabulary, .. }: &Architecture) -> u64 {
        let widest = attention.qkv_width().max(mlp.up_width()) as u64;
        (self.tokens * widest).max((HEAD_ROWS * vocabulary) as u64)
    }

    /// Values of the workspaces of a layer and of the head.
    pub fn working(self, architecture: &Architecture) -> u64 {
        let Architecture { hidden, attention, mlp, vocabulary, .. } = architecture;
        let residual = 5 * hidden;
        let mixed = attention.q_width() + attention.qkv_width();
        let row = residual + mixed + 2 * mlp.feed_forward + mlp.up_width();
        let logits = if architecture.logit_cap.is_some() { 2 } else { 1 } * vocabulary;
        self.tokens * row as u64 + (HEAD_ROWS * (logits + 3 * hidden)) as u64
    }
}
