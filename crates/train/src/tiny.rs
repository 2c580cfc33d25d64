//! A tiny random Llama with a byte tokenizer, for tests that need a model but not a mind.

use crate::config::Config;
use crate::error::Result;
use crate::tokenizer::{Tokenizer, byte_level_bpe};
use crate::weights::{Layer, Weights};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::json;
use std::sync::Arc;

const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

pub fn config() -> Config {
    Config {
        layers: 2,
        hidden: 32,
        feed_forward: 64,
        heads: 4,
        kv_heads: 2,
        head_size: 8,
        vocabulary: SPECIAL.len() + 256,
        positions_max: 1024,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
    }
}

/// Weights of [`config`]'s shape; the same seed gives the same values.
pub fn weights(seed: u64) -> Weights {
    let config = config();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut matrix = |rows: usize, columns: usize| -> Vec<f32> {
        let bound = 1.0 / (columns as f32).sqrt();
        let unit = |random: &mut ChaCha8Rng| (random.next_u32() >> 8) as f32 / (1 << 24) as f32;
        (0..rows * columns).map(|_| (2.0 * unit(&mut random) - 1.0) * bound).collect()
    };
    let (hidden, wide) = (config.hidden, config.feed_forward);
    let embedding = Arc::new(matrix(config.vocabulary, hidden));
    let layers = (0..config.layers)
        .map(|_| Layer {
            attention_norm: matrix(1, hidden).iter().map(|v| 1.0 + v).collect(),
            qkv: matrix(config.qkv_width(), hidden),
            output: matrix(hidden, config.q_width()),
            mlp_norm: matrix(1, hidden).iter().map(|v| 1.0 + v).collect(),
            gate_up: matrix(2 * wide, hidden),
            down: matrix(hidden, wide),
        })
        .collect();
    let norm = Arc::new(matrix(1, hidden).iter().map(|v| 1.0 + v).collect());
    Weights { config, embedding, layers, norm }
}

/// One token a byte, and the special ones.
pub fn tokenizer() -> Result<Tokenizer> {
    let special = || SPECIAL.iter().enumerate().map(|(id, token)| (id, *token));
    let mut vocabulary = serde_json::Map::new();
    for (id, token) in special() {
        vocabulary.insert(token.to_owned(), json!(id));
    }
    for (index, character) in byte_characters().enumerate() {
        vocabulary.insert(character.to_string(), json!(SPECIAL.len() + index));
    }
    Tokenizer::from_json(byte_level_bpe(vocabulary, &[], special(), true).to_string().into_bytes())
}

/// The printable stand-in of each byte in byte-level BPE (GPT-2's `bytes_to_unicode`).
fn byte_characters() -> impl Iterator<Item = char> {
    let mut stand_ins = (256..).filter_map(char::from_u32);
    (0..=255u8).map(move |byte| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => stand_ins.next().unwrap_or(char::REPLACEMENT_CHARACTER),
    })
}
