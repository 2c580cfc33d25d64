//! Steps as graphs of tasks on the execution tier: what is computed, in which order, on which data.
//!
//! Everything here is submission: which kernel, which handles, read or written. What waits for
//! what follows from it, and what runs where is decided below. All values that tasks use lie in
//! handles, from which the host takes them between steps; nothing else has them.
//!
//! Batches of one step use the same handles of activations, so that a batch waits for the one
//! before it where it would overwrite what that one needs.

mod activations;
mod content;
mod kernels;
mod tasks;

use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::blocks::meter::Spent;
use crate::blocks::rotation::Table;
use crate::cpu::generate::generate;
use crate::cpu::model::Model;
use crate::error::{Error, Result};
use crate::lora::Adapter;
use crate::optimiser::{AdamW, Request};
use crate::precision;
use crate::weights::{Layer, Outer, Parameters, Weights};
use activations::{Activations, Keep};
use content::{Content, Frozen};
use het_runtime::{HandleId, Mode};
use kernels::{Kernel, Kernels, Learns};
use std::sync::Arc;
use tasks::Tasks;

pub use tasks::TaskTime;

use Mode::{Read, ReadWrite, Write};

/// What a backward computes again instead of keeping it since the forward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Recompute {
    #[default]
    Nothing,
    /// All of a layer but its input (Chen et al. 2016): a third more work. The results are the
    /// same bits.
    Layers,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Summed over the scored rows of its batches.
    pub loss: f64,
    /// Whether gradients and updated values are; where the gradients are not, nothing was changed.
    pub is_finite: bool,
}

/// Submits the tasks of steps, and has the handles of their data.
#[derive(Debug)]
pub struct Executor {
    tasks: Tasks,
    kernels: Arc<Kernels>,
    detail: String,
    outer: HandleId,
    layers: Vec<HandleId>,
    angles: HandleId,
    /// How many positions they have.
    reached: usize,
    learner: Option<Learner>,
    recompute: Recompute,
    activations: Activations,
    /// Of the step under way.
    batches: Vec<HandleId>,
}

/// The handles of what learns.
#[derive(Debug)]
struct Learner {
    /// Weights that an adapter is worked into, layer by layer.
    base: Vec<HandleId>,
    /// What lies around the layers, where it learns, and each layer: values, gradient and moments
    /// of the same place in each list.
    values: Vec<HandleId>,
    gradients: Vec<HandleId>,
    moments: Vec<HandleId>,
    are_finite: Vec<HandleId>,
    loss: HandleId,
    request: HandleId,
    rule: HandleId,
}

impl Executor {
    /// Of weights that nobody changes, to compute losses.
    pub fn frozen(weights: &Arc<Weights>) -> Result<Self> {
        let kernels = Kernels::new(weights.architecture.clone(), Learns::Nothing);
        Self::start(kernels, Content::Outer(weights.parameters.outer.clone()), frozen(weights))
    }

    /// Of an adapter beside weights that stay. The weights are there twice: as they are, and with
    /// the adapter worked in, from the first step on.
    pub fn adapting(weights: &Arc<Weights>, adapter: &Adapter) -> Result<Self> {
        let kernels = Kernels::new(
            weights.architecture.clone(),
            Learns::Adapter(adapter.with_values(Vec::new())),
        );
        let Parameters { outer, layers } = &weights.parameters;
        let merged = layers.iter().map(|layer| Content::Layer(Box::new(layer.clone())));
        let mut own = Self::start(kernels, Content::Outer(outer.clone()), merged)?;
        let tasks = &mut own.tasks;
        let base = hold_all(tasks, frozen(weights))?;
        let places = (0..layers.len()).map(|layer| adapter.place(layer));
        let values = places.clone().map(|place| Content::Values(adapter.values[place].to_vec()));
        let gradients = places.clone().map(|place| Content::Values(vec![0.0; place.len()]));
        let moments = places.map(|place| AdamW::new(place.len()));
        let values = hold_all(tasks, values)?;
        own.learner = Some(Learner::new(tasks, (base, values), gradients, moments)?);
        Ok(own)
    }

