//! The kernels in plain code, which the compiler makes vectors of.

use super::super::pack::LINE;
use super::super::{COLUMNS, ROWS};
use super::Tile;

/// Rows and columns whose sums fit the registers of AVX2.
const FEW: usize = 4;
const SOME: usize = 16;

/// The same, with multiplications and sums rounded once.
pub mod fused {
    use super::{COLUMNS, LINE, ROWS, Tile};

    #[inline(always)]
    pub fn tile(rows: &[[u32; ROWS]], columns: &[[u32; COLUMNS]], out: &mut Tile) {
        super::tile::<true>(rows, columns, out);
    }

    #[inline(always)]
    pub fn row(x: &[[u32; LINE]], weights: &[u16], inputs: usize, out: &mut [f32]) {
        super::row::<true>(x, weights, inputs, out);
    }
}

#[inline(always)]
fn low(pair: u32) -> f32 {
    f32::from_bits(pair << 16)
}

#[inline(always)]
fn high(pair: u32) -> f32 {
    f32::from_bits(pair & 0xffff_0000)
}

#[inline(always)]
fn add<const FUSED: bool>(sum: f32, a: f32, b: f32) -> f32 {
    if FUSED { a.mul_add(b, sum) } else { a * b + sum }
}

#[inline(always)]
pub fn tile<const FUSED: bool>(rows: &[[u32; ROWS]], columns: &[[u32; COLUMNS]], out: &mut Tile) {
    for (part, out) in out.chunks_exact_mut(FEW).enumerate() {
        for column in (0..COLUMNS).step_by(SOME) {
            let mut sums = [[0.0; SOME]; FEW];
            for (rows, columns) in rows.iter().zip(columns) {
                let mut pairs = [0; SOME];
                pairs.copy_from_slice(&columns[column..column + SOME]);
                let (lows, highs) = (pairs.map(low), pairs.map(high));
                for (sums, row) in sums.iter_mut().zip(&rows[part * FEW..]) {
                    for (lane, sum) in sums.iter_mut().enumerate() {
                        *sum = add::<FUSED>(*sum, low(*row), lows[lane]);
                        *sum = add::<FUSED>(*sum, high(*row), highs[lane]);
                    }
                }
            }
            for (out, sums) in out.iter_mut().zip(sums) {
                out[column..column + SOME].copy_from_slice(&sums);
            }
        }
    }
}

#[inline(always)]
pub fn row<const FUSED: bool>(x: &[[u32; LINE]], weights: &[u16], inputs: usize, out: &mut [f32]) {
    for (out, weights) in out.iter_mut().zip(weights.chunks_exact(inputs)) {
        let mut sums = [[0.0; LINE]; 2];
        for (x, weights) in x.iter().zip(weights.chunks(2 * LINE)) {
            let mut line = [0; 2 * LINE];
            line[..weights.len()].copy_from_slice(weights);
            let (pairs, _) = line.as_chunks::<2>();
            for (lane, (x, [first, second])) in x.iter().zip(pairs).enumerate() {
                let (first, second) = (u32::from(*first) << 16, u32::from(*second) << 16);
                sums[0][lane] = add::<FUSED>(sums[0][lane], low(*x), f32::from_bits(first));
                sums[1][lane] = add::<FUSED>(sums[1][lane], high(*x), f32::from_bits(second));
            }
        }
        *out = sums.as_flattened().iter().sum();
    }
}
