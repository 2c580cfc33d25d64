//! The first values of a model that is trained from nothing.

use crate::architecture::{Architecture, Family};
use crate::configuration::keys::{Keys, Read};
use crate::names::{Buffer, Kind, Part, Site, Tensor, buffers};
use crate::weights::{Parameters, Weights};
use het_blocks::norm::Kind as NormKind;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Map, Value as Json};

/// Where a configuration does not say `initializer_range`: what all known families have.
const DEVIATION: f64 = 0.02;

/// Draws weights as `transformers` does (`_init_weights`): matrices and tables from a normal
/// distribution of deviation `initializer_range`, those of GPT-2 that join the residual stream
/// divided by √(2 × layers) (Radford et al. 2019, section 2.3); the row of padding and biases zero;
/// norms such that they multiply by one. The same seed gives the same values, which are others than
/// PyTorch's.
pub fn weights(
    architecture: Architecture,
    configuration: Map<String, Json>,
    seed: u64,
) -> Read<Weights> {
    let deviation = Keys::new(&configuration, "").positive("initializer_range")?;
    let deviation = deviation.unwrap_or(DEVIATION);
    let places: Vec<_> =
        buffers(&architecture).into_iter().map(|Buffer { site, kind, .. }| (site, kind)).collect();
    let parameters = Parameters::filled(&architecture, |buffer| {
        let length = buffer.tensors.iter().map(Tensor::values).sum();
        if buffer.kind == Kind::Bias {
            return Ok(vec![0.0; length]);
        }
        if is_norm(buffer.site) {
            let value = match architecture.norm.kind {
                NormKind::Rms { offset } => 1.0 - offset,
                NormKind::Layer => 1.0,
            };
            return Ok(vec![value; length]);
        }
        // Each buffer has a stream of its own, so that they can be drawn side by side.
        let stream = places.iter().position(|&place| place == (buffer.site, buffer.kind));
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream.unwrap_or_default() as u64);
        let mut values = normal(&mut random, length, deviation * share(&architecture, buffer.site));
        if let (Site::Embedding, Some(padding)) = (buffer.site, architecture.padding) {
            let row = padding as usize * architecture.hidden;
            values[row..row + architecture.hidden].fill(0.0);
        }
        Ok(values)
    });
    let parameters = parameters.expect("numbers are drawn without fail");
    Ok(Weights { architecture, parameters, configuration: Some(configuration) })
}

fn is_norm(site: Site) -> bool {
    match site {
        Site::Norm => true,
        Site::Embedding | Site::Positions | Site::Head => false,
        Site::Layer(_, part) => !part.is_matrix(),
    }
}

fn share(architecture: &Architecture, site: Site) -> f64 {
    match (architecture.family, site) {
        (Family::Gpt2, Site::Layer(_, Part::Output | Part::Down)) => {
            1.0 / (2.0 * architecture.layers.len() as f64).sqrt()
        }
        _ => 1.0,
    }
}

/// Box and Muller's transform (1958), two values at a time.
fn normal(random: &mut ChaCha8Rng, length: usize, deviation: f64) -> Vec<f32> {
    // Above zero, whose logarithm is none.
    let mut unit = || (f64::from(random.next_u32()) + 0.5) / f64::from(u32::MAX);
    let mut values = Vec::with_capacity(length);
    while values.len() < length {
        let radius = deviation * (-2.0 * unit().min(1.0).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * unit()).sin_cos();
        values.push((radius * cosine) as f32);
        if values.len() < length {
            values.push((radius * sine) as f32);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration;
    use serde_json::json;

    fn drawn(configuration: Json, seed: u64) -> Weights {
        let map = configuration.as_object().cloned().expect("an object");
        let architecture = configuration::hub::read(&map).expect("it is known");
        weights(architecture, map, seed).expect("drawn")
    }

    fn gpt2() -> Json {
        json!({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 101,
               "n_positions": 32, "initializer_range": 0.05})
    }

    fn deviation(values: &[f32]) -> f64 {
        let squares = values.iter().map(|&value| f64::from(value).powi(2));
        (squares.sum::<f64>() / values.len() as f64).sqrt()
    }

    #[test]
    fn matrices_are_as_wide_as_the_configuration_says() {
        let weights = drawn(gpt2(), 1).parameters;
        let close = |values: &[f32], wanted: f64| {
            let found = deviation(values);
            assert!((found / wanted - 1.0).abs() < 0.04, "{found}, not {wanted}");
        };
        close(&weights.outer.embedding, 0.05);
        close(&weights.layers[1].up.weight, 0.05);
        close(&weights.layers[1].down.weight, 0.05 / 2.0);
        assert!(weights.layers[0].qkv.bias.iter().all(|&value| value == 0.0));
        assert!(weights.layers[0].mlp_norm.weight.iter().all(|&value| value == 1.0));
        assert_ne!(weights.layers[0].qkv.weight, weights.layers[1].qkv.weight);
    }

    #[test]
    fn a_seed_is_its_values() {
        assert_eq!(drawn(gpt2(), 7).parameters, drawn(gpt2(), 7).parameters);
        assert_ne!(drawn(gpt2(), 7).parameters, drawn(gpt2(), 8).parameters);
    }

    #[test]
    fn gemmas_norms_begin_at_zero() {
        let gemma = json!({"model_type": "gemma2", "num_hidden_layers": 2, "hidden_size": 16,
            "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 8, "vocab_size": 40, "max_position_embeddings": 32, "pad_token_id": 3,
            "query_pre_attn_scalar": 8, "sliding_window": 16});
        let weights = drawn(gemma, 1).parameters;
        assert!(weights.layers[0].attention_norm.weight.iter().all(|&value| value == 0.0));
        assert!(weights.outer.embedding[3 * 16..4 * 16].iter().all(|&value| value == 0.0));
    }
}
