//! `config.json` of Hugging Face models.
//!
//! Names and defaults of keys are those of `transformers`. A size that is absent is refused, not
//! taken from a default: no file leaves one out on purpose.

use super::harmless::is_harmless;
use super::keys::{Keys, Read};
use super::layers;
use super::rope::Basis;
use crate::architecture::{
    Architecture, Biases, Family, HeadWeight, LayerShape, Positions, PostNorms,
};
use het_blocks::activation::Activation;
use het_blocks::attention;
use het_blocks::mlp::{self, Gate};
use het_blocks::norm::{Kind, Norm};
use serde_json::{Map, Value as Json};

/// What a family's code fixes, and what its keys mean where they are absent.
struct Traits {
    family: Family,
    model_type: &'static str,
    class: &'static str,
    theta: f64,
    tied: HeadWeight,
    /// The key of the activation, and its default.
    activation: (&'static str, &'static str),
    biases: BiasKeys,
    norm_offset: f32,
    query_key_norm: bool,
    post_norms: PostNorms,
    /// Where `head_dim` is absent.
    head_size: HeadSize,
    /// Default caps of attention scores and of logits, where the family has such keys.
    caps: Option<(Option<f64>, Option<f64>)>,
}

#[derive(Clone, Copy)]
enum BiasKeys {
    None,
    /// Of queries, keys and values, always.
    Qkv,
    /// `attention_bias`
    Attention,
    /// `attention_bias` and `mlp_bias`
    AttentionAndMlp,
}

#[derive(Clone, Copy)]
enum HeadSize {
    Share,
    Required,
}

const LLAMA: Traits = Traits {
    family: Family::Llama,
    model_type: "llama",
    class: "Llama",
    theta: 10_000.0,
    tied: HeadWeight::Own,
    activation: ("hidden_act", "silu"),
    biases: BiasKeys::AttentionAndMlp,
    norm_offset: 0.0,
    query_key_norm: false,
    post_norms: PostNorms::None,
    head_size: HeadSize::Share,
    caps: None,
};

const GEMMA2: Traits = Traits {
    family: Family::Gemma2,
    model_type: "gemma2",
    class: "Gemma2",
    tied: HeadWeight::Tied,
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    biases: BiasKeys::Attention,
    norm_offset: 1.0,
    post_norms: PostNorms::Both,
    head_size: HeadSize::Required,
    caps: Some((Some(50.0), Some(30.0))),
    ..LLAMA
};

const TRAITS: [Traits; 8] = [
    LLAMA,
    Traits {
        family: Family::Mistral,
        model_type: "mistral",
        class: "Mistral",
        biases: BiasKeys::None,
        ..LLAMA
    },
    Traits {
        family: Family::Qwen2,
        model_type: "qwen2",
        class: "Qwen2",
        biases: BiasKeys::Qkv,
        ..LLAMA
    },
    Traits {
        family: Family::Qwen3,
        model_type: "qwen3",
        class: "Qwen3",
        biases: BiasKeys::Attention,
        query_key_norm: true,
        head_size: HeadSize::Required,
        ..LLAMA
    },
    GEMMA2,
    Traits {
        family: Family::Gemma3,
        model_type: "gemma3_text",
        class: "Gemma3",
        theta: 1_000_000.0,
        query_key_norm: true,
        caps: Some((None, None)),
        ..GEMMA2
    },
    Traits { family: Family::Gpt2, model_type: "gpt2", class: "GPT2", ..LLAMA },
    Traits {
        family: Family::SmolLm3,
        model_type: "smollm3",
        class: "SmolLM3",
        theta: 2_000_000.0,
        tied: HeadWeight::Tied,
        ..LLAMA
    },
];

/// Reads a whole `config.json`.
pub fn read(map: &Map<String, Json>) -> Read<Architecture> {
    let keys = Keys::new(map, "");
    let architecture = read_keys(&keys)?;
    keys.finish(is_harmless)?;
    Ok(architecture)
}

fn read_keys(keys: &Keys<'_>) -> Read<Architecture> {
    let kind = keys.text("model_type")?;
    let Some(traits) = TRAITS.iter().find(|traits| Some(traits.model_type) == kind) else {
        let known = TRAITS.each_ref().map(|traits| format!("`{}`", traits.model_type));
        return keys.refuse("model_type", format!("{} are known", known.join(", ")));
    };
    check_class(keys, traits)?;
    let architecture = match traits.family {
        Family::Gpt2 => gpt2(keys)?,
        _ => decoder(keys, traits)?,
    };
    match architecture.check() {
        Ok(()) => Ok(architecture),
        Err(what) => keys.refuse("model_type", what),
    }
}

