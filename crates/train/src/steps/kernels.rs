//! The kernels of a step: blocks as closures over the buffers of a task.

use super::content::{Content, Kind, fill, get, get_mut};
use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::cpu::ends::{Ends, HeadGradients, HeadWorkspace};
use crate::cpu::layer::{Block, Gradients, Reach, Tape, Workspace};
use crate::lora::Adapter;
use crate::names::{self, Part, Site};
use crate::optimiser::{self, AdamW, Request, Rule, Slice};
use crate::precision;
use crate::weights::{Layer, Outer, Parameters};
use het_blocks::attention::{Context, Input};
use het_blocks::embedding::{self, positions};
use het_blocks::linear::{self, Numbers};
use het_blocks::matrix::sized;
use het_blocks::meter::{self, Spent, Work, spend};
use het_blocks::norm;
use het_blocks::quantized::{Format, Instructions};
use het_blocks::rotation::Table;
use het_runtime::KernelId;
use het_runtime::drivers::cpu::{Arguments, Code, Held};
use rayon::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// Values that a thread clears at once.
const PIECE: usize = 1 << 15;

type Outcome = Result<(), String>;

/// What a task computes. Those of layers have the layer's index as their parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// Works an adapter into a layer: base, the adapter's values, the layer.
    Merge,
    /// Rounds the matrices of a layer, by the format in the parameter: the layer.
    QuantizeLayer,
    /// The ends, and the same with rounded matrices.
    QuantizeEnds,
    /// Makes the gradient of what learns, by its place, zero.
    Clear,
    /// Makes positions up to the parameter known.
    Angles,
    /// The ends, batch, the first layer's input.
    Embedding,
    /// Layer, angles, batch, input, what the backward needs, result.
    LayerForward,
    /// The same without what the backward needs.
    LayerForwardOnly,
    /// The same as [`Kernel::LayerForward`], again.
    LayerRecompute,
    /// The ends, batch, the last layer's result, loss.
    Loss,
    /// The same, and the gradient of that result, and of the ends where they learn.
    Head,
    /// Layer, angles, batch, input, what the forward kept, gradient of the result that becomes that
    /// of the input, gradient of what learns, an adapter's values.
    LayerBackward,
    /// The ends, batch, gradient of the first layer's input, gradient of the ends.
    EmbeddingBackward,
    /// A gradient or loss, and another one that is added to it.
    Add,
    /// Request, loss, rule, all gradients.
    Norm,
    /// Rule, values, gradient, moments, whether all is finite.
    Update,
}

impl Kernel {
    /// All in the order of their ids, with the names that reports have for them.
    pub const ALL: [(Self, &'static str); 16] = [
        (Self::Merge, "merge"),
        (Self::QuantizeLayer, "quantize_layer"),
        (Self::QuantizeEnds, "quantize_ends"),
        (Self::Clear, "clear"),
        (Self::Angles, "angles"),
        (Self::Embedding, "embedding"),
        (Self::LayerForward, "layer_forward"),
        (Self::LayerForwardOnly, "layer_forward_only"),
        (Self::LayerRecompute, "layer_recompute"),
        (Self::Loss, "loss"),
        (Self::Head, "head"),
        (Self::LayerBackward, "layer_backward"),
        (Self::EmbeddingBackward, "embedding_backward"),
        (Self::Add, "add"),
        (Self::Norm, "norm"),
        (Self::Update, "update"),
    ];

    pub fn id(self) -> KernelId {
        KernelId(self as u16)
    }
}

/// What learns.
#[derive(Debug)]
pub(super) enum Learns {
    Nothing,
    /// An adapter, whose values lie in handles.
    Adapter(Adapter),
    /// Every parameter, which lies in f32; products are of such numbers.
    All(Numbers),
}

impl Learns {
    /// What products with weights in f32 compute in.
    fn numbers(&self) -> Numbers {
        match self {
            Self::Nothing | Self::Adapter(_) => Numbers::F32,
            Self::All(numbers) => *numbers,
        }
    }
}

/// Buffers that a task uses while it runs.
#[derive(Debug, Default)]
struct Scratch {
    layer: Workspace,
    head: HeadWorkspace,
}

/// What kernels share beside their buffers: nothing that a result depends on but the model.
#[derive(Debug)]
pub(super) struct Kernels {
    pub architecture: Architecture,
    pub learns: Learns,
    /// As many as tasks ever ran at once.
    scratch: Mutex<Vec<Scratch>>,
    spent: Mutex<Spent>,
}

impl Kernels {
    pub fn new(architecture: Architecture, learns: Learns) -> Self {
        let (scratch, spent) = Default::default();
        Self { architecture, learns, scratch, spent }
    }

