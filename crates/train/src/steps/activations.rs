//! The handles of what a batch leaves between its tasks, used by one batch after the other.

use super::tasks::Tasks;
use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::cpu::lengths::{Lengths, VALUE};
use crate::error::Result;
use het_runtime::HandleId;

/// Handles for one batch at a time. They have room for the largest batch so far: smaller ones fill
/// a part of it, so that buffers stay.
#[derive(Debug, Default)]
pub(super) struct Activations {
    lengths: Lengths,
    /// Inputs of the layers, and the last one's result; two that take turns where nobody needs them
    /// again.
    inputs: Vec<HandleId>,
    /// What layers keep for their backward; one where nothing is kept.
    tapes: Vec<HandleId>,
    /// The gradient of the residual stream, where there is one.
    stream: Option<HandleId>,
}

/// What of a forward is there afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// All that a backward needs.
    Everything,
    /// The input of each layer.
    Inputs,
    /// The last layer's result.
    Result,
}

impl Activations {
    /// Makes sure that there is room for a batch.
    pub fn fit(
        &mut self,
        tasks: &mut Tasks,
        architecture: &Architecture,
        batch: &Batch,
        keep: Keep,
    ) -> Result<()> {
        let layers = architecture.layers.len();
        let (inputs, tapes) = match keep {
            Keep::Everything => (layers + 1, layers),
            Keep::Inputs => (layers + 1, 1),
            Keep::Result => (2, 1),
        };
        let lengths = batch.bounds.windows(2).map(|pair| pair[1] - pair[0]);
        let lengths = Lengths::of(lengths).max(self.lengths);
        let has_stream = self.stream.is_some() || keep == Keep::Result;
        let (inputs, tapes) = (inputs.max(self.inputs.len()), tapes.max(self.tapes.len()));
        let has_all = inputs == self.inputs.len() && tapes == self.tapes.len() && has_stream;
        if lengths == self.lengths && has_all {
            return Ok(());
        }
        self.release(tasks)?;
        self.lengths = lengths;
        let input = VALUE * lengths.input(architecture);
        let tape = VALUE * lengths.layer(architecture) - input;
        let all = |count: usize, bytes: u64, tasks: &mut Tasks| -> Result<Vec<HandleId>> {
            (0..count).map(|_| tasks.register(bytes)).collect()
        };
        self.inputs = all(inputs, input, tasks)?;
        self.tapes = all(tapes, tape, tasks)?;
        if keep != Keep::Result {
            self.stream = Some(tasks.register(input)?);
        }
        Ok(())
    }

    /// Waits for the tasks that use them.
    pub fn release(&mut self, tasks: &mut Tasks) -> Result<()> {
        let all = self.inputs.drain(..).chain(self.tapes.drain(..)).chain(self.stream.take());
        all.into_iter().try_for_each(|handle| tasks.release(handle))
    }

    /// Of a layer; behind the last one its result.
    pub fn input(&self, layer: usize, keep: Keep) -> HandleId {
        match keep {
            Keep::Everything | Keep::Inputs => self.inputs[layer],
            Keep::Result => self.inputs[layer % 2],
        }
    }

    pub fn tape(&self, layer: usize, keep: Keep) -> HandleId {
        match keep {
            Keep::Everything => self.tapes[layer],
            Keep::Inputs | Keep::Result => self.tapes[0],
        }
    }

    /// The gradient of the residual stream, once a batch that learns was fitted.
    pub fn stream(&self) -> HandleId {
        self.stream.expect("whoever asks fitted a batch that learns")
    }
}
