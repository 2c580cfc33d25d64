//! One weight matrix of integers and its product.

use super::super::matrix::{Block, Join, blocks};
use super::activations::Activations;
use super::kernels::{self, Group, Instructions, Out, Panel, Quad};
use super::{GROUP, LANES, QUAD, QUADS_IN_GROUP};
use half::f16;
use rayon::prelude::*;

/// Rows that go through a panel before the next one: a multiple of what any kernel takes at once.
const ROWS_AT_ONCE: usize = 96;
/// Panels that a kernel gets at once: what any takes side by side.
const PANELS_AT_ONCE: usize = 2;
/// Pieces of a product for each thread, so that a thread that is held up holds up little; the most
/// only where each has so many products of two values.
const TASKS_PER_THREAD_MIN: usize = 2;
const TASKS_PER_THREAD_MAX: usize = 12;
const PRODUCTS_OF_A_TASK: usize = 1 << 20;
/// Products of two values below which threads cost more than they bring.
const PRODUCTS_OF_ONE_THREAD: usize = 1 << 16;
/// Sums of more products of int8 values may not fit an i32.
pub const INPUTS_MAX: usize = i32::MAX as usize / (128 * 127);

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A signed byte a weight, an f32 scale an output.
    Int8,
    /// Four bits a weight, a scale and a least value in f16 for each 32 inputs of an output: five
    /// bits in all.
    Int4,
}

impl Format {
    pub const ALL: [Self; 2] = [Self::Int8, Self::Int4];

    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }
}

/// A matrix `[outputs, inputs]` whose products are computed in integers.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    pub inputs: usize,
    pub outputs: usize,
    pub instructions: Instructions,
    panels: Panels,
}

#[derive(Debug, Clone, PartialEq)]
enum Panels {
    Int8 {
        /// `[panels, inputs / 4]`
        quads: Vec<Quad>,
        /// `[panels]`
        scales: Vec<[f32; LANES]>,
        /// `[panels]`, as [`Panel::Int8`] has them
        below: Vec<[i32; LANES]>,
    },
    /// `[panels, inputs / 32]`
    Int4(Vec<Group>),
}

impl Matrix {
    /// Rounds `values[outputs, inputs]`.
    ///
    /// # Panics
    ///
    /// With more than 132,104 inputs, whose products may not fit an i32.
    pub fn quantize(
        values: &[f32],
        inputs: usize,
        format: Format,
        instructions: Instructions,
    ) -> Self {
        assert!(inputs <= INPUTS_MAX, "{inputs} inputs are more than {INPUTS_MAX}");
        assert!(instructions.is_here(), "this processor has no {}", instructions.name());
        let groups = inputs.div_ceil(GROUP);
        let panels = values.par_chunks(LANES * inputs);
        let panels = match format {
            Format::Int8 => {
                let packed = panels.map(|rows| pack_int8(rows, inputs, groups * QUADS_IN_GROUP));
                let (quads, scales): (Vec<Vec<Quad>>, _) = packed.unzip();
                let below = quads.par_iter().map(|quads| sizes_below_zero(quads)).collect();
                Panels::Int8 { quads: quads.concat(), scales, below }
            }
            Format::Int4 => {
                let packed = panels.flat_map_iter(|rows| pack_int4(rows, inputs, groups));
                Panels::Int4(packed.collect())
            }
        };
        Self { inputs, outputs: values.len() / inputs, instructions, panels }
    }

    pub fn format(&self) -> Format {
        match self.panels {
            Panels::Int8 { .. } => Format::Int8,
            Panels::Int4(_) => Format::Int4,
        }
    }

    /// Memory of the weights and their scales.
    pub fn bytes(&self) -> usize {
        match &self.panels {
            Panels::Int8 { quads, scales, below } => {
                size_of_val(&**quads) + size_of_val(&**scales) + size_of_val(&**below)
            }
            Panels::Int4(groups) => size_of_val(&**groups),
        }
    }