    /// Of weights that all learn: there is no other copy of them.
    pub fn learning(weights: Weights) -> Result<Self> {
        let Weights { architecture, parameters: Parameters { outer, layers }, .. } = weights;
        let kernels = Kernels::new(architecture, Learns::All);
        let layers = layers.into_iter().map(|layer| Content::Layer(Box::new(layer)));
        let mut own = Self::start(kernels, Content::Outer(outer), layers)?;
        let zeros = Parameters::zeros(own.architecture());
        let gradients = contents(zeros);
        let count = |gradient: &Content| match gradient {
            Content::Outer(outer) => outer.buffers().map(|(.., own)| own.len()).sum::<usize>(),
            Content::Layer(layer) => layer.buffers().map(|(.., own)| own.len()).sum(),
            _ => 0,
        };
        let moments: Vec<AdamW> = gradients.iter().map(count).map(AdamW::new).collect();
        let values = [own.outer].into_iter().chain(own.layers.iter().copied()).collect();
        let learner = Learner::new(&mut own.tasks, (Vec::new(), values), gradients, moments)?;
        own.learner = Some(learner);
        Ok(own)
    }

    fn start(
        kernels: Kernels,
        outer: Content,
        layers: impl IntoIterator<Item = Content>,
    ) -> Result<Self> {
        let kernels = Arc::new(kernels);
        let mut tasks = Tasks::new(&kernels)?;
        let ropes = kernels.architecture.ropes.iter();
        let angles = tasks.hold(ropes.map(|_| Table::default()).collect::<Vec<_>>())?;
        let layers: Vec<Content> = layers.into_iter().collect();
        let first = layers.first().and_then(|layer| content::get::<Layer>(layer).ok());
        let detail = detail(first);
        Ok(Self {
            outer: tasks.hold(outer)?,
            layers: hold_all(&mut tasks, layers)?,
            tasks,
            detail,
            kernels,
            angles,
            reached: 0,
            learner: None,
            recompute: Recompute::default(),
            activations: Activations::default(),
            batches: Vec::new(),
        })
    }

    pub fn architecture(&self) -> &Architecture {
        &self.kernels.architecture
    }

