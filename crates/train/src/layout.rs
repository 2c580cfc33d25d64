//! Values as a GGUF has them: rows of rotated heads in llama.cpp's order, and weights of norms with
//! what the family adds to them.

use crate::architecture::{Architecture, Family};
use crate::names::{Piece, Site, Tensor};
use het_blocks::norm::Kind;
use std::borrow::Cow;

/// Families by their names in a file. What llama.cpp computes alike has one name, which is read as
/// the first of them.
pub const FAMILIES: [(Family, &str); 8] = [
    (Family::Llama, "llama"),
    (Family::Mistral, "llama"),
    (Family::Qwen2, "qwen2"),
    (Family::Qwen3, "qwen3"),
    (Family::Gemma2, "gemma2"),
    (Family::Gemma3, "gemma3"),
    (Family::Gpt2, "gpt2"),
    (Family::SmolLm3, "smollm3"),
];

/// Values of a file as the blocks want them.
pub fn from_gguf(tensor: &Tensor, values: Vec<f32>, architecture: &Architecture) -> Vec<f32> {
    if let Some(heads) = interleaved_heads(tensor, architecture) {
        return from_interleaved(&values, heads, tensor.columns());
    }
    match norm_offset(tensor, architecture) {
        0.0 => values,
        offset => values.into_iter().map(|value| value - offset).collect(),
    }
}

/// The inverse.
pub fn to_gguf<'a>(
    tensor: &Tensor,
    values: &'a [f32],
    architecture: &Architecture,
) -> Cow<'a, [f32]> {
    if let Some(heads) = interleaved_heads(tensor, architecture) {
        return Cow::Owned(to_interleaved(values, heads, tensor.columns()));
    }
    match norm_offset(tensor, architecture) {
        0.0 => Cow::Borrowed(values),
        offset => Cow::Owned(values.iter().map(|value| value + offset).collect()),
    }
}

/// Whether llama.cpp rotates values that lie side by side, not half a head apart.
pub fn rotates_neighbours(family: Family) -> bool {
    matches!(family, Family::Llama | Family::Mistral | Family::SmolLm3)
}

/// How many heads a matrix or bias has whose rows lie in another order in a file.
fn interleaved_heads(tensor: &Tensor, architecture: &Architecture) -> Option<usize> {
    let shape = &architecture.attention;
    let heads = match tensor.name.piece {
        Piece::Query => shape.heads,
        Piece::Key => shape.kv_heads,
        _ => return None,
    };
    rotates_neighbours(architecture.family).then_some(heads)
}

/// What is added to the weights of a norm in a file: llama.cpp knows norms without an offset.
fn norm_offset(tensor: &Tensor, architecture: &Architecture) -> f32 {
    let is_norm = match tensor.name.site {
        Site::Norm => true,
        Site::Layer(_, part) => !part.is_matrix(),
        Site::Embedding | Site::Positions | Site::Head => false,
    };
    match architecture.norm.kind {
        Kind::Rms { offset } if is_norm => offset,
        _ => 0.0,
    }
}

/// llama.cpp keeps rotated pairs side by side; Hugging Face keeps them half a head apart.
fn from_interleaved(rows: &[f32], heads: usize, width: usize) -> Vec<f32> {
    reorder(rows, heads, width, |half, index, half_size| {
        (2 * index + half, half * half_size + index)
    })
}

/// The inverse of `from_interleaved`.
fn to_interleaved(rows: &[f32], heads: usize, width: usize) -> Vec<f32> {
    reorder(rows, heads, width, |half, index, half_size| {
        (half * half_size + index, 2 * index + half)
    })
}

fn reorder(
    rows: &[f32],
    heads: usize,
    width: usize,
    from_to: impl Fn(usize, usize, usize) -> (usize, usize),
) -> Vec<f32> {
    let head_size = rows.len() / width / heads;
    let mut out = vec![0.0; rows.len()];
    for head in 0..heads {
        for half in 0..2 {
            for index in 0..head_size / 2 {
                let (from, to) = from_to(half, index, head_size / 2);
                let (from, to) = (head * head_size + from, head * head_size + to);
                out[to * width..][..width].copy_from_slice(&rows[from * width..][..width]);
            }
        }
    }
    out
}
