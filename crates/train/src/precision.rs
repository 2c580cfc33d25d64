//! Models whose matrices are integers: what is rounded, and what is said of it.
//!
//! Norms, biases, learned positions, attention scores, softmax and activation functions stay in
//! f32. The embedding and the head, whose errors reach the result unmixed, are int8 in every
//! format.

use crate::architecture::Architecture;
use crate::blocks::matrix::instructions;
use crate::blocks::quantized::{Format, Instructions, Matrix};
use crate::weights::{Layer, Pair, Parameters};
use std::sync::Arc;

/// Rounds every matrix, and frees its f32 values.
pub fn quantize(
    parameters: &mut Parameters,
    architecture: &Architecture,
    format: Format,
    instructions: Instructions,
) {
    let round = |weight: &mut Vec<f32>, inputs: usize, format: Format| {
        let weight = std::mem::take(weight);
        let matrix = || Arc::new(Matrix::quantize(&weight, inputs, format, instructions));
        (!weight.is_empty()).then(matrix)
    };
    let Architecture { hidden, attention, mlp, .. } = architecture;
    let outer = Arc::make_mut(&mut parameters.outer);
    outer.quantized_embedding = round(&mut outer.embedding, *hidden, Format::Int8);
    outer.quantized_head = round(&mut outer.head, *hidden, Format::Int8);
    for Layer { qkv, output, up, down, .. } in &mut parameters.layers {
        let pair = |pair: &mut Pair, inputs: usize| {
            pair.quantized = round(&mut pair.weight, inputs, format);
        };
        pair(qkv, *hidden);
        pair(output, attention.q_width());
        pair(up, *hidden);
        pair(down, mlp.feed_forward);
    }
}

/// What computes layers like this one, for a report: `int8 products by AVX2, other arithmetic in
/// f32`.
pub fn arithmetic(layer: Option<&Layer>) -> String {
    let matrix = layer.and_then(|layer| layer.qkv.quantized.as_deref());
    let Some(matrix) = matrix else {
        return format!("f32 arithmetic, products by {}", instructions());
    };
    let products = match matrix.format() {
        Format::Int8 => "int8 products",
        Format::Int4 => "products of int4 weights (int8 in embedding and head) and int8 values",
    };
    format!("{products} by {}, other arithmetic in f32", matrix.instructions.name())
}

/// Memory of all values.
pub fn bytes(parameters: &Parameters) -> usize {
    parameters.outer.bytes() + parameters.layers.iter().map(Layer::bytes).sum::<usize>()
}
