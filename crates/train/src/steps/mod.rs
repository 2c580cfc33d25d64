//! Steps as graphs of tasks on the execution tier: what is computed, in which order, on which data.
//!
//! Everything here is submission: which kernel, which handles, read or written. What waits for
//! what follows from it, and what runs where is decided below. All values that tasks use lie in
//! handles, from which the host takes them between steps; nothing else has them.
//!
//! Batches of one step use the same handles of activations, so that a batch waits for the one
//! before it where it would overwrite what that one needs.
//!
//! Where there are workers, a step is data parallel: each device computes a part of every batch in
//! a `replica` of its own, as large as its measured speed, and what they find is added up on this
//! process's device, which alone updates what learns. A worker that is lost costs the step under
//! way, which the others compute anew.

mod activations;
mod content;
mod kernels;
mod machine;
mod portable;
mod replica;
mod serving;
mod shares;
mod tasks;
mod validation;
mod vulkan;

use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::cpu::generate::generate;
use crate::cpu::model::Model;
use crate::error::{Error, Result};
use crate::lora::Adapter;
use crate::optimiser::{AdamW, Request};
use crate::precision;
use crate::weights::{Layer, Outer, Parameters, Weights};
use crate::workers::Workers;
use activations::Keep;
use content::{Content, Frozen};
use het_blocks::linear::Numbers;
use het_blocks::meter::Spent;
use het_runtime::{ClassId, HandleId, Mode};
use kernels::{Kernel, Kernels, Learns};
use replica::{Replica, Shared};
use shares::Shares;
use std::ops::Range;
use std::sync::Arc;
use tasks::{LostWorker, Place, Tasks};
use validation::Validation;

pub use serving::serve;
pub use tasks::TaskTime;
pub use validation::{Validated, When};
pub use vulkan::lacks as vulkan_lacks;

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
    /// This process's own, and one of each worker that is left.
    replicas: Vec<Replica>,
    shares: Shares,
    learner: Option<Learner>,
    recompute: Recompute,
    step: StepUnderWay,
    validation: Option<Validation>,
    work: Vec<DeviceWork>,
    workers: Workers,
    /// Classes of the workers that are not there.
    absent: Vec<ClassId>,
    /// What became of workers, for whoever watches.
    news: Vec<String>,
}

/// The handles of what learns.
#[derive(Debug)]
struct Learner {
    /// Weights that an adapter is worked into, layer by layer.
    base: Vec<HandleId>,
    /// What lies around the layers, where it learns, and each layer: values and moments of the
    /// same place in each list, as are the gradients of replicas.
    values: Vec<HandleId>,
    moments: Vec<HandleId>,
    are_finite: Vec<HandleId>,
    request: HandleId,
    rule: HandleId,
}

/// What was submitted of a step.
#[derive(Debug, Default)]
struct StepUnderWay {
    /// Handles of batches, or of their parts.
    handles: Vec<HandleId>,
    /// The batches, which are computed again by those that are left where a worker is lost.
    batches: Vec<Batch>,
    /// Whether what the replicas found is added up.
    is_reduced: bool,
    /// Seconds that each replica had computed when the step began.
    began: Vec<f64>,
}

/// What a device did of the training.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceWork {
    pub device: String,
    pub tokens: u64,
    /// Of its own time.
    pub seconds: f64,
    /// Why it was lost, each time that it was.
    pub losses: Vec<String>,
    pub is_lost: bool,
}

impl Executor {
    /// Of weights that nobody changes, to compute losses.
    pub fn frozen(weights: &Arc<Weights>) -> Result<Self> {
        let kernels = Arc::new(Kernels::new(weights.architecture.clone(), Learns::Nothing));
        let mut tasks = Tasks::new(&kernels, Vec::new())?;
        let layers = hold_all(&mut tasks, frozen(weights))?;
        let outer = tasks.hold(Content::Outer(weights.parameters.outer.clone()))?;
        let detail = detail(weights.parameters.layers.first(), Numbers::F32);
        Self::new((tasks, Workers::default()), kernels, (outer, detail), vec![layers])
    }

