//! Kernels for AVX512-BF16.

use super::super::pack::LINE;
use super::super::{COLUMNS, ROWS};
use super::Tile;
use bytemuck::cast;
use std::arch::x86_64::*;

#[target_feature(enable = "avx512f,avx512bf16")]
pub fn tile(rows: &[[u32; ROWS]], columns: &[[u32; COLUMNS]], out: &mut Tile) {
    let mut sums = [[_mm512_setzero_ps(); COLUMNS / LINE]; ROWS];
    for (row, columns) in rows.iter().zip(columns) {
        let columns: [__m512bh; COLUMNS / LINE] = cast(*columns);
        for (sums, pair) in sums.iter_mut().zip(row) {
            let pair: __m512bh = cast(_mm512_set1_epi32(pair.cast_signed()));
            for (sum, columns) in sums.iter_mut().zip(columns) {
                *sum = _mm512_dpbf16_ps(*sum, pair, columns);
            }
        }
    }
    *out = cast(sums);
}

/// Registers that a row's sum is spread over: an addition waits for the one before it.
const SUMS: usize = 4;

#[target_feature(enable = "avx512f,avx512bf16")]
pub fn row(x: &[[u32; LINE]], weights: &[u16], inputs: usize, out: &mut [f32]) {
    for (out, weights) in out.iter_mut().zip(weights.chunks_exact(inputs)) {
        let (lines, rest) = weights.as_chunks::<{ 2 * LINE }>();
        let (groups, single) = lines.as_chunks::<SUMS>();
        let (x_groups, _) = x.as_chunks::<SUMS>();
        let mut sums = [_mm512_setzero_ps(); SUMS];
        for (lines, x) in groups.iter().zip(x_groups) {
            for ((sum, line), x) in sums.iter_mut().zip(lines).zip(x) {
                *sum = _mm512_dpbf16_ps(*sum, cast(*line), cast(*x));
            }
        }
        let mut last = [0; 2 * LINE];
        last[..rest.len()].copy_from_slice(rest);
        let x = &x[groups.len() * SUMS..];
        for (line, x) in single.iter().chain([&last]).zip(x) {
            sums[0] = _mm512_dpbf16_ps(sums[0], cast(*line), cast(*x));
        }
        let [a, b, c, d] = sums;
        *out = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)));
    }
}
