//! The finished model in other tools' formats: Hugging Face files and GGUF.

use crate::configuration::gguf::ROPE_DIVISORS;
use crate::error::{Error, IoContext, Result};
use crate::gguf::{self, Format, Output, Value};
use crate::hub::f32_bytes;
use crate::tokenizer::Tokenizer;
use crate::weights::{Source, Weights, rotated_heads, to_interleaved, transposed};
use crate::whole;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// llama.cpp's number for "mostly `Q8_0`" and for "all F32" in `general.file_type`.
const FILE_TYPE_Q8_0: u32 = 7;
const FILE_TYPE_F32: u32 = 0;

/// Writes `model.safetensors`, `config.json` and `tokenizer.json`.
pub fn hub(weights: &Weights, tokenizer: &Tokenizer, directory: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(directory).at("create", directory)?;
    let path = directory.join("model.safetensors");
    let Some(configuration) = &weights.configuration else {
        return Err(Error::Usage {
            what: "these weights came with rope divisors, which no `config.json` says".into(),
            hint: "use `--gguf`",
        });
    };
    let family = weights.architecture.family;
    let all = weights.parameters.tensors(&weights.architecture);
    let stored: Vec<(String, Vec<usize>, Vec<u8>)> = all
        .iter()
        .map(|(tensor, values)| {
            let name = tensor.name.hub_name(family);
            if tensor.name.is_transposed(family) {
                let shape = vec![tensor.shape[1], tensor.shape[0]];
                return (name, shape, f32_bytes(&transposed(values, tensor.shape[1])));
            }
            (name, tensor.shape.clone(), f32_bytes(values))
        })
        .collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name, view))
    });
    let views = views.collect::<std::result::Result<Vec<_>, _>>();
    // transformers refuses files that do not say who they were written for.
    let note = [("format".to_owned(), "pt".to_owned())].into();
    let packed = views.and_then(|views| safetensors::serialize(views, Some(note)));
    let packed = packed.map_err(|error| crate::error::bad_weights(&path, error))?;
    let config = hub_config(configuration, tokenizer);
    whole::write(&directory.join("config.json"), config.as_bytes())?;
    whole::write(&directory.join("tokenizer.json"), tokenizer.json())?;
    // The last one, so that a directory that has it has all.
    whole::write(&path, &packed)?;
    Ok(path)
}

/// The configuration that the weights came with, for f32 values and this tokenizer.
fn hub_config(configuration: &Map<String, Json>, tokenizer: &Tokenizer) -> String {
    let mut map = configuration.clone();
    let key = if map.contains_key("dtype") { "dtype" } else { "torch_dtype" };
    map.insert(key.into(), json!("float32"));
    if let (false, Some(end)) = (map.contains_key("eos_token_id"), tokenizer.end()) {
        map.insert("eos_token_id".into(), json!(end));
        map.entry("bos_token_id").or_insert(json!(1));
    }
    serde_json::to_string_pretty(&map).expect("a JSON value serialises")
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
    let architecture = &weights.architecture;
    let mut outputs: Vec<Output<'_>> = weights
        .parameters
        .tensors(architecture)
        .into_iter()
        .map(|(tensor, values)| {
            let values = match rotated_heads(&tensor, architecture) {
                Some(heads) => Cow::Owned(to_interleaved(values, heads, architecture.hidden)),
                None => Cow::Borrowed(values),
            };
            let format = if tensor.shape.len() == 1 { Format::F32 } else { format };
            let shape = tensor.shape.into_iter().rev().collect();
            Output { name: tensor.name.gguf_name(), shape, format, values }
        })
        .collect();
    if file.tensors.contains_key(ROPE_DIVISORS) {
        let length = architecture.attention.head_size / 2;
        outputs.push(Output {
            name: ROPE_DIVISORS.into(),
            shape: vec![length],
            format: Format::F32,
            values: Cow::Owned(file.tensor(ROPE_DIVISORS, length)?),
        });
    }
    std::fs::create_dir_all(directory).at("create", directory)?;
    let path = directory.join("model.gguf");
    gguf::write(&path, &metadata, &outputs)?;
    Ok(path)
}
