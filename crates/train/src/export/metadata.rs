//! An architecture in the keys of a GGUF, as far as llama.cpp computes what it says.
//!
//! Names of keys are those of ggml's `docs/gguf.md` and of llama.cpp's converter; what its graphs
//! fix by themselves, such as which layers slide, is checked, and refused where a model differs.

use crate::architecture::{Architecture, Biases, Family, LayerShape};
use crate::configuration::rope::plain;
use crate::error::{Error, Result};
use crate::gguf::Value;
use crate::layout::{FAMILIES, rotates_neighbours};
use het_blocks::activation::Activation;
use het_blocks::rotation::Rope;

pub const FILE_TYPE: &str = "general.file_type";
/// Of ggml's block formats.
const QUANTIZATION_VERSION: u32 = 2;
/// Relative; a file keeps f32.
const CLOSE: f64 = 1e-6;

/// What stands in a file before the tokenizer.
pub struct Described {
    pub keys: Vec<(String, Value)>,
    /// What each frequency is divided by, where one factor does not say it.
    pub divisors: Option<Vec<f32>>,
}

type Read<T> = std::result::Result<T, String>;

fn name_of(family: Family) -> &'static str {
    let named = FAMILIES.iter().find(|(own, _)| *own == family);
    named.map_or("llama", |(_, name)| name)
}

/// All keys before those of the tokenizer, or why llama.cpp would compute something else.
pub fn describe(architecture: &Architecture, name: &str) -> Result<Described> {
    described(architecture, name).map_err(|what| Error::Usage {
        what: format!("no GGUF says what this model computes: {what}"),
        hint: "use `--merged`, which keeps everything",
    })
}

fn described(architecture: &Architecture, name: &str) -> Read<Described> {
    check_blocks(architecture)?;
    check_scales(architecture)?;
    let family = architecture.family;
    let (context, window) = windows(architecture)?;
    let text = |text: &str| Value::Text(text.into());
    let mut keys = vec![
        ("general.architecture".to_owned(), text(name_of(family))),
        ("general.name".to_owned(), text(name)),
        (FILE_TYPE.to_owned(), Value::U32(0)),
        ("general.quantization_version".to_owned(), Value::U32(QUANTIZATION_VERSION)),
    ];
    let mut put =
        |key: &str, value: Value| keys.push((format!("{}.{key}", name_of(family)), value));
    let size = |value: usize| Value::U32(u32::try_from(value).unwrap_or(u32::MAX));
    let shape = architecture.attention;
    put("block_count", size(architecture.layers.len()));
    put("context_length", size(context));
    put("embedding_length", size(architecture.hidden));
    put("feed_forward_length", size(architecture.mlp.feed_forward));
    put("attention.head_count", size(shape.heads));
    let epsilon = Value::F32(architecture.norm.epsilon);
    if family == Family::Gpt2 {
        put("attention.layer_norm_epsilon", epsilon);
        return Ok(Described { keys, divisors: None });
    }
    put("attention.layer_norm_rms_epsilon", epsilon);
    put("attention.head_count_kv", size(shape.kv_heads));
    put("attention.key_length", size(shape.head_size));
    put("attention.value_length", size(shape.head_size));
    put("vocab_size", size(architecture.vocabulary));
    if rotates_neighbours(family) {
        put("rope.dimension_count", size(shape.head_size));
    }
    if let Some(window) = window {
        put("attention.sliding_window", size(window));
    }
    for (key, cap) in
        [("attn_logit_softcapping", shape.cap), ("final_logit_softcapping", architecture.logit_cap)]
    {
        if let Some(cap) = cap {
            put(key, Value::F32(cap));
        }
    }
    let rope = rope(architecture)?;
    put("rope.freq_base", Value::F32(rope.theta as f32));
    if let Some(factor) = rope.linear {
        put("rope.scaling.type", text("linear"));
        put("rope.scaling.factor", Value::F32(factor as f32));
    }
    if let Some(factor) = rope.attention {
        put("rope.scaling.attn_factor", Value::F32(factor as f32));
    }
    Ok(Described { keys, divisors: rope.divisors })
}

/// Activation, biases and caps, which llama.cpp's graphs fix.
fn check_blocks(architecture: &Architecture) -> Read<()> {
    let family = architecture.family;
    let gemma = matches!(family, Family::Gemma2 | Family::Gemma3);
    let activation = match gemma || family == Family::Gpt2 {
        true => Activation::GeluTanh,
        false => Activation::Silu,
    };
    if architecture.mlp.activation != activation {
        let found = architecture.mlp.activation;
        return Err(format!(
            "its activation is {found:?}, and such a model is given {activation:?}"
        ));
    }
    let Biases { qkv, output, mlp } = architecture.biases;
    let is_known = match family {
        Family::Llama | Family::Mistral => true,
        Family::Qwen2 => qkv && !output && !mlp,
        Family::Gpt2 => qkv && output && mlp,
        _ => !qkv && !output && !mlp,
    };
    if !is_known {
        return Err("its linear layers have biases, which llama.cpp leaves out".into());
    }
    let caps = (architecture.attention.cap.is_some(), architecture.logit_cap.is_some());
    if caps != (family == Family::Gemma2, family == Family::Gemma2) {
        return Err("it caps scores or logits otherwise than llama.cpp does".into());
    }
    Ok(())
}

