//! Metadata of a GGUF: a Llama's keys, all of them.

use super::hub;
use super::keys::{Keys, Read, Refusal};
use crate::architecture::Architecture;
use crate::error::{Error, Result, bad_weights};
use crate::gguf::{Gguf, Value};
use serde_json::{Map, Value as Json, json};
use std::path::Path;

/// Llama 3's scaling, which llama.cpp keeps as a tensor: what each frequency is divided by.
pub const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// The model, and the `config.json` that describes it, where one does.
pub fn read(path: &Path, file: &Gguf) -> Result<(Architecture, Option<Map<String, Json>>)> {
    match file.get("general.architecture").and_then(Value::as_text) {
        Some("llama") => {}
        other => {
            let what = format!("its architecture is `{}`, not `llama`", other.unwrap_or("unknown"));
            return Err(bad_weights(path, what));
        }
    }
    if let Some(count) = file.get("split.count").and_then(Value::as_u64).filter(|&count| count > 1)
    {
        let what = format!("it is one of {count} parts (`split.count`): join them first");
        return Err(bad_weights(path, what));
    }
    let vocabulary = file.require_array("tokenizer.ggml.tokens")?.len();
    let refused = |refusal: Refusal| Error::Configuration { path: path.to_owned(), refusal };
    let tied = !file.tensors.contains_key("output.weight");
    let keys = own_keys(file);
    let configuration = describe(&Keys::new(&keys, "llama."), vocabulary, tied);
    let configuration = configuration.map_err(refused)?;
    let mut architecture = hub::read(&configuration).map_err(refused)?;
    if !file.tensors.contains_key(ROPE_DIVISORS) {
        return Ok((architecture, Some(configuration)));
    }
    let divisors = file.tensor(ROPE_DIVISORS, &[architecture.attention.head_size / 2])?;
    for rope in &mut architecture.ropes {
        rope.frequencies.iter_mut().zip(&divisors).for_each(|(f, &by)| *f /= f64::from(by));
        if !rope.is_finite() {
            return Err(bad_weights(path, format!("`{ROPE_DIVISORS}` holds zeros or no numbers")));
        }
    }
    Ok((architecture, None))
}

/// The architecture's keys without their prefix; lists keep their first values only, since none is
/// known.
fn own_keys(file: &Gguf) -> Map<String, Json> {
    let own = file.metadata.iter().filter_map(|(key, value)| {
        let key = key.strip_prefix("llama.")?;
        Some((key.to_owned(), json_of(value)))
    });
    own.collect()
}

fn json_of(value: &Value) -> Json {
    match value {
        Value::Bool(flag) => json!(flag),
        Value::Text(text) => json!(text),
        Value::Array(_, items) => items.iter().take(8).map(json_of).collect(),
        Value::F32(value) => json!(value),
        Value::F64(value) => json!(value),
        Value::I8(value) => json!(value),
        Value::I16(value) => json!(value),
        Value::I32(value) => json!(value),
        Value::I64(value) => json!(value),
        other => json!(other.as_u64()),
    }
}

/// The same in the words of `config.json`.
fn describe(keys: &Keys<'_>, vocabulary: usize, tied: bool) -> Read<Map<String, Json>> {
    let heads = keys.required_size("attention.head_count")?;
    let hidden = keys.required_size("embedding_length")?;
    let head_size = keys.size("attention.key_length")?.unwrap_or(hidden / heads.max(1));
    for key in ["attention.value_length", "rope.dimension_count"] {
        if keys.size(key)?.is_some_and(|size| size != head_size) {
            return keys.refuse(key, format!("it must be the size of a head, {head_size}"));
        }
    }
    if keys.size("vocab_size")?.is_some_and(|size| size != vocabulary) {
        return keys.refuse("vocab_size", format!("the tokenizer has {vocabulary} tokens"));
    }
    for key in ["expert_count", "expert_used_count"] {
        if keys.size(key)?.is_some_and(|count| count > 0) {
            return keys.refuse(key, "mixtures of experts are not known");
        }
    }
    let configuration = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "num_hidden_layers": keys.required_size("block_count")?, "hidden_size": hidden,
        "intermediate_size": keys.required_size("feed_forward_length")?,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_size, "vocab_size": vocabulary,
        "max_position_embeddings": keys.required_size("context_length")?,
        "rope_theta": keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
        "rope_scaling": scaling(keys)?,
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
        "hidden_act": "silu", "tie_word_embeddings": tied, "attention_bias": false,
        "mlp_bias": false,
    });
    keys.finish(|_, _| false)?;
    let map = configuration.as_object().into_iter().flatten();
    Ok(map.filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect())
}

/// llama.cpp's `none` and `linear`; the rest is refused.
fn scaling(keys: &Keys<'_>) -> Read<Json> {
    let factor = keys.positive("rope.scaling.factor")?;
    match (keys.text("rope.scaling.type")?, factor) {
        (None | Some("none"), None) => Ok(Json::Null),
        (None | Some("none"), Some(1.0)) => Ok(Json::Null),
        (Some("linear"), Some(factor)) => Ok(json!({"rope_type": "linear", "factor": factor})),
        _ => keys.refuse("rope.scaling.type", "`none` and `linear` with a factor are known"),
    }
}
