//! Models whose matrices are bf16 or integers: what is rounded, and what is said of it.
//!
//! Norms, biases, learned positions, attention scores, softmax and activation functions stay in
//! f32. The embedding and the head, whose errors reach the result unmixed, are int8 in every
//! format of integers.

use crate::architecture::Architecture;
use crate::weights::{Layer, Outer, Pair, Parameters, Rounded};
use het_blocks::bf16;
use het_blocks::linear::Numbers;
use het_blocks::matrix::instructions;
use het_blocks::quantized::{Format, Instructions, Matrix};
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

/// Rounds the matrices of a layer, and frees what they were.
pub fn quantize_layer(
    layer: &mut Layer,
    architecture: &Architecture,
    format: Format,
    instructions: Instructions,
) {
    for (pair, inputs) in matrices(layer, architecture) {
        pair.rounded = rounded(&pair.values(), inputs, format, instructions);
        pair.weight = Vec::new();
    }
}

/// The matrices of a layer, with the inputs of each.
fn matrices<'a>(
    Layer { qkv, output, up, down, .. }: &'a mut Layer,
    Architecture { hidden, attention, mlp, .. }: &Architecture,
) -> [(&'a mut Pair, usize); 4] {
    let (q_width, feed_forward) = (attention.q_width(), mlp.feed_forward);
    [(qkv, *hidden), (output, q_width), (up, *hidden), (down, feed_forward)]
}

/// Stores every matrix in bf16, and frees its f32 values.
pub fn store_in_bf16(parameters: &mut Parameters, architecture: &Architecture) {
    let hidden = architecture.hidden;
    let outer = Arc::make_mut(&mut parameters.outer);
    outer.rounded_embedding = Rounded::bf16(&std::mem::take(&mut outer.embedding), hidden);
    outer.rounded_head = Rounded::bf16(&std::mem::take(&mut outer.head), hidden);
    for layer in &mut parameters.layers {
        for (pair, inputs) in matrices(layer, architecture) {
            pair.rounded = Rounded::bf16(&std::mem::take(&mut pair.weight), inputs);
        }
    }
}

/// What lies around the layers, with its matrices rounded.
pub fn quantized_outer(
    outer: &Outer,
    architecture: &Architecture,
    instructions: Instructions,
) -> Outer {
    let round = |weight: &[f32]| rounded(weight, architecture.hidden, Format::Int8, instructions);
    Outer {
        rounded_embedding: round(&outer.embedding_values()),
        rounded_head: round(&outer.head_values()),
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
) -> Option<Rounded> {
    let matrix = || Matrix::quantize(weight, inputs, format, instructions);
    (!weight.is_empty()).then(|| Rounded::Integers(Arc::new(matrix())))
}

/// What computes layers like this one, for a report: `int8 products by AVX2, other arithmetic in
/// f32`. Where their matrices are in f32, `numbers` are what their products compute in.
pub fn arithmetic(layer: Option<&Layer>, numbers: Numbers) -> String {
    let (products, instructions) = match layer.and_then(|layer| layer.qkv.rounded.as_ref()) {
        Some(Rounded::Integers(matrix)) => match matrix.format() {
            Format::Int8 => ("int8 products", matrix.instructions.name()),
            Format::Int4 => (
                "products of int4 weights (int8 in embedding and head) and int8 values",
                matrix.instructions.name(),
            ),
        },
        Some(Rounded::Bf16(_)) => ("bf16 products", bf16::Instructions::best().name()),
        None if numbers == Numbers::Bf16 => {
            ("bf16 products of f32 weights", bf16::Instructions::best().name())
        }
        None => return format!("f32 arithmetic, products by {}", instructions()),
    };
    format!("{products} by {instructions}, other arithmetic in f32")
}

/// Memory of all values.
pub fn bytes(parameters: &Parameters) -> usize {
    parameters.outer.bytes() + parameters.layers.iter().map(Layer::bytes).sum::<usize>()
}
