//! The kernels of a step on a Vulkan device, for a worker whose driver it is.
//!
//! Each records what a block computes, runs it and waits: the device has one queue, and copies
//! overlap with nothing on it. What is not computed here is refused before the worker comes.

mod backward;
mod content;
mod scratch;

use super::content::Content;
use super::kernels::{Kernel, Learns};
use crate::architecture::{Architecture, Positions, PostNorms};
use crate::batch::Batch;
use crate::cpu::ends::HEAD_ROWS;
use backward::{Gradients, LayerBackward};
use content::{Angles, Cell, Held, Layout, State, Tape, Values};
use het_blocks::activation::Activation;
use het_blocks::mlp::Gate;
use het_blocks::norm::Kind;
use het_blocks::rotation::Table;
use het_runtime::drivers::cpu::{Arguments, Code};
use het_vulkan::kernels::{ADD, Bounds, Heads, Join, Matrix, REPLACE, View};
use het_vulkan::{Buffer, Device, Recorder};
use scratch::{Role, Scratch};
use std::sync::{Arc, Mutex, PoisonError};

type Outcome = Result<(), String>;

/// Places of the parts of a layer.
const ATTENTION_NORM: usize = 0;
const QKV: usize = 1;
const OUTPUT: usize = 2;
const MLP_NORM: usize = 3;
const UP: usize = 4;
const DOWN: usize = 5;

/// Places of what lies around the layers.
const EMBEDDING: usize = 0;
const NORM: usize = 1;
const HEAD: usize = 2;

/// What of a model a Vulkan device does not compute; none where it computes all.
pub fn lacks(architecture: &Architecture) -> Option<&'static str> {
    let Architecture { biases, attention, mlp, layers, .. } = architecture;
    let has_biases = biases.qkv || biases.output || biases.mlp;
    let is_gated = mlp.gate == Gate::Gated && mlp.activation == Activation::Silu;
    let all = [
        (!matches!(architecture.norm.kind, Kind::Rms { .. }), "norms other than RMS"),
        (architecture.positions == Positions::Learned, "learned positions"),
        (architecture.post_norms != PostNorms::None, "norms after attention and MLP"),
        (attention.norm.is_some(), "norms of queries and keys"),
        (has_biases, "biases"),
        (!is_gated, "activations other than a SiLU with a gate"),
        (attention.cap.is_some() || architecture.logit_cap.is_some(), "caps"),
        (layers.iter().any(|layer| layer.window.is_some()), "windows"),
    ];
    all.into_iter().find(|(is_there, _)| *is_there).map(|(_, what)| what)
}

/// Whether there are shaders for it: what learns is added up and updated elsewhere.
pub fn computes(kernel: Kernel) -> bool {
    use Kernel::{Add, Norm, QuantizeEnds, QuantizeLayer, Update};
    !matches!(kernel, QuantizeLayer | QuantizeEnds | Add | Norm | Update)
}

/// What kernels share.
pub struct Kernels {
    device: Device,
    architecture: Architecture,
    learns: Learns,
    scratch: Mutex<Scratch>,
}

impl Kernels {
    pub fn new(device: Device, architecture: Architecture, learns: Learns) -> Self {
        Self { device, architecture, learns, scratch: Mutex::default() }
    }

    /// The kernels that there are, by name.
    pub fn code(self: &Arc<Self>) -> Vec<(String, Code<Cell>)> {
        let code = |(kernel, name): (Kernel, &'static str)| -> (String, Code<Cell>) {
            let kernels = Arc::clone(self);
            let run = move |arguments: &Arguments<'_, Cell>| kernels.run((kernel, name), arguments);
            (name.to_owned(), Box::new(run))
        };
        Kernel::ALL.into_iter().filter(|(kernel, _)| computes(*kernel)).map(code).collect()
    }

