//! The kernels of `shaders/`, each as a function that records it.
//!
//! Each checks that what it touches lies in its buffers, and panics where it does not, as an index
//! does. Rows of sequences lie end to end, as in `het-blocks`.

use std::marker::PhantomData;

use crate::device::{Buffer, Launch, Recorder};
use crate::shaders::Kernel;

/// Invocations of a workgroup that go along one axis.
const LINE: usize = 64;
/// Workgroups along an axis that every device runs.
const AXIS: usize = 65_535;
/// Rows and columns of a product that a workgroup computes.
const TILE: usize = 32;

/// Some values of a buffer, one behind the other.
#[derive(Debug, Clone, Copy)]
pub struct View<'b> {
    buffer: &'b Buffer,
    first: usize,
    length: usize,
}

impl Buffer {
    /// All of it.
    pub fn view(&self) -> View<'_> {
        View { buffer: self, first: 0, length: self.len() }
    }
}

impl<'b> View<'b> {
    /// So many values from `first` on.
    ///
    /// # Panics
    ///
    /// With values that it does not have.
    pub fn part(self, first: usize, length: usize) -> Self {
        let end = first.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "{length} values from {first} on");
        Self { first: self.first + first, length, ..self }
    }

    pub fn len(self) -> usize {
        self.length
    }

    pub fn is_empty(self) -> bool {
        self.length == 0
    }

    /// A copy.
    pub fn to_vec(self) -> Vec<f32> {
        let mut values = vec![0.0; self.length];
        self.buffer.read(self.first, &mut values);
        values
    }

    /// Writes all of it.
    ///
    /// # Panics
    ///
    /// With another number of values.
    pub fn set(self, values: &[f32]) {
        assert_eq!(values.len(), self.length, "values of a view");
        self.buffer.write(self.first, values);
    }

    fn address(self, recorder: &Recorder<'_>, needed: usize) -> u64 {
        assert!(needed <= self.length, "{needed} values of {}", self.length);
        assert!(self.buffer.is_of(recorder), "a buffer of another device");
        self.buffer.address + (self.first * size_of::<f32>()) as u64
    }
}

/// A matrix in a view, by the steps from one row or column to the next.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'b> {
    view: View<'b>,
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

impl<'b> Matrix<'b> {
    /// Rows of so many values, one below the other.
    pub fn rows(view: View<'b>, columns: usize) -> Self {
        let rows = view.len() / columns.max(1);
        Self { view, rows, columns, row_step: columns, column_step: 1 }
    }

    pub fn count(self) -> usize {
        self.rows
    }

    pub fn width(self) -> usize {
        self.columns
    }

    /// Some of its columns.
    ///
    /// # Panics
    ///
    /// With columns that it does not have.
    pub fn columns(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.columns, "columns of a matrix");
        let skipped = (first * self.column_step).min(self.view.len());
        let view = self.view.part(skipped, self.view.len() - skipped);
        Self { view, columns: count, ..self }
    }

    pub fn transpose(self) -> Self {
        let Self { view, rows, columns, row_step, column_step } = self;
        let (rows, columns) = (columns, rows);
        Self { view, rows, columns, row_step: column_step, column_step: row_step }
    }

    /// Up to its last value.
    fn needed(self) -> usize {
        match (self.rows.checked_sub(1), self.columns.checked_sub(1)) {
            (Some(row), Some(column)) => row * self.row_step + column * self.column_step + 1,
            _ => 0,
        }
    }

    fn address(self, recorder: &Recorder<'_>) -> u64 {
        self.view.address(recorder, self.needed())
    }
}

/// The constants of a launch, in their order.
#[derive(Default)]
struct Constants(Vec<u8>);

impl Constants {
    fn addresses(mut self, all: impl IntoIterator<Item = u64>) -> Self {
        all.into_iter().for_each(|own| self.0.extend(own.to_ne_bytes()));
        self
    }

    fn sizes(mut self, all: impl IntoIterator<Item = usize>) -> Self {
        all.into_iter().for_each(|own| self.0.extend(word(own).to_ne_bytes()));
        self
    }

    fn reals(mut self, all: impl IntoIterator<Item = f32>) -> Self {
        all.into_iter().for_each(|own| self.0.extend(own.to_ne_bytes()));
        self
    }
}

