//! Token embeddings, with learned positions where a model has them.

use super::linear::Weight;
use super::matrix::sized;

/// The tables that tokens are looked up in.
#[derive(Debug, Clone, Copy)]
pub struct Embedding<'a> {
    pub width: usize,
    /// What a token's row is multiplied by.
    pub scale: f32,
    /// `[vocabulary, width]`
    pub tokens: Weight<'a>,
    /// `[positions, width]`, or empty where positions are not learned
    pub positions: &'a [f32],
}

/// Where gradients of an [`Embedding`]'s tables are added to.
#[derive(Debug)]
pub struct Gradient<'a> {
    pub tokens: &'a mut [f32],
    pub positions: &'a mut [f32],
}

impl Embedding<'_> {
    /// `out[rows, width]`; `positions[rows]` are places in their sequences.
    ///
    /// The caller has checked that the tables have every token and every position.
    pub fn forward(&self, tokens: &[u32], positions: &[u32], out: &mut Vec<f32>) {
        let width = self.width;
        let out = sized(out, tokens.len() * width);
        for (row, &token) in out.chunks_exact_mut(width).zip(tokens) {
            match self.tokens {
                Weight::F32(table) | Weight::Rounding(table) => {
                    row.copy_from_slice(&table[token as usize * width..][..width])
                }
                Weight::Bf16(table) => table.row(token as usize, row),
                Weight::Quantized(table) => table.row(token as usize, row),
            }
            row.iter_mut().for_each(|value| *value *= self.scale);
        }
        if self.positions.is_empty() {
            return;
        }
        for (row, &position) in out.chunks_exact_mut(width).zip(positions) {
            let learned = &self.positions[position as usize * width..][..width];
            row.iter_mut().zip(learned).for_each(|(value, learned)| *value += learned);
        }
    }

    /// Adds the gradients of both tables. The row of `padding` gets none, as in PyTorch.
    pub fn backward(
        &self,
        tokens: &[u32],
        positions: &[u32],
        padding: Option<u32>,
        upstream: &[f32],
        gradient: &mut Gradient<'_>,
    ) {
        let width = self.width;
        let rows = upstream.chunks_exact(width).zip(tokens).zip(positions);
        for ((upstream, &token), &position) in rows {
            if padding != Some(token) {
                let sums = &mut gradient.tokens[token as usize * width..][..width];
                sums.iter_mut().zip(upstream).for_each(|(sum, u)| *sum += self.scale * u);
            }
            if !self.positions.is_empty() {
                let sums = &mut gradient.positions[position as usize * width..][..width];
                sums.iter_mut().zip(upstream).for_each(|(sum, u)| *sum += u);
            }
        }
    }
}

/// The place of every row in its sequence.
pub fn positions(bounds: &[usize]) -> Vec<u32> {
    bounds.windows(2).flat_map(|pair| 0..(pair[1] - pair[0]) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::super::check::{Check, drawn};
    use super::*;

    #[test]
    fn the_gradients_of_both_tables_are_right() {
        const WIDTH: usize = 4;
        let tokens = [3, 0, 3, 2, 1];
        let positions = positions(&[0, 2, 5]);
        assert_eq!(positions, [0, 1, 0, 1, 2]);
        let (table, places) = (drawn(1, 5 * WIDTH), drawn(2, 3 * WIDTH));
        fn embedding<'a>(tokens: &'a [f32], positions: &'a [f32]) -> Embedding<'a> {
            Embedding { width: WIDTH, scale: 2.5, tokens: Weight::F32(tokens), positions }
        }
        let forward = |table: &[f32], places: &[f32]| {
            let mut out = Vec::new();
            embedding(table, places).forward(&tokens, &positions, &mut out);
            out
        };
        let check = Check::new(tokens.len() * WIDTH);
        let (mut into_table, mut into_places) = (vec![0.0; table.len()], vec![0.0; places.len()]);
        let mut gradient = Gradient { tokens: &mut into_table, positions: &mut into_places };
        let block = embedding(&table, &places);
        block.backward(&tokens, &positions, None, check.upstream(), &mut gradient);
        check.gradient("tokens", &table, &into_table, |table| forward(table, &places));
        check.gradient("positions", &places, &into_places, |places| forward(&table, places));
        let padded = &mut vec![0.0; table.len()];
        let mut gradient = Gradient { tokens: padded, positions: &mut into_places };
        block.backward(&tokens, &positions, Some(3), check.upstream(), &mut gradient);
        assert!(padded[3 * WIDTH..4 * WIDTH].iter().all(|&g| g == 0.0));
        assert_eq!(padded[..3 * WIDTH], into_table[..3 * WIDTH]);
    }
}
