//! Rows of activations in int8, rounded as they come.

use super::{GROUP, QUADS_IN_GROUP};
use multiversion::multiversion;
use rayon::prelude::*;

/// Values that one thread rounds at least.
const VALUES_AT_ONCE: usize = 1 << 14;

/// Rows of int8 values within ±127.
#[derive(Debug)]
pub struct Activations {
    groups: usize,
    /// Four values each, the first in the lowest byte: `[rows, groups × 8]`
    quads: Vec<i32>,
    /// What the values of a row are multiplied by: `[rows]`
    scales: Vec<f32>,
    /// Sums of the values of groups: `[rows, groups]`
    sums: Vec<f32>,
    /// Sums of the values of rows: `[rows]`
    totals: Vec<i32>,
}

/// Some rows of [`Activations`].
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    pub groups: usize,
    /// `[rows, groups × 8]`
    pub quads: &'a [i32],
    /// `[rows]`
    pub scales: &'a [f32],
    /// `[rows, groups]`
    pub sums: &'a [f32],
    /// `[rows]`
    pub totals: &'a [i32],
}

impl Activations {
    /// Rounds `x[rows, inputs]`. A row with a value that is not finite has the scale NaN.
    pub fn quantize(x: &[f32], inputs: usize) -> Self {
        let (rows, groups) = (x.len() / inputs, inputs.div_ceil(GROUP));
        let stride = groups * QUADS_IN_GROUP;
        let mut all = Self {
            groups,
            quads: vec![0; rows * stride],
            scales: vec![0.0; rows],
            sums: vec![0.0; rows * groups],
            totals: vec![0; rows],
        };
        let rows = x.par_chunks_exact(inputs).zip(all.quads.par_chunks_exact_mut(stride));
        let rows = rows.zip(all.sums.par_chunks_exact_mut(groups));
        let rows = rows.zip(all.scales.par_iter_mut().zip(&mut all.totals));
        let rows_at_once = VALUES_AT_ONCE.div_ceil(inputs);
        rows.with_min_len(rows_at_once).for_each(|(((x, quads), sums), (scale, total))| {
            *scale = quantize_row(x, quads, sums);
            *total = sums.iter().map(|sum| *sum as i32).sum();
        });
        all
    }

    pub fn rows(&self, first: usize, count: usize) -> Rows<'_> {
        let Self { groups, quads, scales, sums, totals } = self;
        Rows { groups: *groups, quads, scales, sums, totals }.part(first, count)
    }
}

impl<'a> Rows<'a> {
    pub fn part(self, first: usize, count: usize) -> Self {
        let stride = self.groups * QUADS_IN_GROUP;
        Self {
            groups: self.groups,
            quads: &self.quads[first * stride..][..count * stride],
            scales: &self.scales[first..][..count],
            sums: &self.sums[first * self.groups..][..count * self.groups],
            totals: &self.totals[first..][..count],
        }
    }

    /// The quads of one row.
    pub fn row(self, index: usize) -> &'a [i32] {
        let stride = self.groups * QUADS_IN_GROUP;
        &self.quads[index * stride..][..stride]
    }
}

/// Rounds one row, fills the sums of its groups and returns its scale.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2", "x86_64+sse4.1"))]
fn quantize_row(x: &[f32], quads: &mut [i32], sums: &mut [f32]) -> f32 {
    // The bits of values without a sign have the order of the values.
    let size = |value: &f32| value.to_bits() & !(1 << 31);
    let largest = f32::from_bits(x.iter().map(size).fold(0, u32::max));
    if !largest.is_finite() {
        return f32::NAN;
    }
    // The inverse of a subnormal may be infinite.
    let inverse = (127.0 / largest).min(f32::MAX);
    let groups = quads.chunks_exact_mut(QUADS_IN_GROUP).zip(sums).zip(x.chunks(GROUP));
    for ((quads, sum), x) in groups {
        let mut padded = [0.0; GROUP];
        padded[..x.len()].copy_from_slice(x);
        *sum = quantize_group(&padded, inverse, quads) as f32;
    }
    largest / 127.0
}

/// Rounds one group and returns its sum.
#[inline(always)]
fn quantize_group(x: &[f32; GROUP], inverse: f32, quads: &mut [i32]) -> i32 {
    // Adding 1.5 × 2^23 leaves the rounded integer in the low bits of the sum.
    const SHIFT: f32 = 12_582_912.0;
    let (mut bytes, mut sum) = ([0u8; GROUP], 0);
    for (byte, value) in bytes.iter_mut().zip(x) {
        *byte = ((value * inverse).clamp(-127.0, 127.0) + SHIFT).to_bits() as u8;
        sum += i32::from(*byte as i8);
    }
    for (quad, bytes) in quads.iter_mut().zip(bytes.as_chunks().0) {
        *quad = i32::from_le_bytes(*bytes);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The values that quads stand for.
    fn values(rows: Rows<'_>) -> Vec<f32> {
        let bytes = rows.quads.iter().flat_map(|quad| quad.to_le_bytes());
        bytes.map(|byte| f32::from(byte as i8) * rows.scales[0]).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn a_value_moves_by_at_most_half_a_scale(
            x in proptest::collection::vec(-1e3f32..1e3, 1..100),
        ) {
            let all = Activations::quantize(&x, x.len());
            let rows = all.rows(0, 1);
            let found = values(rows);
            for (found, exact) in found.iter().zip(&x) {
                prop_assert!((found - exact).abs() <= rows.scales[0] * 0.5001);
            }
            prop_assert!(found[x.len()..].iter().all(|&padding| padding == 0.0));
            prop_assert_eq!(rows.sums.iter().sum::<f32>(), rows.totals[0] as f32);
        }
    }

    #[test]
    fn rows_of_zeros_stay_zeros_and_what_is_not_finite_shows() {
        let all = Activations::quantize(&[0.0, 0.0, 1.0, f32::NAN, f32::INFINITY, 1.0], 2);
        let scales = all.rows(0, 3).scales;
        assert!(scales[0] == 0.0 && scales[1].is_nan() && scales[2].is_nan());
        let smallest = Activations::quantize(&[f32::from_bits(1), 0.0], 2);
        assert!(values(smallest.rows(0, 1)).iter().all(|value| value.is_finite()));
    }
}