    /// What really computes, in words for a report.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn set_recompute(&mut self, recompute: Recompute) {
        self.recompute = recompute;
    }

    /// Submits what a step begins with: an adapter is worked in, gradients and loss become zero.
    pub fn begin_step(&mut self) -> Result<()> {
        self.settle()?;
        self.submit_merge()?;
        let Self { tasks, learner: Some(learner), .. } = self else { return Err(no_learner()) };
        for gradient in &learner.gradients {
            tasks.submit(Kernel::Clear, 0, [(*gradient, ReadWrite)])?;
        }
        tasks.give(learner.loss, 0.0)
    }

    fn submit_merge(&mut self) -> Result<()> {
        let Self { tasks, learner: Some(learner), layers, .. } = self else {
            return Err(no_learner());
        };
        let handles = learner.base.iter().zip(&learner.values).zip(layers);
        for (index, ((base, values), layer)) in handles.enumerate() {
            let accesses = [(*base, Read), (*values, Read), (*layer, ReadWrite)];
            tasks.submit(Kernel::Merge, index, accesses)?;
        }
        Ok(())
    }

    /// Submits forward and backward of a batch, which add to the step's loss and gradients. Waits
    /// for nothing.
    pub fn add_gradients(&mut self, batch: &Batch) -> Result<()> {
        if self.learner.is_none() {
            return Err(no_learner());
        }
        let keep = match self.recompute {
            Recompute::Nothing => Keep::Everything,
            Recompute::Layers => Keep::Inputs,
        };
        let handle = self.submit_forward(batch, keep)?;
        self.batches.push(handle);
        self.submit_backward(handle, keep)?;
        self.tasks.flush();
        Ok(())
    }

    /// Ends a step: cuts the gradients and updates what learns.
    pub fn update(&mut self, request: Request) -> Result<Step> {
        let Self { tasks, learner: Some(learner), .. } = self else { return Err(no_learner()) };
        let Learner { loss, rule, .. } = *learner;
        tasks.give(learner.request, request)?;
        let first = [(learner.request, Read), (loss, Read), (rule, Write)];
        let gradients = learner.gradients.iter().map(|gradient| (*gradient, Read));
        tasks.submit(Kernel::Norm, 0, first.into_iter().chain(gradients))?;
        let Learner { values, gradients, moments, are_finite, .. } = &*learner;
        let handles = values.iter().zip(gradients).zip(moments).zip(are_finite);
        for (((values, gradient), moments), is_finite) in handles {
            let own = [(*values, ReadWrite), (*gradient, Read), (*moments, ReadWrite)];
            let accesses = [(rule, Read)].into_iter().chain(own).chain([(*is_finite, Write)]);
            tasks.submit(Kernel::Update, 0, accesses)?;
        }
        let flags = are_finite.clone();
        self.settle()?;
        let mut is_finite = true;
        for flag in flags {
            is_finite &=
                self.tasks.look(flag, |content| matches!(content, Content::IsFinite(true)))?;
        }
        Ok(Step { loss: self.loss_of(loss)?, is_finite })
    }

    /// Waits for what was submitted of a step; the loss so far, summed over the scored rows.
    pub fn step_loss(&mut self) -> Result<f64> {
        let loss = self.learner.as_ref().ok_or_else(no_learner)?.loss;
        self.settle()?;
        self.loss_of(loss)
    }

    fn loss_of(&mut self, handle: HandleId) -> Result<f64> {
        self.tasks.look(handle, |content| match content {
            Content::Loss(loss) => *loss,
            _ => f64::NAN,
        })
    }

    /// Waits for all tasks, and releases the batches that they used.
    fn settle(&mut self) -> Result<()> {
        self.tasks.wait()?;
        self.batches.drain(..).try_for_each(|batch| self.tasks.release(batch))
    }

    /// Loss summed over the scored rows.
    pub fn loss(&mut self, batch: &Batch) -> Result<f64> {
        let handle = self.submit_forward(batch, Keep::Result)?;
        let loss = self.tasks.register(size_of::<f64>() as u64)?;
        let last = self.activations.input(self.layers.len(), Keep::Result);
        let accesses = [(self.outer, Read), (handle, Read), (last, Read), (loss, Write)];
        self.tasks.submit(Kernel::Loss, 0, accesses)?;
        let found = self.loss_of(loss)?;
        self.tasks.release(handle)?;
        self.tasks.release(loss)?;
        Ok(found)
    }

    /// Logits of the next token after every token of the batch: `[tokens, vocabulary]`
    pub fn logits(&mut self, batch: &Batch) -> Result<Vec<f32>> {
        let handle = self.submit_forward(batch, Keep::Result)?;
        let last = self.activations.input(self.layers.len(), Keep::Result);
        let hidden = self.tasks.look(last, |hidden| content::get(hidden).cloned())?;
        let hidden: Vec<f32> = hidden.map_err(unlike)?;
        self.tasks.release(handle)?;
        let rows: Vec<usize> = (0..batch.tokens.len()).collect();
        self.with_model(|model| Ok(model.logits(&hidden, &rows)))
    }

    /// The likeliest tokens after each prompt, up to and without `end`, at most `new_max` of them.
    pub fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        end: Option<u32>,
        new_max: usize,
    ) -> Result<Vec<Vec<u32>>> {
        match prompts.is_empty() {
            true => Ok(Vec::new()),
            false => self.with_model(|model| generate(model, prompts, end, new_max)),
        }
    }

    /// Submits what takes a batch through all layers; returns its handle.
    fn submit_forward(&mut self, batch: &Batch, keep: Keep) -> Result<HandleId> {
        let architecture = &self.kernels.architecture;
        batch.check_vocabulary(architecture.vocabulary)?;
        architecture.check_length(batch.longest())?;
        let Self { tasks, activations, .. } = self;
        activations.fit(tasks, architecture, batch, keep)?;
        if batch.longest() > self.reached {
            self.reached = batch.longest();
            tasks.submit(Kernel::Angles, self.reached, [(self.angles, ReadWrite)])?;
        }
        let handle = tasks.hold(batch.clone())?;
        let first = activations.input(0, keep);
        let accesses = [(self.outer, Read), (handle, Read), (first, Write)];
        tasks.submit(Kernel::Embedding, 0, accesses)?;
        let kernel = match keep {
            Keep::Everything => Kernel::LayerForward,
            Keep::Inputs | Keep::Result => Kernel::LayerForwardOnly,
        };
        for index in 0..self.layers.len() {
            let out = self.activations.input(index + 1, keep);
            self.submit_layer(kernel, index, (handle, keep), out)?;
        }
        Ok(handle)
    }

    fn submit_layer(
        &mut self,
        kernel: Kernel,
        index: usize,
        (batch, keep): (HandleId, Keep),
        out: HandleId,
    ) -> Result<()> {
        let (input, tape) =
            (self.activations.input(index, keep), self.activations.tape(index, keep));
        let own = [(self.layers[index], Read), (self.angles, Read), (batch, Read), (input, Read)];
        self.tasks.submit(kernel, index, own.into_iter().chain([(tape, Write), (out, Write)]))
    }

    fn submit_backward(&mut self, batch: HandleId, keep: Keep) -> Result<()> {
        let Some(learner) = &self.learner else { return Err(no_learner()) };
        let count = self.layers.len();
        let (last, stream) = (self.activations.input(count, keep), self.activations.stream());
        let (loss, gradients) = (learner.loss, learner.gradients.clone());
        let (ends, gradients) = match self.kernels.learns {
            Learns::All => (gradients.first().copied(), gradients[1..].to_vec()),
            Learns::Adapter(_) | Learns::Nothing => (None, gradients),
        };
        let adapter = match learner.base.is_empty() {
            true => Vec::new(),
            false => learner.values.clone(),
        };
        let own = [(self.outer, Read), (batch, Read), (last, Read), (loss, ReadWrite)];
        let ends = ends.map(|gradient| (gradient, ReadWrite));
        let into = [(stream, Write)].into_iter().chain(ends);
        self.tasks.submit(Kernel::Head, 0, own.into_iter().chain(into))?;
        for index in (0..count).rev() {
            if keep == Keep::Inputs {
                // Nobody needs the last layer's result any more.
                self.submit_layer(Kernel::LayerRecompute, index, (batch, keep), last)?;
            }
            let (input, tape) =
                (self.activations.input(index, keep), self.activations.tape(index, keep));
            let read = [self.layers[index], self.angles, batch, input].map(|own| (own, Read));
            let changed = [tape, stream, gradients[index]].map(|own| (own, ReadWrite));
            let values = adapter.get(index).map(|values| (*values, Read));
            let accesses = read.into_iter().chain(changed).chain(values);
            self.tasks.submit(Kernel::LayerBackward, index, accesses)?;
        }
        let Some(ends) = ends else { return Ok(()) };
        let own = [(self.outer, Read), (batch, Read), (stream, Read), ends];
        self.tasks.submit(Kernel::EmbeddingBackward, 0, own)
    }

    /// What each kind of task took since the beginning, by kernel.
    pub fn times(&self) -> Vec<TaskTime> {
        self.tasks.times().collect()
    }

    /// Where the time of all tasks went, by kind of work.
    pub fn spent(&self) -> Spent {
        self.kernels.spent()
    }
}