/// Classes with another head than that of a language model are other models.
fn check_class(keys: &Keys<'_>, traits: &Traits) -> Read<()> {
    let endings = ["ForCausalLM", "LMHeadModel", "TextModel", "Model"];
    let known = |class: &Json| {
        let ending = class.as_str().and_then(|class| class.strip_prefix(traits.class));
        ending.is_some_and(|ending| endings.contains(&ending))
    };
    if keys.list("architectures")?.is_some_and(|classes| !classes.iter().all(known)) {
        return keys.refuse("architectures", "only language models are known");
    }
    Ok(())
}

fn decoder(keys: &Keys<'_>, traits: &Traits) -> Read<Architecture> {
    let hidden = keys.required_size("hidden_size")?;
    let vocabulary = keys.required_size("vocab_size")?;
    let heads = keys.required_size("num_attention_heads")?;
    let kv_heads = match (keys.size("num_key_value_heads")?, traits.family) {
        (Some(count), _) => count,
        (None, Family::Llama) => heads,
        (None, _) => keys.required_size("num_key_value_heads")?,
    };
    let head_size = match (keys.size("head_dim")?, traits.head_size) {
        (Some(size), _) => size,
        (None, HeadSize::Share) => hidden / heads.max(1),
        (None, HeadSize::Required) => keys.required_size("head_dim")?,
    };
    if head_size > HEAD_SIZE_MAX {
        return keys.refuse("head_dim", format!("at most {HEAD_SIZE_MAX} is known"));
    }
    let positions_max = keys.required_size("max_position_embeddings")?;
    let epsilon = keys.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let norm = Norm { kind: Kind::Rms { offset: traits.norm_offset }, epsilon };
    let (score_cap, logit_cap) = caps(keys, traits)?;
    let scale = scale(keys, traits, head_size)?;
    if keys.real("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return keys.refuse("partial_rotary_factor", "only whole heads are rotated here");
    }
    let basis = Basis { theta: traits.theta, head_size, positions_max };
    let count = keys.required_size("num_hidden_layers")?;
    if count > LAYERS_MAX {
        return keys.refuse("num_hidden_layers", format!("at most {LAYERS_MAX} are known"));
    }
    let (layers, ropes) = layers::read(traits.family, keys, count, scale, basis)?;
    let gemma = traits.caps.is_some();
    Ok(Architecture {
        family: traits.family,
        hidden,
        vocabulary,
        positions_max,
        embedding_scale: if gemma { (hidden as f64).sqrt() as f32 } else { 1.0 },
        padding: padding(keys, vocabulary)?,
        positions: Positions::Rotated,
        norm,
        post_norms: traits.post_norms,
        attention: attention::Shape {
            heads,
            kv_heads,
            head_size,
            scale,
            cap: score_cap,
            window: None,
            norm: traits.query_key_norm.then_some(norm),
        },
        mlp: mlp::Shape {
            feed_forward: keys.required_size("intermediate_size")?,
            activation: decoder_activation(keys, traits)?,
            gate: Gate::Gated,
        },
        biases: biases(keys, traits)?,
        layers,
        ropes,
        head: head(keys, traits.tied)?,
        logit_cap,
        dropout: dropout(keys, &[("attention_dropout", 0.0)])?,
    })
}

/// More than any real model has; both cost memory before a tensor is read.
const LAYERS_MAX: usize = 10_000;
const HEAD_SIZE_MAX: usize = 1 << 16;

fn gpt2(keys: &Keys<'_>) -> Read<Architecture> {
    let hidden = keys.required_size("n_embd")?;
    let heads = keys.required_size("n_head")?;
    let count = keys.required_size("n_layer")?;
    if count > LAYERS_MAX {
        return keys.refuse("n_layer", format!("at most {LAYERS_MAX} are known"));
    }
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return keys.refuse("n_head", format!("{hidden} cannot be shared among so many heads"));
    }
    let head_size = hidden / heads;
    let scale = match keys.flag("scale_attn_weights")?.unwrap_or(true) {
        true => 1.0 / (head_size as f32).sqrt(),
        false => 1.0,
    };
    let by_layer = keys.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false);
    let layers = (1..=count).map(|layer| {
        let scale = if by_layer { scale / layer as f32 } else { scale };
        LayerShape { scale, window: None, rope: None }
    });
    let epsilon = keys.positive("layer_norm_epsilon")?.unwrap_or(1e-5) as f32;
    // Read, so that it counts as used: GPT-2 gives the padding row a gradient like any other.
    keys.integer("pad_token_id")?;
    Ok(Architecture {
        family: Family::Gpt2,
        hidden,
        vocabulary: keys.required_size("vocab_size")?,
        positions_max: keys.required_size("n_positions")?,
        embedding_scale: 1.0,
        padding: None,
        positions: Positions::Learned,
        norm: Norm { kind: Kind::Layer, epsilon },
        post_norms: PostNorms::None,
        attention: attention::Shape {
            heads,
            kv_heads: heads,
            head_size,
            scale,
            cap: None,
            window: None,
            norm: None,
        },
        mlp: mlp::Shape {
            feed_forward: keys.size("n_inner")?.unwrap_or(hidden.saturating_mul(4)),
            activation: activation(keys, "activation_function", "gelu_new")?,
            gate: Gate::Plain,
        },
        biases: Biases { qkv: true, output: true, mlp: true },
        layers: layers.collect(),
        ropes: Vec::new(),
        head: head(keys, HeadWeight::Tied)?,
        logit_cap: None,
        dropout: dropout(keys, &[("attn_pdrop", 0.1), ("resid_pdrop", 0.1), ("embd_pdrop", 0.1)])?,
    })
}

