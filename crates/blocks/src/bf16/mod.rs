//! Matrices in bfloat16, and products of bfloat16 values that are summed in f32.
//!
//! Values of a product that lie in f32 are rounded while they are packed, to the nearest, ties to
//! even. Two values that follow each other along the sum lie in one `u32`, the first in the low
//! half: AVX512-BF16 multiplies such pairs and adds both to a sum at once. Other instructions
//! compute the same products in f32, in another order of rounding, and slower than f32's own.
//!
//! Columns of the second factor are packed by the task that computes with them, block by block
//! along the sum; tiles of the result stay in registers (Goto and van de Geijn 2008, Anatomy of
//! High-Performance Matrix Multiplication, section 4). The result does not depend on the number of
//! threads.

mod kernels;
mod pack;

use super::matrix::{Block, Join, blocks, join_row};
use half::bf16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use pack::{LINE, Source};
use rayon::prelude::*;
use std::cell::Cell;
use std::thread::LocalKey;

pub use kernels::Instructions;

/// Rows and columns of a tile.
const ROWS: usize = 8;
const COLUMNS: usize = 48;
/// Pairs along the sum that are packed at once: so many of a panel of columns are 54 KiB.
const PAIRS_MAX: usize = 288;
/// Panels of a task at most: what it packs stays in a cache of its core.
const PANELS_MAX: usize = 8;
/// Rows of a task at least: it packs its columns for them.
const TASK_ROWS_MIN: usize = 64;
const TASKS_PER_THREAD: usize = 4;
/// Panels of rows that are packed side by side, and so many pairs of each at once: values that lie
/// across a panel are read in whole lines, from a few pages.
const PANELS_AT_ONCE: usize = 16;
const PAIRS_AT_ONCE: usize = 32;
/// Outputs of a single row that one thread computes at least.
const OUTPUTS_AT_ONCE: usize = 64;
/// Values that one thread rounds at least.
const VALUES_AT_ONCE: usize = 1 << 14;

/// A weight matrix in bfloat16: `[outputs, inputs]`
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    pub inputs: usize,
    bits: Vec<u16>,
}

impl Matrix {
    /// Rounds rows of `inputs` values.
    pub fn round(values: &[f32], inputs: usize) -> Self {
        let mut bits = vec![0; values.len()];
        let pieces = bits.par_chunks_mut(VALUES_AT_ONCE).zip(values.par_chunks(VALUES_AT_ONCE));
        pieces.for_each(|(bits, values)| round_row(values, bits));
        Self { inputs, bits }
    }

    /// Of rows of `inputs` values that are rounded already; none where they are no whole rows.
    pub fn of_bits(bits: Vec<u16>, inputs: usize) -> Option<Self> {
        (inputs > 0 && bits.len().is_multiple_of(inputs)).then_some(Self { inputs, bits })
    }

    pub fn outputs(&self) -> usize {
        self.bits.len() / self.inputs
    }

    /// `[outputs, inputs]`
    pub fn bits(&self) -> &[u16] {
        &self.bits
    }

    /// The same to change them.
    pub fn bits_mut(&mut self) -> &mut [u16] {
        &mut self.bits
    }

    /// Memory of the values.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.bits)
    }

    /// Writes one row to `out[inputs]`.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        widen_row(&self.bits[index * self.inputs..][..self.inputs], out);
    }

    /// All values, as rows.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.bits.len()];
        widen_row(&self.bits, &mut values);
        values
    }

    pub fn operand(&self) -> Operand<'_> {
        let (rows, columns) = (self.outputs(), self.inputs);
        Operand { values: Values::Bf16(&self.bits), rows, columns, is_transposed: false }
    }
}

/// Rounds values to bfloat16.
pub fn round_row(values: &[f32], bits: &mut [u16]) {
    bits.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(values);
}

/// The values of bfloat16 bits.
pub fn widen_row(bits: &[u16], values: &mut [f32]) {
    bits.reinterpret_cast::<bf16>().convert_to_f32_slice(values);
}

/// A factor of a product.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    values: Values<'a>,
    rows: usize,
    columns: usize,
    /// Whether it is stored column by column.
    is_transposed: bool,
}

