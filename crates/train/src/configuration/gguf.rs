//! Metadata of a GGUF: its architecture's keys, all of them.
//!
//! What a file leaves to llama.cpp's graphs, such as which layers slide, is written out here.

use super::hub;
use super::keys::{Keys, Read, Refusal};
use crate::architecture::{Architecture, Family};
use crate::error::{Error, Result, bad_weights};
use crate::gguf::{Gguf, Value};
use crate::layout::FAMILIES;
use serde_json::{Map, Value as Json, json};
use std::path::Path;

/// Llama 3's scaling, which llama.cpp keeps as a tensor: what each frequency is divided by.
pub const ROPE_DIVISORS: &str = "rope_freqs.weight";
/// What the lengths of rotated values are multiplied by.
const ROPE_FACTOR: &str = "rope.scaling.attn_factor";

/// The model, and the `config.json` that describes it, where one does.
pub fn read(path: &Path, file: &Gguf) -> Result<(Architecture, Option<Map<String, Json>>)> {
    let (family, name) = family(path, file)?;
    if let Some(count) = file.get("split.count").and_then(Value::as_u64).filter(|&count| count > 1)
    {
        let what = format!("it is one of {count} parts (`split.count`): join them first");
        return Err(bad_weights(path, what));
    }
    let vocabulary = file.require_array("tokenizer.ggml.tokens")?.len();
    let refused = |refusal: Refusal| Error::Configuration { path: path.to_owned(), refusal };
    let keys = own_keys(file, name);
    let keys = Keys::new(&keys, format!("{name}."));
    let factor = keys.positive(ROPE_FACTOR).map_err(refused)?;
    let configuration = describe(&keys, file, family, vocabulary).map_err(refused)?;
    let mut architecture = hub::read(&configuration).map_err(refused)?;
    let has_divisors = file.tensors.contains_key(ROPE_DIVISORS);
    if !has_divisors && factor.is_none_or(|factor| factor == 1.0) {
        return Ok((architecture, Some(configuration)));
    }
    let pairs = architecture.attention.head_size / 2;
    let divisors = match has_divisors {
        true => file.tensor(ROPE_DIVISORS, &[pairs])?,
        false => vec![1.0; pairs],
    };
    for rope in &mut architecture.ropes {
        rope.factor *= factor.unwrap_or(1.0);
        rope.frequencies.iter_mut().zip(&divisors).for_each(|(f, &by)| *f /= f64::from(by));
        if !rope.is_finite() {
            return Err(bad_weights(path, format!("`{ROPE_DIVISORS}` holds zeros or no numbers")));
        }
    }
    Ok((architecture, None))
}

/// The family of a file, and what it is called there.
fn family(path: &Path, file: &Gguf) -> Result<(Family, &'static str)> {
    let name = file.get("general.architecture").and_then(Value::as_text);
    let mut known = FAMILIES.iter().filter(|(_, known)| Some(*known) == name);
    known.next().copied().ok_or_else(|| {
        // Two families have the first name.
        let names = FAMILIES[1..].iter().map(|(_, name)| format!("`{name}`"));
        let (names, name) = (names.collect::<Vec<_>>().join(", "), name.unwrap_or("unknown"));
        bad_weights(path, format!("its architecture is `{name}`; {names} are known"))
    })
}

/// The architecture's keys without their prefix; lists keep their first values only, since none is
/// known.
fn own_keys(file: &Gguf, name: &str) -> Map<String, Json> {
    let own = file.metadata.iter().filter_map(|(key, value)| {
        let key = key.strip_prefix(name)?.strip_prefix('.')?;
        Some((key.to_owned(), json_of(value)))
    });
    own.collect()
}

fn json_of(value: &Value) -> Json {
    match value {
        Value::Bool(flag) => json!(flag),
        Value::Text(text) => json!(text),
        Value::Array(_, items) => items.iter().take(8).map(json_of).collect(),
        Value::F32(value) => real(f64::from(*value)),
        Value::F64(value) => real(*value),
        Value::I8(value) => json!(value),
        Value::I16(value) => json!(value),
        Value::I32(value) => json!(value),
        Value::I64(value) => json!(value),
        other => json!(other.as_u64()),
    }
}