/// What the host has between steps.
impl Executor {
    /// Takes the values out that are computed with, which have to be given back.
    pub fn take_parameters(&mut self) -> Result<Parameters> {
        self.settle()?;
        let outer = match self.tasks.take(self.outer)? {
            Content::Outer(outer) => outer,
            _ => return Err(unlike("it has no weights any more")),
        };
        let layers = self.layers.iter().map(|layer| {
            let layer = self.tasks.take(*layer)?.into_layer();
            layer.ok_or_else(|| unlike("it has no weights any more"))
        });
        Ok(Parameters { layers: layers.collect::<Result<_>>()?, outer })
    }

    /// Gives values of the same shapes, or those that were taken out.
    pub fn give_parameters(&mut self, parameters: Parameters) -> Result<()> {
        let handles = [self.outer].into_iter().chain(self.layers.iter().copied());
        let given = handles.zip(contents(parameters));
        given.into_iter().try_for_each(|(handle, content)| self.tasks.give(handle, content))
    }

    /// Takes a look at the values that are computed with.
    pub fn with_parameters<R>(&mut self, look: impl FnOnce(&Parameters) -> Result<R>) -> Result<R> {
        let parameters = self.take_parameters()?;
        let result = look(&parameters);
        self.give_parameters(parameters)?;
        result
    }