    /// Of an adapter beside weights that stay. Each replica has the weights twice: as they are, and
    /// with the adapter worked in, from the first step on.
    pub fn adapting(
        weights: &Arc<Weights>,
        adapter: &Adapter,
        mut workers: Workers,
    ) -> Result<Self> {
        let learns = Learns::Adapter(adapter.with_values(Vec::new()));
        let kernels = Arc::new(Kernels::new(weights.architecture.clone(), learns));
        let mut tasks = Tasks::new(&kernels, workers.take_peers())?;
        let Parameters { outer, layers } = &weights.parameters;
        let outer = tasks.hold(Content::Outer(outer.clone()))?;
        let base = hold_all(&mut tasks, frozen(weights))?;
        let copies = layers.iter().map(|layer| Content::Layer(Box::new(layer.clone())));
        let mut merged = vec![hold_all(&mut tasks, copies)?];
        for _ in tasks.classes().skip(1) {
            merged.push(tasks.register_like(&base)?);
        }
        let places = (0..layers.len()).map(|layer| adapter.place(layer));
        let values = places.clone().map(|place| Content::Values(adapter.values[place].to_vec()));
        let values = hold_all(&mut tasks, values)?;
        let moments = places.map(|place| AdamW::new(place.len()));
        let learner = Learner::new(&mut tasks, (base, values), moments)?;
        let detail = detail(layers.first(), Numbers::F32);
        let mut own = Self::new((tasks, workers), kernels, (outer, detail), merged)?;
        own.learner = Some(learner);
        Ok(own)
    }

    /// Of weights that all learn: this process has no other copy of them. Products are of such
    /// numbers.
    pub fn learning(weights: Weights, numbers: Numbers, mut workers: Workers) -> Result<Self> {
        let Weights { architecture, parameters: Parameters { outer, layers }, .. } = weights;
        let kernels = Arc::new(Kernels::new(architecture, Learns::All(numbers)));
        let mut tasks = Tasks::new(&kernels, workers.take_peers())?;
        let detail = detail(layers.first(), numbers);
        let outer = tasks.hold(Content::Outer(outer))?;
        let layers = layers.into_iter().map(|layer| Content::Layer(Box::new(layer)));
        let layers = hold_all(&mut tasks, layers)?;
        let values = [outer].into_iter().chain(layers.iter().copied()).collect();
        let moments = kernels.zeros().map(|zero| AdamW::new(kernels::count(&zero)));
        let learner = Learner::new(&mut tasks, (Vec::new(), values), moments)?;
        let layers = tasks.classes().map(|_| layers.clone()).collect();
        let mut own = Self::new((tasks, workers), kernels, (outer, detail), layers)?;
        own.learner = Some(learner);
        Ok(own)
    }

    fn new(
        (mut tasks, workers): (Tasks, Workers),
        kernels: Arc<Kernels>,
        (outer, detail): (HandleId, String),
        layers: Vec<Vec<HandleId>>,
    ) -> Result<Self> {
        let replicas = tasks.classes().zip(layers);
        let replicas = replicas
            .map(|(class, layers)| Replica::new(&mut tasks, &kernels, Place::usual(class), layers))
            .collect::<Result<Vec<_>>>()?;
        let work = replicas.iter().map(|own| DeviceWork {
            device: own.name.clone(),
            tokens: 0,
            seconds: 0.0,
            losses: Vec::new(),
            is_lost: false,
        });
        let detail = match replicas.len() - 1 {
            0 => detail,
            1 => format!("{detail}, and a worker"),
            workers => format!("{detail}, and {workers} workers"),
        };
        Ok(Self {
            work: work.collect(),
            shares: Shares::new(replicas.len()),
            tasks,
            kernels,
            detail,
            outer,
            replicas,
            learner: None,
            recompute: Recompute::default(),
            step: StepUnderWay::default(),
            validation: None,
            workers,
            absent: Vec::new(),
            news: Vec::new(),
        })
    }

