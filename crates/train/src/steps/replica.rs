//! A data-parallel replica: a device that computes batches of its own, and the handles that it
//! alone uses for that.

use super::activations::{Activations, Keep};
use super::kernels::{Kernel, Kernels, Learns};
use super::no_learner;
use super::tasks::{Place, Tasks, Urgency};
use crate::batch::Batch;
use crate::error::Result;
use het_blocks::rotation::Table;
use het_runtime::HandleId;
use het_runtime::Mode::{Read, ReadWrite, Write};

#[derive(Debug)]
pub(super) struct Replica {
    /// Its device, and how urgent what it does is.
    pub place: Place,
    pub name: String,
    /// The layers that it computes with: those that learn are the same handles for all replicas.
    pub layers: Vec<HandleId>,
    /// Whether an adapter's present values are worked into them, or will be by what is submitted.
    is_merged: bool,
    angles: HandleId,
    /// How many positions they have.
    reached: usize,
    pub activations: Activations,
    /// What its batches of the step add up to, for all that learns; none where it only scores.
    pub gradients: Vec<HandleId>,
    /// Summed over the scored rows of those batches.
    pub loss: HandleId,
    /// Tokens of those batches.
    pub tokens: usize,
}

/// The handles that replicas have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared<'a> {
    pub kernels: &'a Kernels,
    pub outer: HandleId,
    /// What an adapter is worked into, and its values, by layer; empty where there is none, or
    /// where it is worked in already.
    pub base: &'a [HandleId],
    pub values: &'a [HandleId],
}

impl Replica {
    pub fn new(
        tasks: &mut Tasks,
        kernels: &Kernels,
        place: Place,
        layers: Vec<HandleId>,
    ) -> Result<Self> {
        // The first task that uses one makes it.
        let angles = tasks.register(size_of::<Table>() as u64)?;
        let zeros = (place.urgency != Urgency::Background).then(|| kernels.zeros());
        let gradients = zeros.into_iter().flatten().map(|zero| tasks.register(zero.bytes()));
        let gradients = gradients.collect::<Result<_>>()?;
        Ok(Self {
            name: tasks.device(place.class).0.to_owned(),
            place,
            layers,
            is_merged: false,
            angles,
            reached: 0,
            activations: Activations::default(),
            gradients,
            loss: tasks.hold(0.0)?,
            tokens: 0,
        })
    }

    /// Submits what a step begins with: gradients and loss become zero. No task uses them.
    pub fn begin_step(&mut self, tasks: &mut Tasks) -> Result<()> {
        self.tokens = 0;
        self.is_merged = false;
        for (index, gradient) in self.gradients.iter().enumerate() {
            tasks.submit(self.place, (Kernel::Clear, index), [(*gradient, Write)])?;
        }
        tasks.give(self.loss, 0.0)
    }

    /// Submits what works an adapter into a layer.
    pub fn merge(&self, tasks: &mut Tasks, shared: Shared<'_>, layer: usize) -> Result<()> {
        let own = [(shared.base[layer], Read), (shared.values[layer], Read)];
        let accesses = own.into_iter().chain([(self.layers[layer], Write)]);
        let urgency = match self.place.urgency {
            // Else all layers would have theirs before the first one computes.
            Urgency::Usual => Urgency::Low,
            other => other,
        };
        tasks.submit(Place { urgency, ..self.place }, (Kernel::Merge, layer), accesses)
    }

    /// Submits what takes a batch through all layers; returns its handle. An adapter is worked into
    /// each layer just before: the values of later ones come while those before them compute.
    pub fn forward(
        &mut self,
        tasks: &mut Tasks,
        shared: Shared<'_>,
        batch: &Batch,
        keep: Keep,
    ) -> Result<HandleId> {
        let architecture = &shared.kernels.architecture;
        batch.check_vocabulary(architecture.vocabulary)?;
        architecture.check_length(batch.longest())?;
        self.activations.fit(tasks, architecture, batch, keep)?;
        if batch.longest() > self.reached {
            self.reached = batch.longest();
            let angles = [(self.angles, Write)];
            tasks.submit(self.place, (Kernel::Angles, self.reached), angles)?;
        }
        let handle = tasks.hold(batch.clone())?;
        let first = self.activations.input(0, keep);
        let accesses = [(shared.outer, Read), (handle, Read), (first, Write)];
        tasks.submit(self.place, (Kernel::Embedding, 0), accesses)?;
        let kernel = match keep {
            Keep::Everything => Kernel::LayerForward,
            Keep::Inputs | Keep::Result => Kernel::LayerForwardOnly,
        };
        let merges = !std::mem::replace(&mut self.is_merged, true) && !shared.base.is_empty();
        for index in 0..self.layers.len() {
            if merges {
                self.merge(tasks, shared, index)?;
            }
            let out = self.activations.input(index + 1, keep);
            self.layer(tasks, (kernel, index), (handle, keep), out)?;
        }
        Ok(handle)
    }

