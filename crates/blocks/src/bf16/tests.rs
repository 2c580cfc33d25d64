use super::super::check::drawn;
use super::*;
use proptest::prelude::*;

/// A value as bfloat16 has it.
fn rounded(value: f32) -> f64 {
    f64::from(bf16::from_f32(value).to_f32())
}

/// `[rows, columns]` values, stored either way and in either format.
struct Factor {
    rows: usize,
    columns: usize,
    is_transposed: bool,
    values: Vec<f32>,
    bits: Option<Vec<u16>>,
}

impl Factor {
    fn drawn(seed: usize, (rows, columns): (usize, usize), is_transposed: bool) -> Self {
        let values = drawn(seed, rows * columns);
        Self { rows, columns, is_transposed, values, bits: None }
    }

    fn in_bf16(mut self) -> Self {
        self.bits = Some(self.values.iter().map(|v| bf16::from_f32(*v).to_bits()).collect());
        self
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        rounded(match self.is_transposed {
            true => self.values[column * self.rows + row],
            false => self.values[row * self.columns + column],
        })
    }

    fn operand(&self) -> Operand<'_> {
        let values = match &self.bits {
            Some(bits) => Values::Bf16(bits),
            None => Values::F32(&self.values),
        };
        let Self { rows, columns, is_transposed, .. } = *self;
        Operand { values, rows, columns, is_transposed }
    }
}

fn here() -> impl Iterator<Item = Instructions> {
    Instructions::ALL.into_iter().filter(|instructions| instructions.is_here())
}

fn check(a: &Factor, b: &Factor, join: Join) {
    for instructions in here() {
        let before = if join == Join::Add { 2.0 } else { f32::NAN };
        let mut out = vec![before; a.rows * b.columns];
        product_by(instructions, &mut out, a.operand(), b.operand(), join);
        for (index, found) in out.into_iter().enumerate() {
            let (row, column) = (index / b.columns, index % b.columns);
            let terms = (0..a.columns).map(|k| a.at(row, k) * b.at(k, column));
            let start = if join == Join::Add { 2.0 } else { 0.0 };
            let (exact, size) =
                terms.fold((start, 1.0), |(sum, size), term| (sum + term, size + f64::abs(term)));
            let off = (f64::from(found) - exact).abs();
            assert!(off <= 1e-6 * size, "{instructions:?} {row},{column}: {found}, not {exact}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_set_of_instructions_gives_the_product_of_the_rounded_values(
        (rows, inner, columns) in (1usize..40, 1usize..90, 1usize..120),
        seed in 0usize..100,
        flags in 0u8..32,
    ) {
        let flag = |bit: u8| flags & (1 << bit) != 0;
        let mut a = Factor::drawn(seed, (rows, inner), flag(0));
        let mut b = Factor::drawn(seed + 1, (inner, columns), flag(1));
        if flag(2) {
            a = a.in_bf16();
        }
        if flag(3) {
            b = b.in_bf16();
        }
        check(&a, &b, if flag(4) { Join::Add } else { Join::Replace });
    }
}

#[test]
fn a_sum_that_is_packed_in_parts_is_the_same_sum() {
    for inner in [2 * PAIRS_MAX, 2 * PAIRS_MAX + 1, 4 * PAIRS_MAX + 7] {
        for is_transposed in [false, true] {
            let a = Factor::drawn(1, (9, inner), is_transposed);
            check(&a, &Factor::drawn(2, (inner, 50), is_transposed), Join::Add);
        }
    }
}

#[test]
fn a_single_row_of_any_length_is_right() {
    for inputs in [1, 31, 32, 33, 127, 128, 129, 300] {
        let weights = Factor::drawn(2, (inputs, 70), true).in_bf16();
        check(&Factor::drawn(1, (1, inputs), false), &weights, Join::Replace);
        check(&Factor::drawn(1, (1, inputs), false), &weights, Join::Add);
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let (a, b) = (Factor::drawn(1, (300, 700), false), Factor::drawn(2, (700, 500), true));
    let by = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let mut out = vec![0.0; 300 * 500];
        pool.install(|| product(&mut out, a.operand(), b.operand(), Join::Replace));
        out
    };
    let alone = by(1);
    assert!([2, 3, 16].into_iter().all(|threads| by(threads) == alone));
}

#[test]
fn values_are_rounded_to_the_nearest_and_what_is_not_finite_stays_so() {
    let values = [
        1.0 + 1.0 / 256.0,
        1.0 + 3.0 / 256.0,
        -1.0 - 1.01 / 256.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::from_bits(0x7f80_0001),
        f32::from_bits(0xffff_ffff),
    ];
    let one = [1.0];
    for instructions in here() {
        for value in values {
            let mut out = [0.0];
            let (a, b) = (Operand::rows(std::slice::from_ref(&value), 1), Operand::rows(&one, 1));
            product_by(instructions, &mut out, a, b, Join::Replace);
            let expected = bf16::from_f32(value).to_f32();
            let is_same = out[0] == expected || out[0].is_nan() && expected.is_nan();
            assert!(is_same, "{instructions:?} {value}: {}, not {expected}", out[0]);
        }
    }
}

#[test]
fn a_product_without_a_sum_is_zero() {
    let mut out = vec![1.0; 6];
    let empty = Factor { rows: 2, columns: 0, is_transposed: false, values: vec![], bits: None };
    let other = Factor { rows: 0, columns: 3, is_transposed: false, values: vec![], bits: None };
    product(&mut out, empty.operand(), other.operand(), Join::Add);
    assert_eq!(out, [1.0; 6]);
    product(&mut out, empty.operand(), other.operand(), Join::Replace);
    assert_eq!(out, [0.0; 6]);
}

#[test]
fn a_matrix_is_its_values_rounded() {
    let values = drawn(1, 7 * 5);
    let matrix = Matrix::round(&values, 5);
    assert_eq!((matrix.outputs(), matrix.bytes()), (7, 70));
    let expected: Vec<f32> = values.iter().map(|value| rounded(*value) as f32).collect();
    assert_eq!(matrix.to_f32(), expected);
    let mut row = vec![0.0; 5];
    matrix.row(3, &mut row);
    assert_eq!(row, expected[15..20]);
    assert_eq!(Matrix::of_bits(matrix.bits().to_vec(), 5), Some(matrix));
    assert_eq!(Matrix::of_bits(vec![0; 7], 5), None);
    assert_eq!(Matrix::of_bits(vec![0; 7], 0), None);
}