    fn with_model<R>(&mut self, run: impl FnOnce(&mut Model) -> Result<R>) -> Result<R> {
        let shared = match self.layers.first() {
            Some(first) => self.tasks.look(*first, |content| match content {
                Content::Frozen(own) => Some(Arc::clone(&own.weights)),
                _ => None,
            })?,
            None => None,
        };
        let mut model = Model::of(self.architecture().clone(), self.take_parameters()?);
        let result = run(&mut model);
        let Some(weights) = shared else {
            self.give_parameters(model.parameters)?;
            return result;
        };
        // The copies that the model computed with go, and the weights of all are there again.
        self.tasks.give(self.outer, Content::Outer(model.parameters.outer))?;
        let layers = self.layers.iter().zip(frozen(&weights));
        layers.into_iter().try_for_each(|(handle, layer)| self.tasks.give(*handle, layer))?;
        result
    }

    /// The adapter that learns, with its values.
    pub fn adapter(&mut self) -> Result<Adapter> {
        let handles = self.learner.as_ref().map(|learner| learner.values.clone());
        let values = self.joined(&handles.unwrap_or_default())?;
        match &self.kernels.learns {
            Learns::Adapter(layout) => Ok(layout.with_values(values)),
            Learns::All | Learns::Nothing => Err(no_adapter()),
        }
    }

    /// Gives the adapter other values, laid out as they were.
    pub fn set_adapter(&mut self, adapter: &Adapter) -> Result<()> {
        self.settle()?;
        let Some(learner) = self.learner.as_ref().filter(|learner| !learner.base.is_empty()) else {
            return Err(no_adapter());
        };
        for (layer, handle) in learner.values.clone().into_iter().enumerate() {
            self.tasks.give(handle, adapter.values[adapter.place(layer)].to_vec())?;
        }
        Ok(())
    }

    /// Works an adapter's present values in, as a step does when it begins.
    pub fn use_adapter(&mut self) -> Result<()> {
        self.submit_merge()?;
        self.settle()
    }

    /// The gradient of an adapter in the step, laid out as its values.
    pub fn adapter_gradient(&mut self) -> Result<Vec<f32>> {
        let handles = self.learner.as_ref().map(|learner| learner.gradients.clone());
        self.joined(&handles.unwrap_or_default())
    }

    fn joined(&mut self, handles: &[HandleId]) -> Result<Vec<f32>> {
        let length = match (&self.kernels.learns, handles.len().checked_sub(1)) {
            (Learns::Adapter(layout), Some(last)) => layout.place(last).end,
            _ => 0,
        };
        let mut values = Vec::with_capacity(length);
        for handle in handles {
            self.tasks.look(*handle, |content| -> Result<()> {
                let own: &Vec<f32> = content::get(content).map_err(|_| no_adapter())?;
                values.extend(own);
                Ok(())
            })??;
        }
        Ok(values)
    }