    /// The code of all kernels, in the order of their ids.
    pub fn code(self: &Arc<Self>) -> Vec<Code<Content>> {
        let code = |(kernel, _)| -> Code<Content> {
            let kernels = Arc::clone(self);
            Box::new(move |arguments| kernels.run(kernel, arguments))
        };
        Kernel::ALL.into_iter().map(code).collect()
    }

    /// Where the time of all tasks went.
    pub fn spent(&self) -> Spent {
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Zeros for the gradient of each part of what learns: what lies around the layers, where that
    /// learns, and each layer.
    pub fn zeros(&self) -> impl Iterator<Item = Content> {
        let layers = self.architecture.layers.len();
        let count = match self.learns {
            Learns::Nothing => 0,
            Learns::Adapter(_) => layers,
            Learns::All(_) => 1 + layers,
        };
        (0..count).map(|index| self.zero(index))
    }

    fn zero(&self, index: usize) -> Content {
        if let Learns::Adapter(adapter) = &self.learns {
            return Content::Values(vec![0.0; adapter.place(index).len()]);
        }
        let layer = index.checked_sub(1);
        let Parameters { outer, mut layers } =
            Parameters::zeros_where(&self.architecture, |site| match site {
                Site::Layer(of, _) => layer == Some(of),
                _ => layer.is_none(),
            });
        match layer {
            Some(layer) => Content::Layer(Box::new(std::mem::take(&mut layers[layer]))),
            None => Content::Outer(outer),
        }
    }

    fn run(&self, kernel: Kernel, arguments: &Arguments<'_, Content>) -> Outcome {
        let before = meter::spent();
        let (held, index) = (arguments.hold(), arguments.parameter() as usize);
        let outcome = match kernel {
            Kernel::Merge => self.merge(index, &held),
            Kernel::QuantizeLayer => self.quantize_layer(index, &held),
            Kernel::QuantizeEnds => self.quantize_ends(&held),
            Kernel::Clear => self.clear(index, &held),
            Kernel::Angles => self.angles(index, &held),
            Kernel::Embedding => self.embedding(&held),
            Kernel::LayerForward | Kernel::LayerRecompute => {
                self.layer_forward(index, Context::Whole, &held)
            }
            Kernel::LayerForwardOnly => self.layer_forward(index, Context::WholeForwardOnly, &held),
            Kernel::Loss => self.loss(&held),
            Kernel::Head => self.head(&held),
            Kernel::LayerBackward => self.layer_backward(index, &held),
            Kernel::EmbeddingBackward => self.embedding_backward(&held),
            Kernel::Add => add(&held),
            Kernel::Norm => self.norm(&held),
            Kernel::Update => update(&held),
        };
        let spent = meter::spent().since(&before);
        self.spent.lock().unwrap_or_else(PoisonError::into_inner).add(&spent);
        outcome
    }

    fn with_scratch<T>(&self, run: impl FnOnce(&mut Scratch) -> T) -> T {
        let all = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own = all().pop().unwrap_or_default();
        let result = run(&mut own);
        all().push(own);
        result
    }

    fn ends<'a>(&'a self, outer: &'a Outer) -> Ends<'a> {
        Ends { architecture: &self.architecture, numbers: self.learns.numbers(), outer }
    }

    fn layer<'a>(&'a self, index: usize, weights: &'a Layer, angles: &'a [Table]) -> Block<'a> {
        let architecture = &self.architecture;
        let table = architecture.layers[index].rope.map(|rope| &angles[rope]);
        Block { architecture, numbers: self.learns.numbers(), index, weights, table }
    }

