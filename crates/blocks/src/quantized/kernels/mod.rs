//! Products of rows of activations with one panel of weights, in every instruction set.
//!
//! Vector code is compiled for its instructions by `multiversion`, which checks the processor
//! before it calls. So nothing here is unsafe, and a wrong choice gets the portable code.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::super::matrix::{Join, join_row};
use super::activations::Rows;
use super::{GROUP, LANES, QUAD, QUADS_IN_GROUP};
use half::f16;
use multiversion::multiversion;

/// Four inputs of 16 outputs: `[16, 4]`
pub type Quad = [i8; LANES * QUAD];

/// 32 inputs of 16 outputs in five bits a weight.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Group {
    /// Quads `2 i` in the low and `2 i + 1` in the high four bits of element `i`.
    pairs: [Pair; QUADS_IN_GROUP / 2],
    scales: [u16; LANES],
    leasts: [u16; LANES],
}

/// Two quads of four bits a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair([u8; LANES * QUAD]);

impl Default for Pair {
    fn default() -> Self {
        Self([0; LANES * QUAD])
    }
}

impl Group {
    /// What the weights of an output are multiplied by, and what is then added.
    pub fn scale(&self, lane: usize) -> (f32, f32) {
        let value = |bits| f16::from_bits(bits).to_f32();
        (value(self.scales[lane]), value(self.leasts[lane]))
    }

    pub fn set_scale(&mut self, lane: usize, scale: f16, least: f16) {
        self.scales[lane] = scale.to_bits();
        self.leasts[lane] = least.to_bits();
    }

    pub fn nibble(&self, lane: usize, input: usize) -> u8 {
        let (pair, byte, shift) = place(lane, input);
        (self.pairs[pair].0[byte] >> shift) & 0xf
    }

    /// Writes one weight of four bits over zeros.
    pub fn set_nibble(&mut self, lane: usize, input: usize, value: u8) {
        let (pair, byte, shift) = place(lane, input);
        self.pairs[pair].0[byte] |= value << shift;
    }
}

/// The pair of quads of a weight, its byte, and its lowest bit there.
fn place(lane: usize, input: usize) -> (usize, usize, usize) {
    debug_assert!(input < GROUP);
    let quad = input / QUAD;
    (quad / 2, lane * QUAD + input % QUAD, quad % 2 * 4)
}

/// Weights of 16 outputs.
#[derive(Debug, Clone, Copy)]
pub enum Panel<'a> {
    Int8 {
        quads: &'a [Quad],
        scales: &'a [f32; LANES],
        /// Sums of the sizes of the weights below zero.
        below: &'a [i32; LANES],
    },
    Int4(&'a [Group]),
}

/// Where the product of some panels goes: 16 columns each of some rows, or fewer at their end.
#[derive(Debug)]
pub struct Out<'a, 'b> {
    pub rows: &'b mut [&'a mut [f32]],
    pub first_column: usize,
    pub join: Join,
}

impl Out<'_, '_> {
    /// Scales a panel's values of the rows from `first` on, and joins them with what is there.
    /// Compiled for the instructions of the kernel that it ends.
    #[inline(always)]
    fn write<const ROWS: usize>(
        &mut self,
        first: usize,
        panel: usize,
        values: [[f32; LANES]; ROWS],
        scales: &[f32],
    ) {
        let rows = self.rows[first..].iter_mut().zip(values).zip(scales);
        for ((row, values), scale) in rows {
            let row = &mut row[self.first_column + panel * LANES..];
            // Whole panels, whose length is known, become vectors.
            match row.first_chunk_mut::<LANES>() {
                Some(row) => join_row(row, &values.map(|value| value * scale), self.join),
                None => join_row(row, &values.map(|value| value * scale), self.join),
            }
        }
    }
}

/// Instruction sets that there are kernels for, the slowest first.
///
/// Others, such as NEON's dot products and AVX-VNNI, get the portable code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instructions {
    Portable,
    Avx2,
    /// With the rest of what Ice Lake and Zen 4 brought: earlier processors slow down for AVX-512.
    Avx512Vnni,
}

impl Instructions {
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512Vnni];

    /// The fastest that this processor has.
    pub fn best() -> Self {
        let here = Self::ALL.into_iter().rfind(|instructions| instructions.is_here());
        here.unwrap_or(Self::Portable)
    }

    /// Whether this processor has them.
    pub fn is_here(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => has_avx2(),
            Self::Avx512Vnni => has_avx512_vnni(),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable code",
            Self::Avx2 => "AVX2",
            Self::Avx512Vnni => "AVX-512 VNNI",
        }
    }
}

/// `out[rows, panels × 16] = rows Wᵀ`, or adds that. Every instruction set gives the same bits.
pub fn product(
    instructions: Instructions,
    panels: &[Panel<'_>],
    rows: Rows<'_>,
    out: &mut Out<'_, '_>,
) {
    match instructions {
        Instructions::Portable => portable::product(panels, rows, out),
        Instructions::Avx2 => avx2(panels, rows, out),
        Instructions::Avx512Vnni => avx512_vnni(panels, rows, out),
    }
}

/// The product for one set of instructions, and whether the processor has them: what calls the one
/// answers the other.
macro_rules! compiled_for {
    ($target:tt, $product:ident, $is_here:ident) => {
        #[multiversion(targets($target))]
        fn $product(panels: &[Panel<'_>], rows: Rows<'_>, out: &mut Out<'_, '_>) {
            multiversion::target::match_target! {
                $target => x86::$product(panels, rows, out),
                _ => { portable::product(panels, rows, out) }
            }
        }

        #[multiversion(targets($target))]
        fn $is_here() -> bool {
            multiversion::target::match_target! {
                $target => true,
                _ => { false }
            }
        }
    };
}

compiled_for!("x86_64+avx2+f16c", avx2, has_avx2);
compiled_for!("x86_64+avx512f+avx512bw+avx512vnni", avx512_vnni, has_avx512_vnni);
