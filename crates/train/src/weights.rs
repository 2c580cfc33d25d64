//! Frozen base weights: a Llama's shape and matrices in f32, from GGUF or from Hugging Face files.
//!
//! Matrices are row-major `[out, in]` in Hugging Face's row order. Projections that read the same
//! input lie in one matrix (`qkv`, `gate_up`), so that one product serves them all.

use crate::config::Config;
use crate::digest::sha256_file;
use crate::error::{Error, Result, bad_weights};
use crate::gguf::{Gguf, Value};
use crate::hub::Hub;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, Clone)]
pub struct Layer {
    pub attention_norm: Vec<f32>,
    /// `[q_width + 2 kv_width, hidden]`
    pub qkv: Vec<f32>,
    /// `[hidden, q_width]`
    pub output: Vec<f32>,
    pub mlp_norm: Vec<f32>,
    /// `[2 feed_forward, hidden]`
    pub gate_up: Vec<f32>,
    /// `[hidden, feed_forward]`
    pub down: Vec<f32>,
}

#[derive(Debug, Clone)]
pub struct Weights {
    pub config: Config,
    /// `[vocabulary, hidden]`, also the language-model head
    pub embedding: Arc<Vec<f32>>,
    pub layers: Vec<Layer>,
    pub norm: Arc<Vec<f32>>,
}

/// Opened weights whose matrices have not been decoded yet.
#[derive(Debug)]
pub enum Source {
    Gguf { path: PathBuf, file: Gguf },
    Hub(Hub),
}

impl Source {
    /// `spec` is a model name that `fetch` knows, a `.gguf` file or a Hugging Face directory.
    pub fn open(spec: &str) -> Result<Self> {
        let path = match spec {
            crate::fetch::MODEL => crate::fetch::ensure()?,
            other => PathBuf::from(other),
        };
        if path.is_dir() {
            return Hub::open(&path).map(Source::Hub);
        }
        let file = Gguf::open(&path)?;
        Ok(Source::Gguf { path, file })
    }

    pub fn path(&self) -> &Path {
        match self {
            Source::Gguf { path, .. } => path,
            Source::Hub(hub) => hub.path(),
        }
    }

    /// The file that holds the matrices.
    pub fn file(&self) -> PathBuf {
        match self {
            Source::Gguf { path, .. } => path.clone(),
            Source::Hub(hub) => hub.tensors_path(),
        }
    }

    /// Element types in the file, such as `f32+q4_1`.
    pub fn formats(&self) -> Result<String> {
        let names: BTreeSet<String> = match self {
            Source::Gguf { file, .. } => {
                file.tensors.values().map(|tensor| tensor.format.name().to_owned()).collect()
            }
            Source::Hub(hub) => hub.formats()?,
        };
        Ok(names.into_iter().collect::<Vec<_>>().join("+"))
    }

    pub fn config(&self) -> Result<Config> {
        match self {
            Source::Gguf { path, file } => gguf_config(path, file)?.checked(path),
            Source::Hub(hub) => hub.config()?.checked(hub.path()),
        }
    }

    pub fn weights(&self) -> Result<Weights> {
        let config = self.config()?;
        match self {
            Source::Gguf { file, .. } => {
                assemble(config, |name, values| gguf_tensor(file, &name, values))
            }
            Source::Hub(hub) => {
                let tensors = hub.tensors()?;
                assemble(config, |name, values| tensors.get(&name.hub_name(), values))
            }
        }
    }

    pub fn sha256(&self) -> Result<String> {
        sha256_file(&self.file())
    }
}

/// The tensors of a Llama, named once for both file formats.
#[derive(Debug, Clone, Copy)]
pub enum Name {
    Embedding,
    Norm,
    Layer(usize, Part),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    AttentionNorm,
    Query,
    Key,
    Value,
    Output,
    MlpNorm,
    Gate,
    Up,
    Down,
}

impl Name {
    pub fn hub_name(self) -> String {
        let (layer, part) = match self {
            Name::Embedding => return "model.embed_tokens.weight".into(),
            Name::Norm => return "model.norm.weight".into(),
            Name::Layer(layer, part) => (layer, part),
        };
        let part = match part {
            Part::AttentionNorm => "input_layernorm",
            Part::Query => "self_attn.q_proj",
            Part::Key => "self_attn.k_proj",
            Part::Value => "self_attn.v_proj",
            Part::Output => "self_attn.o_proj",
            Part::MlpNorm => "post_attention_layernorm",
            Part::Gate => "mlp.gate_proj",
            Part::Up => "mlp.up_proj",
            Part::Down => "mlp.down_proj",
        };
        format!("model.layers.{layer}.{part}.weight")
    }

    pub fn gguf_name(self) -> String {
        let (layer, part) = match self {
            Name::Embedding => return "token_embd.weight".into(),
            Name::Norm => return "output_norm.weight".into(),
            Name::Layer(layer, part) => (layer, part),
        };
        let part = match part {
            Part::AttentionNorm => "attn_norm",
            Part::Query => "attn_q",
            Part::Key => "attn_k",
            Part::Value => "attn_v",
            Part::Output => "attn_output",
            Part::MlpNorm => "ffn_norm",
            Part::Gate => "ffn_gate",
            Part::Up => "ffn_up",
            Part::Down => "ffn_down",
        };
        format!("blk.{layer}.{part}.weight")
    }
}

