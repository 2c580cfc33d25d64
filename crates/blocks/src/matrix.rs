//! Views of row-major slices, and the one matrix product that everything here uses.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;

/// The instructions that compute products in f32 here, as `faer` chooses them.
pub fn instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return "AVX-512";
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
        {
            return "AVX2";
        }
    }
    if cfg!(target_arch = "aarch64") { "NEON" } else { "portable code" }
}

/// All of `data` as rows of `width`.
pub fn rows(data: &[f32], width: usize) -> MatRef<'_, f32> {
    MatRef::from_row_major_slice(data, data.len() / width, width)
}

pub fn rows_mut(data: &mut [f32], width: usize) -> MatMut<'_, f32> {
    let count = data.len() / width;
    MatMut::from_row_major_slice_mut(data, count, width)
}

/// `out = a b`, by all threads of the pool.
pub fn product(out: MatMut<'_, f32>, a: MatRef<'_, f32>, b: MatRef<'_, f32>) {
    matmul(out, Accum::Replace, a, b, 1.0, Par::rayon(0));
}

/// `out += scale a b`, by all threads of the pool.
pub fn add_product(out: MatMut<'_, f32>, a: MatRef<'_, f32>, b: MatRef<'_, f32>, scale: f32) {
    matmul(out, Accum::Add, a, b, scale, Par::rayon(0));
}

/// `out = scale a b`, by the calling thread alone.
pub fn product_here(out: MatMut<'_, f32>, a: MatRef<'_, f32>, b: MatRef<'_, f32>, scale: f32) {
    matmul(out, Accum::Replace, a, b, scale, Par::Seq);
}

/// `out += scale a b`, by the calling thread alone.
pub fn add_product_here(out: MatMut<'_, f32>, a: MatRef<'_, f32>, b: MatRef<'_, f32>, scale: f32) {
    matmul(out, Accum::Add, a, b, scale, Par::Seq);
}

/// What a product does with what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    Replace,
    Add,
}

/// A rectangle of a result that one thread computes.
#[derive(Debug)]
pub struct Block<'a> {
    pub first_row: usize,
    pub first_column: usize,
    pub rows: Vec<&'a mut [f32]>,
}

/// Cuts a result of rows of `width` into rectangles of so many rows and columns.
pub fn blocks(out: &mut [f32], width: usize, (rows, columns): (usize, usize)) -> Vec<Block<'_>> {
    let mut all = Vec::new();
    for (band, own) in out.chunks_mut(rows * width).enumerate() {
        let start = all.len();
        all.extend((0..width.div_ceil(columns)).map(|index| Block {
            first_row: band * rows,
            first_column: index * columns,
            rows: Vec::with_capacity(own.len() / width),
        }));
        for row in own.chunks_mut(width) {
            let parts = all[start..].iter_mut().zip(row.chunks_mut(columns));
            parts.for_each(|(block, part)| block.rows.push(part));
        }
    }
    all
}

/// `out = values`, or adds them.
#[inline(always)]
pub fn join_row(out: &mut [f32], values: &[f32], join: Join) {
    let pairs = out.iter_mut().zip(values);
    match join {
        Join::Replace => pairs.for_each(|(out, value)| *out = *value),
        Join::Add => pairs.for_each(|(out, value)| *out += value),
    }
}

/// Columns that one thread sums up at once.
pub const COLUMNS: usize = 128;

/// Adds every row of `data` to `sum`, in their order; does nothing where `sum` is empty.
pub fn add_rows(sum: &mut [f32], data: &[f32]) {
    let width = sum.len();
    sum.par_chunks_mut(COLUMNS).enumerate().for_each(|(chunk, sum)| {
        for row in data.chunks_exact(width) {
            let row = &row[chunk * COLUMNS..][..sum.len()];
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    });
}

/// Cuts rows of `width` at `bounds`, one piece per sequence.
pub fn split_rows<'a>(
    mut data: &'a mut [f32],
    bounds: &[usize],
    width: usize,
) -> Vec<&'a mut [f32]> {
    let lengths = bounds.windows(2).map(|pair| (pair[1] - pair[0]) * width);
    split_lengths(&mut data, lengths)
}

/// Cuts `data` into consecutive pieces of the given lengths.
pub fn split_lengths<'a>(
    data: &mut &'a mut [f32],
    lengths: impl Iterator<Item = usize>,
) -> Vec<&'a mut [f32]> {
    lengths
        .map(|length| {
            let (piece, rest) = std::mem::take(data).split_at_mut(length);
            *data = rest;
            piece
        })
        .collect()
}

/// A buffer of exactly `length` values whose old content does not matter.
pub fn sized(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.capacity() < length {
        // What is too short goes first: grown beside its old content, every longer batch would
        // leave a gap behind each buffer.
        *buffer = Vec::new();
        buffer.reserve_exact(length);
    }
    buffer.resize(length, 0.0);
    buffer
}

/// As [`sized`], with the values of `source`.
pub fn copied<'a>(buffer: &'a mut Vec<f32>, source: &[f32]) -> &'a mut [f32] {
    let buffer = sized(buffer, source.len());
    buffer.copy_from_slice(source);
    buffer
}