    fn layer(
        &self,
        tasks: &mut Tasks,
        (kernel, index): (Kernel, usize),
        (batch, keep): (HandleId, Keep),
        out: HandleId,
    ) -> Result<()> {
        let (input, tape) =
            (self.activations.input(index, keep), self.activations.tape(index, keep));
        let own = [(self.layers[index], Read), (self.angles, Read), (batch, Read), (input, Read)];
        let accesses = own.into_iter().chain([(tape, Write), (out, Write)]);
        tasks.submit(self.place, (kernel, index), accesses)
    }

    /// Submits the loss of a batch that was taken through all layers, into this handle.
    pub fn score(
        &self,
        tasks: &mut Tasks,
        outer: HandleId,
        batch: HandleId,
        loss: HandleId,
    ) -> Result<()> {
        let last = self.activations.input(self.layers.len(), Keep::Result);
        let accesses = [(outer, Read), (batch, Read), (last, Read), (loss, Write)];
        tasks.submit(self.place, (Kernel::Loss, 0), accesses)
    }

    /// Submits loss and gradients of a batch that was taken through all layers.
    pub fn backward(
        &self,
        tasks: &mut Tasks,
        Shared { kernels, outer, values, .. }: Shared<'_>,
        batch: HandleId,
        keep: Keep,
    ) -> Result<()> {
        let count = self.layers.len();
        let (last, stream) = (self.activations.input(count, keep), self.activations.stream());
        let (ends, gradients) = match kernels.learns {
            Learns::All(_) => {
                let (ends, layers) = self.gradients.split_first().ok_or_else(no_learner)?;
                (Some((*ends, ReadWrite)), layers)
            }
            Learns::Adapter(_) | Learns::Nothing => (None, &self.gradients[..]),
        };
        let own = [(outer, Read), (batch, Read), (last, Read), (self.loss, ReadWrite)];
        let into = [(stream, Write)].into_iter().chain(ends);
        tasks.submit(self.place, (Kernel::Head, 0), own.into_iter().chain(into))?;
        for index in (0..count).rev() {
            if keep == Keep::Inputs {
                // Nobody needs the last layer's result any more.
                self.layer(tasks, (Kernel::LayerRecompute, index), (batch, keep), last)?;
            }
            let (input, tape) =
                (self.activations.input(index, keep), self.activations.tape(index, keep));
            let read = [self.layers[index], self.angles, batch, input].map(|own| (own, Read));
            let changed = [tape, stream, gradients[index]].map(|own| (own, ReadWrite));
            let values = values.get(index).map(|values| (*values, Read));
            let accesses = read.into_iter().chain(changed).chain(values);
            tasks.submit(self.place, (Kernel::LayerBackward, index), accesses)?;
        }
        let Some(ends) = ends else { return Ok(()) };
        let own = [(outer, Read), (batch, Read), (stream, Read), ends];
        tasks.submit(self.place, (Kernel::EmbeddingBackward, 0), own)
    }

    /// What its batches of the step add up to: gradients, last layer first, which is the first that
    /// is there, and the loss.
    pub fn sums(&self) -> impl Iterator<Item = HandleId> {
        self.gradients.iter().rev().chain([&self.loss]).copied()
    }

    /// Submits what adds a sum of another replica to its own; `left` are those behind it.
    pub fn add(
        &self,
        tasks: &mut Tasks,
        (own, other): (HandleId, HandleId),
        left: usize,
    ) -> Result<()> {
        let sooner = u16::try_from(left).unwrap_or(u16::MAX);
        let place = Place { urgency: Urgency::Urgent(sooner), ..self.place };
        tasks.submit(place, (Kernel::Add, 0), [(own, ReadWrite), (other, Read)])
    }

    /// Frees what only steps need.
    pub fn end_training(&mut self, tasks: &mut Tasks) -> Result<()> {
        self.gradients.drain(..).try_for_each(|handle| tasks.release(handle))?;
        self.activations.release(tasks)
    }

    /// Frees all that it has.
    pub fn release(mut self, tasks: &mut Tasks, has_own_layers: bool) -> Result<()> {
        self.end_training(tasks)?;
        let layers = if has_own_layers { self.layers } else { Vec::new() };
        let all = layers.into_iter().chain([self.angles, self.loss]);
        all.into_iter().try_for_each(|handle| tasks.release(handle))
    }
}
