//! The attention block: projections, norms of queries and keys, rotation, mixing, output.

use super::linear::{self, Linear};
use super::matrix::{copied, rows, rows_mut, sized, split_lengths, split_rows};
use super::meter::{Work, spend};
use super::norm::{self, Norm, STATISTICS};
use super::rotation::Table;
pub use super::scores::Shape;
use super::scores::{self, Inputs};
use rayon::prelude::*;

/// Rows that one thread rotates at least.
const ROWS_AT_ONCE: usize = 64;

#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// Queries, keys, values: `[qkv_width, hidden]`
    pub qkv: Linear<'a>,
    /// `[hidden, q_width]`
    pub output: Linear<'a>,
    /// `[head_size]`, or empty without a norm
    pub query_norm: &'a [f32],
    /// `[head_size]`, or empty without a norm
    pub key_norm: &'a [f32],
    /// Angles of all positions, or none where positions are not rotated
    pub table: Option<&'a Table>,
}

/// Rows of sequences laid end to end.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// `[rows, hidden]`
    pub x: &'a [f32],
    /// Sequence `i` is rows `bounds[i]..bounds[i + 1]`.
    pub bounds: &'a [usize],
}

/// What the backward needs.
#[derive(Debug, Clone, Default)]
pub struct Saved {
    /// Before norms and rotation, `[rows, qkv_width]`; empty without norms.
    projected: Vec<f32>,
    /// `[rows, heads + kv_heads, 2]`; empty without norms.
    statistics: Vec<f32>,
    /// After norms and rotation, `[rows, qkv_width]`
    qkv: Vec<f32>,
    /// Sequence by sequence `[heads, length, length]`
    probabilities: Vec<f32>,
    /// `[rows, q_width]`
    mixed: Vec<f32>,
}

/// Keys and values of the earlier positions of one sequence, `[length, kv_width]` each.
#[derive(Debug, Clone, Default)]
pub struct KeyValues {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// What the rows of a batch may look at.
#[derive(Debug)]
pub enum Context<'a> {
    /// Whole sequences.
    Whole,
    /// As [`Context::Whole`], without what a backward needs: the probabilities grow by the square
    /// of a sequence's length.
    WholeForwardOnly,
    /// The ends of sequences, one [`KeyValues`] each, which grow by the new rows.
    After(&'a mut [KeyValues]),
}

/// Where gradients of [`Parameters`] are added to; norms that are frozen have empty slices.
#[derive(Debug)]
pub struct Gradients<'a> {
    pub qkv: linear::Gradient<'a>,
    pub output: linear::Gradient<'a>,
    pub query_norm: &'a mut [f32],
    pub key_norm: &'a mut [f32],
}

#[derive(Debug, Default)]
pub struct Workspace {
    into_mixed: Vec<f32>,
    into_qkv: Vec<f32>,
    into_projected: Vec<f32>,
    linear: linear::Workspace,
}

impl Shape {
    /// `out[rows, hidden] += attention(x[rows, hidden])`
    pub fn forward(
        &self,
        parameters: Parameters<'_>,
        Input { x, bounds }: Input<'_>,
        context: Context<'_>,
        saved: &mut Saved,
        out: &mut [f32],
    ) {
        let count = x.len() / parameters.qkv.inputs;
        parameters.qkv.forward(x, sized(&mut saved.qkv, count * self.qkv_width()));
        spend(Work::Attention, || {
            self.normalise(parameters, saved);
            sized(&mut saved.mixed, count * self.q_width());
            match context {
                Context::Whole => self.mix_whole(parameters, bounds, saved),
                Context::WholeForwardOnly => self.mix_forward_only(parameters, bounds, saved),
                Context::After(past) => self.mix_after(parameters, bounds, past, saved),
            }
        });
        parameters.output.add_forward(&saved.mixed, out);
    }

    /// Adds the gradients of the parameters, and writes that of `x` to `into_x[rows, hidden]`
    /// where anybody wants it. Sequences are whole.
    pub fn backward(
        &self,
        parameters: Parameters<'_>,
        Input { x, bounds }: Input<'_>,
        saved: &Saved,
        upstream: &[f32],
        gradients: &mut Gradients<'_>,
        workspace: &mut Workspace,
        into_x: Option<&mut [f32]>,
    ) {
        let Workspace { into_mixed, into_qkv, into_projected, linear } = workspace;
        gradients.output.add(parameters.output, &saved.mixed, upstream, linear);
        let into_mixed = sized(into_mixed, saved.mixed.len());
        parameters.output.backward(upstream, into_mixed);
        let into_qkv = spend(Work::Attention, || {
            let into_qkv = sized(into_qkv, saved.qkv.len());
            self.mix_backward(parameters, bounds, saved, into_mixed, into_qkv);
            let Some(norm) = self.norm else { return into_qkv };
            let into_projected = sized(into_projected, into_qkv.len());
            self.normalise_backward(norm, parameters, saved, into_qkv, gradients, into_projected);
            into_projected
        });
        gradients.qkv.add(parameters.qkv, x, into_qkv, linear);
        if let Some(into_x) = into_x {
            parameters.qkv.backward(into_qkv, into_x);
        }
    }

