//! Weights in Hugging Face's layout: `config.json`, `model.safetensors`, `tokenizer.json`.

use crate::config::Config;
use crate::error::{Error, IoContext, Result, bad_weights};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Hub {
    directory: PathBuf,
}

/// The fields of `config.json` that decide the shape of a Llama.
#[derive(Debug, Deserialize)]
struct HubConfig {
    model_type: String,
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rope_theta: Option<f32>,
    rope_parameters: Option<RopeParameters>,
    rms_norm_eps: f32,
    #[serde(default)]
    tie_word_embeddings: bool,
}

/// Where newer writers keep `rope_theta`.
#[derive(Debug, Deserialize)]
struct RopeParameters {
    rope_theta: Option<f32>,
}

impl Hub {
    pub fn open(directory: &Path) -> Result<Self> {
        for name in ["config.json", "model.safetensors", "tokenizer.json"] {
            if !directory.join(name).is_file() {
                return Err(bad_weights(directory, format!("it has no `{name}`")));
            }
        }
        Ok(Self { directory: directory.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    pub fn tensors_path(&self) -> PathBuf {
        self.directory.join("model.safetensors")
    }

    pub fn tokenizer_path(&self) -> PathBuf {
        self.directory.join("tokenizer.json")
    }

    pub fn config(&self) -> Result<Config> {
        let path = self.directory.join("config.json");
        let text = std::fs::read_to_string(&path).at("read", &path)?;
        let hub: HubConfig =
            serde_json::from_str(&text).map_err(|error| bad_weights(&path, error))?;
        if hub.model_type != "llama" || !hub.tie_word_embeddings {
            return Err(bad_weights(&path, "only `llama` models with tied embeddings are known"));
        }
        let theta = hub.rope_theta.or(hub.rope_parameters.and_then(|rope| rope.rope_theta));
        let heads = hub.num_attention_heads.max(1);
        Ok(Config {
            layers: hub.num_hidden_layers,
            hidden: hub.hidden_size,
            feed_forward: hub.intermediate_size,
            heads,
            kv_heads: hub.num_key_value_heads.unwrap_or(heads),
            head_size: hub.head_dim.unwrap_or(hub.hidden_size / heads),
            vocabulary: hub.vocab_size,
            positions_max: hub.max_position_embeddings,
            rope_theta: theta.unwrap_or(10_000.0),
            norm_epsilon: hub.rms_norm_eps,
        })
    }

    pub fn tensors(&self) -> Result<TensorFile> {
        TensorFile::open(&self.tensors_path())
    }

    pub fn formats(&self) -> Result<BTreeSet<String>> {
        let file = self.tensors()?;
        let parsed = file.parse()?;
        Ok(parsed.iter().map(|(_, view)| format!("{:?}", view.dtype()).to_lowercase()).collect())
    }
}

/// A safetensors file held in memory.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<Self> {
        let file = Self { path: path.to_owned(), bytes: std::fs::read(path).at("read", path)? };
        file.check_length()?;
        file.parse()?;
        Ok(file)
    }

    /// Says how much is missing, which the safetensors crate does not.
    fn check_length(&self) -> Result<()> {
        let found = self.bytes.len() as u64;
        let truncated = |expected| Error::Truncated { path: self.path.clone(), expected, found };
        let Some(head) = self.bytes.first_chunk::<8>() else {
            return Err(truncated(8));
        };
        let header_end = u64::from_le_bytes(*head).saturating_add(8);
        let Some(header) = self.bytes.get(8..header_end as usize) else {
            // A length beyond any real header is a different file, not a short one.
            return Err(if header_end > 100_000_000 {
                bad_weights(&self.path, "it is not a safetensors file")
            } else {
                truncated(header_end)
            });
        };
        let header: serde_json::Value = serde_json::from_slice(header)
            .map_err(|error| bad_weights(&self.path, format!("its header is broken: {error}")))?;
        let ends = header.as_object().into_iter().flatten();
        let ends = ends.filter_map(|(_, tensor)| tensor.get("data_offsets")?.get(1)?.as_u64());
        let expected = ends.max().unwrap_or(0).saturating_add(header_end);
        if found < expected { Err(truncated(expected)) } else { Ok(()) }
    }

    pub fn parse(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| bad_weights(&self.path, error))
    }

    /// A tensor as f32, after checking that it has `values` of them.
    pub fn get(&self, name: &str, values: usize) -> Result<Vec<f32>> {
        let parsed = self.parse()?;
        let view = parsed
            .tensor(name)
            .map_err(|_| bad_weights(&self.path, format!("it has no `{name}`")))?;
        let found: usize = view.shape().iter().product();
        if found != values {
            let what = format!("`{name}` holds {found} values, expected {values}");
            return Err(bad_weights(&self.path, what));
        }
        let pairs = || view.data().chunks_exact(2).map(|b| [b[0], b[1]]);
        match view.dtype() {
            Dtype::F32 => Ok(f32s(view.data())),
            Dtype::BF16 => Ok(pairs().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect()),
            Dtype::F16 => Ok(pairs().map(|b| half::f16::from_le_bytes(b).to_f32()).collect()),
            other => {
                Err(bad_weights(&self.path, format!("`{name}` has type {other:?}, not a float")))
            }
        }
    }
}

pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
