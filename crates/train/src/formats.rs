//! Formats in which a GGUF keeps values: plain ones, and blocks that share scales.
//!
//! The layouts are those of ggml (`ggml-common.h`, described in its `docs/gguf.md` and at
//! `ggml-quants.h`): F32, F16, BF16, `Q4_0`, `Q4_1`, `Q8_0`, `Q4_K` and `Q6_K`; the last is only
//! read. How scales are chosen is our own.

use half::{bf16, f16};

/// Values of a small block.
const BLOCK: usize = 32;
/// Values of a block whose scales are scaled in turn.
const SUPER: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q8_0,
    Q4K,
    Q6K,
}

/// Number in a file, name, values per block and bytes per block.
const FORMATS: [(Format, u32, &str, usize, usize); 8] = [
    (Format::F32, 0, "f32", 1, 4),
    (Format::F16, 1, "f16", 1, 2),
    (Format::Bf16, 30, "bf16", 1, 2),
    (Format::Q4_0, 2, "q4_0", BLOCK, 18),
    (Format::Q4_1, 3, "q4_1", BLOCK, 20),
    (Format::Q8_0, 8, "q8_0", BLOCK, 34),
    (Format::Q4K, 12, "q4_k", SUPER, 144),
    (Format::Q6K, 14, "q6_k", SUPER, 210),
];

impl Format {
    pub fn from_code(code: u32) -> Option<Self> {
        FORMATS.into_iter().find(|row| row.1 == code).map(|row| row.0)
    }

    fn row(self) -> (Format, u32, &'static str, usize, usize) {
        FORMATS[self as usize]
    }

    /// ggml's number of it.
    pub fn code(self) -> u32 {
        self.row().1
    }

    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Values per block; a row holds whole blocks.
    pub fn block(self) -> usize {
        self.row().3
    }

    /// Bytes of `values`; none where there are more than an address reaches.
    pub fn bytes(self, values: usize) -> Option<usize> {
        values.div_ceil(self.block()).checked_mul(self.row().4)
    }
}

/// The values of whole blocks.
pub fn decode(format: Format, bytes: &[u8]) -> Vec<f32> {
    let (_, _, _, per_block, block_bytes) = format.row();
    let blocks = bytes.chunks_exact(block_bytes);
    let mut out = Vec::with_capacity(blocks.len() * per_block);
    for block in blocks {
        match format {
            Format::F32 => out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
            Format::F16 => out.push(half(block)),
            Format::Bf16 => out.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            Format::Q4_0 => {
                let scale = half(block);
                nibbles(&block[2..], |nibble| scale * (f32::from(nibble) - 8.0), &mut out);
            }
            Format::Q4_1 => {
                let (scale, minimum) = (half(block), half(&block[2..]));
                nibbles(&block[4..], |nibble| scale * f32::from(nibble) + minimum, &mut out);
            }
            Format::Q8_0 => {
                let scale = half(block);
                out.extend(block[2..].iter().map(|&q| scale * f32::from(q as i8)));
            }
            Format::Q4K => decode_q4_k(block, &mut out),
            Format::Q6K => decode_q6_k(block, &mut out),
        }
    }
    out
}

fn half(pair: &[u8]) -> f32 {
    f16::from_le_bytes([pair[0], pair[1]]).to_f32()
}

/// ggml keeps the first half of a block in the low nibbles and the second half in the high ones.
fn nibbles(packed: &[u8], value: impl Fn(u8) -> f32, out: &mut Vec<f32>) {
    out.extend(packed.iter().map(|byte| value(byte & 0x0f)));
    out.extend(packed.iter().map(|byte| value(byte >> 4)));
}

/// Eight blocks of 32 with a scale and a minimum of six bits each: `d × scale × q − dmin × min`.
fn decode_q4_k(block: &[u8], out: &mut Vec<f32>) {
    let (scale, minimum) = (half(block), half(&block[2..]));
    let (scales, minima) = unpack_six_bits(&block[4..16]);
    for (pair, packed) in block[16..].chunks_exact(BLOCK).enumerate() {
        let (low, high) = (2 * pair, 2 * pair + 1);
        let value = |place: usize, q: u8| {
            scale * f32::from(scales[place]) * f32::from(q) - minimum * f32::from(minima[place])
        };
        out.extend(packed.iter().map(|byte| value(low, byte & 0x0f)));
        out.extend(packed.iter().map(|byte| value(high, byte >> 4)));
    }
}

/// Scales and minima of `Q4_K`: those of the last four blocks have their two upper bits beside
/// those of the first four.
fn unpack_six_bits(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for place in 0..4 {
        scales[place] = packed[place] & 63;
        minima[place] = packed[place + 4] & 63;
        scales[place + 4] = (packed[place + 8] & 0x0f) | ((packed[place] >> 6) << 4);
        minima[place + 4] = (packed[place + 8] >> 4) | ((packed[place + 4] >> 6) << 4);
    }
    (scales, minima)
}

