//! Weights rounded to int8: one signed byte a value, one scale a block of 32.
//!
//! The arithmetic stays in f32, so what an evaluation with these weights shows is the accuracy that
//! int8 storage costs, not the speed of int8 arithmetic.

use crate::weights::Parameters;
use rayon::prelude::*;

const BLOCK: usize = 32;

/// Replaces every matrix by the nearest values that int8 blocks can hold.
pub fn round_weights(weights: &mut Parameters) {
    let outer = std::sync::Arc::make_mut(&mut weights.outer);
    round(&mut outer.embedding);
    round(&mut outer.head);
    weights.layers.par_iter_mut().for_each(|layer| {
        for pair in [&mut layer.qkv, &mut layer.output, &mut layer.up, &mut layer.down] {
            round(&mut pair.weight);
        }
    });
}

/// The error of a value is at most half a scale: 1/254 of the largest value of its block.
pub fn round(values: &mut [f32]) {
    for block in values.chunks_mut(BLOCK) {
        let largest = block.iter().fold(0f32, |m, v| m.max(v.abs()));
        let scale = largest / 127.0;
        if scale > 0.0 {
            block.iter_mut().for_each(|v| *v = f32::from((*v / scale).round() as i8) * scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_moves_a_value_by_at_most_half_a_scale() {
        let exact: Vec<f32> = (0..256).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect();
        let mut rounded = exact.clone();
        round(&mut rounded);
        for (exact, rounded) in exact.chunks(BLOCK).zip(rounded.chunks(BLOCK)) {
            let largest = exact.iter().fold(0f32, |m, v| m.max(v.abs()));
            let worst = exact.iter().zip(rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= largest / 254.0 * 1.001, "{worst} against {largest}");
        }
        assert_ne!(exact, rounded);
    }
}
