//! Kernels for AVX2 and for AVX-512 with VNNI.
//!
//! Each goes through a panel, or two side by side, once for several rows, whose sums stay in
//! registers.

use super::super::{LANES, QUADS_IN_GROUP};
use super::{Group, Out, Panel, Quad, Rows};
use bytemuck::cast;
use std::arch::x86_64::*;

/// Calls `tile` for as many rows at once as are left, trying each of `counts` in turn, and writes
/// the columns of each of its panels, of which `first` is the first one.
macro_rules! by_rows {
    ($tile:ident [$($count:literal),+] $panels:expr, $first:expr, $rows:ident, $out:ident) => {
        let mut done = 0;
        $(
            while $rows.scales.len() - done >= $count {
                let rows = $rows.part(done, $count);
                let sums: [[[f32; LANES]; $count]; _] = $tile($panels, rows);
                for (panel, sums) in sums.into_iter().enumerate() {
                    $out.write(done, $first + panel, sums, rows.scales);
                }
                done += $count;
            }
        )+
    };
}

#[target_feature(enable = "avx2,f16c")]
pub fn avx2(panels: &[Panel<'_>], rows: Rows<'_>, out: &mut Out<'_, '_>) {
    for (index, panel) in panels.iter().enumerate() {
        match *panel {
            Panel::Int8 { quads, scales, below } => {
                by_rows!(avx2_int8 [4, 2, 1] (quads, scales, below), index, rows, out);
            }
            Panel::Int4(groups) => {
                by_rows!(avx2_int4 [4, 2, 1] groups, index, rows, out);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub fn avx512_vnni(panels: &[Panel<'_>], rows: Rows<'_>, out: &mut Out<'_, '_>) {
    // Each value that is loaded serves two panels: the processor loads no more registers a cycle
    // than it multiplies.
    if let [Panel::Int8 { quads, scales, .. }, Panel::Int8 { quads: next, scales: last, .. }] =
        panels
    {
        let both = [(*quads, *scales), (*next, *last)];
        by_rows!(vnni_int8 [6, 4, 2, 1] both, 0, rows, out);
        return;
    }
    for (index, panel) in panels.iter().enumerate() {
        match *panel {
            Panel::Int8 { quads, scales, .. } => {
                by_rows!(vnni_int8 [12, 4, 2, 1] [(quads, scales)], index, rows, out);
            }
            Panel::Int4(groups) => {
                by_rows!(vnni_int4 [8, 4, 2, 1] groups, index, rows, out);
            }
        }
    }
}

/// The first `length` quads of each row.
#[inline(always)]
fn quads_of<const ROWS: usize>(rows: Rows<'_>, length: usize) -> [&[i32]; ROWS] {
    let mut all: [&[i32]; ROWS] = [&[]; ROWS];
    for (index, quads) in all.iter_mut().enumerate() {
        *quads = &rows.row(index)[..length];
    }
    all
}

/// The quads of the first `length` groups of each row, and the sums of these groups.
#[inline(always)]
fn groups_of<const ROWS: usize>(
    rows: Rows<'_>,
    length: usize,
) -> ([&[[i32; QUADS_IN_GROUP]]; ROWS], [&[f32]; ROWS]) {
    let mut quads: [&[[i32; QUADS_IN_GROUP]]; ROWS] = [&[]; ROWS];
    let mut sums: [&[f32]; ROWS] = [&[]; ROWS];
    for (index, (quads, sums)) in quads.iter_mut().zip(&mut sums).enumerate() {
        *quads = &rows.row(index).as_chunks().0[..length];
        *sums = &rows.sums[index * rows.groups..][..length];
    }
    (quads, sums)
}

#[target_feature(enable = "avx2")]
fn avx2_int8<const ROWS: usize>(
    (quads, scales, below): (&[Quad], &[f32; LANES], &[i32; LANES]),
    rows: Rows<'_>,
) -> [[[f32; LANES]; ROWS]; 1] {
    // The instruction takes unsigned values of one side: sizes of weights, by values that are
    // inverted where a weight is below zero. An inverted value is one less than the negative one,
    // which sums begin with. `vpsignb` would compete with products for where they execute.
    let (ones, zero) = (_mm256_set1_epi16(1), _mm256_setzero_si256());
    let values = quads_of::<ROWS>(rows, quads.len());
    let mut sums: [[__m256i; 2]; ROWS] = [cast(*below); ROWS];
    for (place, weights) in quads.iter().enumerate() {
        let weights: [__m256i; 2] = cast(*weights);
        let sizes = weights.map(|weights| _mm256_abs_epi8(weights));
        let inverts = weights.map(|weights| _mm256_cmpgt_epi8(zero, weights));
        for (sums, values) in sums.iter_mut().zip(&values) {
            let values = _mm256_set1_epi32(values[place]);
            for ((sum, inverts), sizes) in sums.iter_mut().zip(inverts).zip(sizes) {
                // Two products of values within 127 and ±128 fit an i16.
                let pairs = _mm256_maddubs_epi16(sizes, _mm256_xor_si256(values, inverts));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
    }
    let scales: [__m256; 2] = cast(*scales);
    [sums.map(|[low, high]| {
        let low = _mm256_mul_ps(_mm256_cvtepi32_ps(low), scales[0]);
        let high = _mm256_mul_ps(_mm256_cvtepi32_ps(high), scales[1]);
        cast([low, high])
    })]
}

#[target_feature(enable = "avx2,f16c")]
fn avx2_int4<const ROWS: usize>(groups: &[Group], rows: Rows<'_>) -> [[[f32; LANES]; ROWS]; 1] {
    let (ones, mask) = (_mm256_set1_epi16(1), _mm256_set1_epi8(0xf));
    let (values, value_sums) = groups_of::<ROWS>(rows, groups.len());
    let mut sums = [[_mm256_setzero_ps(); ROWS]; 2];
    for (index, group) in groups.iter().enumerate() {
        let scales: [__m128i; 2] = cast(group.scales);
        let leasts: [__m128i; 2] = cast(group.leasts);
        for (half, sums) in sums.iter_mut().enumerate() {
            // 16 products of values within 15 and ±127 fit an i16.
            let mut dots = [_mm256_setzero_si256(); ROWS];
            for (pair, weights) in group.pairs.iter().enumerate() {
                let weights: [__m256i; 2] = cast(weights.0);
                let low = _mm256_and_si256(weights[half], mask);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(weights[half]), mask);
                for (dot, values) in dots.iter_mut().zip(&values) {
                    let values = &values[index];
                    let first = _mm256_maddubs_epi16(low, _mm256_set1_epi32(values[2 * pair]));
                    let second =
                        _mm256_maddubs_epi16(high, _mm256_set1_epi32(values[2 * pair + 1]));
                    *dot = _mm256_add_epi16(*dot, _mm256_add_epi16(first, second));
                }
            }
            let (scale, least) = (_mm256_cvtph_ps(scales[half]), _mm256_cvtph_ps(leasts[half]));
            for ((sum, dot), value_sums) in sums.iter_mut().zip(dots).zip(&value_sums) {
                let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(dot, ones));
                let value_sum = _mm256_set1_ps(value_sums[index]);
                let least = _mm256_mul_ps(value_sum, least);
                *sum = _mm256_add_ps(*sum, _mm256_add_ps(_mm256_mul_ps(dot, scale), least));
            }
        }
    }
    let [low, high] = sums;
    [std::array::from_fn(|row| cast([low[row], high[row]]))]
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn vnni_int8<const ROWS: usize, const PANELS: usize>(
    panels: [(&[Quad], &[f32; LANES]); PANELS],
    rows: Rows<'_>,
) -> [[[f32; LANES]; ROWS]; PANELS] {
    // The instruction takes unsigned values of one side: weights become 128 more, and sums begin
    // with what that adds to them.
    let flip = _mm512_set1_epi8(-128);
    let length = panels[0].0.len();
    let panels = panels.map(|(quads, scales)| (&quads[..length], scales));
    let values = quads_of::<ROWS>(rows, length);
    let mut sums = [[_mm512_setzero_si512(); ROWS]; PANELS];
    for sums in &mut sums {
        for (sum, total) in sums.iter_mut().zip(rows.totals) {
            *sum = _mm512_set1_epi32(-128 * total);
        }
    }
    for place in 0..length {
        let weights = panels.map(|(quads, _)| _mm512_xor_si512(cast(quads[place]), flip));
        for (row, values) in values.iter().enumerate() {
            let values = _mm512_set1_epi32(values[place]);
            for (sums, weights) in sums.iter_mut().zip(weights) {
                sums[row] = _mm512_dpbusd_epi32(sums[row], weights, values);
            }
        }
    }
    let mut out = [[[0.0; LANES]; ROWS]; PANELS];
    for ((out, sums), (_, scales)) in out.iter_mut().zip(sums).zip(panels) {
        *out = sums.map(|sum| cast(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), cast(*scales))));
    }
    out
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn vnni_int4<const ROWS: usize>(groups: &[Group], rows: Rows<'_>) -> [[[f32; LANES]; ROWS]; 1] {
    let mask = _mm512_set1_epi8(0xf);
    let (values, value_sums) = groups_of::<ROWS>(rows, groups.len());
    let mut sums = [_mm512_setzero_ps(); ROWS];
    for (index, group) in groups.iter().enumerate() {
        let mut dots = [_mm512_setzero_si512(); ROWS];
        for (pair, weights) in group.pairs.iter().enumerate() {
            let weights: __m512i = cast(weights.0);
            let low = _mm512_and_si512(weights, mask);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(weights), mask);
            for (dot, values) in dots.iter_mut().zip(&values) {
                let values = &values[index];
                *dot = _mm512_dpbusd_epi32(*dot, low, _mm512_set1_epi32(values[2 * pair]));
                *dot = _mm512_dpbusd_epi32(*dot, high, _mm512_set1_epi32(values[2 * pair + 1]));
            }
        }
        let scale = _mm512_cvtph_ps(cast(group.scales));
        let least = _mm512_cvtph_ps(cast(group.leasts));
        for ((sum, dot), value_sums) in sums.iter_mut().zip(dots).zip(&value_sums) {
            let dot = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale);
            let least = _mm512_mul_ps(_mm512_set1_ps(value_sums[index]), least);
            *sum = _mm512_add_ps(*sum, _mm512_add_ps(dot, least));
        }
    }
    [std::array::from_fn(|row| cast(sums[row]))]
}