    /// The gradients of all parameters in the step.
    pub fn full_gradient(&mut self) -> Result<Parameters> {
        let handles = self.learner.as_ref().map(|learner| learner.gradients.clone());
        let (mut outer, mut layers) = (None, Vec::new());
        for handle in handles.unwrap_or_default() {
            self.tasks.look(handle, |content| match content {
                Content::Outer(own) => outer = Some(Arc::new(Outer::clone(own))),
                Content::Layer(own) => layers.push(Layer::clone(own)),
                _ => {}
            })?;
        }
        let outer = outer.ok_or_else(|| unlike("an adapter learns, and not all parameters"))?;
        Ok(Parameters { outer, layers })
    }

    /// The moments of all that learns, in parts that lie one behind the other.
    pub fn with_moments<R>(&mut self, change: impl FnOnce(&mut [AdamW]) -> Result<R>) -> Result<R> {
        let handles = self.learner.as_ref().ok_or_else(no_learner)?.moments.clone();
        let mut moments = Vec::with_capacity(handles.len());
        for handle in &handles {
            match self.tasks.take(*handle)? {
                Content::Moments(own) => moments.push(own),
                _ => return Err(unlike("it has no moments any more")),
            }
        }
        let result = change(&mut moments);
        for (handle, moments) in handles.into_iter().zip(moments) {
            self.tasks.give(handle, moments)?;
        }
        result
    }

    /// Frees what only steps need; what has learned stays.
    pub fn end_training(&mut self) -> Result<()> {
        self.settle()?;
        let Self { tasks, learner: Some(learner), activations, .. } = self else {
            return Err(no_learner());
        };
        let Learner { gradients, moments, are_finite, .. } = learner;
        let all = gradients.drain(..).chain(moments.drain(..)).chain(are_finite.drain(..));
        all.into_iter().try_for_each(|handle| tasks.release(handle))?;
        activations.release(tasks)
    }
}

impl Learner {
    fn new(
        tasks: &mut Tasks,
        (base, values): (Vec<HandleId>, Vec<HandleId>),
        gradients: impl IntoIterator<Item = Content>,
        moments: impl IntoIterator<Item = AdamW>,
    ) -> Result<Self> {
        let gradients = hold_all(tasks, gradients)?;
        let moments = hold_all(tasks, moments)?;
        let small = size_of::<Content>() as u64;
        let are_finite = moments.iter().map(|_| tasks.register(small)).collect::<Result<_>>()?;
        let [request, rule] = [tasks.register(small)?, tasks.register(small)?];
        let loss = tasks.hold(0.0)?;
        Ok(Self { base, values, gradients, moments, are_finite, loss, request, rule })
    }
}

fn hold_all(
    tasks: &mut Tasks,
    contents: impl IntoIterator<Item = impl Into<Content>>,
) -> Result<Vec<HandleId>> {
    contents.into_iter().map(|content| tasks.hold(content)).collect()
}

fn frozen(weights: &Arc<Weights>) -> impl Iterator<Item = Content> + use<> {
    let weights = Arc::clone(weights);
    (0..weights.parameters.layers.len())
        .map(move |layer| Content::Frozen(Frozen { weights: Arc::clone(&weights), layer }))
}

/// What lies around the layers, and each layer.
fn contents(parameters: Parameters) -> Vec<Content> {
    let Parameters { outer, layers } = parameters;
    let layers = layers.into_iter().map(|layer| Content::Layer(Box::new(layer)));
    [Content::Outer(outer)].into_iter().chain(layers).collect()
}

fn detail(first: Option<&Layer>) -> String {
    let arithmetic = precision::arithmetic(first);
    match rayon::current_num_threads() {
        1 => format!("{arithmetic} on 1 cpu thread"),
        threads => format!("{arithmetic} on {threads} cpu threads"),
    }
}

fn unlike(what: impl Into<String>) -> Error {
    Error::DriverFailed { driver: crate::drivers::CPU.to_owned(), what: what.into() }
}

fn no_learner() -> Error {
    unlike("nothing learns")
}

fn no_adapter() -> Error {
    unlike("its weights all learn, and take no adapter")
}

#[cfg(test)]
mod tests;
