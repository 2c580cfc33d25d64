//! What several tests share: a tiny model and a batch that crosses an attention block.

use het_train::batch::{Batch, Sequence};
use het_train::weights::Weights;
use std::sync::Arc;

pub fn weights() -> Arc<Weights> {
    Arc::new(het_train::tiny::weights(1))
}

/// Three sequences of unlike lengths, two of three predictions scored.
pub fn batch() -> Batch {
    let sequences = [20, 33, 70].into_iter().enumerate().map(|(index, length)| Sequence {
        tokens: (0..length).map(|i| (i * 37 + index as u32 * 11) % 259).collect(),
        scored: (0..length).map(|i| i % 3 != 0).collect(),
    });
    Batch::pack(&sequences.collect::<Vec<_>>(), 128)
}