    fn merge(&self, index: usize, held: &Held<Content>) -> Outcome {
        let Learns::Adapter(adapter) = &self.learns else {
            return Err("there is no adapter to work in".to_owned());
        };
        let (base, values, mut merged) = (held.read(0)?, held.read(1)?, held.write(2)?);
        let (base, values): (&Layer, &Vec<f32>) = (get(&base)?, get(&values)?);
        if matches!(&*merged, Content::Empty) {
            *merged = Content::Layer(Box::new(base.clone()));
        }
        let merged = get_mut(&mut merged)?;
        spend(Work::LowRank, || adapter.merge_layer(index, values, base, merged));
        Ok(())
    }

    fn quantize_layer(&self, format: usize, held: &Held<Content>) -> Outcome {
        let format = *Format::ALL.get(format).ok_or("there is no such format")?;
        let mut layer = held.write(0)?;
        let layer: &mut Layer = get_mut(&mut layer)?;
        precision::quantize_layer(layer, &self.architecture, format, Instructions::best());
        Ok(())
    }

    fn quantize_ends(&self, held: &Held<Content>) -> Outcome {
        let (outer, mut own) = (held.read(0)?, held.write(1)?);
        let outer: &Outer = get(&outer)?;
        let quantized = precision::quantized_outer(outer, &self.architecture, Instructions::best());
        *own = Content::Outer(Arc::new(quantized));
        Ok(())
    }

    fn clear(&self, index: usize, held: &Held<Content>) -> Outcome {
        let mut gradient = held.write(0)?;
        match &mut *gradient {
            Content::Empty => *gradient = self.zero(index),
            gradient => for_each_buffer(gradient, |values| {
                values.par_chunks_mut(PIECE).for_each(|piece| piece.fill(0.0));
            })?,
        }
        Ok(())
    }

    fn angles(&self, length: usize, held: &Held<Content>) -> Outcome {
        let mut angles = held.write(0)?;
        let ropes = &self.architecture.ropes;
        // Those that are there stay, and become longer.
        let tables: &mut Vec<Table> = fill(&mut angles);
        tables.resize_with(ropes.len(), Table::default);
        let ropes = tables.iter_mut().zip(ropes);
        ropes.for_each(|(table, rope)| table.reach(rope, length));
        Ok(())
    }

    fn embedding(&self, held: &Held<Content>) -> Outcome {
        let (outer, batch, mut stream) = (held.read(0)?, held.read(1)?, held.write(2)?);
        let (outer, batch): (&Outer, &Batch) = (get(&outer)?, get(&batch)?);
        let places = positions(&batch.bounds);
        self.ends(outer).embedding().forward(&batch.tokens, &places, fill(&mut stream));
        Ok(())
    }

    fn layer_forward(&self, index: usize, context: Context<'_>, held: &Held<Content>) -> Outcome {
        let (weights, angles, batch) = (held.read(0)?, held.read(1)?, held.read(2)?);
        let (x, mut tape, mut out) = (held.read(3)?, held.write(4)?, held.write(5)?);
        let (angles, batch): (&Vec<Table>, &Batch) = (get(&angles)?, get(&batch)?);
        let x: &Vec<f32> = get(&x)?;
        let (layer, input) = (get(&weights)?, Input { x, bounds: &batch.bounds });
        let (tape, out): (&mut Tape, &mut Vec<f32>) = (fill(&mut tape), fill(&mut out));
        let layer = self.layer(index, layer, angles);
        self.with_scratch(|own| layer.forward(input, context, tape, &mut own.layer, out));
        Ok(())
    }

    fn loss(&self, held: &Held<Content>) -> Outcome {
        let (outer, batch, hidden) = (held.read(0)?, held.read(1)?, held.read(2)?);
        let (outer, batch): (&Outer, &Batch) = (get(&outer)?, get(&batch)?);
        let hidden: &Vec<f32> = get(&hidden)?;
        let ends = self.ends(outer);
        let loss = self.with_scratch(|own| ends.score(hidden, batch, &mut own.head, None));
        *held.write(3)? = Content::Loss(loss);
        Ok(())
    }

