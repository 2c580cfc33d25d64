//! Models whose matrices are integers: what is rounded, and what is said of it.
//!
//! Norms, biases, learned positions, attention scores, softmax and activation functions stay in
//! f32. The embedding and the head, whose errors reach the result unmixed, are int8 in every
//! format.

use crate::architecture::Architecture;
use crate::blocks::matrix::instructions;
use crate::blocks::quantized::{Format, Instructions, Matrix};
use crate::weights::{Layer, Outer, Pair, Parameters};
use std::sync::Arc;

/// Rounds every matrix, and frees its f32 values.
pub fn quantize(
    parameters: &mut Parameters,
    architecture: &Architecture,
    format: Format,
    instructions: Instructions,
) {
    parameters.outer = Arc::new(quantized_outer(&parameters.outer, architecture, instructions));
    for layer in &mut parameters.layers {
        quantize_layer(layer, architecture, format, instructions);
    }
}

/// Rounds the matrices of a layer, and frees their f32 values.
pub fn quantize_layer(
    layer: &mut Layer,
    Architecture { hidden, attention, mlp, .. }: &Architecture,
    format: Format,
    instructions: Instructions,
) {
    let Layer { qkv, output, up, down, .. } = layer;
    let pair = |pair: &mut Pair, inputs: usize| {
        let weight = std::mem::take(&mut pair.weight);
        pair.quantized = rounded(&weight, inputs, format, instructions);
    };
    pair(qkv, *hidden);
    pair(output, attention.q_width());
    pair(up, *hidden);
    pair(down, mlp.feed_forward);
}

/// What lies around the layers, with its matrices rounded.
pub fn quantized_outer(
    outer: &Outer,
    architecture: &Architecture,
    instructions: Instructions,
) -> Outer {
    let round = |weight| rounded(weight, architecture.hidden, Format::Int8, instructions);
    Outer {
        quantized_embedding: round(&outer.embedding),
        quantized_head: round(&outer.head),
        positions: outer.positions.clone(),
        norm: outer.norm.clone(),
        ..Outer::default()
    }
}

/// A matrix as integers; none where there is none.
fn rounded(
    weight: &[f32],
    inputs: usize,
    format: Format,
    instructions: Instructions,
) -> Option<Arc<Matrix>> {
    let matrix = || Arc::new(Matrix::quantize(weight, inputs, format, instructions));
    (!weight.is_empty()).then(matrix)
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