#[derive(Debug, Clone, Copy)]
enum Values<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
}

impl<'a> Operand<'a> {
    /// Rows of `columns` values.
    pub fn rows(values: &'a [f32], columns: usize) -> Self {
        let rows = values.len() / columns;
        Self { values: Values::F32(values), rows, columns, is_transposed: false }
    }

    pub fn transpose(self) -> Self {
        let Self { values, rows, columns, is_transposed } = self;
        Self { values, rows: columns, columns: rows, is_transposed: !is_transposed }
    }

    /// With a row of the product in each lane, or a column.
    fn source(&self, lanes_are_rows: bool) -> Source<'a> {
        let (lanes, depth) = match lanes_are_rows {
            true => (self.rows, self.columns),
            false => (self.columns, self.rows),
        };
        let is_along = lanes_are_rows != self.is_transposed;
        Source { values: self.values, lanes, depth, is_along }
    }
}

/// `out[rows, columns] = a[rows, inner] b[inner, columns]`, or adds that; by all threads of the
/// pool, and the fastest instructions that are here.
///
/// # Panics
///
/// Where the sizes do not fit.
pub fn product(out: &mut [f32], a: Operand<'_>, b: Operand<'_>, join: Join) {
    product_by(Instructions::best(), out, a, b, join);
}

fn product_by(
    instructions: Instructions,
    out: &mut [f32],
    a: Operand<'_>,
    b: Operand<'_>,
    join: Join,
) {
    assert_eq!(a.columns, b.rows, "the inner sizes of a product");
    assert_eq!(out.len(), a.rows * b.columns, "the result of a product");
    if out.is_empty() {
        return;
    }
    if let (1, true, Values::Bf16(weights)) = (a.rows, b.is_transposed, b.values) {
        return row_product(instructions, out, a, weights, join);
    }
    let (rows, columns) = (a.source(true), b.source(false));
    let pairs = rows.depth.div_ceil(2);
    let size = task_size(a.rows, b.columns);
    with_buffer(&PACKED_ROWS, |buffer| {
        let packed = packed_rows(instructions, rows, pairs, buffer);
        let factors = Factors { instructions, packed, pairs, columns };
        blocks(out, b.columns, size).into_par_iter().for_each(|block| {
            with_buffer(&PACKED_COLUMNS, |buffer| factors.compute(block, buffer, join));
        });
    });
}

thread_local! {
    static PACKED_ROWS: Cell<Vec<[u32; ROWS]>> = const { Cell::new(Vec::new()) };
    static PACKED_COLUMNS: Cell<Vec<[u32; COLUMNS]>> = const { Cell::new(Vec::new()) };
}

/// Runs with the thread's buffer, which stays for the next product: made anew each time, it would
/// be cleared by the kernel, and leave gaps of all sizes in the heap.
fn with_buffer<T, R>(
    own: &'static LocalKey<Cell<Vec<T>>>,
    run: impl FnOnce(&mut Vec<T>) -> R,
) -> R {
    let mut buffer = own.take();
    let result = run(&mut buffer);
    own.set(buffer);
    result
}

/// The first elements of a buffer, whose old content does not matter.
fn sized<T: Copy>(buffer: &mut Vec<T>, length: usize, fill: T) -> &mut [T] {
    if buffer.len() < length {
        *buffer = vec![fill; length];
    }
    &mut buffer[..length]
}

/// Rows and columns of a task.
fn task_size(rows: usize, columns: usize) -> (usize, usize) {
    let wanted = TASKS_PER_THREAD * rayon::current_num_threads();
    let panels = columns.div_ceil(COLUMNS);
    let task_panels = (panels / wanted).clamp(1, PANELS_MAX);
    let bands = wanted.div_ceil(panels.div_ceil(task_panels));
    let task_rows = rows.div_ceil(bands).max(TASK_ROWS_MIN).next_multiple_of(ROWS);
    (task_rows, task_panels * COLUMNS)
}

