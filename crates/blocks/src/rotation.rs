//! Rotary position embeddings (Su et al. 2021): angles of positions, as tables that grow on demand.

use super::math;

/// How fast the pairs of a head turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Angle of one position, for each pair of a head: `[head_size / 2]`
    pub frequencies: Vec<f64>,
    /// What rotated values are multiplied by (YaRN's `mscale`).
    pub factor: f64,
}

impl Rope {
    /// Whether f32 holds all of it, so that no angle of a position is lost.
    pub fn is_finite(&self) -> bool {
        let mut all = self.frequencies.iter().chain([&self.factor]);
        all.all(|&value| (value as f32).is_finite())
    }
}

/// Cosines and sines, `[positions, head_size / 2]`, times the rope's factor.
#[derive(Debug, Clone, Default)]
pub struct Table {
    half: usize,
    cosine: Vec<f32>,
    sine: Vec<f32>,
}

impl Table {
    /// Makes the table hold at least `positions`.
    pub fn reach(&mut self, rope: &Rope, positions: usize) {
        self.half = rope.frequencies.len();
        let first = self.cosine.len() / self.half.max(1);
        for position in first..positions {
            for frequency in &rope.frequencies {
                let angle = position as f64 * frequency;
                self.cosine.push((angle.cos() * rope.factor) as f32);
                self.sine.push((angle.sin() * rope.factor) as f32);
            }
        }
    }

    pub fn cosines(&self) -> &[f32] {
        &self.cosine
    }

    pub fn sines(&self) -> &[f32] {
        &self.sine
    }

    /// Turns the two halves of every head in `heads` by the angles of `position`.
    ///
    /// `turn` is 1, or -1 for the backward: the gradient of a rotation is the rotation back.
    pub fn rotate(&self, heads: &mut [f32], position: usize, turn: f32) {
        let place = position * self.half..(position + 1) * self.half;
        let (cosine, sine) = (&self.cosine[place.clone()], &self.sine[place]);
        for head in heads.chunks_exact_mut(2 * self.half) {
            math::rotate(head, cosine, sine, turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{Check, drawn};
    use super::*;

    #[test]
    fn the_gradient_of_a_rotation_is_right() {
        let rope = Rope { frequencies: vec![1.0, 0.3], factor: 1.4 };
        let mut table = Table::default();
        table.reach(&rope, 2);
        table.reach(&rope, 9);
        let heads = drawn(1, 8);
        let turned = |heads: &[f32], turn| {
            let mut heads = heads.to_vec();
            table.rotate(&mut heads, 7, turn);
            heads
        };
        let check = Check::new(8);
        let gradient = turned(check.upstream(), -1.0);
        check.gradient("heads", &heads, &gradient, |heads| turned(heads, 1.0));
    }
}