    fn run(&self, (kernel, name): (Kernel, &str), arguments: &Arguments<'_, Cell>) -> Outcome {
        let (held, index) = (arguments.hold(), arguments.parameter() as usize);
        let cells = (0..held.count()).map(|row| held.read(row)).collect::<Result<Vec<_>, _>>()?;
        let cells: Vec<&Cell> = cells.iter().map(|cell| &**cell).collect();
        match kernel {
            Kernel::Merge => self.merge(index, &cells),
            Kernel::Clear => self.clear(index, &cells),
            Kernel::Angles => self.angles(index, &cells),
            Kernel::Embedding => self.embedding(&cells),
            Kernel::LayerForward | Kernel::LayerForwardOnly | Kernel::LayerRecompute => {
                self.layer_forward(index, &cells)
            }
            Kernel::Loss => self.score(&cells, false),
            Kernel::Head => self.score(&cells, true),
            Kernel::LayerBackward => self.layer_backward(index, &cells),
            Kernel::EmbeddingBackward => self.embedding_backward(&cells),
            Kernel::QuantizeLayer
            | Kernel::QuantizeEnds
            | Kernel::Add
            | Kernel::Norm
            | Kernel::Update => Err(format!("the driver `vulkan` does not compute `{name}`")),
        }
    }