    fn head(&self, held: &Held<Content>) -> Outcome {
        let (outer, batch, hidden) = (held.read(0)?, held.read(1)?, held.read(2)?);
        let (mut loss, mut stream) = (held.write(3)?, held.write(4)?);
        let (outer, batch): (&Outer, &Batch) = (get(&outer)?, get(&batch)?);
        let hidden: &Vec<f32> = get(&hidden)?;
        let stream = sized(fill(&mut stream), hidden.len());
        let mut gradient = match self.learns {
            Learns::All(_) => Some(held.write(5)?),
            Learns::Adapter(_) | Learns::Nothing => None,
        };
        let (mut head, mut norm) = (linear::Gradient::Frozen, norm::Gradient::default());
        if let Some(gradient) = &mut gradient {
            let gradient: &mut Outer = get_mut(gradient)?;
            let tied = gradient.head.is_empty();
            let weight = if tied { &mut gradient.embedding } else { &mut gradient.head };
            head = linear::Gradient::Full { weight, bias: &mut [] };
            norm = gradient.norm.norm_gradient();
        }
        let gradients = HeadGradients { stream, head, norm };
        let ends = self.ends(outer);
        let scored = |own: &mut Scratch| ends.score(hidden, batch, &mut own.head, Some(gradients));
        *get_mut::<f64>(&mut loss)? += self.with_scratch(scored);
        Ok(())
    }

    fn layer_backward(&self, index: usize, held: &Held<Content>) -> Outcome {
        let (weights, angles, batch) = (held.read(0)?, held.read(1)?, held.read(2)?);
        let (x, mut tape, mut stream) = (held.read(3)?, held.write(4)?, held.write(5)?);
        let (angles, batch): (&Vec<Table>, &Batch) = (get(&angles)?, get(&batch)?);
        let (x, layer): (&Vec<f32>, &Layer) = (get(&x)?, get(&weights)?);
        let (tape, stream): (&mut Tape, &mut Vec<f32>) =
            (get_mut(&mut tape)?, get_mut(&mut stream)?);
        let (mut gradient, values);
        let (mut own, reach) = match &self.learns {
            Learns::Nothing => return Err("nothing learns".to_owned()),
            Learns::All(_) => {
                gradient = held.write(6)?;
                (Gradients::full(get_mut(&mut gradient)?), Reach::Input)
            }
            Learns::Adapter(adapter) => {
                (gradient, values) = (held.write(6)?, held.read(7)?);
                let (values, into): (&Vec<f32>, &mut Vec<f32>) =
                    (get(&values)?, get_mut(&mut gradient)?);
                // Below the first layer's matrices nothing learns.
                let reach = if index > 0 { Reach::Input } else { Reach::Matrices };
                (Gradients::low_rank(adapter, index, values, into), reach)
            }
        };
        let (block, input) = (self.layer(index, layer, angles), Input { x, bounds: &batch.bounds });
        self.with_scratch(|scratch| {
            block.backward(input, tape, reach, &mut own, &mut scratch.layer, stream);
        });
        Ok(())
    }

    fn embedding_backward(&self, held: &Held<Content>) -> Outcome {
        let (outer, batch, stream) = (held.read(0)?, held.read(1)?, held.read(2)?);
        let mut gradient = held.write(3)?;
        let (outer, batch): (&Outer, &Batch) = (get(&outer)?, get(&batch)?);
        let (stream, gradient): (&Vec<f32>, &mut Outer) = (get(&stream)?, get_mut(&mut gradient)?);
        let Outer { embedding: tokens, positions: places, .. } = gradient;
        let mut tables = embedding::Gradient { tokens, positions: places };
        let (places, padding) = (positions(&batch.bounds), self.architecture.padding);
        let embedding = self.ends(outer).embedding();
        embedding.backward(&batch.tokens, &places, padding, stream, &mut tables);
        Ok(())
    }

    fn norm(&self, held: &Held<Content>) -> Outcome {
        let (request, loss) = (held.read(0)?, held.read(1)?);
        let (request, loss): (&Request, &f64) = (get(&request)?, get(&loss)?);
        let gradients = (3..held.count()).map(|row| held.read(row));
        let gradients = gradients.collect::<Result<Vec<_>, String>>()?;
        let mut parts: Vec<Vec<&[f32]>> = Vec::new();
        for gradient in &gradients {
            match (&**gradient, parts.first_mut()) {
                // The layers of an adapter are one slice.
                (Content::Values(own), Some(whole)) => whole.push(own),
                (gradient, _) => parts.extend(buffers(gradient)?.into_iter().map(|own| vec![own])),
            }
        }
        let rule = loss.is_finite().then(|| request.rule(optimiser::norm(&parts))).flatten();
        *held.write(2)? = Content::Rule(rule);
        Ok(())
    }
}

