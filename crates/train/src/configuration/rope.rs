//! Rotary embeddings as configurations name them: frequencies out.
//!
//! The formulas are those of the papers: linear (Chen et al. 2023, Position Interpolation), YaRN
//! (Peng et al. 2023, section 3) and the scaling of Llama 3.1 (Llama Team 2024, as its reference
//! code computes it). Names of keys and their defaults are those of Hugging Face `transformers`.

use super::keys::{Keys, Read};
use het_blocks::rotation::Rope;
use std::f64::consts::PI;

/// What a rope follows from beside its own keys.
#[derive(Debug, Clone, Copy)]
pub struct Basis {
    pub theta: f64,
    pub head_size: usize,
    pub positions_max: usize,
}

/// The rope without any scaling.
pub fn plain(theta: f64, head_size: usize) -> Rope {
    let half = head_size / 2;
    let frequencies = (0..half).map(|index| theta.powf(-(index as f64) / half as f64)).collect();
    Rope { frequencies, factor: 1.0 }
}

/// Reads `rope_scaling`, `rope_parameters` or one of its layer types; every key is used.
pub fn read(keys: &Keys<'_>, basis: Basis) -> Read<Rope> {
    let theta = keys.positive("rope_theta")?.unwrap_or(basis.theta);
    let basis = Basis { theta, ..basis };
    if keys.real("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return keys.refuse("partial_rotary_factor", "only whole heads are rotated here");
    }
    let old = keys.text("type")?;
    let kind = keys.text("rope_type")?;
    if old.is_some() && kind.is_some() && old != kind {
        return keys.refuse("type", "`rope_type` says otherwise");
    }
    let name = if kind.is_some() { "rope_type" } else { "type" };
    let rope = match kind.or(old).unwrap_or("default") {
        "default" => plain(theta, basis.head_size),
        "linear" => {
            let factor = required(keys, "factor")?;
            scaled(plain(theta, basis.head_size), |_, frequency| frequency / factor)
        }
        // Equal to the default up to the positions of the weights, which are never exceeded here.
        "dynamic" => {
            required(keys, "factor")?;
            plain(theta, basis.head_size)
        }
        "llama3" => llama3(keys, basis)?,
        "yarn" => yarn(keys, basis)?,
        _ => {
            let known = "`default`, `linear`, `dynamic`, `llama3` and `yarn` are known";
            return keys.refuse(name, known);
        }
    };
    keys.finish(|_, value| value.is_null())?;
    Ok(rope)
}

fn required(keys: &Keys<'_>, key: &str) -> Read<f64> {
    match keys.positive(key)? {
        Some(value) => Ok(value),
        None => keys.refuse(key, "it must be a number above 0"),
    }
}

fn scaled(mut rope: Rope, scale: impl Fn(usize, f64) -> f64) -> Rope {
    for (index, frequency) in rope.frequencies.iter_mut().enumerate() {
        *frequency = scale(index, *frequency);
    }
    rope
}

/// Long waves are stretched by `factor`, short ones kept, those between blended.
fn llama3(keys: &Keys<'_>, basis: Basis) -> Read<Rope> {
    let factor = required(keys, "factor")?;
    let (low, high) = (required(keys, "low_freq_factor")?, required(keys, "high_freq_factor")?);
    if low >= high {
        return keys.refuse("high_freq_factor", "it must be above `low_freq_factor`");
    }
    let original = keys.positive("original_max_position_embeddings")?;
    let original = original.unwrap_or(basis.positions_max as f64);
    Ok(scaled(plain(basis.theta, basis.head_size), |_, frequency| {
        let turns = original * frequency / (2.0 * PI);
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        kept * frequency + (1.0 - kept) * frequency / factor
    }))
}

/// Frequencies that turn often within the original positions are kept, those that hardly turn are
/// interpolated; everything is multiplied by an attention factor.
fn yarn(keys: &Keys<'_>, basis: Basis) -> Read<Rope> {
    let original = keys.positive("original_max_position_embeddings")?;
    let original = original.unwrap_or(basis.positions_max as f64);
    let factor = keys.positive("factor")?.unwrap_or(basis.positions_max as f64 / original);
    let beta = |key, default| Ok(keys.positive(key)?.unwrap_or(default));
    let (fast, slow) = (beta("beta_fast", 32.0)?, beta("beta_slow", 1.0)?);
    if basis.theta <= 1.0 {
        return keys.refuse("rope_theta", format!("`yarn` needs more than 1, not {}", basis.theta));
    }
    if fast <= slow {
        return keys.refuse("beta_fast", format!("it must be above `beta_slow`, {slow}"));
    }
    let truncate = keys.flag("truncate")?.unwrap_or(true);
    let size = basis.head_size as f64;
    let dimension =
        |turns: f64| size * (original / (turns * 2.0 * PI)).ln() / (2.0 * basis.theta.ln());
    let (mut low, mut high) = (dimension(fast), dimension(slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(size - 1.0));
    if low == high {
        high += 0.001;
    }
    let mut rope = scaled(plain(basis.theta, basis.head_size), |index, frequency| {
        let interpolated = ((index as f64 - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - interpolated) * frequency + interpolated * frequency / factor
    });
    rope.factor = attention_factor(keys, factor)?;
    Ok(rope)
}

fn attention_factor(keys: &Keys<'_>, factor: f64) -> Read<f64> {
    let of = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    let (own, all) = (keys.real("mscale")?, keys.real("mscale_all_dim")?);
    if let Some(given) = keys.positive("attention_factor")? {
        return Ok(given);
    }
    match (own, all) {
        (Some(own), Some(all)) if own != 0.0 && all != 0.0 => Ok(of(own) / of(all)),
        _ => Ok(of(1.0)),
    }
}
