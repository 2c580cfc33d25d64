//! What differs between layers: windows and ropes.

use super::keys::{Keys, Read};
use super::rope::{self, Basis};
use crate::architecture::{Family, LayerShape};
use het_blocks::rotation::Rope;
use serde_json::Value as Json;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Every layer, and the ropes that layers choose from.
pub fn read(
    family: Family,
    keys: &Keys<'_>,
    count: usize,
    scale: f32,
    basis: Basis,
) -> Read<(Vec<LayerShape>, Vec<Rope>)> {
    let window = window(family, keys)?;
    let rotated = rotated(family, keys, count)?;
    let slides = sliding(family, keys, window, &rotated)?;
    if let (None, Some(_)) = (window, slides.iter().position(|&slides| slides)) {
        return keys.refuse("sliding_window", "layers of `layer_types` slide, but by no window");
    }
    let ropes = ropes(family, keys, basis)?;
    if !ropes.iter().all(Rope::is_finite) {
        return keys.refuse("rope_theta", "with it and its scaling, frequencies are not finite");
    }
    let layers = slides.iter().zip(&rotated).map(|(&slides, &rotated)| LayerShape {
        scale,
        window: window.filter(|_| slides),
        rope: rotated.then_some(if slides { ropes.len() - 1 } else { 0 }),
    });
    Ok((layers.collect(), ropes))
}

/// The window of layers that have one.
fn window(family: Family, keys: &Keys<'_>) -> Read<Option<usize>> {
    let window = match family {
        Family::Llama | Family::Gpt2 => return Ok(None),
        Family::Mistral | Family::Gemma2 | Family::Gemma3 => {
            keys.size_or_null("sliding_window", Some(4096))?
        }
        Family::Qwen2 | Family::Qwen3 | Family::SmolLm3 => {
            // Only Qwen's code has a window where a file names none.
            let default = (family != Family::SmolLm3).then_some(4096);
            let window = keys.size_or_null("sliding_window", default)?;
            window.filter(|_| matches!(keys.flag("use_sliding_window"), Ok(Some(true))))
        }
    };
    keys.flag("use_sliding_window")?;
    if window == Some(0) {
        return keys.refuse("sliding_window", "it must be above 0");
    }
    Ok(window)
}

/// Which layers rotate queries and keys.
fn rotated(family: Family, keys: &Keys<'_>, count: usize) -> Read<Vec<bool>> {
    if family != Family::SmolLm3 {
        return Ok(vec![true; count]);
    }
    let interval = keys.size("no_rope_layer_interval")?.unwrap_or(4);
    if interval == 0 {
        return keys.refuse("no_rope_layer_interval", "it must be above 0");
    }
    let Some(list) = keys.list("no_rope_layers")? else {
        return Ok((1..=count).map(|layer| layer % interval != 0).collect());
    };
    let flags: Option<Vec<bool>> = list
        .iter()
        .map(|item| item.as_u64().filter(|&flag| flag <= 1).map(|flag| flag == 1))
        .collect();
    match flags.filter(|flags| flags.len() == count) {
        Some(flags) => Ok(flags),
        None => keys.refuse("no_rope_layers", format!("it must be {count} zeros and ones")),
    }
}

/// Which layers see no further than the window.
fn sliding(
    family: Family,
    keys: &Keys<'_>,
    window: Option<usize>,
    rotated: &[bool],
) -> Read<Vec<bool>> {
    let count = rotated.len();
    let every = |interval: usize| (1..=count).map(|layer| layer % interval != 0).collect();
    let implied: Vec<bool> = match family {
        Family::Llama | Family::Gpt2 => return Ok(vec![false; count]),
        Family::Mistral => return Ok(vec![window.is_some(); count]),
        Family::Gemma2 => every(2),
        Family::Gemma3 => every(pattern(keys)?),
        Family::Qwen2 | Family::Qwen3 => {
            let full = keys.size("max_window_layers")?.unwrap_or(28);
            (0..count).map(|layer| window.is_some() && layer >= full).collect()
        }
        Family::SmolLm3 => rotated.iter().map(|&rotated| window.is_some() && !rotated).collect(),
    };
    let Some(list) = keys.list("layer_types")? else { return Ok(implied) };
    let kind = |item: &Json| match item.as_str() {
        Some(FULL) => Some(false),
        Some(SLIDING) => Some(true),
        _ => None,
    };
    let kinds: Option<Vec<bool>> = list.iter().map(kind).collect();
    match kinds.filter(|kinds| kinds.len() == count) {
        Some(kinds) => Ok(kinds),
        None => {
            keys.refuse("layer_types", format!("it must be {count} times `{FULL}` or `{SLIDING}`"))
        }
    }
}

/// Every how many layers one sees everything.
fn pattern(keys: &Keys<'_>) -> Read<usize> {
    let (old, new) = (keys.size("sliding_window_pattern")?, keys.size("_sliding_window_pattern")?);
    if old.is_some() && new.is_some() && old != new {
        return keys.refuse("sliding_window_pattern", "`_sliding_window_pattern` says otherwise");
    }
    match old.or(new).unwrap_or(6) {
        0 => keys.refuse("sliding_window_pattern", "it must be above 0"),
        pattern => Ok(pattern),
    }
}

/// One rope; of Gemma 3 the one of full layers and that of sliding ones.
fn ropes(family: Family, keys: &Keys<'_>, basis: Basis) -> Read<Vec<Rope>> {
    if keys.has("rope_scaling") && keys.has("rope_parameters") {
        return keys.refuse("rope_scaling", "`rope_parameters` is there, too");
    }
    let theta = keys.positive("rope_theta")?.unwrap_or(basis.theta);
    let basis = Basis { theta, ..basis };
    let parameters = match keys.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => keys.object("rope_scaling")?,
    };
    let rope_of = |keys: Option<Keys<'_>>, basis| match keys {
        Some(keys) => rope::read(&keys, basis),
        None => Ok(rope::plain(basis.theta, basis.head_size)),
    };
    if family != Family::Gemma3 {
        return Ok(vec![rope_of(parameters, basis)?]);
    }
    let local = keys.positive("rope_local_base_freq")?.unwrap_or(10_000.0);
    let local = Basis { theta: local, ..basis };
    match parameters {
        Some(both) if both.has(FULL) || both.has(SLIDING) => {
            let ropes =
                vec![rope_of(both.object(FULL)?, basis)?, rope_of(both.object(SLIDING)?, local)?];
            both.finish(|_, value| value.is_null())?;
            Ok(ropes)
        }
        full => Ok(vec![rope_of(full, basis)?, rope::plain(local.theta, local.head_size)]),
    }
}