/// As a text where it is none, which no key takes for a number.
fn real(value: f64) -> Json {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

/// The same in the words of `config.json`.
fn describe(
    keys: &Keys<'_>,
    file: &Gguf,
    family: Family,
    vocabulary: usize,
) -> Read<Map<String, Json>> {
    if keys.size("vocab_size")?.is_some_and(|size| size != vocabulary) {
        return keys.refuse("vocab_size", format!("the tokenizer has {vocabulary} tokens"));
    }
    for key in ["expert_count", "expert_used_count"] {
        if keys.size(key)?.is_some_and(|count| count > 0) {
            return keys.refuse(key, "mixtures of experts are not known");
        }
    }
    let (class, kind) = match family {
        Family::Llama | Family::Mistral => ("LlamaForCausalLM", "llama"),
        Family::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
        Family::Qwen3 => ("Qwen3ForCausalLM", "qwen3"),
        Family::Gemma2 => ("Gemma2ForCausalLM", "gemma2"),
        Family::Gemma3 => ("Gemma3ForCausalLM", "gemma3_text"),
        Family::Gpt2 => ("GPT2LMHeadModel", "gpt2"),
        Family::SmolLm3 => ("SmolLM3ForCausalLM", "smollm3"),
    };
    let has = |tensor: &str| file.tensors.contains_key(tensor);
    let common = json!({
        "architectures": [class], "model_type": kind, "torch_dtype": "float32",
        "vocab_size": vocabulary, "tie_word_embeddings": !has("output.weight"),
    });
    let own = match family {
        Family::Gpt2 => vec![gpt2(keys)?],
        _ => vec![decoder(keys)?, decoder_traits(keys, family, has)?],
    };
    keys.finish(|_, _| false)?;
    let all = [common].into_iter().chain(own);
    let all = all.filter_map(|part| part.as_object().cloned()).flatten();
    Ok(all.filter(|(_, value)| !value.is_null()).collect())
}

fn gpt2(keys: &Keys<'_>) -> Read<Json> {
    let heads = keys.required_size("attention.head_count")?;
    if keys.size("attention.head_count_kv")?.is_some_and(|count| count != heads) {
        return keys.refuse("attention.head_count_kv", format!("a GPT-2 has as many as {heads}"));
    }
    Ok(json!({
        "n_layer": keys.required_size("block_count")?,
        "n_embd": keys.required_size("embedding_length")?,
        "n_inner": keys.required_size("feed_forward_length")?,
        "n_head": heads, "n_positions": keys.required_size("context_length")?,
        "layer_norm_epsilon": keys.positive("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        "activation_function": "gelu_new",
    }))
}

/// What all others have.
fn decoder(keys: &Keys<'_>) -> Read<Json> {
    let heads = keys.required_size("attention.head_count")?;
    let hidden = keys.required_size("embedding_length")?;
    let head_size = keys.size("attention.key_length")?.unwrap_or(hidden / heads.max(1));
    for key in ["attention.value_length", "rope.dimension_count"] {
        if keys.size(key)?.is_some_and(|size| size != head_size) {
            return keys.refuse(key, format!("it must be the size of a head, {head_size}"));
        }
    }
    Ok(json!({
        "num_hidden_layers": keys.required_size("block_count")?, "hidden_size": hidden,
        "intermediate_size": keys.required_size("feed_forward_length")?,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_size,
        "max_position_embeddings": keys.required_size("context_length")?,
        "rope_theta": keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
        "rope_scaling": scaling(keys)?,
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
    }))
}

/// What a family has of its own, or fixes.
fn decoder_traits(keys: &Keys<'_>, family: Family, has: impl Fn(&str) -> bool) -> Read<Json> {
    Ok(match family {
        Family::Llama | Family::Mistral => json!({
            "hidden_act": "silu", "attention_bias": has("blk.0.attn_q.bias"),
            "mlp_bias": has("blk.0.ffn_down.bias"),
        }),
        Family::Qwen2 => json!({"hidden_act": "silu"}),
        Family::SmolLm3 => {
            json!({"hidden_act": "silu", "attention_bias": false, "mlp_bias": false})
        }
        Family::Qwen3 => json!({"hidden_act": "silu", "attention_bias": false}),
        Family::Gemma2 => {
            let cap = |key, default| Ok(keys.positive(key)?.unwrap_or(default));
            let window = keys.size("attention.sliding_window")?.unwrap_or(4096);
            let mut own = gemma(keys, 46, window)?;
            own["attn_logit_softcapping"] = json!(cap("attn_logit_softcapping", 50.0)?);
            own["final_logit_softcapping"] = json!(cap("final_logit_softcapping", 30.0)?);
            own
        }
        Family::Gemma3 => {
            let window = keys.required_size("attention.sliding_window")?;
            let mut own = gemma(keys, 62, window)?;
            own["rope_local_base_freq"] = json!(10_000.0);
            own["sliding_window_pattern"] = json!(6);
            own
        }
        // It is described as a whole.
        Family::Gpt2 => Json::Null,
    })
}

/// Both Gemmas; scores of the largest, which has so many layers, are scaled by another size.
fn gemma(keys: &Keys<'_>, layers_of_largest: usize, window: usize) -> Read<Json> {
    let heads = keys.required_size("attention.head_count")?;
    let share = keys.required_size("embedding_length")? / heads.max(1);
    let scalar = match keys.required_size("block_count")? == layers_of_largest {
        true => share,
        false => keys.size("attention.key_length")?.unwrap_or(share),
    };
    Ok(json!({
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar,
        "attention_bias": false, "sliding_window": window,
    }))
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
