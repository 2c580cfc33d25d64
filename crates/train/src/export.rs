//! The finished model in other tools' formats: Hugging Face files and GGUF.

use crate::error::{Error, IoContext, Result};
use crate::gguf::{self, Format, Output, Value};
use crate::hub::f32_bytes;
use crate::tokenizer::Tokenizer;
use crate::weights::{Name, Part, Source, Weights, to_interleaved};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// llama.cpp's number for "mostly `Q8_0`" and for "all F32" in `general.file_type`.
const FILE_TYPE_Q8_0: u32 = 7;
const FILE_TYPE_F32: u32 = 0;

struct Tensor<'a> {
    name: Name,
    /// Slowest-varying first.
    shape: Vec<usize>,
    values: &'a [f32],
}

fn tensors(weights: &Weights) -> Vec<Tensor<'_>> {
    let config = &weights.config;
    let (hidden, wide, q) = (config.hidden, config.feed_forward, config.q_width());
    let kv = config.kv_width();
    let table = vec![config.vocabulary, hidden];
    let mut all = vec![
        Tensor { name: Name::Embedding, shape: table, values: &weights.embedding },
        Tensor { name: Name::Norm, shape: vec![hidden], values: &weights.norm },
    ];
    for (index, layer) in weights.layers.iter().enumerate() {
        let mut push = |part, shape: &[usize], values| {
            all.push(Tensor { name: Name::Layer(index, part), shape: shape.to_vec(), values });
        };
        let (queries, rest) = layer.qkv.split_at(q * hidden);
        let (keys, values) = rest.split_at(kv * hidden);
        let (gate, up) = layer.gate_up.split_at(wide * hidden);
        push(Part::AttentionNorm, &[hidden], &layer.attention_norm[..]);
        push(Part::Query, &[q, hidden], queries);
        push(Part::Key, &[kv, hidden], keys);
        push(Part::Value, &[kv, hidden], values);
        push(Part::Output, &[hidden, q], &layer.output);
        push(Part::MlpNorm, &[hidden], &layer.mlp_norm);
        push(Part::Gate, &[wide, hidden], gate);
        push(Part::Up, &[wide, hidden], up);
        push(Part::Down, &[hidden, wide], &layer.down);
    }
    all
}

/// Writes `model.safetensors`, `config.json` and `tokenizer.json`.
pub fn hub(weights: &Weights, tokenizer: &Tokenizer, directory: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(directory).at("create", directory)?;
    let path = directory.join("model.safetensors");
    let all = tensors(weights);
    let bytes: Vec<Vec<u8>> = all.iter().map(|tensor| f32_bytes(tensor.values)).collect();
    let views = all.iter().zip(&bytes).map(|(tensor, bytes)| {
        TensorView::new(Dtype::F32, tensor.shape.clone(), bytes)
            .map(|view| (tensor.name.hub_name(), view))
    });
    let views = views.collect::<std::result::Result<Vec<_>, _>>();
    // transformers refuses files that do not say who they were written for.
    let note = [("format".to_owned(), "pt".to_owned())].into();
    let packed = views.and_then(|views| safetensors::serialize(views, Some(note)));
    let packed = packed.map_err(|error| crate::error::bad_weights(&path, error))?;
    std::fs::write(&path, packed).at("write", &path)?;
    let config = directory.join("config.json");
    std::fs::write(&config, hub_config(weights, tokenizer)).at("write", &config)?;
    let vocabulary = directory.join("tokenizer.json");
    std::fs::write(&vocabulary, tokenizer.json()).at("write", &vocabulary)?;
    Ok(path)
}

fn hub_config(weights: &Weights, tokenizer: &Tokenizer) -> String {
    let config = &weights.config;
    let json = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "num_hidden_layers": config.layers, "hidden_size": config.hidden,
        "intermediate_size": config.feed_forward, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads, "head_dim": config.head_size,
        "vocab_size": config.vocabulary, "max_position_embeddings": config.positions_max,
        "rope_theta": config.rope_theta, "rms_norm_eps": config.norm_epsilon,
        "hidden_act": "silu", "tie_word_embeddings": true, "attention_bias": false,
        "mlp_bias": false, "eos_token_id": tokenizer.end(), "bos_token_id": 1,
    });
    serde_json::to_string_pretty(&json).expect("a JSON value serialises")
}

/// Writes `model.gguf` with the metadata, tokenizer included, of the GGUF the weights came from.
pub fn gguf(
    weights: &Weights,
    source: &Source,
    format: Format,
    directory: &Path,
) -> Result<PathBuf> {
    let Source::Gguf { file, .. } = source else {
        return Err(Error::Usage {
            what: "a GGUF can only be written from weights that came as GGUF".into(),
            hint: "pass a `.gguf` file as `--weights`, or use `--merged`",
        });
    };
    let file_type = if format == Format::Q8_0 { FILE_TYPE_Q8_0 } else { FILE_TYPE_F32 };
    let mut metadata = file.metadata.clone();
    for (key, value) in &mut metadata {
        if key == "general.file_type" {
            *value = Value::U32(file_type);
        }
    }
    let config = &weights.config;
    let outputs: Vec<Output<'_>> = tensors(weights)
        .into_iter()
        .map(|tensor| {
            let heads = match tensor.name {
                Name::Layer(_, Part::Query) => Some(config.heads),
                Name::Layer(_, Part::Key) => Some(config.kv_heads),
                _ => None,
            };
            let values = match heads {
                Some(heads) => Cow::Owned(to_interleaved(tensor.values, heads, config.hidden)),
                None => Cow::Borrowed(tensor.values),
            };
            let format = if tensor.shape.len() == 1 { Format::F32 } else { format };
            let shape = tensor.shape.into_iter().rev().collect();
            Output { name: tensor.name.gguf_name(), shape, format, values }
        })
        .collect();
    std::fs::create_dir_all(directory).at("create", directory)?;
    let path = directory.join("model.gguf");
    gguf::write(&path, &metadata, &outputs)?;
    Ok(path)
}