    /// Writes the values that one row stands for to `out[inputs]`.
    ///
    /// # Panics
    ///
    /// With a row that is not there: the last panel has lanes beyond the last output.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        assert!(index < self.outputs, "row {index} of {}", self.outputs);
        let lane = index % LANES;
        match self.panel(index / LANES) {
            Panel::Int8 { quads, scales, .. } => {
                let bytes = quads.iter().flat_map(|quad| &quad[lane * QUAD..][..QUAD]);
                let values = out.iter_mut().zip(bytes);
                values.for_each(|(value, byte)| *value = f32::from(*byte) * scales[lane]);
            }
            Panel::Int4(groups) => {
                for (values, group) in out.chunks_mut(GROUP).zip(groups) {
                    let (scale, least) = group.scale(lane);
                    for (input, value) in values.iter_mut().enumerate() {
                        *value = f32::from(group.nibble(lane, input)) * scale + least;
                    }
                }
            }
        }
    }

    /// `out[rows, outputs] = x[rows, inputs] Wᵀ`, or adds that.
    ///
    /// # Panics
    ///
    /// Where the two have not as many whole rows.
    pub fn product(&self, x: &[f32], out: &mut [f32], join: Join) {
        let rows = x.len() / self.inputs;
        assert_eq!(x.len(), rows * self.inputs, "rows of {} inputs", self.inputs);
        assert_eq!(out.len(), rows * self.outputs, "{rows} rows of {} outputs", self.outputs);
        let activations = Activations::quantize(x, self.inputs);
        let products = x.len() * self.outputs;
        if products <= PRODUCTS_OF_ONE_THREAD {
            let whole = blocks(out, self.outputs, (ROWS_AT_ONCE, self.outputs));
            return whole.into_iter().for_each(|block| self.compute(&activations, block, join));
        }
        let threads = rayon::current_num_threads();
        let wanted = (products / PRODUCTS_OF_A_TASK)
            .clamp(TASKS_PER_THREAD_MIN * threads, TASKS_PER_THREAD_MAX * threads);
        let bands = rows.div_ceil(ROWS_AT_ONCE);
        let panels = self.outputs.div_ceil(LANES).div_ceil(wanted.div_ceil(bands));
        let panels = panels.next_multiple_of(PANELS_AT_ONCE);
        let blocks = blocks(out, self.outputs, (ROWS_AT_ONCE, panels * LANES));
        blocks.into_par_iter().for_each(|block| self.compute(&activations, block, join));
    }

    fn compute(&self, activations: &Activations, mut block: Block<'_>, join: Join) {
        let rows = activations.rows(block.first_row, block.rows.len());
        let width = block.rows.first().map_or(0, |row| row.len());
        let place = block.first_column / LANES;
        let panels = (place..place + width.div_ceil(LANES)).map(|index| self.panel(index));
        let panels: Vec<Panel<'_>> = panels.collect();
        for (index, panels) in panels.chunks(PANELS_AT_ONCE).enumerate() {
            let first_column = index * PANELS_AT_ONCE * LANES;
            let mut out = Out { rows: &mut block.rows, first_column, join };
            kernels::product(self.instructions, panels, rows, &mut out);
        }
    }

    fn panel(&self, index: usize) -> Panel<'_> {
        let groups = self.inputs.div_ceil(GROUP);
        match &self.panels {
            Panels::Int8 { quads, scales, below } => {
                let stride = groups * QUADS_IN_GROUP;
                let quads = &quads[index * stride..][..stride];
                Panel::Int8 { quads, scales: &scales[index], below: &below[index] }
            }
            Panels::Int4(all) => Panel::Int4(&all[index * groups..][..groups]),
        }
    }
}

/// Up to 16 rows as quads, and their scales. A row with a value that is not finite has the scale
/// NaN.
fn pack_int8(rows: &[f32], inputs: usize, stride: usize) -> (Vec<Quad>, [f32; LANES]) {
    let (mut quads, mut scales) = (vec![[0; LANES * QUAD]; stride], [0.0; LANES]);
    for (lane, row) in rows.chunks_exact(inputs).enumerate() {
        let (least, most) = bounds(row);
        let largest = most.max(-least);
        scales[lane] = largest / 127.0;
        let inverse = (127.0 / largest).min(f32::MAX);
        for (input, value) in row.iter().enumerate() {
            let rounded = (value * inverse).round_ties_even().clamp(-127.0, 127.0);
            quads[input / QUAD][lane * QUAD + input % QUAD] = rounded as i8;
        }
    }
    (quads, scales)
}

