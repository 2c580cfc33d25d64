//! What a layer's backward records.

use super::content::{Tape, Values};
use super::scratch::{Role, Scratch};
use super::{ATTENTION_NORM, DOWN, MLP_NORM, OUTPUT, QKV, UP, by};
use crate::architecture::Architecture;
use crate::lora::{Adapter, Group};
use het_vulkan::Recorder;
use het_vulkan::kernels::{ADD, Bounds, Heads, Join, Matrix, REPLACE, View};

/// Values of a row.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    hidden: usize,
    q_width: usize,
    qkv_width: usize,
    feed_forward: usize,
    up_width: usize,
}

impl Sizes {
    pub fn of(Architecture { hidden, attention, mlp, .. }: &Architecture) -> Self {
        Self {
            hidden: *hidden,
            q_width: attention.q_width(),
            qkv_width: attention.qkv_width(),
            feed_forward: mlp.feed_forward,
            up_width: mlp.up_width(),
        }
    }
}

/// Buffers that are used, and their lengths.
pub fn roles(
    architecture: &Architecture,
    rows: usize,
    heads: Heads,
    through: usize,
) -> [(Role, usize); 11] {
    let Sizes { hidden, q_width, qkv_width, feed_forward, up_width } = Sizes::of(architecture);
    [
        (Role::Normed, rows * hidden),
        (Role::IntoNormed, rows * hidden),
        (Role::Inverses, rows),
        (Role::Activated, rows * feed_forward),
        (Role::IntoActivated, rows * feed_forward),
        (Role::IntoUp, rows * up_width),
        (Role::IntoMixed, rows * q_width),
        (Role::IntoQkv, rows * qkv_width),
        (Role::Scores, rows * heads.heads * heads.longest),
        (Role::ThroughA, through),
        (Role::ThroughB, through),
    ]
}

/// A layer's backward with all that it reads.
pub struct LayerBackward<'a> {
    pub weights: &'a Values,
    pub tape: &'a Tape,
    pub learns: Gradients<'a>,
    pub scratch: &'a Scratch,
    pub rows: usize,
    pub heads: Heads,
    pub bounds: Bounds,
    /// Its angles, where it rotates.
    pub rotation: Option<(View<'a>, View<'a>)>,
    pub sizes: Sizes,
    /// Epsilon and offset.
    pub norm: (f32, f32),
    pub reaches_input: bool,
}

impl<'a> LayerBackward<'a> {
    /// A buffer with so many values a row.
    fn view(&self, role: Role, width: usize) -> View<'a> {
        self.scratch.view(role, self.rows * width)
    }

    fn linear(&self, part: usize, inputs: usize) -> Matrix<'a> {
        Matrix::rows(self.weights.part(part), inputs)
    }

    /// Products with the low-rank matrices.
    fn through(&self) -> [View<'a>; 2] {
        let length = self.learns.through(self.rows);
        [Role::ThroughA, Role::ThroughB].map(|role| self.scratch.view(role, length))
    }

    /// Turns the stream from the gradient of the layer's result into that of what attention left.
    pub fn mlp(&self, record: &mut Recorder<'a>, stream: View<'a>) {
        let Sizes { hidden, feed_forward, up_width, .. } = self.sizes;
        let [normed, into_normed] =
            [Role::Normed, Role::IntoNormed].map(|role| self.view(role, hidden));
        let [activated, into_activated] =
            [Role::Activated, Role::IntoActivated].map(|role| self.view(role, feed_forward));
        let (inverses, into_up) = (self.view(Role::Inverses, 1), self.view(Role::IntoUp, up_width));
        let (middle, norm) = (self.tape.middle.view(), self.weights.part(MLP_NORM));
        let upstream = Matrix::rows(stream, hidden);
        record.norm(middle, norm, (normed, inverses), self.norm);
        let into = Matrix::rows(into_activated, feed_forward);
        record.product(into, upstream, self.linear(DOWN, feed_forward), REPLACE);
        let up = self.tape.up.view();
        record.gate_backward((up, into_activated), feed_forward, (into_up, activated));
        let through = self.through();
        self.learns.add(record, DOWN, Matrix::rows(activated, feed_forward), upstream, through);
        let into_up = by(into_up, self.linear(UP, hidden));
        self.learns.add(record, UP, Matrix::rows(normed, hidden), into_up, through);
        let into = Matrix::rows(into_normed, hidden);
        record.product(into, into_up, self.linear(UP, hidden), REPLACE);
        self.learns.add_norm(record, MLP_NORM, (into_normed, middle, inverses));
        record.norm_backward(into_normed, middle, (norm, inverses, self.norm.1), stream);
    }

    /// Goes on to that of the layer's input.
    pub fn attention(&self, record: &mut Recorder<'a>, x: View<'a>, stream: View<'a>) {
        let Sizes { hidden, q_width, qkv_width, .. } = self.sizes;
        let [normed, into_normed] =
            [Role::Normed, Role::IntoNormed].map(|role| self.view(role, hidden));
        let inverses = self.view(Role::Inverses, 1);
        let into_mixed = self.view(Role::IntoMixed, q_width);
        let into_qkv = self.view(Role::IntoQkv, qkv_width);
        let norm = self.weights.part(ATTENTION_NORM);
        let (upstream, through) = (Matrix::rows(stream, hidden), self.through());
        record.norm(x, norm, (normed, inverses), self.norm);
        let mixed = Matrix::rows(self.tape.mixed.view(), q_width);
        self.learns.add(record, OUTPUT, mixed, upstream, through);
        let into = Matrix::rows(into_mixed, q_width);
        record.product(into, upstream, self.linear(OUTPUT, q_width), REPLACE);
        let longest = self.heads.heads * self.heads.longest;
        let scores = self.view(Role::Scores, longest);
        let kept = (self.tape.qkv.view(), self.tape.probabilities.view(), scores);
        record.attention_backward(kept, self.heads, &self.bounds, (into_mixed, into_qkv));
        if let Some(table) = self.rotation {
            record.rotate(into_qkv, self.heads, table, &self.bounds, -1.0);
        }
        let into_qkv = by(into_qkv, self.linear(QKV, hidden));
        self.learns.add(record, QKV, Matrix::rows(normed, hidden), into_qkv, through);
        if self.reaches_input {
            let into = Matrix::rows(into_normed, hidden);
            record.product(into, into_qkv, self.linear(QKV, hidden), REPLACE);
            self.learns.add_norm(record, ATTENTION_NORM, (into_normed, x, inverses));
            record.norm_backward(into_normed, x, (norm, inverses, self.norm.1), stream);
        }
    }
}