fn assemble(
    config: Config,
    read: impl Fn(Name, usize) -> Result<Vec<f32>> + Sync,
) -> Result<Weights> {
    let (hidden, wide) = (config.hidden, config.feed_forward);
    let (q, kv) = (config.q_width() * hidden, config.kv_width() * hidden);
    let embedding = read(Name::Embedding, config.vocabulary * hidden)?;
    let layers = (0..config.layers).into_par_iter().map(|index| {
        let part = |part, values| read(Name::Layer(index, part), values);
        let mut qkv = part(Part::Query, q)?;
        qkv.extend(part(Part::Key, kv)?);
        qkv.extend(part(Part::Value, kv)?);
        let mut gate_up = part(Part::Gate, wide * hidden)?;
        gate_up.extend(part(Part::Up, wide * hidden)?);
        Ok(Layer {
            attention_norm: part(Part::AttentionNorm, hidden)?,
            qkv,
            output: part(Part::Output, q)?,
            mlp_norm: part(Part::MlpNorm, hidden)?,
            gate_up,
            down: part(Part::Down, wide * hidden)?,
        })
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let norm = Arc::new(read(Name::Norm, hidden)?);
    Ok(Weights { embedding: Arc::new(embedding), norm, layers, config })
}

fn gguf_config(path: &Path, file: &Gguf) -> Result<Config> {
    match file.get("general.architecture").and_then(Value::as_text) {
        Some("llama") => {}
        other => {
            let what = format!("its architecture is `{}`, not `llama`", other.unwrap_or("unknown"));
            return Err(bad_weights(path, what));
        }
    }
    if file.tensors.contains_key("output.weight") {
        return Err(bad_weights(path, "it has a separate output head; only tied ones are known"));
    }
    let size = |key: &str| file.require_u64(&format!("llama.{key}")).map(|v| v as usize);
    let real = |key: &str| file.get(&format!("llama.{key}")).and_then(Value::as_f32);
    let (hidden, heads) = (size("embedding_length")?, size("attention.head_count")?.max(1));
    Ok(Config {
        layers: size("block_count")?,
        hidden,
        feed_forward: size("feed_forward_length")?,
        heads,
        kv_heads: size("attention.head_count_kv").unwrap_or(heads),
        head_size: size("attention.key_length").unwrap_or(hidden / heads),
        vocabulary: file.require_array("tokenizer.ggml.tokens")?.len(),
        positions_max: size("context_length")?,
        rope_theta: real("rope.freq_base").unwrap_or(10_000.0),
        norm_epsilon: real("attention.layer_norm_rms_epsilon").unwrap_or(1e-5),
    })
}

fn gguf_tensor(file: &Gguf, name: &Name, values: usize) -> Result<Vec<f32>> {
    let tensor = file.tensor(&name.gguf_name(), values)?;
    let heads = match name {
        Name::Layer(_, Part::Query) => file.require_u64("llama.attention.head_count")?,
        Name::Layer(_, Part::Key) => file
            .require_u64("llama.attention.head_count_kv")
            .or_else(|_| file.require_u64("llama.attention.head_count"))?,
        _ => return Ok(tensor),
    };
    let hidden = file.require_u64("llama.embedding_length")? as usize;
    Ok(from_interleaved(&tensor, heads as usize, hidden))
}

/// llama.cpp keeps rotated pairs side by side; Hugging Face keeps them half a head apart.
fn from_interleaved(rows: &[f32], heads: usize, width: usize) -> Vec<f32> {
    reorder(rows, heads, width, |half, index, half_size| {
        (2 * index + half, half * half_size + index)
    })
}

/// The inverse of `from_interleaved`, for writing GGUF.
pub fn to_interleaved(rows: &[f32], heads: usize, width: usize) -> Vec<f32> {
    reorder(rows, heads, width, |half, index, half_size| {
        (half * half_size + index, 2 * index + half)
    })
}

fn reorder(
    rows: &[f32],
    heads: usize,
    width: usize,
    from_to: impl Fn(usize, usize, usize) -> (usize, usize),
) -> Vec<f32> {
    let head_size = rows.len() / width / heads;
    let mut out = vec![0.0; rows.len()];
    for head in 0..heads {
        for half in 0..2 {
            for index in 0..head_size / 2 {
                let (from, to) = from_to(half, index, head_size / 2);
                let (from, to) = (head * head_size + from, head * head_size + to);
                out[to * width..][..width].copy_from_slice(&rows[from * width..][..width]);
            }
        }
    }
    out
}

/// Refuses a sequence length that the positions of these weights do not reach.
pub fn check_length(config: &Config, tokens: usize) -> Result<()> {
    if tokens <= config.positions_max {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!(
            "{tokens} tokens are more than the {} positions of the weights",
            config.positions_max
        ),
        hint: "lower `--seq`",
    })
}