    pub fn architecture(&self) -> &Architecture {
        &self.kernels.architecture
    }

    /// What really computes, in words for a report.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What each device did since the beginning.
    pub fn work(&self) -> &[DeviceWork] {
        &self.work
    }

    /// Devices that are there.
    pub fn devices(&self) -> usize {
        self.replicas.len()
    }

    /// What became of workers since this was asked last.
    pub fn take_news(&mut self) -> Vec<String> {
        self.news.extend(self.workers.take_news());
        std::mem::take(&mut self.news)
    }

    pub fn set_recompute(&mut self, recompute: Recompute) {
        self.recompute = recompute;
    }

    /// Submits what a step begins with: gradients and loss become zero.
    pub fn begin_step(&mut self) -> Result<()> {
        self.settle()?;
        self.forget_lost()?;
        self.let_in()?;
        self.step.batches.clear();
        self.begin()
    }

    /// Gives workers that have come in the place of lost ones a replica each.
    fn let_in(&mut self) -> Result<()> {
        let Self { tasks, learner: Some(learner), replicas, .. } = self else { return Ok(()) };
        let mut still = Vec::new();
        for class in self.absent.drain(..) {
            let Some(peer) = self.workers.replacement(worker(class)) else {
                still.push(class);
                continue;
            };
            let name = tasks.device(class).0.to_owned();
            if let Err(error) = tasks.replace(class, peer) {
                self.news.push(format!("{name} came again and is not let in: {error}"));
                self.workers.give_up(worker(class));
                still.push(class);
                continue;
            }
            let layers = match learner.base.is_empty() {
                true => replicas[0].layers.clone(),
                false => tasks.register_like(&learner.base)?,
            };
            replicas.push(Replica::new(tasks, &self.kernels, Place::usual(class), layers)?);
            self.shares.add();
            let work = self.work.iter_mut().find(|work| work.device == name);
            work.into_iter().for_each(|work| work.is_lost = false);
            self.news.push(format!("{name} is there again"));
        }
        self.absent = still;
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        self.step.is_reduced = false;
        if self.learner.is_none() {
            return Err(no_learner());
        }
        let Self { tasks, replicas, .. } = self;
        replicas.iter_mut().try_for_each(|replica| replica.begin_step(tasks))?;
        self.step.began =
            self.replicas.iter().map(|own| self.tasks.device(own.place.class).1).collect();
        Ok(())
    }

    /// Submits forward and backward of a batch, which add to the step's loss and gradients. Waits
    /// for nothing but a trial of replicas that nobody knows.
    pub fn add_gradients(&mut self, batch: &Batch) -> Result<()> {
        if self.learner.is_none() {
            return Err(no_learner());
        }
        if self.replicas.len() > 1 {
            self.step.batches.push(batch.clone());
        }
        let added = self.add(batch);
        self.or_without_lost(added)
    }

    /// Cuts a batch among the replicas.
    fn add(&mut self, batch: &Batch) -> Result<()> {
        if self.replicas.len() == 1 {
            self.add_part(0, batch)?;
        } else {
            let from = if self.shares.tries(batch) { self.try_all(batch)? } else { 0 };
            self.add_parts(batch, self.shares.cut(batch, from))?;
        }
        self.tasks.flush();
        Ok(())
    }

    fn add_parts(&mut self, batch: &Batch, parts: Vec<Range<usize>>) -> Result<()> {
        for (row, part) in parts.into_iter().enumerate().filter(|(_, part)| !part.is_empty()) {
            self.add_part(row, &batch.part(part))?;
        }
        Ok(())
    }