fn scale(keys: &Keys<'_>, traits: &Traits, head_size: usize) -> Read<f32> {
    match traits.caps {
        None => Ok(1.0 / (head_size as f32).sqrt()),
        Some(_) => {
            Ok(1.0 / (keys.positive("query_pre_attn_scalar")?.unwrap_or(256.0) as f32).sqrt())
        }
    }
}

fn caps(keys: &Keys<'_>, traits: &Traits) -> Read<(Option<f32>, Option<f32>)> {
    let Some((score, logit)) = traits.caps else { return Ok((None, None)) };
    let score = keys.positive_or_null("attn_logit_softcapping", score)?;
    let logit = keys.positive_or_null("final_logit_softcapping", logit)?;
    Ok((score.map(|cap| cap as f32), logit.map(|cap| cap as f32)))
}

fn biases(keys: &Keys<'_>, traits: &Traits) -> Read<Biases> {
    let none = Biases::default();
    Ok(match traits.biases {
        BiasKeys::None => none,
        BiasKeys::Qkv => Biases { qkv: true, ..none },
        BiasKeys::Attention | BiasKeys::AttentionAndMlp => {
            let attention = keys.flag("attention_bias")?.unwrap_or(false);
            let mlp = match traits.biases {
                BiasKeys::AttentionAndMlp => keys.flag("mlp_bias")?.unwrap_or(false),
                _ => false,
            };
            Biases { qkv: attention, output: attention, mlp }
        }
    })
}

fn head(keys: &Keys<'_>, default: HeadWeight) -> Read<HeadWeight> {
    Ok(match keys.flag("tie_word_embeddings")? {
        None => default,
        Some(true) => HeadWeight::Tied,
        Some(false) => HeadWeight::Own,
    })
}

fn padding(keys: &Keys<'_>, vocabulary: usize) -> Read<Option<u32>> {
    let Some(token) = keys.integer("pad_token_id")? else { return Ok(None) };
    // Counted from the end where it is below zero, as PyTorch does.
    let token = if token < 0 { token + vocabulary as i64 } else { token };
    if token < 0 || token >= vocabulary as i64 {
        return keys.refuse("pad_token_id", format!("the vocabulary has {vocabulary} tokens"));
    }
    Ok(Some(token as u32))
}

/// Gemma's files have an older `hidden_act`, too, which nothing reads.
fn decoder_activation(keys: &Keys<'_>, traits: &Traits) -> Read<Activation> {
    let (key, default) = traits.activation;
    let chosen = activation(keys, key, default)?;
    if key != "hidden_act" && keys.has("hidden_act") {
        let other = activation(keys, "hidden_act", default)?;
        if other != chosen {
            return keys.refuse("hidden_act", format!("`{key}` says otherwise"));
        }
    }
    Ok(chosen)
}

fn activation(keys: &Keys<'_>, key: &str, default: &str) -> Read<Activation> {
    Ok(match keys.text(key)?.unwrap_or(default) {
        "silu" | "swish" => Activation::Silu,
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        _ => {
            let known = "`silu`, `gelu`, `gelu_new`, `gelu_pytorch_tanh` and `relu` are known";
            return keys.refuse(key, known);
        }
    })
}

/// Dropout that is asked for: it is said, and not applied.
fn dropout(keys: &Keys<'_>, names: &[(&str, f64)]) -> Read<Vec<String>> {
    let mut found = Vec::new();
    for &(name, default) in names {
        let share = keys.real(name)?.unwrap_or(default);
        if !(0.0..1.0).contains(&share) {
            return keys.refuse(name, "it must be at least 0 and below 1");
        }
        if share > 0.0 {
            found.push(format!("{name} {share}"));
        }
    }
    Ok(found)
}
