//! A tiny random Llama with a byte tokenizer, for tests that need a model but not a mind.

use crate::architecture::Architecture;
use crate::configuration;
use crate::error::Result;
use crate::tokenizer::{Split, Tokenizer, added, byte_level_bpe};
use crate::weights::{Layer, Outer, Pair, Parameters, Weights};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Map, Value as Json, json};
use std::sync::Arc;

const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// The `config.json` of the tiny model.
pub fn configuration() -> Map<String, Json> {
    let json = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "vocab_size": SPECIAL.len() + 256, "max_position_embeddings": 1024,
        "rope_theta": 10_000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
    });
    json.as_object().cloned().unwrap_or_default()
}

pub fn architecture() -> Architecture {
    configuration::hub::read(&configuration()).expect("the tiny model is known")
}

/// Weights of [`architecture`]'s shape; the same seed gives the same values.
pub fn weights(seed: u64) -> Weights {
    let architecture = architecture();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut matrix = |rows: usize, columns: usize| -> Vec<f32> {
        let bound = 1.0 / (columns as f32).sqrt();
        let unit = |random: &mut ChaCha8Rng| (random.next_u32() >> 8) as f32 / (1 << 24) as f32;
        (0..rows * columns).map(|_| (2.0 * unit(&mut random) - 1.0) * bound).collect()
    };
    let (hidden, wide) = (architecture.hidden, architecture.mlp.feed_forward);
    let shape = architecture.attention;
    let plain = |weight| Pair { weight, ..Pair::default() };
    let embedding = matrix(architecture.vocabulary, hidden);
    let mut layers = Vec::new();
    for _ in &architecture.layers {
        layers.push(Layer {
            attention_norm: plain(matrix(1, hidden).iter().map(|v| 1.0 + v).collect()),
            qkv: plain(matrix(shape.qkv_width(), hidden)),
            output: plain(matrix(hidden, shape.q_width())),
            mlp_norm: plain(matrix(1, hidden).iter().map(|v| 1.0 + v).collect()),
            up: plain(matrix(2 * wide, hidden)),
            down: plain(matrix(hidden, wide)),
            ..Layer::default()
        });
    }
    let norm = plain(matrix(1, hidden).iter().map(|v| 1.0 + v).collect());
    let outer = Arc::new(Outer { embedding, norm, ..Outer::default() });
    let configuration = Some(configuration());
    Weights { architecture, parameters: Parameters { outer, layers }, configuration }
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
    let added = special().map(|(id, token)| added(id, token, true)).collect();
    let json = byte_level_bpe(vocabulary, &[], added, Split::SmolLm);
    Tokenizer::from_json(json.to_string().into_bytes())
}

/// The printable stand-in of each byte in byte-level BPE (GPT-2's `bytes_to_unicode`).
fn byte_characters() -> impl Iterator<Item = char> {
    let mut stand_ins = (256..).filter_map(char::from_u32);
    (0..=255u8).map(move |byte| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => stand_ins.next().unwrap_or(char::REPLACEMENT_CHARACTER),
    })
}