/// How a product joins what is there: `c = keep c + scale a b`.
#[derive(Debug, Clone, Copy)]
pub struct Join {
    pub scale: f32,
    pub keep: f32,
}

pub const REPLACE: Join = Join { scale: 1.0, keep: 0.0 };
pub const ADD: Join = Join { scale: 1.0, keep: 1.0 };

/// What rows of queries, keys and values look like.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub size: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Keys that a query has room for.
    pub longest: usize,
}

impl Heads {
    fn width(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.size
    }

    fn constants(self, addresses: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let is_shared = self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads);
        assert!(is_shared, "{} heads share {}", self.heads, self.kv_heads);
        let shared_by = self.heads / self.kv_heads;
        let sizes = [self.width(), self.heads, shared_by, self.size, self.longest];
        Constants::default().addresses(addresses).sizes(sizes).reals([self.scale]).0
    }
}

/// Rows of sequences that lie end to end: for each row where its sequence begins and ends.
#[derive(Debug, Clone)]
pub struct Bounds {
    starts: Vec<u32>,
    ends: Vec<u32>,
    /// Places of rows in their sequences.
    positions: Vec<u32>,
    longest: usize,
}

impl Bounds {
    /// Of sequences that begin and end at these rows.
    ///
    /// # Panics
    ///
    /// Where they do not ascend from 0.
    pub fn new(bounds: &[usize]) -> Self {
        assert_eq!(bounds.first().copied().unwrap_or(0), 0, "the first sequence begins at row 0");
        let rows = bounds.last().copied().unwrap_or(0);
        let (mut starts, mut ends) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        let (mut positions, mut longest) = (Vec::with_capacity(rows), 0);
        for pair in bounds.windows(2) {
            let (start, end) = (word(pair[0]), word(pair[1]));
            assert!(start <= end, "sequences lie end to end");
            starts.extend((start..end).map(|_| start));
            ends.extend((start..end).map(|_| end));
            positions.extend(0..end - start);
            longest = longest.max(pair[1] - pair[0]);
        }
        Self { starts, ends, positions, longest }
    }

    fn check(&self, rows: usize, heads: Heads) {
        assert_eq!(self.starts.len(), rows, "rows of sequences");
        assert!(self.longest <= heads.longest, "a sequence of {} rows", self.longest);
    }
}

fn word(value: usize) -> u32 {
    u32::try_from(value).expect("sizes on a device fit 32 bits")
}

impl<'b> Recorder<'b> {
    fn launch(&mut self, kernel: Kernel, groups: [usize; 2], constants: Vec<u8>) {
        if !groups.contains(&0) {
            let groups = groups.map(word);
            self.launches.push((Launch { kernel, groups, constants }, PhantomData));
        }
    }

    /// So many invocations in a line, which is folded where it is longer than an axis.
    fn launch_line(&mut self, kernel: Kernel, count: usize, constants: Vec<u8>) {
        let groups = count.div_ceil(LINE);
        self.launch(kernel, [groups.min(AXIS), groups.div_ceil(AXIS)], constants);
    }

    /// The address of words that only the run has: nobody changes what was checked.
    fn words(&mut self, words: &[u32]) -> u64 {
        let values: Vec<f32> = words.iter().map(|word| f32::from_bits(*word)).collect();
        self.keep(&values)
    }

    /// `c = keep c + scale a b`
    ///
    /// # Panics
    ///
    /// Where the sizes do not fit.
    pub fn product(&mut self, c: Matrix<'b>, a: Matrix<'b>, b: Matrix<'b>, join: Join) {
        assert_eq!((a.columns, a.rows, b.columns), (b.rows, c.rows, c.columns), "a product");
        assert_eq!(c.column_step, 1, "the result of a product lies in rows");
        let steps = [a.row_step, a.column_step, b.row_step, b.column_step, c.row_step];
        let sizes = [a.rows, a.columns, b.columns].into_iter().chain(steps);
        let constants = Constants::default()
            .addresses([a.address(self), b.address(self), c.address(self)])
            .sizes(sizes)
            .reals([join.scale, join.keep]);
        let groups = [b.columns.div_ceil(TILE), a.rows.div_ceil(TILE)];
        self.launch(Kernel::Product, groups, constants.0);
    }

