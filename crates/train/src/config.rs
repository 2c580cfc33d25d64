//! The shape of a model.

use crate::error::{Result, bad_weights};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The shape of a Llama-style decoder with tied embeddings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    pub layers: usize,
    pub hidden: usize,
    pub feed_forward: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub vocabulary: usize,
    pub positions_max: usize,
    pub rope_theta: f32,
    pub norm_epsilon: f32,
}

impl Config {
    pub fn q_width(&self) -> usize {
        self.heads * self.head_size
    }

    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_size
    }

    pub fn qkv_width(&self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }

    pub fn parameters(&self) -> usize {
        let layer = self.hidden * (self.qkv_width() + self.q_width() + 3 * self.feed_forward + 2);
        self.layers * layer + self.hidden * (self.vocabulary + 1)
    }

    /// Refuses shapes that the forward pass cannot compute.
    pub(crate) fn checked(self, path: &Path) -> Result<Self> {
        let sizes = [self.layers, self.hidden, self.feed_forward, self.vocabulary, self.kv_heads];
        if sizes.contains(&0) || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(bad_weights(path, "its configuration has an impossible size"));
        }
        if !self.head_size.is_multiple_of(2) {
            return Err(bad_weights(path, format!("head size {} is odd", self.head_size)));
        }
        Ok(self)
    }
}