    /// Has every replica compute two sequences and measures the second: the first one also pays for
    /// what comes once a step, or once in all. Returns how many sequences that were.
    fn try_all(&mut self, batch: &Batch) -> Result<usize> {
        let count = self.replicas.len();
        let each = |from: usize| (from..from + count).map(|row| row..row + 1).collect();
        self.add_parts(batch, each(0))?;
        self.tasks.wait()?;
        let before = self.done();
        self.add_parts(batch, each(count))?;
        self.tasks.wait()?;
        let both = self.done().into_iter().zip(before);
        let second: Vec<_> = both.map(|(now, then)| (now.0 - then.0, now.1 - then.1)).collect();
        self.shares.measured(&second);
        Ok(2 * count)
    }

    /// Tokens of the step that each replica was given, and seconds that it has computed in it.
    fn done(&self) -> Vec<(usize, f64)> {
        let replicas = self.replicas.iter().zip(&self.step.began);
        let done = replicas.map(|(own, began)| {
            let (_, seconds) = self.tasks.device(own.place.class);
            (own.tokens, seconds - began)
        });
        done.collect()
    }

    fn add_part(&mut self, row: usize, batch: &Batch) -> Result<()> {
        let Self { tasks, kernels, outer, learner: Some(learner), replicas, .. } = self else {
            return Err(no_learner());
        };
        let keep = match self.recompute {
            Recompute::Nothing => Keep::Everything,
            Recompute::Layers => Keep::Inputs,
        };
        let values = if learner.base.is_empty() { &[] } else { &learner.values[..] };
        let shared = Shared { kernels, outer: *outer, base: &learner.base, values };
        let replica = &mut replicas[row];
        let handle = replica.forward(tasks, shared, batch, keep)?;
        self.step.handles.push(handle);
        replica.tokens += batch.tokens.len();
        replica.backward(tasks, shared, handle, keep)
    }