    /// RMS norm of rows, and the inverse of each row's rms.
    pub fn norm(
        &mut self,
        x: View<'b>,
        weight: View<'b>,
        (out, inverses): (View<'b>, View<'b>),
        (epsilon, offset): (f32, f32),
    ) {
        let (width, count) = (weight.len(), x.len() / weight.len());
        let all =
            [x.address(self, x.len()), weight.address(self, width), out.address(self, x.len())];
        let constants = Constants::default()
            .addresses(all.into_iter().chain([inverses.address(self, count)]))
            .sizes([width])
            .reals([epsilon, offset]);
        self.launch(Kernel::Norm, [count, 1], constants.0);
    }

    /// Adds the gradient of a norm's input.
    pub fn norm_backward(
        &mut self,
        upstream: View<'b>,
        x: View<'b>,
        (weight, inverses, offset): (View<'b>, View<'b>, f32),
        into: View<'b>,
    ) {
        let (width, count) = (weight.len(), x.len() / weight.len());
        let all = [
            upstream.address(self, x.len()),
            x.address(self, x.len()),
            weight.address(self, width),
        ];
        let constants = Constants::default()
            .addresses(
                all.into_iter().chain([inverses.address(self, count), into.address(self, x.len())]),
            )
            .sizes([width])
            .reals([offset]);
        self.launch(Kernel::NormBackward, [count, 1], constants.0);
    }

    /// Adds the gradient of a norm's weight.
    pub fn norm_weight(
        &mut self,
        upstream: View<'b>,
        x: View<'b>,
        inverses: View<'b>,
        into: View<'b>,
    ) {
        let (width, count) = (into.len(), x.len() / into.len());
        let all = [
            upstream.address(self, x.len()),
            x.address(self, x.len()),
            inverses.address(self, count),
        ];
        let constants = Constants::default()
            .addresses(all.into_iter().chain([into.address(self, width)]))
            .sizes([count, width]);
        self.launch_line(Kernel::NormWeight, width, constants.0);
    }

    /// Turns the heads of queries and keys by the angles of their positions.
    ///
    /// # Panics
    ///
    /// Where the sizes do not fit, or the angles of a position are not there.
    pub fn rotate(
        &mut self,
        values: View<'b>,
        heads: Heads,
        (cosines, sines): (View<'b>, View<'b>),
        bounds: &Bounds,
        turn: f32,
    ) {
        let (width, pairs) = (heads.width(), heads.size / 2);
        let (rows, turned) = (values.len() / width, heads.heads + heads.kv_heads);
        bounds.check(rows, heads);
        let table = heads.longest * pairs;
        let positions = self.words(&bounds.positions);
        let all = [
            values.address(self, values.len()),
            cosines.address(self, table),
            sines.address(self, table),
            positions,
        ];
        let constants =
            Constants::default().addresses(all).sizes([rows, width, turned, pairs]).reals([turn]);
        self.launch_line(Kernel::Rotate, rows * turned * pairs, constants.0);
    }

    /// What queries mix of the values that they see; probabilities stay.
    ///
    /// # Panics
    ///
    /// Where the sizes do not fit.
    pub fn attention(
        &mut self,
        qkv: View<'b>,
        heads: Heads,
        bounds: &Bounds,
        (probabilities, mixed): (View<'b>, View<'b>),
    ) {
        let rows = qkv.len() / heads.width();
        bounds.check(rows, heads);
        let starts = self.words(&bounds.starts);
        let constants = heads.constants([
            qkv.address(self, qkv.len()),
            probabilities.address(self, rows * heads.heads * heads.longest),
            mixed.address(self, rows * heads.heads * heads.size),
            starts,
        ]);
        self.launch(Kernel::Attention, [rows, heads.heads], constants);
    }