fn pack_six_bits(scales: &[u8; 8], minima: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for place in 0..4 {
        packed[place] = scales[place] | ((scales[place + 4] >> 4) << 6);
        packed[place + 4] = minima[place] | ((minima[place + 4] >> 4) << 6);
        packed[place + 8] = (scales[place + 4] & 0x0f) | ((minima[place + 4] & 0x0f) << 4);
    }
    packed
}

/// Sixteen blocks of 16 with a scale of eight bits each, and values of six: four bits in the first
/// 128 bytes, two in the next 64.
fn decode_q6_k(block: &[u8], out: &mut Vec<f32>) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let scale = half(&block[208..]);
    for place in 0..SUPER {
        let (part, within) = (place / 128, place % 128);
        let (quarter, column) = (within / 32, within % 32);
        let byte = low[part * 64 + (quarter % 2) * 32 + column];
        let four = if quarter < 2 { byte & 0x0f } else { byte >> 4 };
        let two = (high[part * 32 + column] >> (2 * quarter)) & 3;
        let value = i32::from(four | (two << 4)) - 32;
        out.push(scale * f32::from(scales[place / 16] as i8) * value as f32);
    }
}

/// Why values cannot be written in a format.
pub type Encoded = std::result::Result<Vec<u8>, String>;

/// Whole blocks of values; the last block of a tensor whose rows hold whole blocks is one, too.
pub fn encode(format: Format, values: &[f32]) -> Encoded {
    if values.iter().any(|value| !value.is_finite()) {
        return Err("it holds values that are not finite numbers".into());
    }
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    if format != Format::F32 && largest > f16::MAX.to_f32() {
        return Err(format!("its largest value, {largest}, does not fit 16 bits"));
    }
    match format {
        Format::F32 => Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        Format::F16 => {
            Ok(values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect())
        }
        Format::Q8_0 => Ok(values.chunks(BLOCK).flat_map(encode_q8_0).collect()),
        Format::Q4K => Ok(values.chunks(SUPER).flat_map(encode_q4_k).collect()),
        other => Err(format!("nothing here writes `{}`", other.name())),
    }
}

/// Symmetric int8 with one f16 scale per block of 32.
fn encode_q8_0(block: &[f32]) -> [u8; 34] {
    let largest = block.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut out = [0; 34];
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (q, v) in out[2..].iter_mut().zip(block) {
        *q = (v * inverse).round() as i8 as u8;
    }
    out
}

fn encode_q4_k(block: &[f32]) -> [u8; 144] {
    let mut fits = [(0f32, 0f32); 8];
    for (fit, values) in fits.iter_mut().zip(block.chunks(BLOCK)) {
        *fit = fit_block(values);
    }
    let largest = |of: fn(&(f32, f32)) -> f32| fits.iter().map(of).fold(0f32, f32::max);
    let rounded = |value: f32| f16::from_f32(value / 63.0);
    let (scale, minimum) = (rounded(largest(|fit| fit.0)), rounded(largest(|fit| fit.1)));
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    let mut out = [0; 144];
    for (place, values) in block.chunks(BLOCK).enumerate() {
        let level = |value: f32, unit: f16| match unit.to_f32() {
            0.0 => 0,
            unit => (value / unit).round().min(63.0) as u8,
        };
        (scales[place], minima[place]) =
            (level(fits[place].0, scale), level(fits[place].1, minimum));
        let step = scale.to_f32() * f32::from(scales[place]);
        let offset = minimum.to_f32() * f32::from(minima[place]);
        let packed = &mut out[16 + place / 2 * BLOCK..][..BLOCK];
        for (byte, &value) in packed.iter_mut().zip(values) {
            *byte |= nearest(value, step, offset) << (4 * (place % 2));
        }
    }
    out[..2].copy_from_slice(&scale.to_le_bytes());
    out[2..4].copy_from_slice(&minimum.to_le_bytes());
    out[4..16].copy_from_slice(&pack_six_bits(&scales, &minima));
    out
}

/// The level of four bits whose value `step × level − offset` is nearest.
fn nearest(value: f32, step: f32, offset: f32) -> u8 {
    if step > 0.0 { ((value + offset) / step).round().clamp(0.0, 15.0) as u8 } else { 0 }
}

/// How many steps are tried between 80 and 104 percent of the range.
const TRIES: usize = 13;

/// Step and offset, neither below zero, that bring 16 levels near the values of one block.
///
/// From each of some steps, levels are chosen and the line through them is fitted by least
/// squares; the fit with the least squared error is taken.
fn fit_block(values: &[f32]) -> (f32, f32) {
    let lowest = values.iter().copied().fold(0f32, f32::min);
    let highest = values.iter().copied().fold(f32::MIN, f32::max).max(lowest);
    let range = highest - lowest;
    if range <= 0.0 {
        return (0.0, 0.0);
    }
    let error = |(step, offset): (f32, f32)| -> f32 {
        let off = |&value: &f32| value - (step * f32::from(nearest(value, step, offset)) - offset);
        values.iter().map(|value| off(value).powi(2)).sum()
    };
    let mut best = (range / 15.0, -lowest);
    let mut least = error(best);
    for trial in 0..TRIES {
        let start = (range / 15.0 * (0.80 + 0.02 * trial as f32), -lowest);
        for candidate in [start, refitted(values, start)] {
            let found = error(candidate);
            if found < least {
                (best, least) = (candidate, found);
            }
        }
    }
    best
}