    fn record<'b>(&self, record: impl FnOnce(&mut Recorder<'b>)) -> Outcome {
        self.device.run(record).map_err(|error| error.to_string())
    }

    fn buffer(&self, length: usize) -> Result<Buffer, String> {
        self.device.buffer(length).map_err(|error| error.to_string())
    }

    fn layer<'c>(&self, cell: &'c Cell) -> Result<Held<'c>, String> {
        cell.on(&self.device, Layout::layer(&self.architecture))
    }

    fn plain<'c>(&self, cell: &'c Cell, length: usize) -> Result<Held<'c>, String> {
        cell.on(&self.device, Layout::Plain(length))
    }

    /// What lies around the layers, or its gradient.
    fn outer<'c>(&self, cell: &'c Cell) -> Result<Held<'c>, String> {
        let tied = cell.on(&self.device, Layout::outer(&self.architecture, false));
        tied.or_else(|_| cell.on(&self.device, Layout::outer(&self.architecture, true)))
    }

    fn heads(&self, layer: usize, longest: usize) -> Heads {
        let shape = self.architecture.attention_of(layer);
        let (heads, kv_heads, size, scale) =
            (shape.heads, shape.kv_heads, shape.head_size, shape.scale);
        Heads { heads, kv_heads, size, scale, longest }
    }

    fn norm(&self) -> (f32, f32) {
        let offset = match self.architecture.norm.kind {
            Kind::Rms { offset } => offset,
            Kind::Layer => 0.0,
        };
        (self.architecture.norm.epsilon, offset)
    }

    fn merge(&self, index: usize, cells: &[&Cell]) -> Outcome {
        let Learns::Adapter(adapter) = &self.learns else {
            return Err("there is no adapter to work in".to_owned());
        };
        let place = adapter.place(index);
        let (base, values) = (self.layer(cells[0])?, self.plain(cells[1], place.len())?);
        let merged = cells[2].fresh(&self.device, base.layout)?;
        let values = values.buffer.view();
        self.record(|record| {
            record.mix(merged.buffer.view(), base.buffer.view(), REPLACE);
            for (part, group) in [QKV, OUTPUT, UP, DOWN].into_iter().zip(adapter.groups(index)) {
                for slot in &group.slots {
                    let own = |range: &std::ops::Range<usize>| {
                        values.part(range.start - place.start, range.len())
                    };
                    let rows = (slot.first_row * group.inputs, slot.outputs * group.inputs);
                    let into = Matrix::rows(merged.part(part).part(rows.0, rows.1), group.inputs);
                    let b = Matrix::rows(own(&slot.b), adapter.rank);
                    let a = Matrix::rows(own(&slot.a), group.inputs);
                    record.product(into, b, a, Join { scale: adapter.scale(), keep: 1.0 });
                }
            }
        })
    }

    fn clear(&self, index: usize, cells: &[&Cell]) -> Outcome {
        let layout = match &self.learns {
            Learns::Adapter(adapter) => Layout::Plain(adapter.place(index).len()),
            Learns::All(_) if index == 0 => {
                let has_head = self.architecture.head == crate::architecture::HeadWeight::Own;
                Layout::outer(&self.architecture, has_head)
            }
            Learns::All(_) => Layout::layer(&self.architecture),
            Learns::Nothing => return Err("nothing learns".to_owned()),
        };
        let gradient = cells[0].fresh(&self.device, layout)?;
        self.record(|record| record.clear(gradient.buffer.view()))
    }

    fn angles(&self, length: usize, cells: &[&Cell]) -> Outcome {
        let angles = self.architecture.ropes.iter().map(|rope| {
            let mut table = Table::default();
            table.reach(rope, length);
            let (cosines, sines) = (table.cosines(), table.sines());
            let own =
                Angles { cosines: self.buffer(cosines.len())?, sines: self.buffer(sines.len())? };
            own.cosines.view().set(cosines);
            own.sines.view().set(sines);
            Ok(own)
        });
        let angles = angles.collect::<Result<_, String>>()?;
        *cells[0].state() = State::Angles(angles);
        Ok(())
    }

    fn embedding(&self, cells: &[&Cell]) -> Outcome {
        let outer = self.outer(cells[0])?;
        let batch = batch(cells[1])?;
        let (width, rows) = (self.architecture.hidden, batch.tokens.len());
        let stream = cells[2].fresh(&self.device, Layout::Plain(rows * width))?;
        let (table, scale) = (outer.part(EMBEDDING), self.architecture.embedding_scale);
        let out = (stream.buffer.view(), width);
        self.record(|record| record.gather(table, &batch.tokens, out, scale))
    }

    fn scratch(&self) -> std::sync::MutexGuard<'_, Scratch> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn layer_forward(&self, index: usize, cells: &[&Cell]) -> Outcome {
        let weights = self.layer(cells[0])?;
        let angles = cells[1].state();
        let batch = batch(cells[2])?;
        let Architecture { hidden, mlp, .. } = &self.architecture;
        let rows = batch.tokens.len();
        let x = self.plain(cells[3], rows * hidden)?;
        let heads = self.heads(index, batch.longest());
        let mut tape = cells[4].state();
        let tape = self.fit_tape(&mut tape, rows, heads)?;
        let out = cells[5].fresh(&self.device, Layout::Plain(rows * hidden))?;
        let mut scratch = self.scratch();
        let roles = [
            (Role::Normed, rows * hidden),
            (Role::Activated, rows * mlp.feed_forward),
            (Role::Inverses, rows),
        ];
        let scratch = scratch.fit(&self.device, &roles)?;
        let bounds = Bounds::new(&batch.bounds);
        let normed = scratch.view(Role::Normed, rows * hidden);
        let inverses = scratch.view(Role::Inverses, rows);
        let activated = scratch.view(Role::Activated, rows * mlp.feed_forward);
        let (x, out) = (x.buffer.view(), out.buffer.view());
        let linear = |part: usize, inputs: usize| Matrix::rows(weights.part(part), inputs);
        let (q_width, qkv, middle, up) =
            (heads.heads * heads.size, tape.qkv.view(), tape.middle.view(), tape.up.view());
        let rotation = self.rotation(index, &angles)?;
        self.record(|record| {
            record.norm(x, weights.part(ATTENTION_NORM), (normed, inverses), self.norm());
            let (input, weight) = (Matrix::rows(normed, *hidden), linear(QKV, *hidden));
            record.product(by(qkv, weight), input, weight.transpose(), REPLACE);
            if let Some(table) = rotation {
                record.rotate(qkv, heads, table, &bounds, 1.0);
            }
            let kept = (tape.probabilities.view(), tape.mixed.view());
            record.attention(qkv, heads, &bounds, kept);
            record.mix(middle, x, REPLACE);
            let (mixed, weight) = (Matrix::rows(kept.1, q_width), linear(OUTPUT, q_width));
            record.product(Matrix::rows(middle, *hidden), mixed, weight.transpose(), ADD);
            record.norm(middle, weights.part(MLP_NORM), (normed, inverses), self.norm());
            let weight = linear(UP, *hidden);
            record.product(by(up, weight), input, weight.transpose(), REPLACE);
            record.gate(up, mlp.feed_forward, activated);
            record.mix(out, middle, REPLACE);
            let (activated, weight) =
                (Matrix::rows(activated, mlp.feed_forward), linear(DOWN, mlp.feed_forward));
            record.product(Matrix::rows(out, *hidden), activated, weight.transpose(), ADD);
        })
    }

    /// The angles by which a layer rotates; none of one that does not.
    fn rotation<'a>(
        &self,
        index: usize,
        angles: &'a State,
    ) -> Result<Option<(View<'a>, View<'a>)>, String> {
        let Some(rope) = self.architecture.layers[index].rope else { return Ok(None) };
        match angles {
            State::Angles(all) if rope < all.len() => {
                Ok(Some((all[rope].cosines.view(), all[rope].sines.view())))
            }
            _ => Err("a handle does not hold angles".to_owned()),
        }
    }

    fn fit_tape<'t>(
        &self,
        state: &'t mut State,
        rows: usize,
        heads: Heads,
    ) -> Result<&'t Tape, String> {
        let Architecture { hidden, attention, mlp, .. } = &self.architecture;
        let lengths = [
            rows * attention.qkv_width(),
            rows * heads.heads * heads.longest,
            rows * attention.q_width(),
            rows * hidden,
            rows * mlp.up_width(),
        ];
        let fits = |tape: &Tape| {
            let Tape { qkv, probabilities, mixed, middle, up } = tape;
            [qkv, probabilities, mixed, middle, up].map(Buffer::len) == lengths
        };
        if !matches!(&*state, State::Tape(tape) if fits(tape)) {
            *state = State::Empty;
            let [qkv, probabilities, mixed, middle, up] = lengths.map(|length| self.buffer(length));
            *state = State::Tape(Tape {
                qkv: qkv?,
                probabilities: probabilities?,
                mixed: mixed?,
                middle: middle?,
                up: up?,
            });
        }
        match state {
            State::Tape(tape) => Ok(tape),
            _ => unreachable!("it was just made one"),
        }
    }

    /// Loss over the scored rows; with gradients also those of the stream, and of the ends where
    /// they learn.
    fn score(&self, cells: &[&Cell], with_gradients: bool) -> Outcome {
        let outer = self.outer(cells[0])?;
        let batch = batch(cells[1])?;
        let width = self.architecture.hidden;
        let rows = batch.tokens.len();
        let hidden = self.plain(cells[2], rows * width)?;
        let stream = match with_gradients {
            true => Some(cells[4].fresh(&self.device, Layout::Plain(rows * width))?),
            false => None,
        };
        let gradient = match (with_gradients, &self.learns) {
            (true, Learns::All(_)) => Some(self.outer(cells[5])?),
            _ => None,
        };
        if let Some(stream) = &stream {
            self.record(|record| record.clear(stream.buffer.view()))?;
        }
        let mut loss = 0.0;
        let chunks = batch.rows.chunks(HEAD_ROWS).zip(batch.targets.chunks(HEAD_ROWS));
        for (rows, targets) in chunks {
            let rows: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
            let into = (stream.as_deref(), gradient.as_deref());
            loss += self.score_rows(&outer, hidden.buffer.view(), (&rows, targets), into)?;
        }
        let mut state = cells[3].state();
        let before = match &*state {
            State::Host(Content::Loss(before)) if with_gradients => *before,
            _ => 0.0,
        };
        *state = State::Host(Content::Loss(before + loss));
        Ok(())
    }

    fn score_rows(
        &self,
        outer: &Values,
        hidden: View<'_>,
        (rows, targets): (&[u32], &[u32]),
        (stream, gradient): (Option<&Values>, Option<&Values>),
    ) -> Result<f64, String> {
        let (width, vocabulary) = (self.architecture.hidden, self.architecture.vocabulary);
        let count = rows.len();
        let mut scratch = self.scratch();
        let scratch = scratch.fit(
            &self.device,
            &[
                (Role::Gathered, count * width),
                (Role::Normed, count * width),
                (Role::IntoNormed, count * width),
                (Role::IntoGathered, count * width),
                (Role::Inverses, count),
                (Role::Logits, count * vocabulary),
                (Role::Losses, count),
            ],
        )?;
        let [gathered, normed, into_normed, into_gathered] =
            [Role::Gathered, Role::Normed, Role::IntoNormed, Role::IntoGathered]
                .map(|role| scratch.view(role, count * width));
        let [inverses, losses] =
            [Role::Inverses, Role::Losses].map(|role| scratch.view(role, count));
        let logits = scratch.view(Role::Logits, count * vocabulary);
        let head = if outer.part(HEAD).is_empty() { EMBEDDING } else { HEAD };
        let (norm, (epsilon, offset)) = (outer.part(NORM), self.norm());
        let weight = Matrix::rows(outer.part(head), width);
        let (input, out) = (Matrix::rows(normed, width), Matrix::rows(logits, vocabulary));
        self.record(|record| {
            record.gather(hidden, rows, (gathered, width), 1.0);
            record.norm(gathered, norm, (normed, inverses), (epsilon, offset));
            record.product(out, input, weight.transpose(), REPLACE);
            record.loss(logits, targets, losses);
            let Some(stream) = stream else { return };
            record.product(Matrix::rows(into_normed, width), out, weight, REPLACE);
            if let Some(gradient) = gradient {
                let into = Matrix::rows(gradient.part(head), width);
                record.product(into, out.transpose(), input, ADD);
                record.norm_weight(into_normed, gathered, inverses, gradient.part(NORM));
            }
            record.clear(into_gathered);
            record.norm_backward(into_normed, gathered, (norm, inverses, offset), into_gathered);
            let table = (stream.buffer.view(), width);
            record.scatter(into_gathered, rows, table, (1.0, None));
        })?;
        Ok(losses.to_vec().into_iter().map(f64::from).sum())
    }

    fn layer_backward(&self, index: usize, cells: &[&Cell]) -> Outcome {
        let (weights, angles) = (self.layer(cells[0])?, cells[1].state());
        let batch = batch(cells[2])?;
        let rows = batch.tokens.len();
        let length = rows * self.architecture.hidden;
        let x = self.plain(cells[3], length)?;
        let heads = self.heads(index, batch.longest());
        let tape = cells[4].state();
        let State::Tape(tape) = &*tape else {
            return Err("a handle does not hold what a layer keeps".to_owned());
        };
        let stream = self.plain(cells[5], length)?;
        let (gradient, values) = match &self.learns {
            Learns::Adapter(own) => {
                let length = own.place(index).len();
                (self.plain(cells[6], length)?, Some(self.plain(cells[7], length)?))
            }
            Learns::All(_) | Learns::Nothing => (self.layer(cells[6])?, None),
        };
        let learns = match (&self.learns, &values) {
            (Learns::Adapter(adapter), Some(values)) => {
                let (values, into) = (values.buffer.view(), gradient.buffer.view());
                Gradients::Adapter { adapter, index, values, into }
            }
            _ => Gradients::All(&gradient),
        };
        let mut scratch = self.scratch();
        let roles = backward::roles(&self.architecture, rows, heads, learns.through(rows));
        let scratch = scratch.fit(&self.device, &roles)?;
        let layer = LayerBackward {
            weights: &weights,
            tape,
            scratch,
            rows,
            heads,
            bounds: Bounds::new(&batch.bounds),
            rotation: self.rotation(index, &angles)?,
            sizes: backward::Sizes::of(&self.architecture),
            norm: self.norm(),
            // Below the first layer's matrices nothing of an adapter learns.
            reaches_input: index > 0 || matches!(learns, Gradients::All(_)),
            learns,
        };
        let (x, stream) = (x.buffer.view(), stream.buffer.view());
        self.record(|record| {
            layer.mlp(record, stream);
            layer.attention(record, x, stream);
        })
    }

    fn embedding_backward(&self, cells: &[&Cell]) -> Outcome {
        let batch = batch(cells[1])?;
        let (width, rows) = (self.architecture.hidden, batch.tokens.len());
        let stream = self.plain(cells[2], rows * width)?;
        let gradient = self.outer(cells[3])?;
        let how = (self.architecture.embedding_scale, self.architecture.padding);
        let table = (gradient.part(EMBEDDING), width);
        self.record(|record| record.scatter(stream.buffer.view(), &batch.tokens, table, how))
    }
}

/// The result of a product with a weight: rows of its outputs.
fn by<'b>(out: View<'b>, weight: Matrix<'b>) -> Matrix<'b> {
    Matrix::rows(out, weight.count())
}

fn batch(cell: &Cell) -> Result<Batch, String> {
    match &*cell.state() {
        State::Host(Content::Batch(batch)) => Ok(batch.clone()),
        _ => Err("a handle does not hold a batch".to_owned()),
    }
}
