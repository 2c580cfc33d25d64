//! Causal attention with grouped key/value heads, for one sequence at a time.
//!
//! Query rows go in blocks, so that the parts of the score matrix that causality or a window masks
//! are mostly skipped.

use super::math::{soft_cap, soft_cap_backward, softmax, softmax_backward};
use super::matrix::{add_product_here, product_here, sized};
use super::norm::Norm;
use faer::prelude::ReborrowMut;
use faer::{MatMut, MatRef};

const BLOCK: usize = 64;

/// The shape of attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub heads: usize,
    /// Each serves `heads / kv_heads` heads of queries.
    pub kv_heads: usize,
    pub head_size: usize,
    /// What the products of queries and keys are multiplied by.
    pub scale: f32,
    /// Scores become `cap tanh(score / cap)` before the softmax.
    pub cap: Option<f32>,
    /// How many positions a token sees, its own included.
    pub window: Option<usize>,
    /// Of every head of queries and keys, before rotation.
    pub norm: Option<Norm>,
}

impl Shape {
    pub fn q_width(&self) -> usize {
        self.heads * self.head_size
    }

    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_size
    }

    pub fn qkv_width(&self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }

    /// The first position that one at `position` sees.
    pub fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Values that [`attend`] keeps of a sequence for its backward.
    pub(super) fn stored(&self, length: usize) -> usize {
        self.heads * length * length
    }
}

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
    pub fn whole(shape: &Shape, qkv: MatRef<'a, f32>) -> Self {
        let (q, kv) = qkv.split_at_col(shape.q_width());
        let (k, v) = kv.split_at_col(shape.kv_width());
        Self { q, k, v }
    }

    /// One head's queries, keys and values.
    fn head(&self, shape: &Shape, head: usize) -> Self {
        let size = shape.head_size;
        let shared = head / (shape.heads / shape.kv_heads) * size;
        Self {
            q: self.q.subcols(head * size, size),
            k: self.k.subcols(shared, size),
            v: self.v.subcols(shared, size),
        }
    }
}

/// Where [`attend`] leaves probabilities.
#[derive(Debug)]
pub enum Probabilities<'a> {
    /// All of them, `[heads, new, total]`, but as they were those of whole blocks that no row of a
    /// block sees.
    Kept(&'a mut [f32]),
    /// Those of one block of rows after another: none is needed later.
    Scratch(&'a mut Vec<f32>),
}

/// `out[new, q_width] = softmax(cap(scale q kᵀ)) v`.
pub fn attend(
    shape: &Shape,
    inputs: Inputs<'_>,
    mut out: MatMut<'_, f32>,
    mut probabilities: Probabilities<'_>,
) {
    let (new, total, size) = (inputs.q.nrows(), inputs.k.nrows(), shape.head_size);
    for head in 0..shape.heads {
        let Inputs { q, k, v } = inputs.head(shape, head);
        for start in (0..new).step_by(BLOCK) {
            let count = BLOCK.min(new - start);
            let first = shape.first_visible(total - new + start);
            let seen = total - new + start + count - first;
            let block = match &mut probabilities {
                Probabilities::Kept(all) => {
                    &mut all[(head * new + start) * total..][..count * total]
                }
                Probabilities::Scratch(scratch) => sized(scratch, count * total),
            };
            let scores = MatMut::from_row_major_slice_mut(&mut *block, count, total);
            let scores = scores.subcols_mut(first, seen);
            let (q, k) = (q.subrows(start, count), k.subrows(first, seen));
            product_here(scores, q, k.transpose(), shape.scale);
            for (row, scores) in block.chunks_exact_mut(total).enumerate() {
                let position = total - new + start + row;
                let visible = shape.first_visible(position);
                scores[first..visible].fill(0.0);
                scores[position + 1..first + seen].fill(0.0);
                let scores = &mut scores[visible..=position];
                if let Some(cap) = shape.cap {
                    soft_cap(scores, cap);
                }
                softmax(scores);
            }
            let scores = MatRef::from_row_major_slice(block, count, total).subcols(first, seen);
            let out = out.rb_mut().subrows_mut(start, count).subcols_mut(head * size, size);
            product_here(out, scores, v.subrows(first, seen), 1.0);
        }
    }
}

/// Writes the gradient of a whole sequence's `qkv` rows, given that of [`attend`]'s result.
pub fn attend_backward(
    shape: &Shape,
    inputs: Inputs<'_>,
    probabilities: &[f32],
    upstream: MatRef<'_, f32>,
    mut gradient: MatMut<'_, f32>,
) {
    let (length, size) = (inputs.q.nrows(), shape.head_size);
    gradient.rb_mut().subcols_mut(shape.q_width(), 2 * shape.kv_width()).fill(0.0);
    let mut scratch = vec![0f32; BLOCK.min(length) * length];
    let mut capped = vec![0f32; shape.cap.map_or(0, |_| scratch.len())];
    for head in 0..shape.heads {
        let k_column = shape.q_width() + head / (shape.heads / shape.kv_heads) * size;
        let v_column = k_column + shape.kv_width();
        let Inputs { q, k, v } = inputs.head(shape, head);
        let weights = &probabilities[head * length * length..][..length * length];
        for start in (0..length).step_by(BLOCK) {
            let count = BLOCK.min(length - start);
            let first = shape.first_visible(start);
            let seen = start + count - first;
            let (q, k) = (q.subrows(start, count), k.subrows(first, seen));
            let up = upstream.subcols(head * size, size).subrows(start, count);
            let weights = &weights[start * length..][..count * length];
            let scores = &mut scratch[..count * seen];
            let into_scores = MatMut::from_row_major_slice_mut(&mut *scores, count, seen);
            product_here(into_scores, up, v.subrows(first, seen).transpose(), 1.0);
            for (row, scores) in scores.chunks_exact_mut(seen).enumerate() {
                softmax_backward(&weights[row * length + first..][..seen], scores, shape.scale);
            }
            if let Some(cap) = shape.cap {
                let capped = &mut capped[..count * seen];
                let raw = MatMut::from_row_major_slice_mut(&mut *capped, count, seen);
                product_here(raw, q, k.transpose(), shape.scale);
                soft_cap(capped, cap);
                soft_cap_backward(capped, cap, scores);
            }
            let scores = MatRef::from_row_major_slice(scores, count, seen);
            let weights = MatRef::from_row_major_slice(weights, count, length);
            let weights = weights.subcols(first, seen);
            let own = part(&mut gradient, start, count, head * size, size);
            product_here(own, scores, k, 1.0);
            let keys = part(&mut gradient, first, seen, k_column, size);
            add_product_here(keys, scores.transpose(), q, 1.0);
            let values = part(&mut gradient, first, seen, v_column, size);
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