/// Hands every buffer of a gradient over.
fn for_each_buffer(gradient: &mut Content, mut change: impl FnMut(&mut Vec<f32>)) -> Outcome {
    match gradient {
        Content::Values(values) => change(values),
        Content::Layer(layer) => layer.buffers_mut().into_iter().for_each(|(.., own)| change(own)),
        Content::Outer(_) => {
            let outer = get_mut::<Outer>(gradient)?;
            outer.buffers_mut().into_iter().for_each(|(.., own)| change(own));
        }
        _ => return Err("a handle does not hold a gradient".to_owned()),
    }
    Ok(())
}

fn add(held: &Held<Content>) -> Outcome {
    let (mut sum, more) = (held.write(0)?, held.read(1)?);
    if let (Content::Loss(sum), Content::Loss(more)) = (&mut *sum, &*more) {
        *sum += more;
        return Ok(());
    }
    let mut more = buffers(&more)?.into_iter();
    let mut is_alike = true;
    for_each_buffer(&mut sum, |sum| match more.next() {
        Some(more) if more.len() == sum.len() => {
            let pieces = sum.par_chunks_mut(PIECE).zip(more.par_chunks(PIECE));
            pieces.for_each(|(sum, more)| {
                sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            });
        }
        _ => is_alike = false,
    })?;
    if is_alike { Ok(()) } else { Err("gradients are of unlike models".to_owned()) }
}

/// How many values a gradient has.
pub(super) fn count(gradient: &Content) -> usize {
    buffers(gradient).map_or(0, |all| all.iter().map(|own| own.len()).sum())
}

/// Every buffer of a gradient.
fn buffers(gradient: &Content) -> Result<Vec<&[f32]>, String> {
    match gradient {
        Content::Values(values) => Ok(vec![values]),
        Content::Layer(layer) => Ok(layer.buffers().map(|(.., own)| own).collect()),
        Content::Outer(outer) => Ok(outer.buffers().map(|(.., own)| own).collect()),
        _ => Err("a handle does not hold a gradient".to_owned()),
    }
}

fn update(held: &Held<Content>) -> Outcome {
    let (rule, mut values, gradient) = (held.read(0)?, held.write(1)?, held.read(2)?);
    let mut moments = held.write(3)?;
    let rule: &Option<Rule> = get(&rule)?;
    let moments: &mut AdamW = get_mut(&mut moments)?;
    let updated = match rule {
        None => false,
        Some(rule) => moments.update(rule, slices(&mut values, &gradient)?),
    };
    *held.write(4)? = Content::IsFinite(updated);
    Ok(())
}

/// What learns of one handle, beside its gradient.
fn slices<'a>(values: &'a mut Content, gradient: &'a Content) -> Result<Vec<Slice<'a>>, String> {
    let slice = |values: &'a mut Vec<f32>, gradient: &'a [f32], decays: bool| Slice {
        values,
        gradient,
        decays,
    };
    if matches!(gradient, Content::Values(_)) {
        let gradient: &Vec<f32> = get(gradient)?;
        return Ok(vec![slice(get_mut(values)?, gradient, true)]);
    }
    if let Some(gradient) = Layer::get(gradient) {
        let layer: &mut Layer = get_mut(values)?;
        let pairs = layer.buffers_mut().into_iter().zip(gradient.buffers());
        let slices = pairs.map(|((part, kind, values), (.., gradient))| {
            slice(values, gradient, decays(part, kind))
        });
        return Ok(slices.collect());
    }
    let (outer, gradient): (&mut Outer, &Outer) = (get_mut(values)?, get(gradient)?);
    let pairs = outer.buffers_mut().into_iter().zip(gradient.buffers());
    let slices = pairs
        .map(|((site, _, values), (.., gradient))| slice(values, gradient, site == Site::Head));
    Ok(slices.collect())
}

/// Matrices of layers decay, as does the head. Norms and biases do not, as is customary; nor do
/// tables of tokens and positions, a head that is tied to one included: most of their rows have no
/// gradient in a step, and would only shrink.
fn decays(part: Part, kind: names::Kind) -> bool {
    part.is_matrix() && kind == names::Kind::Weight
}
