//! The hand-written backward pass: gradients of the adapter only, never of the frozen weights.
//!
//! The forward pass runs on merged matrices `W + s B A`, so a block's input gradient is one plain
//! product, and with `y = x (W + s B A)ᵀ` the adapter's own are `dB = s dyᵀ (x Aᵀ)` and
//! `dA = s (dy B)ᵀ x` (Hu et al. 2021, LoRA, section 4.1).

use super::attention::{Inputs, attend_backward, probabilities_length};
use super::forward::{Model, Scratch, Tape, gate_rows};
use super::math;
use super::matrix::{add_product, product, rows, rows_mut, sized, split_rows};
use crate::lora::{Adapter, Group};
use crate::weights::Layer;
use faer::MatRef;
use rayon::prelude::*;

/// Buffers of the backward pass.
#[derive(Debug, Default)]
pub struct Gradients {
    /// With respect to the current block's output, then its input.
    pub stream: Vec<f32>,
    wide: Vec<f32>,
    qkv: Vec<f32>,
    narrow: Vec<f32>,
    down_projected: Vec<f32>,
    up_projected: Vec<f32>,
}

/// Turns `gradients.stream` from a block's output to its input and adds to `adapter_gradient`.
pub fn block_backward(
    model: &Model,
    index: usize,
    tape: &mut Tape,
    bounds: &[usize],
    adapter: &Adapter,
    scratch: &mut Scratch,
    gradients: &mut Gradients,
    adapter_gradient: &mut [f32],
) {
    let layer = &model.layers[index];
    let [qkv, output, gate_up, down] = adapter.groups(index);
    let mut lora = Lora { adapter, gradient: adapter_gradient };
    mlp_backward(model, layer, tape, scratch, gradients, &mut lora, [gate_up, down]);
    attention_backward(model, layer, tape, bounds, scratch, gradients, &mut lora, [qkv, output]);
    if index > 0 {
        let config = &model.config;
        let narrow = sized(&mut gradients.narrow, tape.input.len());
        product(
            rows_mut(narrow, config.hidden),
            rows(&gradients.qkv, config.qkv_width()),
            rows(&layer.qkv, config.hidden),
        );
        let norm = &layer.attention_norm;
        add_norm_backward(narrow, &tape.input, norm, &tape.input_inverse, &mut gradients.stream);
    }
}

fn mlp_backward(
    model: &Model,
    layer: &Layer,
    tape: &mut Tape,
    scratch: &mut Scratch,
    gradients: &mut Gradients,
    lora: &mut Lora<'_>,
    [gate_up_group, down_group]: [&Group; 2],
) {
    let (hidden, wide) = (model.config.hidden, model.config.feed_forward);
    let count = tape.input.len() / hidden;
    let gated = sized(&mut scratch.gated, count * wide);
    gate_rows(&tape.gate_up, gated, wide);
    let (t, u) = (&mut gradients.down_projected, &mut gradients.up_projected);
    lora.add(down_group, rows(gated, wide), rows(&gradients.stream, hidden), t, u);
    let into_gated = sized(&mut gradients.wide, count * wide);
    product(rows_mut(into_gated, wide), rows(&gradients.stream, hidden), rows(&layer.down, wide));
    tape.gate_up
        .par_chunks_exact_mut(2 * wide)
        .zip(into_gated.par_chunks_exact(wide))
        .with_min_len(8)
        .for_each(|(gate_up, upstream)| math::gated_backward(gate_up, upstream));
    let normed = sized(&mut scratch.normed, count * hidden);
    model.normalise(&tape.middle, &layer.mlp_norm, normed, &mut tape.middle_inverse);
    lora.add(gate_up_group, rows(normed, hidden), rows(&tape.gate_up, 2 * wide), t, u);
    let narrow = sized(&mut gradients.narrow, count * hidden);
    product(rows_mut(narrow, hidden), rows(&tape.gate_up, 2 * wide), rows(&layer.gate_up, hidden));
    let norm = &layer.mlp_norm;
    add_norm_backward(narrow, &tape.middle, norm, &tape.middle_inverse, &mut gradients.stream);
}