/// All rows in panels: `[panels, pairs]`
fn packed_rows<'b>(
    instructions: Instructions,
    rows: Source<'_>,
    pairs: usize,
    buffer: &'b mut Vec<[u32; ROWS]>,
) -> &'b [[u32; ROWS]] {
    let packed = sized(buffer, rows.lanes.div_ceil(ROWS) * pairs, [0; ROWS]);
    // Of a product without a sum there is nothing to pack.
    let groups = packed.par_chunks_mut(PANELS_AT_ONCE * pairs.max(1)).enumerate();
    groups.for_each(|(group, into)| {
        for first in (0..pairs).step_by(PAIRS_AT_ONCE) {
            let end = pairs.min(first + PAIRS_AT_ONCE);
            for (panel, into) in into.chunks_mut(pairs).enumerate() {
                let lane = (group * PANELS_AT_ONCE + panel) * ROWS;
                kernels::pack_rows(instructions, rows, lane, first, &mut into[first..end]);
            }
        }
    });
    packed
}

/// What the tasks of a product compute with.
#[derive(Clone, Copy)]
struct Factors<'a> {
    instructions: Instructions,
    packed: &'a [[u32; ROWS]],
    /// Along the sum.
    pairs: usize,
    columns: Source<'a>,
}

impl Factors<'_> {
    fn compute(&self, mut block: Block<'_>, buffer: &mut Vec<[u32; COLUMNS]>, join: Join) {
        let width = block.rows.first().map_or(0, |row| row.len());
        let steps = self.pairs.div_ceil(PAIRS_MAX).max(1);
        let length = self.pairs.div_ceil(steps);
        for step in 0..steps {
            let first = step * length;
            let length = length.min(self.pairs - first);
            let packed = sized(buffer, width.div_ceil(COLUMNS) * length, [0; COLUMNS]);
            for (panel, into) in packed.chunks_mut(length.max(1)).enumerate() {
                let lane = block.first_column + panel * COLUMNS;
                kernels::pack_columns(self.instructions, self.columns, lane, first, into);
            }
            let join = if step == 0 { join } else { Join::Add };
            self.tiles(&mut block, packed, first..first + length, join);
        }
    }

    /// Adds up some pairs.
    fn tiles(
        &self,
        block: &mut Block<'_>,
        packed: &[[u32; COLUMNS]],
        pairs: std::ops::Range<usize>,
        join: Join,
    ) {
        let mut tile = [[0.0; COLUMNS]; ROWS];
        let width = block.rows.first().map_or(0, |row| row.len());
        for panel in 0..width.div_ceil(COLUMNS) {
            let columns = &packed[panel * pairs.len()..][..pairs.len()];
            let place = panel * COLUMNS..width.min((panel + 1) * COLUMNS);
            for (index, out) in block.rows.chunks_mut(ROWS).enumerate() {
                let first = (block.first_row / ROWS + index) * self.pairs;
                let rows = &self.packed[first + pairs.start..first + pairs.end];
                kernels::tile(self.instructions, rows, columns, &mut tile);
                for (out, sums) in out.iter_mut().zip(&tile) {
                    join_row(&mut out[place.clone()], sums, join);
                }
            }
        }
    }
}

/// A single row with weights: each of theirs is read once, and nothing is packed.
fn row_product(
    instructions: Instructions,
    out: &mut [f32],
    a: Operand<'_>,
    weights: &[u16],
    join: Join,
) {
    let (inputs, source) = (a.columns, a.source(true));
    let mut pairs = vec![[0u32; 1]; inputs.div_ceil(2).next_multiple_of(LINE)];
    pack::pack(source, 0, 0, &mut pairs[..inputs.div_ceil(2)]);
    let (lines, _) = bytemuck::cast_slice::<_, u32>(&pairs).as_chunks::<LINE>();
    let parts = out.par_chunks_mut(OUTPUTS_AT_ONCE);
    parts.zip(weights.par_chunks(OUTPUTS_AT_ONCE * inputs)).for_each(|(out, weights)| {
        let mut sums = [0.0; OUTPUTS_AT_ONCE];
        let sums = &mut sums[..out.len()];
        kernels::row(instructions, lines, weights, inputs, sums);
        join_row(out, sums, join);
    });
}

#[cfg(test)]
mod tests;