/// Of each output of a panel.
fn sizes_below_zero(quads: &[Quad]) -> [i32; LANES] {
    let mut sums = [0; LANES];
    for quad in quads {
        for (sum, weights) in sums.iter_mut().zip(quad.as_chunks::<QUAD>().0) {
            *sum -= weights.iter().map(|weight| i32::from(*weight).min(0)).sum::<i32>();
        }
    }
    sums
}

/// Up to 16 rows as groups. A group with a value that is not finite, or too large for an f16, has a
/// scale or a least value that is not, and so makes no finite product.
fn pack_int4(rows: &[f32], inputs: usize, count: usize) -> Vec<Group> {
    let mut groups = vec![Group::default(); count];
    for (lane, row) in rows.chunks_exact(inputs).enumerate() {
        for (group, values) in groups.iter_mut().zip(row.chunks(GROUP)) {
            let (least, most) = bounds(values);
            let (scale, least) = (f16::from_f32((most - least) / 15.0), f16::from_f32(least));
            group.set_scale(lane, scale, least);
            let inverse = 1.0 / scale.to_f32().max(f32::MIN_POSITIVE);
            for (input, value) in values.iter().enumerate() {
                let steps = (value - least.to_f32()) * inverse;
                group.set_nibble(lane, input, steps.round_ties_even().clamp(0.0, 15.0) as u8);
            }
        }
    }
    groups
}