fn check_scales(architecture: &Architecture) -> Read<()> {
    let shape = architecture.attention;
    // llama.cpp takes Gemma's largest models by their number of layers.
    let per_head = match (architecture.family, architecture.layers.len()) {
        (Family::Gemma2, 46) | (Family::Gemma3, 62) => architecture.hidden / shape.heads,
        _ => shape.head_size,
    };
    let expected = 1.0 / (per_head as f64).sqrt();
    let differs = |layer: &LayerShape| !is_close(f64::from(layer.scale), expected);
    match architecture.layers.iter().position(differs) {
        None => Ok(()),
        Some(layer) => Err(format!(
            "layer {layer} multiplies scores by {}, and llama.cpp by {expected:.6}",
            architecture.layers[layer].scale
        )),
    }
}

fn is_close(a: f64, b: f64) -> bool {
    (a - b).abs() <= CLOSE * b.abs()
}

/// How long a context may be, and the window of sliding layers.
///
/// Where llama.cpp knows no windows, a context no longer than the window is computed alike.
fn windows(architecture: &Architecture) -> Read<(usize, Option<usize>)> {
    let layers = &architecture.layers;
    let positions = architecture.positions_max;
    let Some(window) = layers.iter().filter_map(|layer| layer.window).min() else {
        return match architecture.family {
            // Its graph slides in any case, by no less than all positions.
            Family::Gemma2 | Family::Gemma3 => Ok((positions, Some(positions))),
            _ => Ok((positions, None)),
        };
    };
    let slides: fn(usize) -> bool = match architecture.family {
        Family::Gemma2 => |layer| layer % 2 == 0,
        Family::Gemma3 => |layer| (layer + 1) % 6 != 0,
        _ => return Ok((positions.min(window), None)),
    };
    let expected = |place: usize| slides(place).then_some(window);
    match layers.iter().enumerate().position(|(place, layer)| layer.window != expected(place)) {
        None => Ok((positions, Some(window))),
        Some(layer) => Err(format!("layer {layer} slides otherwise than in llama.cpp")),
    }
}

/// A rope in the words of a GGUF.
#[derive(Default)]
struct Scaling {
    theta: f64,
    linear: Option<f64>,
    attention: Option<f64>,
    divisors: Option<Vec<f32>>,
}

fn rope(architecture: &Architecture) -> Read<Scaling> {
    let family = architecture.family;
    let rotates = |place: usize| family != Family::SmolLm3 || !(place + 1).is_multiple_of(4);
    let differs = |(place, layer): (usize, &LayerShape)| layer.rope.is_some() != rotates(place);
    if let Some(layer) = architecture.layers.iter().enumerate().position(differs) {
        return Err(format!("layer {layer} rotates otherwise than in llama.cpp"));
    }
    let Some(first) = architecture.ropes.first() else { return Ok(Scaling::default()) };
    if family == Family::Gemma3 {
        let local = architecture.ropes.last().map(|local| local.frequencies.as_slice());
        let known = plain(10_000.0, architecture.attention.head_size).frequencies;
        if local.is_none_or(|local| !local.iter().zip(&known).all(|(a, b)| is_close(*a, *b))) {
            return Err("its sliding layers rotate by another base than 10000".into());
        }
    }
    let scaling = scaling(first);
    let is_llama = matches!(family, Family::Llama | Family::Mistral);
    if !is_llama && (scaling.divisors.is_some() || scaling.attention.is_some()) {
        return Err("its rope is scaled by more than one factor".into());
    }
    Ok(scaling)
}

/// Base and scaling that give these frequencies: the first two are never scaled but by one factor.
fn scaling(rope: &Rope) -> Scaling {
    let half = rope.frequencies.len();
    let theta = match rope.frequencies[..] {
        [first, second, ..] => (first / second).powi(i32::try_from(half).unwrap_or(i32::MAX)),
        _ => 10_000.0,
    };
    let theta = f64::from(theta as f32);
    let unscaled = plain(theta, 2 * half).frequencies;
    let divisors: Vec<f64> =
        unscaled.iter().zip(&rope.frequencies).map(|(plain, scaled)| plain / scaled).collect();
    let attention = (!is_close(rope.factor, 1.0)).then_some(rope.factor);
    let first = divisors.first().copied().unwrap_or(1.0);
    let mut scaling = Scaling { theta, attention, ..Scaling::default() };
    match divisors.iter().all(|&divisor| is_close(divisor, first)) {
        true if is_close(first, 1.0) => {}
        true => scaling.linear = Some(first),
        false => scaling.divisors = Some(divisors.iter().map(|&divisor| divisor as f32).collect()),
    }
    scaling
}