    /// Writes the gradient of queries, keys and values; `scores` is a buffer as the probabilities.
    ///
    /// # Panics
    ///
    /// Where the sizes do not fit.
    pub fn attention_backward(
        &mut self,
        (qkv, probabilities, scores): (View<'b>, View<'b>, View<'b>),
        heads: Heads,
        bounds: &Bounds,
        (upstream, into): (View<'b>, View<'b>),
    ) {
        let rows = qkv.len() / heads.width();
        bounds.check(rows, heads);
        let square = rows * heads.heads * heads.longest;
        let [starts, ends] = [&bounds.starts, &bounds.ends].map(|words| self.words(words));
        let all = [
            qkv.address(self, qkv.len()),
            probabilities.address(self, square),
            scores.address(self, square),
            upstream.address(self, rows * heads.heads * heads.size),
            into.address(self, qkv.len()),
            starts,
        ];
        self.launch(Kernel::AttentionQueries, [rows, heads.heads], heads.constants(all));
        let all = all.into_iter().chain([ends]);
        self.launch(Kernel::AttentionKeys, [rows, heads.kv_heads], heads.constants(all));
    }

    /// `silu(gate) up`, of rows that have both.
    pub fn gate(&mut self, up: View<'b>, width: usize, activated: View<'b>) {
        let count = up.len() / 2;
        let all = [up.address(self, up.len()), activated.address(self, count)];
        let constants = Constants::default().addresses(all).sizes([count / width, width]);
        self.launch_line(Kernel::Gate, count, constants.0);
    }

    /// The gradient of both, and the activation again.
    pub fn gate_backward(
        &mut self,
        (up, upstream): (View<'b>, View<'b>),
        width: usize,
        (into, activated): (View<'b>, View<'b>),
    ) {
        let count = up.len() / 2;
        let all = [
            up.address(self, up.len()),
            upstream.address(self, count),
            into.address(self, up.len()),
            activated.address(self, count),
        ];
        let constants = Constants::default().addresses(all).sizes([count / width, width]);
        self.launch_line(Kernel::GateBackward, count, constants.0);
    }

    /// `to = keep to + scale from`
    pub fn mix(&mut self, to: View<'b>, from: View<'b>, join: Join) {
        let count = to.len();
        let constants = Constants::default()
            .addresses([from.address(self, count), to.address(self, count)])
            .sizes([count])
            .reals([join.scale, join.keep]);
        self.launch_line(Kernel::Mix, count, constants.0);
    }

    pub fn clear(&mut self, view: View<'b>) {
        self.mix(view, view, Join { scale: 0.0, keep: 0.0 });
    }

    /// Rows of a table, times `scale`.
    ///
    /// # Panics
    ///
    /// With a row that the table does not have.
    pub fn gather(
        &mut self,
        table: View<'b>,
        rows: &[u32],
        (out, width): (View<'b>, usize),
        scale: f32,
    ) {
        check_rows(table, rows, width);
        let words = self.words(rows);
        let (from, into) =
            (table.address(self, table.len()), out.address(self, rows.len() * width));
        let constants = Constants::default()
            .addresses([from, words, into])
            .sizes([rows.len(), width])
            .reals([scale]);
        self.launch_line(Kernel::Gather, rows.len() * width, constants.0);
    }

    /// Adds rows, times `scale`, to those of a table, but for one.
    ///
    /// # Panics
    ///
    /// With a row that the table does not have.
    pub fn scatter(
        &mut self,
        from: View<'b>,
        rows: &[u32],
        (table, width): (View<'b>, usize),
        (scale, left_out): (f32, Option<u32>),
    ) {
        check_rows(table, rows, width);
        let words = self.words(rows);
        let (from, into) =
            (from.address(self, rows.len() * width), table.address(self, table.len()));
        let constants = Constants::default()
            .addresses([from, words, into])
            .sizes([rows.len(), width, left_out.unwrap_or(u32::MAX) as usize])
            .reals([scale]);
        self.launch_line(Kernel::Scatter, width, constants.0);
    }

    /// Cross-entropy of rows of logits, which become its gradient.
    ///
    /// # Panics
    ///
    /// With a target that a row does not have.
    pub fn loss(&mut self, logits: View<'b>, targets: &[u32], losses: View<'b>) {
        let count = targets.len();
        let width = logits.len() / count.max(1);
        assert!(targets.iter().all(|target| (*target as usize) < width), "a target of no logit");
        let words = self.words(targets);
        let (logits, losses) = (logits.address(self, count * width), losses.address(self, count));
        let constants = Constants::default().addresses([logits, words, losses]).sizes([width]);
        self.launch(Kernel::Loss, [count, 1], constants.0);
    }
}

fn check_rows(table: View<'_>, rows: &[u32], width: usize) {
    let count = table.len() / width.max(1);
    assert!(rows.iter().all(|row| (*row as usize) < count), "a row of no table");
}