/// The least and the largest value; NaN for both where one is not finite.
fn bounds(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), value| {
        match value.is_finite() && !least.is_nan() {
            true => (least.min(*value), most.max(*value)),
            false => (f32::NAN, f32::NAN),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::check::drawn;
    use super::*;
    use proptest::prelude::*;

    fn product(matrix: &Matrix, x: &[f32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; x.len() / matrix.inputs * matrix.outputs];
        matrix.product(x, &mut out, Join::Replace);
        out
    }

    /// Bits of the products by every set of instructions that is here.
    fn products(weight: &[f32], inputs: usize, format: Format, x: &[f32]) -> Vec<Vec<u32>> {
        let here = Instructions::ALL.into_iter().filter(|instructions| instructions.is_here());
        let products = here.map(|instructions| {
            let out = product(&Matrix::quantize(weight, inputs, format, instructions), x);
            out.into_iter().map(f32::to_bits).collect()
        });
        products.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn every_set_of_instructions_gives_the_same_bits(
            (rows, inputs, outputs) in (1usize..30, 1usize..200, 1usize..50),
            seed in 0usize..100,
            spread in -20i32..20,
        ) {
            let weight = drawn(seed, outputs * inputs);
            let x: Vec<f32> =
                drawn(seed + 1, rows * inputs).iter().map(|x| x * 2f32.powi(spread)).collect();
            for format in Format::ALL {
                let all = products(&weight, inputs, format, &x);
                prop_assert!(all.iter().all(|bits| *bits == all[0]), "{:?}", format);
            }
        }
    }

    #[test]
    fn the_largest_sums_fit() {
        // Every product is ±127 × 127, or 15 × ±127 before the least value is added.
        let inputs = INPUTS_MAX;
        for sign in [1.0, -1.0] {
            for format in Format::ALL {
                let weight = vec![1.0; inputs];
                let all = products(&weight, inputs, format, &vec![sign; inputs]);
                let found = f32::from_bits(all[0][0]);
                assert!((found / (sign * inputs as f32) - 1.0).abs() < 1e-3, "{found}");
                assert!(all.iter().all(|bits| *bits == all[0]), "{format:?} {sign}");
            }
        }
    }

    #[test]
    fn a_product_is_that_of_the_values_that_the_rows_stand_for() {
        let (inputs, outputs, rows) = (70, 21, 5);
        let (weight, x) = (drawn(1, outputs * inputs), drawn(2, rows * inputs));
        for (format, error) in [(Format::Int8, 1.0 / 254.0), (Format::Int4, 1.0 / 15.0)] {
            let matrix = Matrix::quantize(&weight, inputs, format, Instructions::best());
            let mut stored = vec![0.0; weight.len()];
            let places = stored.chunks_exact_mut(inputs).enumerate();
            places.for_each(|(index, row)| matrix.row(index, row));
            let worst = stored.iter().zip(&weight).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst > 0.0 && worst <= error * 1.01, "{format:?}: {worst}");
            let found = product(&matrix, &x);
            for (found, x) in found.chunks_exact(outputs).zip(x.chunks_exact(inputs)) {
                for (found, row) in found.iter().zip(stored.chunks_exact(inputs)) {
                    let exact: f32 = row.iter().zip(x).map(|(w, x)| w * x).sum();
                    // Each activation is off by half a 127th of the largest at most.
                    let bound: f32 = row.iter().map(|w| w.abs() / 254.0).sum();
                    assert!((found - exact).abs() <= bound + 1e-4, "{found}, not {exact}");
                }
            }
        }
    }

    #[test]
    fn a_product_that_joins_is_added() {
        let (weight, x) = (drawn(1, 40 * 33), drawn(2, 7 * 33));
        let matrix = Matrix::quantize(&weight, 33, Format::Int4, Instructions::best());
        let mut sum = vec![2.0; 7 * 40];
        matrix.product(&x, &mut sum, Join::Add);
        let product = product(&matrix, &x);
        assert!(sum.iter().zip(&product).all(|(sum, value)| *sum == 2.0 + value));
    }

    #[test]
    fn weights_of_16_levels_a_group_are_stored_exactly() {
        let values: Vec<f32> =
            (0..64).map(|i| -1.5 + 0.25 * f32::from((i * 7 % 16) as u8)).collect();
        let matrix = Matrix::quantize(&values, 64, Format::Int4, Instructions::best());
        let mut row = vec![0.0; 64];
        matrix.row(0, &mut row);
        assert_eq!(row, values);
    }

    #[test]
    fn what_is_not_finite_shows_in_its_output() {
        // The last is finite, but its group's scale is beyond an f16.
        let values = [
            (f32::INFINITY, &Format::ALL[..]),
            (f32::NAN, &Format::ALL),
            (1e6, &[Format::Int4]),
            (-1e6, &[Format::Int4]),
        ];
        for (value, formats) in values {
            let mut weight = drawn(1, 3 * 32);
            weight[40] = value;
            for format in formats {
                let matrix = Matrix::quantize(&weight, 32, *format, Instructions::best());
                let finite = product(&matrix, &drawn(2, 32)).into_iter().map(f32::is_finite);
                assert_eq!(finite.collect::<Vec<_>>(), [true, false, true], "{value} {format:?}");
            }
        }
    }

    #[test]
    fn a_row_has_the_product_that_it_has_alone() {
        let (inputs, outputs, rows) = (33, 40, 2 * ROWS_AT_ONCE + 5);
        let (mut weight, mut x) = (drawn(1, outputs * inputs), drawn(2, rows * inputs));
        weight[..inputs].fill(0.0);
        x[..inputs].fill(0.0);
        for format in Format::ALL {
            let matrix = Matrix::quantize(&weight, inputs, format, Instructions::best());
            let all = product(&matrix, &x);
            let alone = x.chunks_exact(inputs).flat_map(|x| product(&matrix, x));
            assert_eq!(all, alone.collect::<Vec<_>>(), "{format:?}");
            assert!(all[..outputs].iter().chain(all.iter().step_by(outputs)).all(|y| *y == 0.0));
            assert!(product(&matrix, &[]).is_empty());
        }
    }

    #[test]
    #[should_panic(expected = "row 3 of 3")]
    fn a_row_beyond_the_last_is_not_zeros() {
        let matrix = Matrix::quantize(&drawn(1, 96), 32, Format::Int8, Instructions::best());
        matrix.row(3, &mut [0.0; 32]);
    }
}
