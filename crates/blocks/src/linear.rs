//! Linear layers: `y = x Wᵀ + b`, and the gradients of full or low-rank weights.
//!
//! With `y = x (W + s B A)ᵀ`, the gradients of a low-rank pair are `dB = s dyᵀ (x Aᵀ)` and
//! `dA = s (dy B)ᵀ x` (Hu et al. 2021, LoRA, section 4.1); those of full weights are `dW = dyᵀ x`
//! and `db = Σ dy`.

use super::bf16::{self, Operand};
use super::matrix::{
    Join, add_product, add_product_here, add_rows, product, product_here, rows, rows_mut, sized,
};
use super::meter::{Work, spend, spend_product};
use super::quantized;
use faer::MatRef;
use rayon::prelude::*;
use serde::Serialize;

/// Rows that one thread takes at least.
const ROWS_AT_ONCE: usize = 16;

/// A linear layer of `outputs` rows.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    pub inputs: usize,
    /// `[outputs, inputs]`
    pub weight: Weight<'a>,
    /// `[outputs]`, or empty where there is none
    pub bias: &'a [f32],
}

/// A weight matrix as it is stored.
#[derive(Debug, Clone, Copy)]
pub enum Weight<'a> {
    F32(&'a [f32]),
    /// Values in f32 whose products are of bf16: those that learn.
    Rounding(&'a [f32]),
    Bf16(&'a bf16::Matrix),
    /// Computes forwards only.
    Quantized(&'a quantized::Matrix),
}

/// What products with weights in f32 round their values to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Numbers {
    #[default]
    F32,
    Bf16,
}

/// A weight as a factor of products: rows of its inputs.
enum Factor<'a> {
    F32(MatRef<'a, f32>),
    Bf16(Operand<'a>),
    Quantized(&'a quantized::Matrix),
}

impl Numbers {
    pub fn is_f32(&self) -> bool {
        *self == Self::F32
    }
}

impl Linear<'_> {
    pub fn outputs(&self) -> usize {
        match self.weight {
            Weight::F32(weight) | Weight::Rounding(weight) => weight.len() / self.inputs,
            Weight::Bf16(matrix) => matrix.outputs(),
            Weight::Quantized(matrix) => matrix.outputs,
        }
    }

    /// `out[rows, outputs] = x[rows, inputs] Wᵀ + b`
    pub fn forward(&self, x: &[f32], out: &mut [f32]) {
        self.join_forward(x, out, Join::Replace);
    }

    /// `out += x Wᵀ + b`, for results that join a residual stream.
    pub fn add_forward(&self, x: &[f32], out: &mut [f32]) {
        self.join_forward(x, out, Join::Add);
    }

    fn join_forward(&self, x: &[f32], out: &mut [f32], join: Join) {
        let (inputs, width) = (self.inputs, self.outputs());
        spend_product(x.len() / inputs, inputs, width, || {
            match self.factor() {
                Factor::F32(weight) => {
                    let (out, x) = (rows_mut(out, width), rows(x, inputs));
                    match join {
                        Join::Replace => product(out, x, weight.transpose()),
                        Join::Add => add_product(out, x, weight.transpose(), 1.0),
                    }
                }
                Factor::Bf16(weight) => {
                    bf16::product(out, Operand::rows(x, inputs), weight.transpose(), join);
                }
                Factor::Quantized(matrix) => matrix.product(x, out, join),
            }
            self.add_bias(out);
        });
    }

    /// The weight by what computes products with it.
    fn factor(&self) -> Factor<'_> {
        match self.weight {
            Weight::F32(weight) => Factor::F32(rows(weight, self.inputs)),
            Weight::Rounding(weight) => Factor::Bf16(Operand::rows(weight, self.inputs)),
            Weight::Bf16(matrix) => Factor::Bf16(matrix.operand()),
            Weight::Quantized(matrix) => Factor::Quantized(matrix),
        }
    }

    /// `out[rows, inputs] = upstream[rows, outputs] W`, the gradient of the input.
    ///
    /// # Panics
    ///
    /// With a weight in integers, which no training uses.
    pub fn backward(&self, upstream: &[f32], out: &mut [f32]) {
        let (inputs, width) = (self.inputs, self.outputs());
        spend_product(upstream.len() / width, width, inputs, || match self.factor() {
            Factor::F32(weight) => product(rows_mut(out, inputs), rows(upstream, width), weight),
            Factor::Bf16(weight) => {
                bf16::product(out, Operand::rows(upstream, width), weight, Join::Replace);
            }
            Factor::Quantized(_) => panic!("no gradients go through weights in integers"),
        });
    }

    fn add_bias(&self, out: &mut [f32]) {
        if !self.bias.is_empty() {
            let rows = out.par_chunks_exact_mut(self.bias.len()).with_min_len(ROWS_AT_ONCE);
            rows.for_each(|row| add(row, self.bias));
        }
    }
}

fn add(row: &mut [f32], more: &[f32]) {
    row.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// Where the gradient of a linear layer's parameters is added to.
#[derive(Debug)]
pub enum Gradient<'a> {
    /// Nowhere: the layer is frozen.
    Frozen,
    /// As the layer's own: `weight` `[outputs, inputs]`, `bias` `[outputs]` or empty.
    Full {
        weight: &'a mut [f32],
        bias: &'a mut [f32],
    },
    LowRank(LowRank<'a>),
}

/// Low-rank updates of rows of one weight; all read the same input.
#[derive(Debug)]
pub struct LowRank<'a> {
    pub rank: usize,
    /// What the product `B A` is multiplied by.
    pub scale: f32,
    /// All `A [rank, inputs]`, one below the other.
    pub a: &'a [f32],
    pub a_gradient: &'a mut [f32],
    pub updates: Vec<Update<'a>>,
}

/// The update of the rows from `first_row` on.
#[derive(Debug)]
pub struct Update<'a> {
    pub first_row: usize,
    /// `[outputs, rank]`
    pub b: &'a [f32],
    pub b_gradient: &'a mut [f32],
}

/// Products of the low-rank gradients, in parts of consecutive rows.
#[derive(Debug, Default)]
pub struct Workspace {
    /// Of each part, `x Aᵀ` and `dy B` of one tile: `[2, rows of a tile, rank × updates]`
    through: Vec<f32>,
    /// Of each part, the gradients of all `A`.
    into_a: Vec<f32>,
    /// Of each part, the gradients of each `B`, `[rank, outputs]`: a product that writes long
    /// rows is the faster one.
    into_b: Vec<f32>,
}

impl Gradient<'_> {
    /// Adds the gradients of `linear` for input `x[rows, inputs]` and `upstream[rows, outputs]`:
    /// those of all its weights in the numbers of its own products.
    pub fn add(
        &mut self,
        linear: Linear<'_>,
        x: &[f32],
        upstream: &[f32],
        workspace: &mut Workspace,
    ) {
        let (inputs, width) = (linear.inputs, linear.outputs());
        match self {
            Self::Frozen => {}
            Self::Full { weight, bias } => {
                spend_product(width, x.len() / inputs, inputs, || {
                    if let Weight::F32(_) = linear.weight {
                        let upstream = rows(upstream, width).transpose();
                        add_product(rows_mut(weight, inputs), upstream, rows(x, inputs), 1.0);
                    } else {
                        let upstream = Operand::rows(upstream, width).transpose();
                        bf16::product(weight, upstream, Operand::rows(x, inputs), Join::Add);
                    }
                    add_rows(bias, upstream);
                });
            }
            Self::LowRank(low_rank) => spend(Work::LowRank, || {
                low_rank.add(rows(x, inputs), rows(upstream, width), workspace);
            }),
        }
    }
}

