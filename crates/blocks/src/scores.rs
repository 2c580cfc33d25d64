//! Causal attention with grouped key/value heads, for one sequence at a time.
//!
//! Threads share heads, or groups of them in the backward. Query rows go in blocks, so that the
//! parts of the score matrix that causality or a window masks are mostly skipped.

use super::math::{soft_cap, soft_cap_backward, softmax, softmax_backward};
use super::matrix::{add_product_here, product_here, sized};
use super::norm::Norm;
use faer::prelude::ReborrowMut;
use faer::{MatMut, MatRef};
use rayon::prelude::*;

const BLOCK: usize = 64;
/// Products of two values below which a thread of its own costs more than it brings.
const PRODUCTS_OF_ONE_THREAD: usize = 1 << 18;

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

    /// How many heads of queries share one of keys and values.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
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
        let shared = head / shape.group() * size;
        Self {
            q: self.q.subcols(head * size, size),
            k: self.k.subcols(shared, size),
            v: self.v.subcols(shared, size),
        }
    }
}

/// Where a head leaves probabilities.
#[derive(Debug)]
enum Probabilities<'a> {
    /// All of them, `[new, total]`, but as they were those of whole blocks that no row of a block
    /// sees.
    Kept(&'a mut [f32]),
    /// Those of one block of rows after another: none is needed later.
    Scratch(&'a mut Vec<f32>),
}

/// Heads, or groups of them, that one thread computes at least.
fn at_once(products: usize) -> usize {
    PRODUCTS_OF_ONE_THREAD.div_ceil(products.max(1))
}

/// `out[new, q_width] = softmax(cap(scale q kᵀ)) v`; the probabilities `[heads, new, total]` are
/// kept where there is a place for them.
pub fn attend(
    shape: &Shape,
    inputs: Inputs<'_>,
    out: MatMut<'_, f32>,
    probabilities: Option<&mut [f32]>,
) {
    let (new, total, size) = (inputs.q.nrows(), inputs.k.nrows(), shape.head_size);
    let least = at_once(new * total * size);
    let heads = out.par_col_chunks_mut(size).enumerate();
    match probabilities {
        Some(all) => {
            let heads = heads.zip(all.par_chunks_mut((new * total).max(1))).with_min_len(least);
            heads.for_each(|((head, out), own)| {
                attend_head(shape, inputs.head(shape, head), out, Probabilities::Kept(own));
            });
        }
        None => heads.with_min_len(least).for_each_init(Vec::new, |scratch, (head, out)| {
            attend_head(shape, inputs.head(shape, head), out, Probabilities::Scratch(scratch));
        }),
    }
}

/// [`attend`] of one head: `out[new, head_size]`.
fn attend_head(
    shape: &Shape,
    Inputs { q, k, v }: Inputs<'_>,
    mut out: MatMut<'_, f32>,
    mut probabilities: Probabilities<'_>,
) {
    let (new, total) = (q.nrows(), k.nrows());
    for start in (0..new).step_by(BLOCK) {
        let count = BLOCK.min(new - start);
        let first = shape.first_visible(total - new + start);
        let seen = total - new + start + count - first;
        let block = match &mut probabilities {
            Probabilities::Kept(all) => &mut all[start * total..][..count * total],
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
        let out = out.rb_mut().subrows_mut(start, count);
        product_here(out, scores, v.subrows(first, seen), 1.0);
    }
}

/// Buffers of [`attend_backward`] for a block of rows.
#[derive(Debug, Default)]
struct Blocks {
    scores: Vec<f32>,
    capped: Vec<f32>,
}

/// Gradients of queries, keys and values of the heads that share keys and values.
struct Group<'a> {
    q: MatMut<'a, f32>,
    k: MatMut<'a, f32>,
    v: MatMut<'a, f32>,
}

/// Writes the gradient of a whole sequence's `qkv` rows, given that of [`attend`]'s result.
pub fn attend_backward(
    shape: &Shape,
    inputs: Inputs<'_>,
    probabilities: &[f32],
    upstream: MatRef<'_, f32>,
    gradient: MatMut<'_, f32>,
) {
    let (length, size, group) = (inputs.q.nrows(), shape.head_size, shape.group());
    let (q, kv) = gradient.split_at_col_mut(shape.q_width());
    let (k, v) = kv.split_at_col_mut(shape.kv_width());
    let groups = q.par_col_chunks_mut(group * size);
    let groups = groups.zip(k.par_col_chunks_mut(size)).zip(v.par_col_chunks_mut(size));
    let groups = groups.enumerate().with_min_len(at_once(group * length * length * size));
    groups.for_each_init(Blocks::default, |blocks, (index, ((q, mut k), mut v))| {
        k.fill(0.0);
        v.fill(0.0);
        let mut gradient = Group { q, k, v };
        for own in 0..group {
            let head = index * group + own;
            let weights = &probabilities[head * length * length..][..length * length];
            let upstream = upstream.subcols(head * size, size);
            let inputs = inputs.head(shape, head);
            head_backward(shape, inputs, (weights, upstream), (own, &mut gradient), blocks);
        }
    });
}

/// [`attend_backward`] of one head, the one at `own` in its group.
fn head_backward(
    shape: &Shape,
    Inputs { q, k, v }: Inputs<'_>,
    (weights, upstream): (&[f32], MatRef<'_, f32>),
    (own, gradient): (usize, &mut Group<'_>),
    Blocks { scores, capped }: &mut Blocks,
) {
    let (length, size) = (q.nrows(), shape.head_size);
    for start in (0..length).step_by(BLOCK) {
        let count = BLOCK.min(length - start);
        let first = shape.first_visible(start);
        let seen = start + count - first;
        let (q, k) = (q.subrows(start, count), k.subrows(first, seen));
        let up = upstream.subrows(start, count);
        let weights = &weights[start * length..][..count * length];
        let scores = sized(scores, count * seen);
        let into_scores = MatMut::from_row_major_slice_mut(&mut *scores, count, seen);
        product_here(into_scores, up, v.subrows(first, seen).transpose(), 1.0);
        for (row, scores) in scores.chunks_exact_mut(seen).enumerate() {
            softmax_backward(&weights[row * length + first..][..seen], scores, shape.scale);
        }
        if let Some(cap) = shape.cap {
            let capped = sized(capped, count * seen);
            let raw = MatMut::from_row_major_slice_mut(&mut *capped, count, seen);
            product_here(raw, q, k.transpose(), shape.scale);
            soft_cap(capped, cap);
            soft_cap_backward(capped, cap, scores);
        }
        let scores = MatRef::from_row_major_slice(scores, count, seen);
        let weights = MatRef::from_row_major_slice(weights, count, length).subcols(first, seen);
        let into_q = gradient.q.rb_mut().subrows_mut(start, count).subcols_mut(own * size, size);
        product_here(into_q, scores, k, 1.0);
        let (into_k, into_v) = (gradient.k.rb_mut(), gradient.v.rb_mut());
        add_product_here(into_k.subrows_mut(first, seen), scores.transpose(), q, 1.0);
        add_product_here(into_v.subrows_mut(first, seen), weights.transpose(), up, 1.0);
    }
}