    /// Adds up what the replicas found, in the first one's handles.
    fn reduce(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.step.is_reduced, true) || self.replicas.len() == 1 {
            return Ok(());
        }
        let Self { tasks, replicas, .. } = self;
        let takes_part = |own: &&Replica| own.place.class.row() == 0 || own.tokens > 0;
        let classes = replicas.iter().filter(takes_part).map(|own| own.place.class);
        let sums: Vec<Vec<HandleId>> = replicas.iter().map(|own| own.sums().collect()).collect();
        let order = tasks.reduction(&classes.collect::<Vec<_>>(), &sums[0]);
        let row_of = |class| replicas.iter().position(|own| own.place.class == class);
        let order = order.into_iter().filter_map(|(into, from)| row_of(into).zip(row_of(from)));
        let order: Vec<(usize, usize)> = order.collect();
        // One sum after the other, so that links carry the next one while it is added.
        let count = sums[0].len();
        for (sum, left) in (0..count).zip((0..count).rev()) {
            for (into, from) in order.iter().copied() {
                replicas[into].add(tasks, (sums[into][sum], sums[from][sum]), left)?;
            }
        }
        // Nothing that learns is changed before all of it is there: it would be lost with a worker.
        tasks.wait()
    }

    /// What becomes of something that was refused or failed: where a worker was lost with it, the
    /// replicas that are left compute the step anew.
    fn or_without_lost(&mut self, mut result: Result<()>) -> Result<()> {
        while result.is_err() {
            // What was lost shows when all has ended.
            let _ = self.tasks.wait();
            if !self.forget_lost()? {
                break;
            }
            result = self.begin().and_then(|()| {
                let batches = std::mem::take(&mut self.step.batches);
                let added = batches.iter().try_for_each(|batch| self.add(batch));
                self.step.batches = batches;
                added
            });
        }
        result
    }

    /// Gives up the replicas of workers that are not there any more; whether there were any.
    fn forget_lost(&mut self) -> Result<bool> {
        let lost = self.tasks.take_lost();
        for LostWorker { class, name, reason } in &lost {
            let Some(row) = self.replicas.iter().position(|own| own.place.class == *class) else {
                continue;
            };
            if let Some(work) = self.work.iter_mut().find(|work| work.device == *name) {
                work.losses.push(reason.clone());
                work.is_lost = true;
            }
            self.news.push(format!("{name} is lost: {reason}; the others go on"));
            self.workers.give_up(worker(*class));
            self.absent.push(*class);
            if let Some(validation) = self.validation.take_if(|own| own.place().class == *class) {
                self.news.push(format!("a validation is lost with {name}"));
                validation.release(&mut self.tasks)?;
            }
            self.shares.remove(row);
            let replica = self.replicas.remove(row);
            let is_adapting = self.learner.as_ref().is_some_and(|own| !own.base.is_empty());
            replica.release(&mut self.tasks, is_adapting)?;
        }
        Ok(!lost.is_empty())
    }

    /// Ends a step: cuts the gradients and updates what learns.
    pub fn update(&mut self, request: Request) -> Result<Step> {
        self.add_up()?;
        let Self { tasks, learner: Some(learner), replicas, .. } = self else {
            return Err(no_learner());
        };
        let Replica { place, loss, ref gradients, .. } = replicas[0];
        let Learner { rule, .. } = *learner;
        tasks.give(learner.request, request)?;
        let first = [(learner.request, Read), (loss, Read), (rule, Write)];
        let all = gradients.iter().map(|gradient| (*gradient, Read));
        tasks.submit(place, (Kernel::Norm, 0), first.into_iter().chain(all))?;
        let Learner { values, moments, are_finite, .. } = &*learner;
        let handles = values.iter().zip(gradients).zip(moments).zip(are_finite);
        for (((values, gradient), moments), is_finite) in handles {
            let own = [(*values, ReadWrite), (*gradient, Read), (*moments, ReadWrite)];
            let accesses = [(rule, Read)].into_iter().chain(own).chain([(*is_finite, Write)]);
            tasks.submit(place, (Kernel::Update, 0), accesses)?;
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

    /// Waits until what the replicas found is added up, and remembers how fast they were.
    fn add_up(&mut self) -> Result<()> {
        if self.step.is_reduced {
            return Ok(());
        }
        loop {
            match self.reduce() {
                Ok(()) => break,
                failed => self.or_without_lost(failed)?,
            }
        }
        if self.replicas.len() == 1 {
            return Ok(());
        }
        let step = self.done();
        self.shares.measured(&step);
        for (replica, (tokens, seconds)) in self.replicas.iter().zip(step) {
            let own = self.work.iter_mut().find(|work| work.device == replica.name);
            if let Some(work) = own {
                work.tokens += tokens as u64;
                work.seconds += seconds;
            }
        }
        Ok(())
    }

    /// Waits for what was submitted of a step; the loss so far, summed over the scored rows.
    pub fn step_loss(&mut self) -> Result<f64> {
        self.add_up()?;
        self.settle()?;
        self.loss_of(self.replicas[0].loss)
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
        self.step.handles.drain(..).try_for_each(|batch| self.tasks.release(batch))
    }

    /// Loss summed over the scored rows.
    pub fn loss(&mut self, batch: &Batch) -> Result<f64> {
        let handle = self.forward_only(batch)?;
        let loss = self.tasks.register(size_of::<f64>() as u64)?;
        self.replicas[0].score(&mut self.tasks, self.outer, handle, loss)?;
        let found = self.loss_of(loss)?;
        self.tasks.release(handle)?;
        self.tasks.release(loss)?;
        Ok(found)
    }

    fn forward_only(&mut self, batch: &Batch) -> Result<HandleId> {
        let Self { tasks, kernels, outer, replicas, .. } = self;
        let shared = Shared { kernels, outer: *outer, base: &[], values: &[] };
        replicas[0].forward(tasks, shared, batch, Keep::Result)
    }

    /// Logits of the next token after every token of the batch: `[tokens, vocabulary]`
    pub fn logits(&mut self, batch: &Batch) -> Result<Vec<f32>> {
        let handle = self.forward_only(batch)?;
        let own = &self.replicas[0];
        let last = own.activations.input(own.layers.len(), Keep::Result);
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

    /// Begins to note when which device computes, copies and waits.
    pub fn record(&mut self) {
        self.tasks.record();
    }

    /// Ends that: a trace that Perfetto opens, where there is one.
    pub fn take_trace(&mut self) -> Option<String> {
        self.tasks.take_trace()
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
        let layers = self.replicas[0].layers.iter().map(|layer| {
            let layer = self.tasks.take(*layer)?.into_layer();
            layer.ok_or_else(|| unlike("it has no weights any more"))
        });
        Ok(Parameters { layers: layers.collect::<Result<_>>()?, outer })
    }

    /// Gives values of the same shapes, or those that were taken out.
    pub fn give_parameters(&mut self, parameters: Parameters) -> Result<()> {
        let handles = [self.outer].into_iter().chain(self.replicas[0].layers.iter().copied());
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
        let shared = match self.replicas[0].layers.first() {
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
        let layers = self.replicas[0].layers.iter().zip(frozen(&weights));
        layers.into_iter().try_for_each(|(handle, layer)| self.tasks.give(*handle, layer))?;
        result
    }

    /// The adapter that learns, with its values.
    pub fn adapter(&mut self) -> Result<Adapter> {
        let handles = self.learner.as_ref().map(|learner| learner.values.clone());
        let values = self.joined(&handles.unwrap_or_default())?;
        match &self.kernels.learns {
            Learns::Adapter(layout) => Ok(layout.with_values(values)),
            Learns::All(_) | Learns::Nothing => Err(no_adapter()),
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

    /// Works an adapter's present values in, as a step does.
    pub fn use_adapter(&mut self) -> Result<()> {
        let Self { tasks, kernels, outer, learner: Some(learner), replicas, .. } = self else {
            return Err(no_learner());
        };
        let Learner { base, values, .. } = learner;
        let shared = Shared { kernels, outer: *outer, base, values };
        (0..base.len()).try_for_each(|layer| replicas[0].merge(tasks, shared, layer))?;
        self.settle()
    }

    /// The gradient of an adapter in the step, laid out as its values.
    pub fn adapter_gradient(&mut self) -> Result<Vec<f32>> {
        let handles = self.replicas[0].gradients.clone();
        self.joined(&handles)
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
        let (mut outer, mut layers) = (None, Vec::new());
        for handle in self.replicas[0].gradients.clone() {
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
        let Self { tasks, learner: Some(learner), replicas, .. } = self else {
            return Err(no_learner());
        };
        let Learner { moments, are_finite, .. } = learner;
        let mut all = moments.drain(..).chain(are_finite.drain(..));
        all.try_for_each(|handle| tasks.release(handle))?;
        replicas.iter_mut().try_for_each(|replica| replica.end_training(tasks))
    }
}

impl Learner {
    fn new(
        tasks: &mut Tasks,
        (base, values): (Vec<HandleId>, Vec<HandleId>),
        moments: impl IntoIterator<Item = AdamW>,
    ) -> Result<Self> {
        let moments = hold_all(tasks, moments)?;
        let small = size_of::<Content>() as u64;
        let are_finite = moments.iter().map(|_| tasks.register(small)).collect::<Result<_>>()?;
        let [request, rule] = [tasks.register(small)?, tasks.register(small)?];
        Ok(Self { base, values, moments, are_finite, request, rule })
    }
}

/// The worker of a class: the first one is this process's own.
fn worker(class: ClassId) -> usize {
    class.row() - 1
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

fn detail(first: Option<&Layer>, numbers: Numbers) -> String {
    let arithmetic = precision::arithmetic(first, numbers);
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