/// Leaves the gradient of the unrotated `qkv` rows in `gradients.qkv`.
fn attention_backward(
    model: &Model,
    layer: &Layer,
    tape: &mut Tape,
    bounds: &[usize],
    scratch: &mut Scratch,
    gradients: &mut Gradients,
    lora: &mut Lora<'_>,
    [qkv_group, output_group]: [&Group; 2],
) {
    let config = &model.config;
    let count = tape.input.len() / config.hidden;
    let (t, u) = (&mut gradients.down_projected, &mut gradients.up_projected);
    let stream = rows(&gradients.stream, config.hidden);
    lora.add(output_group, rows(&tape.mixed, config.q_width()), stream, t, u);
    let into_mixed = sized(&mut gradients.wide, count * config.q_width());
    product(rows_mut(into_mixed, config.q_width()), stream, rows(&layer.output, config.q_width()));
    let qkv = sized(&mut gradients.qkv, count * config.qkv_width());
    let mut probabilities_start = 0;
    let starts: Vec<usize> = bounds
        .windows(2)
        .map(|pair| {
            let length = pair[1] - pair[0];
            let start = probabilities_start;
            probabilities_start += probabilities_length(config, length, length);
            start
        })
        .collect();
    let pieces = split_rows(qkv, bounds, config.qkv_width()).into_par_iter().enumerate();
    pieces.for_each(|(sequence, gradient)| {
        let (start, length) = (bounds[sequence], bounds[sequence + 1] - bounds[sequence]);
        let part = |data: &'_ [f32], width| -> std::ops::Range<usize> {
            debug_assert!(data.len() >= (start + length) * width);
            start * width..(start + length) * width
        };
        let qkv = &tape.qkv[part(&tape.qkv, config.qkv_width())];
        let upstream = &into_mixed[part(into_mixed, config.q_width())];
        attend_backward(
            config,
            Inputs::whole(config, rows(qkv, config.qkv_width())),
            &tape.probabilities[starts[sequence]..],
            rows(upstream, config.q_width()),
            rows_mut(gradient, config.qkv_width()),
        );
        model.rotate(gradient, 0, -1.0);
    });
    let normed = sized(&mut scratch.normed, count * config.hidden);
    model.normalise(&tape.input, &layer.attention_norm, normed, &mut tape.input_inverse);
    lora.add(qkv_group, rows(normed, config.hidden), rows(qkv, config.qkv_width()), t, u);
}

fn add_norm_backward(
    upstream: &[f32],
    x: &[f32],
    weight: &[f32],
    inverse: &[f32],
    gradient: &mut [f32],
) {
    let width = weight.len();
    gradient
        .par_chunks_exact_mut(width)
        .zip(upstream.par_chunks_exact(width))
        .zip(x.par_chunks_exact(width))
        .zip(inverse)
        .with_min_len(16)
        .for_each(|(((gradient, upstream), x), &inverse)| {
            math::rms_norm_backward(upstream, x, weight, inverse, gradient);
        });
}

struct Lora<'a> {
    adapter: &'a Adapter,
    gradient: &'a mut [f32],
}

impl Lora<'_> {
    /// Adds the gradients of one group, given its input and the gradient of its output.
    fn add(
        &mut self,
        group: &Group,
        input: MatRef<'_, f32>,
        upstream: MatRef<'_, f32>,
        down_projected: &mut Vec<f32>,
        up_projected: &mut Vec<f32>,
    ) {
        let (rank, scale) = (self.adapter.rank, self.adapter.scale());
        let width = rank * group.slots.len();
        let a = rows(&self.adapter.values[group.a.clone()], group.inputs);
        let through_a = sized(down_projected, input.nrows() * width);
        product(rows_mut(through_a, width), input, a.transpose());
        let through_b = sized(up_projected, input.nrows() * width);
        for (index, slot) in group.slots.iter().enumerate() {
            let b = rows(&self.adapter.values[slot.b.clone()], rank);
            let upstream = upstream.subcols(slot.first_row, slot.outputs);
            let through_b = rows_mut(through_b, width).subcols_mut(index * rank, rank);
            product(through_b, upstream, b);
            let through_a = rows(through_a, width).subcols(index * rank, rank);
            let b_gradient = rows_mut(&mut self.gradient[slot.b.clone()], rank);
            add_product(b_gradient, upstream.transpose(), through_a, scale);
        }
        let a_gradient = rows_mut(&mut self.gradient[group.a.clone()], group.inputs);
        add_product(a_gradient, rows(through_b, width).transpose(), input, scale);
    }
}
