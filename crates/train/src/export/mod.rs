//! The finished model in other tools' formats: Hugging Face files, a PEFT adapter, and GGUF.

mod metadata;
mod vocabulary;

use crate::configuration::gguf::ROPE_DIVISORS;
use crate::error::{Error, IoContext, Result};
use crate::formats::Format;
use crate::gguf::{self, Output, Value};
use crate::hub::f32_bytes;
use crate::layout;
use crate::lora::Adapter;
use crate::names::{Site, Tensor};
use crate::special;
use crate::tokenizer::Tokenizer;
use crate::weights::{Source, Weights, transposed};
use crate::whole;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Files of Hugging Face models that are handed on as they are.
const SIDE_FILES: [&str; 8] = [
    "added_tokens.json",
    special::TEMPLATE,
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    special::CONFIG,
    "tokenizer.model",
    "vocab.json",
];

/// Writes `model.safetensors`, `config.json` and `tokenizer.json`.
pub fn hub(weights: &Weights, tokenizer: &Tokenizer, directory: &Path) -> Result<PathBuf> {
    let path = directory.join("model.safetensors");
    let Some(configuration) = &weights.configuration else {
        return Err(Error::Usage {
            what: "these weights came with rope divisors, which no `config.json` says".into(),
            hint: "use `--gguf`",
        });
    };
    std::fs::create_dir_all(directory).at("create", directory)?;
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
    for (key, id) in [("eos_token_id", tokenizer.end_of_text()), ("bos_token_id", begin(tokenizer))]
    {
        if let (false, Some(id)) = (map.contains_key(key), id) {
            map.insert(key.into(), json!(id));
        }
    }
    pretty(&Json::Object(map))
}

fn begin(tokenizer: &Tokenizer) -> Option<u32> {
    tokenizer.special().bos.as_ref().and_then(|token| tokenizer.id_of(token))
}

fn pretty(json: &Json) -> String {
    serde_json::to_string_pretty(json).expect("a JSON value serialises")
}

/// Writes what belongs to the tokenizer beside `tokenizer.json`: the files that came with it, or
/// what a GGUF says of its special tokens and chat template.
pub fn beside(source: &Source, tokenizer: &Tokenizer, directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).at("create", directory)?;
    if let Source::Hub(hub) = source {
        for name in SIDE_FILES {
            let from = hub.path().join(name);
            if from.is_file() {
                let bytes = std::fs::read(&from).at("read", &from)?;
                whole::write(&directory.join(name), &bytes)?;
            }
        }
        return Ok(());
    }
    let special = tokenizer.special();
    let mut config = special.named();
    config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
    config.insert("clean_up_tokenization_spaces".into(), json!(false));
    config.insert("model_max_length".into(), json!(source.architecture()?.positions_max));
    if let Some(template) = &special.template {
        config.insert("chat_template".into(), json!(template));
    }
    let ids = special.named().into_iter().filter_map(|(key, token)| {
        let id = tokenizer.id_of(token.as_str()?)?;
        (key != "unk_token").then(|| (format!("{key}_id"), json!(id)))
    });
    for (name, map) in [
        (special::CONFIG, config),
        ("special_tokens_map.json", special.named()),
        ("generation_config.json", ids.collect()),
    ] {
        whole::write(&directory.join(name), pretty(&Json::Object(map)).as_bytes())?;
    }
    Ok(())
}

/// Writes a PEFT adapter of the model called `base`, with its tokenizer.
pub fn peft(
    adapter: &Adapter,
    base: &str,
    source: &Source,
    tokenizer: &Tokenizer,
    directory: &Path,
) -> Result<PathBuf> {
    beside(source, tokenizer, directory)?;
    whole::write(&directory.join("tokenizer.json"), tokenizer.json())?;
    adapter.write(directory, base)?;
    Ok(directory.join(crate::lora::TENSORS_FILE))
}

/// Writes `model.gguf`, with the metadata, tokenizer included, of the GGUF that the weights came
/// from, or made from the files that they came in.
pub fn gguf(
    weights: &Weights,
    source: &Source,
    format: Format,
    directory: &Path,
) -> Result<PathBuf> {
    let architecture = &weights.architecture;
    let mut own = match source {
        Source::Gguf { file, .. } => {
            let mut own = metadata::Described { keys: file.metadata.clone(), divisors: None };
            if file.tensors.contains_key(ROPE_DIVISORS) {
                let length = architecture.attention.head_size / 2;
                own.divisors = Some(file.tensor(ROPE_DIVISORS, &[length])?);
            }
            own
        }
        Source::Hub(hub) => {
            let tokenizer = Tokenizer::of(source)?;
            let mut own = metadata::describe(architecture, &named(hub.path()))?;
            own.keys.extend(vocabulary::describe(&tokenizer, architecture.vocabulary)?);
            own
        }
    };
    for (key, value) in &mut own.keys {
        if key == metadata::FILE_TYPE {
            *value = Value::U32(file_type(format));
        }
    }
    let mut outputs: Vec<Output<'_>> = weights
        .parameters
        .tensors(architecture)
        .into_iter()
        .map(|(tensor, values)| Output {
            name: tensor.name.gguf_name(),
            format: format_of(&tensor, format),
            values: layout::to_gguf(&tensor, values, architecture),
            shape: tensor.shape.into_iter().rev().collect(),
        })
        .collect();
    if let Some(divisors) = own.divisors {
        outputs.push(Output {
            name: ROPE_DIVISORS.into(),
            shape: vec![divisors.len()],
            format: Format::F32,
            values: Cow::Owned(divisors),
        });
    }
    std::fs::create_dir_all(directory).at("create", directory)?;
    let path = directory.join("model.gguf");
    gguf::write(&path, &own.keys, &outputs)?;
    Ok(path)
}

/// llama.cpp's number for what most matrices of a file are.
fn file_type(format: Format) -> u32 {
    match format {
        Format::F16 => 1,
        Format::Q8_0 => 7,
        Format::Q4K => 14,
        _ => 0,
    }
}

/// Vectors and positions stay whole. The token table and the head, of which nearly every token is
/// made, keep eight bits beside matrices of four; so do rows that do not hold whole blocks.
fn format_of(tensor: &Tensor, wanted: Format) -> Format {
    if tensor.shape.len() == 1 || tensor.name.site == Site::Positions {
        return Format::F32;
    }
    let is_outer = matches!(tensor.name.site, Site::Embedding | Site::Head);
    let mut format = if is_outer && wanted == Format::Q4K { Format::Q8_0 } else { wanted };
    for (from, to) in [(Format::Q4K, Format::Q8_0), (Format::Q8_0, Format::F16)] {
        if format == from && !tensor.columns().is_multiple_of(from.block()) {
            format = to;
        }
    }
    format
}

/// The last word of a path.
fn named(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
