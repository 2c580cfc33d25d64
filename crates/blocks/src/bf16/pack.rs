//! Factors as pairs of bfloat16 values, in the order in which tiles read them.

use super::Values;

/// Pairs in a vector register.
pub const LINE: usize = 16;

/// A factor seen from a product: lanes are rows or columns of the result, and the sum goes along
/// the depth.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    pub values: Values<'a>,
    pub lanes: usize,
    pub depth: usize,
    /// Whether the values of a lane lie side by side; else those of a depth do.
    pub is_along: bool,
}

/// Something that bfloat16 bits are made of.
trait Number: Copy {
    fn bits(self) -> u32;
}

impl Number for u16 {
    #[inline(always)]
    fn bits(self) -> u32 {
        u32::from(self)
    }
}

impl Number for f32 {
    #[inline(always)]
    fn bits(self) -> u32 {
        let bits = self.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // Rounded as others, some NaN would become infinite.
        if self.is_nan() { (bits >> 16) | 0x40 } else { rounded }
    }
}

#[inline(always)]
fn pair<T: Number>(low: T, high: T) -> u32 {
    low.bits() | (high.bits() << 16)
}

/// Packs `into.len()` pairs of `LANES` lanes, from some lane and pair on. What lies beyond the last
/// lane or the last value is zero.
#[inline(always)]
pub fn pack<const LANES: usize>(
    source: Source<'_>,
    first_lane: usize,
    first_pair: usize,
    into: &mut [[u32; LANES]],
) {
    match source.values {
        Values::F32(values) => pack_values(values, source, first_lane, first_pair, into),
        Values::Bf16(values) => pack_values(values, source, first_lane, first_pair, into),
    }
}

#[inline(always)]
fn pack_values<T: Number, const LANES: usize>(
    values: &[T],
    source: Source<'_>,
    first_lane: usize,
    first_pair: usize,
    into: &mut [[u32; LANES]],
) {
    let Source { lanes, depth, is_along, .. } = source;
    let count = LANES.min(lanes - first_lane);
    if count < LANES {
        into.iter_mut().for_each(|lanes| lanes[count..].fill(0));
    }
    let first = 2 * first_pair;
    if is_along {
        let length = (depth - first).min(2 * into.len());
        for lane in 0..count {
            let (pairs, last) =
                values[(first_lane + lane) * depth + first..][..length].as_chunks::<2>();
            let places = into.iter_mut().zip(pairs);
            places.for_each(|(into, [low, high])| into[lane] = pair(*low, *high));
            if let ([last], Some(into)) = (last, into.last_mut()) {
                into[lane] = last.bits();
            }
        }
        return;
    }
    for (index, into) in into.iter_mut().enumerate() {
        let at = first + 2 * index;
        let low = &values[at * lanes + first_lane..][..count];
        if at + 1 == depth {
            into.iter_mut().zip(low).for_each(|(into, low)| *into = low.bits());
            continue;
        }
        let high = &values[(at + 1) * lanes + first_lane..][..count];
        match (<&[T; LANES]>::try_from(low), <&[T; LANES]>::try_from(high)) {
            // Whole panels, whose length is known, become vectors.
            (Ok(low), Ok(high)) => {
                for lane in 0..LANES {
                    into[lane] = pair(low[lane], high[lane]);
                }
            }
            _ => {
                let pairs = into.iter_mut().zip(low.iter().zip(high));
                pairs.for_each(|(into, (low, high))| *into = pair(*low, *high));
            }
        }
    }
}
