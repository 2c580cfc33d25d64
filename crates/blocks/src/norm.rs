//! RMS and layer normalisation of rows.

use super::math;
use super::matrix::{COLUMNS, add_rows};
use super::meter::{Work, spend};
use rayon::prelude::*;

/// Rows that one thread takes at least: fewer cost more to hand out than to compute.
const ROWS_AT_ONCE: usize = 16;

/// What [`Norm::forward`] keeps of every row for the backward: its mean and the inverse of its
/// deviation.
pub const STATISTICS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    pub kind: Kind,
    /// Added to the mean square.
    pub epsilon: f32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// `x / rms(x) × (offset + weight)` (Zhang & Sennrich 2019); Gemma's offset is 1.
    Rms { offset: f32 },
    /// `(x - mean) / deviation × weight + bias` (Ba et al. 2016).
    Layer,
}

#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// `[width]`
    pub weight: &'a [f32],
    /// `[width]`, empty for RMS
    pub bias: &'a [f32],
}

/// Where gradients of [`Parameters`] are added to.
#[derive(Debug, Default)]
pub struct Gradient<'a> {
    pub weight: &'a mut [f32],
    pub bias: &'a mut [f32],
}

impl Norm {
    /// `out[rows, width] = norm(x[rows, width])`; fills `statistics[rows, 2]`.
    pub fn forward(
        self,
        x: &[f32],
        parameters: Parameters<'_>,
        out: &mut [f32],
        statistics: &mut [f32],
    ) {
        let width = parameters.weight.len();
        let rows = x.par_chunks_exact(width).zip(out.par_chunks_exact_mut(width));
        let rows = rows.zip(statistics.par_chunks_exact_mut(STATISTICS));
        let rows = rows.with_min_len(ROWS_AT_ONCE);
        spend(Work::Norms, || {
            rows.for_each(|((x, out), statistics)| {
                self.forward_row(x, parameters, out, statistics);
            });
        });
    }

    /// As [`Norm::forward`], for one row.
    pub fn forward_row(
        self,
        x: &[f32],
        parameters: Parameters<'_>,
        out: &mut [f32],
        statistics: &mut [f32],
    ) {
        let Parameters { weight, bias } = parameters;
        let found = match self.kind {
            Kind::Rms { offset } => [0.0, math::rms_norm(x, weight, offset, self.epsilon, out)],
            Kind::Layer => math::layer_norm(x, weight, bias, self.epsilon, out),
        };
        statistics.copy_from_slice(&found);
    }

    /// Adds the gradient of the input to `gradient[rows, width]`.
    pub fn backward(
        self,
        upstream: &[f32],
        x: &[f32],
        parameters: Parameters<'_>,
        statistics: &[f32],
        gradient: &mut [f32],
    ) {
        let width = parameters.weight.len();
        let rows = gradient.par_chunks_exact_mut(width).zip(upstream.par_chunks_exact(width));
        let rows = rows.zip(x.par_chunks_exact(width));
        let rows = rows.zip(statistics.par_chunks_exact(STATISTICS));
        let rows = rows.with_min_len(ROWS_AT_ONCE);
        spend(Work::Norms, || {
            rows.for_each(|(((gradient, upstream), x), statistics)| {
                self.backward_row(upstream, x, parameters, statistics, gradient);
            });
        });
    }

    /// As [`Norm::backward`], for one row.
    pub fn backward_row(
        self,
        upstream: &[f32],
        x: &[f32],
        parameters: Parameters<'_>,
        statistics: &[f32],
        gradient: &mut [f32],
    ) {
        let (mean, inverse) = (statistics[0], statistics[1]);
        let weight = parameters.weight;
        match self.kind {
            Kind::Rms { offset } => {
                math::rms_norm_backward(upstream, x, weight, offset, inverse, gradient);
            }
            Kind::Layer => {
                math::layer_norm_backward(upstream, x, weight, mean, inverse, gradient);
            }
        }
    }

    /// Adds the gradients of the parameters; does nothing where `gradient` is empty.
    pub fn backward_parameters(
        self,
        upstream: &[f32],
        x: &[f32],
        statistics: &[f32],
        gradient: &mut Gradient<'_>,
    ) {
        let width = gradient.weight.len();
        let columns = gradient.weight.par_chunks_mut(COLUMNS).enumerate();
        spend(Work::Norms, || {
            columns.for_each(|(chunk, sums)| {
                let rows = upstream.chunks_exact(width).zip(x.chunks_exact(width));
                for ((upstream, x), statistics) in rows.zip(statistics.chunks_exact(STATISTICS)) {
                    let (mean, inverse) = (statistics[0], statistics[1]);
                    let (upstream, x) = (&upstream[chunk * COLUMNS..], &x[chunk * COLUMNS..]);
                    for ((sum, upstream), x) in sums.iter_mut().zip(upstream).zip(x) {
                        *sum += upstream * (x - mean) * inverse;
                    }
                }
            });
            add_rows(gradient.bias, upstream);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{Check, drawn};
    use super::*;

    const ROWS: usize = 3;
    const WIDTH: usize = 11;

    fn check(kind: Kind, bias: &[f32]) {
        let norm = Norm { kind, epsilon: 1e-5 };
        let (x, weight) = (drawn(1, ROWS * WIDTH), drawn(2, WIDTH));
        let forward = |x: &[f32], weight: &[f32], bias: &[f32]| {
            let (mut out, mut statistics) = (vec![0.0; x.len()], vec![0.0; ROWS * STATISTICS]);
            norm.forward(x, Parameters { weight, bias }, &mut out, &mut statistics);
            (out, statistics)
        };
        let (_, statistics) = forward(&x, &weight, bias);
        let check = Check::new(x.len());
        let (upstream, parameters) = (check.upstream(), Parameters { weight: &weight, bias });
        let mut into_x = vec![0.0; x.len()];
        norm.backward(upstream, &x, parameters, &statistics, &mut into_x);
        let (mut into_weight, mut into_bias) = (vec![0.0; WIDTH], vec![0.0; bias.len()]);
        let mut gradient = Gradient { weight: &mut into_weight, bias: &mut into_bias };
        norm.backward_parameters(upstream, &x, &statistics, &mut gradient);
        check.gradient("x", &x, &into_x, |x| forward(x, &weight, bias).0);
        check.gradient("weight", &weight, &into_weight, |weight| forward(&x, weight, bias).0);
        if !bias.is_empty() {
            check.gradient("bias", bias, &into_bias, |bias| forward(&x, &weight, bias).0);
        }
    }

    #[test]
    fn the_gradients_of_rms_norms_are_right() {
        check(Kind::Rms { offset: 0.0 }, &[]);
        check(Kind::Rms { offset: 1.0 }, &[]);
    }

    #[test]
    fn the_gradients_of_a_layer_norm_are_right() {
        check(Kind::Layer, &drawn(3, WIDTH));
    }
}