/// Rows of a part, and of a tile, at least: below, adding to sums takes as long as the products.
const FEWEST_ROWS: usize = 64;

/// Values of input and upstream in a tile: two products read each, from the second cache of a core.
const TILE_VALUES: usize = 192 * 1024;

/// What one thread computes from its rows.
struct Part<'a> {
    through: &'a mut [f32],
    /// `[rank × updates, inputs]`
    into_a: &'a mut [f32],
    /// Of each update, `[rank, outputs]`.
    into_b: &'a mut [f32],
}

impl LowRank<'_> {
    /// Products of so low a rank take as long as their factors take to read, so each thread takes
    /// rows of its own, and a tile of them through all products while it is in its cache.
    fn add(&mut self, x: MatRef<'_, f32>, upstream: MatRef<'_, f32>, workspace: &mut Workspace) {
        let parts = rayon::current_num_threads().min(x.nrows().div_ceil(FEWEST_ROWS)).max(1);
        let rows = x.nrows().div_ceil(parts);
        let tile = (TILE_VALUES / (x.ncols() + upstream.ncols())).max(FEWEST_ROWS);
        let tile = tile.min(rows).max(1);
        let through = 2 * tile * self.rank * self.updates.len();
        let of_b = self.updates.iter().map(|update| update.b.len()).sum::<usize>();
        let into_a = sized(&mut workspace.into_a, parts * self.a.len());
        let into_b = sized(&mut workspace.into_b, parts * of_b);
        (sized(&mut workspace.through, parts * through).par_chunks_mut(through))
            .zip(into_a.par_chunks_mut(self.a.len()))
            .zip(into_b.par_chunks_mut(of_b))
            .enumerate()
            .for_each(|(index, ((through, into_a), into_b))| {
                let first = (index * rows).min(x.nrows());
                let count = rows.min(x.nrows() - first);
                let (x, upstream) = (x.subrows(first, count), upstream.subrows(first, count));
                self.compute(x, upstream, tile, Part { through, into_a, into_b });
            });
        add_rows(self.a_gradient, into_a);
        let (into_b, others) = into_b.split_at_mut(of_b);
        add_rows(into_b, others);
        self.add_into_b(into_b);
    }

    /// The gradients of some rows, tile by tile.
    fn compute(
        &self,
        x: MatRef<'_, f32>,
        upstream: MatRef<'_, f32>,
        tile: usize,
        mut part: Part<'_>,
    ) {
        part.into_a.fill(0.0);
        part.into_b.fill(0.0);
        for first in (0..x.nrows()).step_by(tile) {
            let count = tile.min(x.nrows() - first);
            let (x, upstream) = (x.subrows(first, count), upstream.subrows(first, count));
            self.compute_tile(x, upstream, &mut part);
        }
    }

    fn compute_tile(&self, x: MatRef<'_, f32>, upstream: MatRef<'_, f32>, part: &mut Part<'_>) {
        let (rank, scale, inputs) = (self.rank, self.scale, x.ncols());
        let width = rank * self.updates.len();
        let (through_a, through_b) = part.through.split_at_mut(part.through.len() / 2);
        let through_a = &mut through_a[..x.nrows() * width];
        let through_b = &mut through_b[..x.nrows() * width];
        product_here(rows_mut(through_a, width), x, rows(self.a, inputs).transpose(), 1.0);
        let mut into_b = &mut *part.into_b;
        for (index, update) in self.updates.iter().enumerate() {
            let b = rows(update.b, rank);
            let upstream = upstream.subcols(update.first_row, b.nrows());
            let through_b = rows_mut(through_b, width).subcols_mut(index * rank, rank);
            product_here(through_b, upstream, b, 1.0);
            let through_a = rows(through_a, width).subcols(index * rank, rank);
            let (own, rest) = into_b.split_at_mut(update.b.len());
            add_product_here(rows_mut(own, b.nrows()), through_a.transpose(), upstream, scale);
            into_b = rest;
        }
        let into_a = rows_mut(part.into_a, inputs);
        add_product_here(into_a, rows(through_b, width).transpose(), x, scale);
    }

    fn add_into_b(&mut self, mut sums: &[f32]) {
        for update in &mut self.updates {
            let (own, rest) = sums.split_at(update.b.len());
            let outputs = update.b.len() / self.rank;
            for (output, sums) in update.b_gradient.chunks_exact_mut(self.rank).enumerate() {
                for (row, sum) in sums.iter_mut().enumerate() {
                    *sum += own[row * outputs + output];
                }
            }
            sums = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{Check, drawn};
    use super::*;

    const ROWS: usize = 5;
    const INPUTS: usize = 6;
    const OUTPUTS: usize = 4;

    fn forward(weight: &[f32], bias: &[f32], x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; ROWS * OUTPUTS];
        Linear { inputs: INPUTS, weight: Weight::F32(weight), bias }.forward(x, &mut out);
        out
    }

    #[test]
    fn the_gradients_of_input_weight_and_bias_are_right() {
        let (weight, bias) = (drawn(1, OUTPUTS * INPUTS), drawn(2, OUTPUTS));
        let x = drawn(3, ROWS * INPUTS);
        let check = Check::new(ROWS * OUTPUTS);
        let mut into_x = vec![0.0; x.len()];
        let linear = Linear { inputs: INPUTS, weight: Weight::F32(&weight), bias: &bias };
        linear.backward(check.upstream(), &mut into_x);
        let (mut into_weight, mut into_bias) = (vec![0.0; weight.len()], vec![0.0; OUTPUTS]);
        Gradient::Full { weight: &mut into_weight, bias: &mut into_bias }.add(
            linear,
            &x,
            check.upstream(),
            &mut Workspace::default(),
        );
        check.gradient("x", &x, &into_x, |x| forward(&weight, &bias, x));
        check.gradient("weight", &weight, &into_weight, |weight| forward(weight, &bias, &x));
        check.gradient("bias", &bias, &into_bias, |bias| forward(&weight, bias, &x));
    }

    /// Output, and the gradients of input, weight and bias.
    fn all(linear: Linear<'_>, x: &[f32], upstream: &[f32]) -> [Vec<f32>; 4] {
        let mut out = vec![1.0; ROWS * OUTPUTS];
        linear.add_forward(x, &mut out);
        let mut into_x = vec![f32::NAN; x.len()];
        linear.backward(upstream, &mut into_x);
        let (mut weight, mut bias) = (vec![1.0; OUTPUTS * INPUTS], vec![0.0; OUTPUTS]);
        let mut gradient = Gradient::Full { weight: &mut weight, bias: &mut bias };
        gradient.add(linear, x, upstream, &mut Workspace::default());
        [out, into_x, weight, bias]
    }

    #[test]
    fn what_learns_in_bf16_computes_as_weights_that_are_stored_so() {
        let (weight, bias) = (drawn(1, OUTPUTS * INPUTS), drawn(2, OUTPUTS));
        let (x, upstream) = (drawn(3, ROWS * INPUTS), drawn(4, ROWS * OUTPUTS));
        let of = |weight| all(Linear { inputs: INPUTS, weight, bias: &bias }, &x, &upstream);
        let learns = of(Weight::Rounding(&weight));
        let matrix = bf16::Matrix::round(&weight, INPUTS);
        assert_eq!(learns, of(Weight::Bf16(&matrix)));
        let exact = of(Weight::F32(&weight));
        for (found, exact) in learns.iter().flatten().zip(exact.iter().flatten()) {
            // Eight bits of either factor, and six values within 1 in a sum.
            assert!((found - exact).abs() < 6.0 / 128.0, "{found}, not {exact}");
        }
        assert_ne!(learns[0], exact[0], "it was rounded");
    }

    #[test]
    fn the_gradients_of_a_low_rank_update_are_right() {
        const RANK: usize = 2;
        const SCALE: f32 = 0.7;
        let (a, b) = (drawn(1, 2 * RANK * INPUTS), drawn(2, OUTPUTS * RANK));
        let (weight, x) = (drawn(3, OUTPUTS * INPUTS), drawn(4, ROWS * INPUTS));
        // Two updates, of the first row and of the other three.
        let split = RANK;
        let updated = |a: &[f32], b: &[f32]| {
            let mut weight = weight.clone();
            for row in 0..OUTPUTS {
                let a = &a[if row == 0 { 0 } else { RANK * INPUTS }..];
                for column in 0..INPUTS {
                    for k in 0..RANK {
                        let product = b[row * RANK + k] * a[k * INPUTS + column];
                        weight[row * INPUTS + column] += SCALE * product;
                    }
                }
            }
            forward(&weight, &[], &x)
        };
        let check = Check::new(ROWS * OUTPUTS);
        let (mut into_a, mut into_b) = (vec![0.0; a.len()], vec![0.0; b.len()]);
        let (first, second) = into_b.split_at_mut(split);
        let updates = vec![
            Update { first_row: 0, b: &b[..split], b_gradient: first },
            Update { first_row: 1, b: &b[split..], b_gradient: second },
        ];
        let a_gradient = &mut into_a;
        let low_rank = LowRank { rank: RANK, scale: SCALE, a: &a, a_gradient, updates };
        let mut workspace = Workspace::default();
        let linear = Linear { inputs: INPUTS, weight: Weight::F32(&weight), bias: &[] };
        Gradient::LowRank(low_rank).add(linear, &x, check.upstream(), &mut workspace);
        check.gradient("a", &a, &into_a, |a| updated(a, &b));
        check.gradient("b", &b, &into_b, |b| updated(&a, b));
    }

    #[test]
    fn the_low_rank_gradients_of_many_rows_are_the_sums_of_those_of_few() {
        const RANK: usize = 2;
        // So wide that the rows of a part take several tiles, and the last one is not full.
        const WIDE: usize = 4096;
        const MANY: usize = 2 * FEWEST_ROWS + 33;
        let (a, b) = (drawn(1, RANK * WIDE), drawn(2, OUTPUTS * RANK));
        let (weight, x) = (drawn(3, OUTPUTS * WIDE), drawn(4, MANY * WIDE));
        let upstream = drawn(5, MANY * OUTPUTS);
        let linear = Linear { inputs: WIDE, weight: Weight::F32(&weight), bias: &[] };
        let by = |rows: usize| {
            let (mut into_a, mut into_b) = (vec![1.0; a.len()], vec![1.0; b.len()]);
            for (x, upstream) in x.chunks(rows * WIDE).zip(upstream.chunks(rows * OUTPUTS)) {
                let updates = vec![Update { first_row: 0, b: &b, b_gradient: &mut into_b }];
                let a_gradient = &mut into_a;
                let low_rank = LowRank { rank: RANK, scale: 0.7, a: &a, a_gradient, updates };
                let mut workspace = Workspace::default();
                Gradient::LowRank(low_rank).add(linear, x, upstream, &mut workspace);
            }
            [into_a, into_b].concat()
        };
        for (at_once, alone) in by(MANY).into_iter().zip(by(1)) {
            assert!((at_once - alone).abs() < 1e-3 * alone.abs().max(1.0), "{at_once} {alone}");
        }
    }
}