/// Where gradients of a layer are added to.
pub enum Gradients<'a> {
    All(&'a Values),
    Adapter { adapter: &'a Adapter, index: usize, values: View<'a>, into: View<'a> },
}

impl<'a> Gradients<'a> {
    /// Values of the widest product with the low-rank matrices of a group.
    pub fn through(&self, rows: usize) -> usize {
        let Self::Adapter { adapter, index, .. } = self else { return 0 };
        let widest = adapter.groups(*index).into_iter().map(|group| group.slots.len()).max();
        rows * adapter.rank * widest.unwrap_or(0)
    }

    fn add(
        &self,
        record: &mut Recorder<'a>,
        part: usize,
        x: Matrix<'a>,
        upstream: Matrix<'a>,
        through: [View<'a>; 2],
    ) {
        match self {
            Self::All(gradient) => {
                let into = Matrix::rows(gradient.part(part), x.width());
                record.product(into, upstream.transpose(), x, ADD);
            }
            Self::Adapter { adapter, index, values, into } => {
                let [qkv, output, up, down] = adapter.groups(*index);
                let group = match part {
                    QKV => qkv,
                    OUTPUT => output,
                    UP => up,
                    _ => down,
                };
                let first = adapter.place(*index).start;
                let low_rank = LowRank { adapter, group, first, values: *values, into: *into };
                low_rank.add(record, x, upstream, through);
            }
        }
    }

    fn add_norm(
        &self,
        record: &mut Recorder<'a>,
        part: usize,
        (upstream, x, inverses): (View<'a>, View<'a>, View<'a>),
    ) {
        if let Self::All(gradient) = self {
            record.norm_weight(upstream, x, inverses, gradient.part(part));
        }
    }
}

/// The updates of one matrix, as `het_blocks::linear` has them.
struct LowRank<'a> {
    adapter: &'a Adapter,
    group: &'a Group,
    /// Of the layer's values.
    first: usize,
    values: View<'a>,
    into: View<'a>,
}

impl<'a> LowRank<'a> {
    fn add(
        &self,
        record: &mut Recorder<'a>,
        x: Matrix<'a>,
        upstream: Matrix<'a>,
        [through_a, through_b]: [View<'a>; 2],
    ) {
        let Self { adapter, group, first, values, into } = self;
        let (rank, rows, count) = (adapter.rank, x.count(), group.slots.len());
        if count == 0 {
            return;
        }
        let scaled = Join { scale: adapter.scale(), keep: 1.0 };
        let place = |range: &std::ops::Range<usize>| (range.start - first, range.len());
        let part = |view: View<'a>, range: &std::ops::Range<usize>| {
            let (start, length) = place(range);
            view.part(start, length)
        };
        let width = rank * count;
        let [through_a, through_b] =
            [through_a, through_b].map(|view| Matrix::rows(view.part(0, rows * width), width));
        let a = Matrix::rows(part(*values, &group.a), group.inputs);
        record.product(through_a, x, a.transpose(), REPLACE);
        for (index, slot) in group.slots.iter().enumerate() {
            let own = upstream.columns(slot.first_row, slot.outputs);
            let b = Matrix::rows(part(*values, &slot.b), rank);
            record.product(through_b.columns(index * rank, rank), own, b, REPLACE);
            let into_b = Matrix::rows(part(*into, &slot.b), rank);
            let through = through_a.columns(index * rank, rank);
            record.product(into_b, own.transpose(), through, scaled);
        }
        let into_a = Matrix::rows(part(*into, &group.a), group.inputs);
        record.product(into_a, through_b.transpose(), x, scaled);
    }
}