/// The line of least squares through the levels that a step and an offset choose.
fn refitted(values: &[f32], (step, offset): (f32, f32)) -> (f32, f32) {
    let count = values.len() as f32;
    let (mut q1, mut q2, mut x1, mut xq) = (0.0, 0.0, 0.0, 0.0);
    for &value in values {
        let level = f32::from(nearest(value, step, offset));
        q1 += level;
        q2 += level * level;
        x1 += value;
        xq += value * level;
    }
    let determinant = count * q2 - q1 * q1;
    if determinant <= 0.0 {
        return (step, offset);
    }
    let slope = (count * xq - q1 * x1) / determinant;
    let shift = (slope * q1 - x1) / count;
    match (slope > 0.0, shift >= 0.0) {
        (true, true) => (slope, shift),
        // Without an offset, the line goes through zero.
        (true, false) if q2 > 0.0 && xq > 0.0 => (xq / q2, 0.0),
        _ => (step, offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normal(count: usize) -> Vec<f32> {
        // Sums of twelve uniform values from a small generator, which are nearly normal.
        let mut state = 1u64;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        (0..count).map(|_| (0..12).map(|_| unit()).sum::<f32>() - 6.0).collect()
    }

    #[test]
    fn every_format_stands_at_its_place() {
        for (place, row) in FORMATS.into_iter().enumerate() {
            assert_eq!(row.0 as usize, place);
            assert_eq!(Format::from_code(row.1), Some(row.0));
        }
    }

    /// `tests/reference/blocks.py` made the expected values.
    #[test]
    fn blocks_are_read_as_their_reference_reads_them() {
        #[derive(serde::Deserialize)]
        struct Case {
            bytes: Vec<u8>,
            values: Vec<f32>,
        }
        let text = include_str!("../tests/reference/blocks.json");
        let cases: std::collections::BTreeMap<String, Case> =
            serde_json::from_str(text).expect("the reference");
        for format in [Format::Q4K, Format::Q6K] {
            let case = &cases[format.name()];
            let read = decode(format, &case.bytes);
            assert_eq!(read.len(), case.values.len());
            for (read, value) in read.iter().zip(&case.values) {
                assert!((read - value).abs() <= 1e-5 * value.abs(), "{read} {value}");
            }
        }
    }

    #[test]
    fn six_bits_come_back() {
        let scales = [63, 1, 32, 47, 16, 63, 0, 51];
        let minima = [0, 62, 17, 33, 63, 48, 15, 1];
        assert_eq!(unpack_six_bits(&pack_six_bits(&scales, &minima)), (scales, minima));
    }

    /// Of normal values, the search leaves an error of 0.072 of their size, its first step 0.079.
    #[test]
    fn q4_k_of_normal_values_is_better_than_without_a_search() {
        let values = normal(64 * SUPER);
        let read = decode(Format::Q4K, &encode(Format::Q4K, &values).expect("finite"));
        let squares = |of: &mut dyn Iterator<Item = f32>| of.map(|v| f64::from(v * v)).sum::<f64>();
        let error = squares(&mut read.iter().zip(&values).map(|(a, b)| a - b));
        let share = (error / squares(&mut values.iter().copied())).sqrt();
        assert!(share < 0.075, "{share}");
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, cases: 64, ..ProptestConfig::default()
        })]

        #[test]
        fn q4_k_stays_within_its_steps(
            values in proptest::collection::vec(-4.0f32..4.0, SUPER), factor in 0.01f32..100.0,
        ) {
            let values: Vec<f32> = values.iter().map(|value| value * factor).collect();
            let read = decode(Format::Q4K, &encode(Format::Q4K, &values).expect("finite"));
            for (read, values) in read.chunks(BLOCK).zip(values.chunks(BLOCK)) {
                let range = values.iter().fold(0f32, |m, &v| m.max(v))
                    - values.iter().fold(0f32, |m, &v| m.min(v));
                // Half a step of 1/15; scale and offset rounded to the nearest of 63 levels of the
                // largest range, which is at most 8; the search may cut the ends by a tenth each.
                let bound = range * (0.5 / 15.0 + 0.1) + 8.0 * factor * (15.0 / 15.0 + 1.0) / 126.0;
                for (read, value) in read.iter().zip(values) {
                    prop_assert!((read - value).abs() <= bound, "{read} {value} {bound}");
                }
            }
        }
    }
}
