//! What a product computes with packed pairs, in every instruction set.
//!
//! As in the integer kernels, `multiversion` checks the processor before vector code is called.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::pack::{LINE, Source, pack};
use super::{COLUMNS, ROWS};
use multiversion::multiversion;

/// Sums of a tile of the result.
pub type Tile = [[f32; COLUMNS]; ROWS];

/// Instruction sets that there are kernels for, the slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instructions {
    Portable,
    Avx2,
    Avx512Bf16,
}

impl Instructions {
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512Bf16];

    /// The fastest that this processor has.
    pub fn best() -> Self {
        let here = Self::ALL.into_iter().rfind(|instructions| instructions.is_here());
        here.unwrap_or(Self::Portable)
    }

    /// Whether this processor has them.
    pub fn is_here(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => avx2::is_here(),
            Self::Avx512Bf16 => avx512_bf16::is_here(),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable code",
            Self::Avx2 => "AVX2",
            Self::Avx512Bf16 => "AVX512-BF16",
        }
    }
}

/// The same functions for one set of instructions, each compiled for it and for a processor that
/// does not have it.
macro_rules! compiled_for {
    ($name:ident, $target:tt, $kernels:path) => {
        mod $name {
            use super::*;
            use $kernels as own;

            #[multiversion(targets($target))]
            pub fn is_here() -> bool {
                multiversion::target::match_target! {
                    $target => true,
                    _ => { false }
                }
            }

            #[multiversion(targets($target))]
            pub fn pack_rows(
                source: Source<'_>,
                lane: usize,
                pair: usize,
                into: &mut [[u32; ROWS]],
            ) {
                pack(source, lane, pair, into);
            }

            #[multiversion(targets($target))]
            pub fn pack_columns(
                source: Source<'_>,
                lane: usize,
                pair: usize,
                into: &mut [[u32; COLUMNS]],
            ) {
                pack(source, lane, pair, into);
            }

            #[multiversion(targets($target))]
            pub fn tile(rows: &[[u32; ROWS]], columns: &[[u32; COLUMNS]], out: &mut Tile) {
                multiversion::target::match_target! {
                    $target => own::tile(rows, columns, out),
                    _ => { portable::tile::<false>(rows, columns, out) }
                }
            }

            #[multiversion(targets($target))]
            pub fn row(x: &[[u32; LINE]], weights: &[u16], inputs: usize, out: &mut [f32]) {
                multiversion::target::match_target! {
                    $target => own::row(x, weights, inputs, out),
                    _ => { portable::row::<false>(x, weights, inputs, out) }
                }
            }
        }
    };
}

compiled_for!(avx2, "x86_64+avx2+fma", super::portable::fused);
compiled_for!(avx512_bf16, "x86_64+avx512f+avx512bw+avx512vl+avx512bf16", super::x86);

/// Packs the rows of a product.
pub fn pack_rows(
    instructions: Instructions,
    source: Source<'_>,
    lane: usize,
    pair: usize,
    into: &mut [[u32; ROWS]],
) {
    match instructions {
        Instructions::Portable => pack(source, lane, pair, into),
        Instructions::Avx2 => avx2::pack_rows(source, lane, pair, into),
        Instructions::Avx512Bf16 => avx512_bf16::pack_rows(source, lane, pair, into),
    }
}

/// Packs its columns.
pub fn pack_columns(
    instructions: Instructions,
    source: Source<'_>,
    lane: usize,
    pair: usize,
    into: &mut [[u32; COLUMNS]],
) {
    match instructions {
        Instructions::Portable => pack(source, lane, pair, into),
        Instructions::Avx2 => avx2::pack_columns(source, lane, pair, into),
        Instructions::Avx512Bf16 => avx512_bf16::pack_columns(source, lane, pair, into),
    }
}

/// `out[i][j] = Σ rows[p][i] columns[p][j]`, of both values of each pair.
pub fn tile(
    instructions: Instructions,
    rows: &[[u32; ROWS]],
    columns: &[[u32; COLUMNS]],
    out: &mut Tile,
) {
    match instructions {
        Instructions::Portable => portable::tile::<false>(rows, columns, out),
        Instructions::Avx2 => avx2::tile(rows, columns, out),
        Instructions::Avx512Bf16 => avx512_bf16::tile(rows, columns, out),
    }
}

/// `out[i] = Σ x[p] weights[i][p]`, for weights `[out.len(), inputs]`. `x` has zeros after its last
/// value.
pub fn row(
    instructions: Instructions,
    x: &[[u32; LINE]],
    weights: &[u16],
    inputs: usize,
    out: &mut [f32],
) {
    match instructions {
        Instructions::Portable => portable::row::<false>(x, weights, inputs, out),
        Instructions::Avx2 => avx2::row(x, weights, inputs, out),
        Instructions::Avx512Bf16 => avx512_bf16::row(x, weights, inputs, out),
    }
}