    /// Normalises every head of queries and keys.
    fn normalise(&self, parameters: Parameters<'_>, saved: &mut Saved) {
        let Some(norm) = self.norm else { return };
        let Saved { projected, statistics, qkv, .. } = saved;
        copied(projected, qkv);
        let (width, heads) = (self.qkv_width(), self.heads + self.kv_heads);
        let statistics = sized(statistics, qkv.len() / width * heads * STATISTICS);
        qkv.par_chunks_exact_mut(width)
            .zip(projected.par_chunks_exact(width))
            .zip(statistics.par_chunks_exact_mut(heads * STATISTICS))
            .for_each(|((out, x), statistics)| {
                for (head, statistics) in statistics.chunks_exact_mut(STATISTICS).enumerate() {
                    let place = head * self.head_size..(head + 1) * self.head_size;
                    let own = self.head_norm(parameters, head);
                    norm.forward_row(&x[place.clone()], own, &mut out[place], statistics);
                }
            });
    }

    fn head_norm<'a>(&self, parameters: Parameters<'a>, head: usize) -> norm::Parameters<'a> {
        let of_query = head < self.heads;
        let weight = if of_query { parameters.query_norm } else { parameters.key_norm };
        norm::Parameters { weight, bias: &[] }
    }

    fn normalise_backward(
        &self,
        norm: Norm,
        parameters: Parameters<'_>,
        saved: &Saved,
        upstream: &[f32],
        gradients: &mut Gradients<'_>,
        into: &mut [f32],
    ) {
        let (width, heads) = (self.qkv_width(), self.heads + self.kv_heads);
        into.copy_from_slice(upstream);
        let rows = into.chunks_exact_mut(width).zip(upstream.chunks_exact(width));
        let rows = rows.zip(saved.projected.chunks_exact(width));
        let rows = rows.zip(saved.statistics.chunks_exact(heads * STATISTICS));
        for (((into, upstream), x), statistics) in rows {
            for (head, statistics) in statistics.chunks_exact(STATISTICS).enumerate() {
                let place = head * self.head_size..(head + 1) * self.head_size;
                let (upstream, x) = (&upstream[place.clone()], &x[place.clone()]);
                let of_query = head < self.heads;
                let weight: &mut [f32] =
                    if of_query { gradients.query_norm } else { gradients.key_norm };
                let mut gradient = norm::Gradient { weight, bias: &mut [] };
                norm.backward_parameters(upstream, x, statistics, &mut gradient);
                let own = self.head_norm(parameters, head);
                into[place.clone()].fill(0.0);
                norm.backward_row(upstream, x, own, statistics, &mut into[place]);
            }
        }
    }

    /// Rotates the queries and keys of consecutive positions.
    fn rotate(&self, table: Option<&Table>, qkv: &mut [f32], first_position: usize, turn: f32) {
        let Some(table) = table else { return };
        let turned = self.q_width() + self.kv_width();
        let rows = qkv.par_chunks_exact_mut(self.qkv_width()).enumerate();
        rows.with_min_len(ROWS_AT_ONCE).for_each(|(index, row)| {
            table.rotate(&mut row[..turned], first_position + index, turn);
        });
    }

    fn mix_whole(&self, parameters: Parameters<'_>, bounds: &[usize], saved: &mut Saved) {
        let Saved { qkv, probabilities, mixed, .. } = saved;
        let stored = || bounds.windows(2).map(|pair| self.stored(pair[1] - pair[0]));
        let mut probabilities = sized(probabilities, stored().sum());
        let pieces = split_rows(qkv, bounds, self.qkv_width())
            .into_par_iter()
            .zip(split_rows(mixed, bounds, self.q_width()))
            .zip(split_lengths(&mut probabilities, stored()));
        pieces.for_each(|((qkv, mixed), probabilities)| {
            self.rotate(parameters.table, qkv, 0, 1.0);
            let inputs = Inputs::whole(self, rows(qkv, self.qkv_width()));
            scores::attend(self, inputs, rows_mut(mixed, self.q_width()), Some(probabilities));
        });
    }

    /// As [`Shape::mix_whole`], with no more than a block of probabilities a thread.
    fn mix_forward_only(&self, parameters: Parameters<'_>, bounds: &[usize], saved: &mut Saved) {
        let Saved { qkv, probabilities, mixed, .. } = saved;
        // An earlier batch that was trained may have left some.
        *probabilities = Vec::new();
        let pieces = split_rows(qkv, bounds, self.qkv_width()).into_par_iter().zip(split_rows(
            mixed,
            bounds,
            self.q_width(),
        ));
        pieces.for_each(|(qkv, mixed)| {
            self.rotate(parameters.table, qkv, 0, 1.0);
            let inputs = Inputs::whole(self, rows(qkv, self.qkv_width()));
            scores::attend(self, inputs, rows_mut(mixed, self.q_width()), None);
        });
    }

    fn mix_after(
        &self,
        parameters: Parameters<'_>,
        bounds: &[usize],
        past: &mut [KeyValues],
        saved: &mut Saved,
    ) {
        let (width, kv) = (self.qkv_width(), self.kv_width());
        let pieces = split_rows(&mut saved.qkv, bounds, width)
            .into_par_iter()
            .zip(split_rows(&mut saved.mixed, bounds, self.q_width()))
            .zip(past);
        pieces.for_each(|((qkv, mixed), past)| {
            self.rotate(parameters.table, qkv, past.keys.len() / kv, 1.0);
            for row in qkv.chunks_exact(width) {
                let (key, value) = row[self.q_width()..].split_at(kv);
                past.keys.extend(key);
                past.values.extend(value);
            }
            let q = rows(qkv, width).subcols(0, self.q_width());
            let inputs = Inputs { q, k: rows(&past.keys, kv), v: rows(&past.values, kv) };
            scores::attend(self, inputs, rows_mut(mixed, self.q_width()), None);
        });
    }

    /// Writes the gradient of the unrotated `qkv` rows, given that of `mixed`.
    fn mix_backward(
        &self,
        parameters: Parameters<'_>,
        bounds: &[usize],
        saved: &Saved,
        upstream: &[f32],
        into_qkv: &mut [f32],
    ) {
        let (width, q_width) = (self.qkv_width(), self.q_width());
        let mut next = 0;
        let starts: Vec<usize> = bounds
            .windows(2)
            .map(|pair| {
                let start = next;
                next += self.stored(pair[1] - pair[0]);
                start
            })
            .collect();
        let pieces = split_rows(into_qkv, bounds, width).into_par_iter().enumerate();
        pieces.for_each(|(sequence, into_qkv)| {
            let (start, end) = (bounds[sequence], bounds[sequence + 1]);
            scores::attend_backward(
                self,
                Inputs::whole(self, rows(&saved.qkv[start * width..end * width], width)),
                &saved.probabilities[starts[sequence]..],
                rows(&upstream[start * q_width..end * q_width], q_width),
                rows_mut(into_qkv, width),
            );
            self.rotate(parameters.table, into_qkv, 0, -1.0);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{Check, drawn};
    use super::super::linear::Weight;
    use super::super::norm::Kind;
    use super::super::rotation::Rope;
    use super::*;

    const BOUNDS: [usize; 3] = [0, 4, 9];
    const HIDDEN: usize = 6;
    const PLAIN: Shape = Shape {
        heads: 4,
        kv_heads: 2,
        head_size: 4,
        scale: 0.5,
        cap: None,
        window: None,
        norm: None,
    };

    /// Input, qkv, its bias, output, its bias, norms of queries and keys.
    type Values = [Vec<f32>; 7];

    fn values(shape: &Shape, bounds: &[usize]) -> Values {
        let (width, q_width) = (shape.qkv_width(), shape.q_width());
        [
            drawn(1, bounds[bounds.len() - 1] * HIDDEN),
            drawn(2, width * HIDDEN),
            drawn(3, width),
            drawn(4, HIDDEN * q_width),
            drawn(5, HIDDEN),
            drawn(6, shape.norm.map_or(0, |_| shape.head_size)),
            drawn(7, shape.norm.map_or(0, |_| shape.head_size)),
        ]
    }

    fn parameters<'a>(values: &'a Values, table: Option<&'a Table>) -> Parameters<'a> {
        let [_, qkv, qkv_bias, output, output_bias, query_norm, key_norm] = values;
        let q_width = output.len() / HIDDEN;
        Parameters {
            qkv: Linear { inputs: HIDDEN, weight: Weight::F32(qkv), bias: qkv_bias },
            output: Linear { inputs: q_width, weight: Weight::F32(output), bias: output_bias },
            query_norm,
            key_norm,
            table,
        }
    }

    fn check(shape: Shape, table: Option<&Table>) {
        check_of(shape, table, &BOUNDS, |_| true);
    }

    /// Checks the gradients of what `wanted` names.
    fn check_of(
        shape: Shape,
        table: Option<&Table>,
        bounds: &[usize],
        wanted: impl Fn(&str) -> bool,
    ) {
        let values = values(&shape, bounds);
        let forward = |values: &Values| {
            let (mut saved, mut out) = (Saved::default(), vec![0.0; values[0].len()]);
            let (parameters, x) = (parameters(values, table), &values[0]);
            let input = Input { x, bounds };
            shape.forward(parameters, input, Context::Whole, &mut saved, &mut out);
            (out, saved)
        };
        let check = Check::new(values[0].len());
        let mut found = values.clone().map(|values| vec![0.0; values.len()]);
        let [into_x, qkv, qkv_bias, output, output_bias, query_norm, key_norm] = &mut found;
        shape.backward(
            parameters(&values, table),
            Input { x: &values[0], bounds },
            &forward(&values).1,
            check.upstream(),
            &mut Gradients {
                qkv: linear::Gradient::Full { weight: qkv, bias: qkv_bias },
                output: linear::Gradient::Full { weight: output, bias: output_bias },
                query_norm,
                key_norm,
            },
            &mut Workspace::default(),
            Some(into_x),
        );
        let names = ["x", "qkv", "qkv bias", "output", "output bias", "query norm", "key norm"];
        for (index, name) in names.into_iter().enumerate() {
            if values[index].is_empty() || !wanted(name) {
                continue;
            }
            check.gradient(name, &values[index], &found[index], |moved| {
                let mut values = values.clone();
                values[index] = moved.to_vec();
                forward(&values).0
            });
        }
    }

    fn table() -> Table {
        let mut table = Table::default();
        table.reach(&Rope { frequencies: vec![1.0, 0.1], factor: 1.2 }, 8);
        table
    }

    #[test]
    fn the_gradients_are_right_with_every_option() {
        let norm = Some(Norm { kind: Kind::Rms { offset: 1.0 }, epsilon: 1e-5 });
        check(PLAIN, None);
        check(PLAIN, Some(&table()));
        check(Shape { window: Some(2), ..PLAIN }, Some(&table()));
        check(Shape { cap: Some(0.8), ..PLAIN }, Some(&table()));
        check(Shape { norm, ..PLAIN }, Some(&table()));
        check(Shape { norm, cap: Some(1.1), window: Some(3), ..PLAIN }, Some(&table()));
    }

    /// Longer than the blocks that query rows go in, with windows that begin within one.
    #[test]
    fn the_gradients_are_right_across_blocks() {
        let norm = Some(Norm { kind: Kind::Rms { offset: 0.0 }, epsilon: 1e-5 });
        let mut table = Table::default();
        table.reach(&Rope { frequencies: vec![1.0, 0.1], factor: 1.0 }, 150);
        for window in [None, Some(2), Some(50), Some(64), Some(100)] {
            let shape = Shape { norm, window, cap: Some(2.0), ..PLAIN };
            check_of(shape, Some(&table), &[0, 150, 190], |name| {
                name == "qkv bias" || name == "query norm" || name == "key norm"
            });
        }
    }

    #[test]
    fn without_a_backward_no_probabilities_are_kept_and_nothing_else_changes() {
        let bounds = [0, 150, 190];
        for window in [None, Some(2), Some(70)] {
            let shape = Shape { window, cap: Some(2.0), ..PLAIN };
            let values = values(&shape, &bounds);
            let parameters = parameters(&values, None);
            let input = Input { x: &values[0], bounds: &bounds };
            let mut saved = Saved::default();
            let mut results = [Context::Whole, Context::WholeForwardOnly].map(|context| {
                let mut out = vec![0.0; values[0].len()];
                shape.forward(parameters, input, context, &mut saved, &mut out);
                (out, saved.probabilities.len())
            });
            let kept = shape.stored(150) + shape.stored(40);
            assert_eq!((results[0].1, results[1].1), (kept, 0));
            results[1].1 = kept;
            assert_eq!(results[0], results[1], "{window:?}");
        }
    }

    #[test]
    fn a_sequence_in_parts_is_the_whole_sequence() {
        let (shape, table) = (Shape { window: Some(3), ..PLAIN }, table());
        let values = values(&shape, &BOUNDS);
        let parameters = parameters(&values, Some(&table));
        let x = &values[0][..5 * HIDDEN];
        let mut whole = vec![0.0; x.len()];
        let mut saved = Saved::default();
        let input = Input { x, bounds: &[0, 5] };
        shape.forward(parameters, input, Context::Whole, &mut saved, &mut whole);
        let mut past = [KeyValues::default()];
        let mut parts = vec![0.0; x.len()];
        for (from, to) in [(0, 2), (2, 3), (3, 5)] {
            let place = from * HIDDEN..to * HIDDEN;
            let (x, out) = (&x[place.clone()], &mut parts[place]);
            let input = Input { x, bounds: &[0, to - from] };
            shape.forward(parameters, input, Context::After(&mut past), &mut saved, out);
        }
        let worst = whole.iter().zip(&parts).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{worst}");
    }
}
