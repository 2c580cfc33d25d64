//! Causal attention with grouped key/value heads, for one sequence at a time.
//!
//! Query rows go in blocks, so that the half of the score matrix that is masked is mostly skipped.

use super::math::{softmax, softmax_backward};
use super::matrix::{add_product_here, product_here};
use crate::config::Config;
use faer::prelude::ReborrowMut;
use faer::{MatMut, MatRef};

const BLOCK: usize = 64;

/// Queries, keys and values of one sequence; the queries belong to its last rows.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// `[new, q_width]`
    pub q: MatRef<'a, f32>,
    /// `[total, kv_width]`
    pub k: MatRef<'a, f32>,
    /// `[total, kv_width]`
    pub v: MatRef<'a, f32>,
}

impl<'a> Inputs<'a> {
    /// Splits rows of `qkv_width` that hold a whole sequence.
    pub fn whole(config: &Config, qkv: MatRef<'a, f32>) -> Self {
        let (q, kv) = qkv.split_at_col(config.q_width());
        let (k, v) = kv.split_at_col(config.kv_width());
        Self { q, k, v }
    }
}

/// How many probabilities [`attend`] stores.
pub fn probabilities_length(config: &Config, new: usize, total: usize) -> usize {
    config.heads * new * total
}

/// `out[new, q_width] = softmax(q kᵀ / √d) v`; keeps the probabilities `[heads, new, total]`.
pub fn attend(
    config: &Config,
    inputs: Inputs<'_>,
    mut out: MatMut<'_, f32>,
    probabilities: &mut [f32],
) {
    let (new, total, size) = (inputs.q.nrows(), inputs.k.nrows(), config.head_size);
    let scale = 1.0 / (size as f32).sqrt();
    for head in 0..config.heads {
        let shared = head / (config.heads / config.kv_heads);
        let k = inputs.k.subcols(shared * size, size);
        let v = inputs.v.subcols(shared * size, size);
        let q = inputs.q.subcols(head * size, size);
        let weights = &mut probabilities[head * new * total..][..new * total];
        for start in (0..new).step_by(BLOCK) {
            let count = BLOCK.min(new - start);
            let seen = total - new + start + count;
            let block = &mut weights[start * total..][..count * total];
            let scores = MatMut::from_row_major_slice_mut(&mut *block, count, total);
            let scores = scores.subcols_mut(0, seen);
            product_here(scores, q.subrows(start, count), k.subrows(0, seen).transpose(), scale);
            for (row, scores) in block.chunks_exact_mut(total).enumerate() {
                let visible = total - new + start + row + 1;
                softmax(&mut scores[..visible]);
                scores[visible..seen].fill(0.0);
            }
            let scores = MatRef::from_row_major_slice(block, count, total).subcols(0, seen);
            let out = out.rb_mut().subrows_mut(start, count).subcols_mut(head * size, size);
            product_here(out, scores, v.subrows(0, seen), 1.0);
        }
    }
}

/// Writes the gradient of a whole sequence's `qkv` rows, given that of [`attend`]'s result.
pub fn attend_backward(
    config: &Config,
    inputs: Inputs<'_>,
    probabilities: &[f32],
    upstream: MatRef<'_, f32>,
    mut gradient: MatMut<'_, f32>,
) {
    let (length, size) = (inputs.q.nrows(), config.head_size);
    let scale = 1.0 / (size as f32).sqrt();
    gradient.rb_mut().subcols_mut(config.q_width(), 2 * config.kv_width()).fill(0.0);
    let mut scratch = vec![0f32; BLOCK.min(length) * length];
    for head in 0..config.heads {
        let shared = head / (config.heads / config.kv_heads);
        let k_column = config.q_width() + shared * size;
        let v_column = k_column + config.kv_width();
        let k = inputs.k.subcols(shared * size, size);
        let v = inputs.v.subcols(shared * size, size);
        let weights = &probabilities[head * length * length..][..length * length];
        for start in (0..length).step_by(BLOCK) {
            let count = BLOCK.min(length - start);
            let seen = start + count;
            let q = inputs.q.subcols(head * size, size).subrows(start, count);
            let up = upstream.subcols(head * size, size).subrows(start, count);
            let weights = &weights[start * length..][..count * length];
            let scores = &mut scratch[..count * seen];
            product_here(
                MatMut::from_row_major_slice_mut(&mut *scores, count, seen),
                up,
                v.subrows(0, seen).transpose(),
                1.0,
            );
            for (row, scores) in scores.chunks_exact_mut(seen).enumerate() {
                softmax_backward(&weights[row * length..][..seen], scores, scale);
            }
            let scores = MatRef::from_row_major_slice(scores, count, seen);
            let weights = MatRef::from_row_major_slice(weights, count, length).subcols(0, seen);
            let own = part(&mut gradient, start, count, head * size, size);
            product_here(own, scores, k.subrows(0, seen), 1.0);
            let keys = part(&mut gradient, 0, seen, k_column, size);
            add_product_here(keys, scores.transpose(), q, 1.0);
            let values = part(&mut gradient, 0, seen, v_column, size);
            add_product_here(values, weights.transpose(), up, 1.0);
        }
    }
}

fn part<'a>(
    matrix: &'a mut MatMut<'_, f32>,
    row: usize,
    rows: usize,
    column: usize,
    columns: usize,
) -> MatMut<'a, f32> {
    matrix.rb_mut().subrows_mut(row, rows).subcols_mut(column, columns)
}
