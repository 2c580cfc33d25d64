//! The held-out loss of a snapshot of what has learned, computed beside the training.
//!
//! Nothing that it reads is written by a step, so that no step waits for it.

use super::activations::Keep;
use super::content::Content;
use super::kernels::{Kernel, Kernels};
use super::replica::{Replica, Shared};
use super::tasks::{Place, Tasks};
use super::{Learner, hold_all};
use crate::batch::Batch;
use crate::error::Result;
use het_blocks::quantized::Format;
use het_runtime::HandleId;
use het_runtime::Mode::{Read, ReadWrite, Write};

/// What is under way.
#[derive(Debug)]
pub(super) struct Validation {
    replica: Replica,
    has_own_layers: bool,
    /// Of what learns.
    snapshot: Vec<HandleId>,
    batches: Vec<HandleId>,
    /// What lies around the layers, with rounded matrices.
    ends: Option<HandleId>,
    /// Of each batch, summed over its scored rows.
    losses: Vec<HandleId>,
    rows: usize,
}

/// What came of a validation.
#[derive(Debug, Clone, PartialEq)]
pub struct Validated {
    /// Mean over the scored rows.
    pub loss: f64,
    /// The device that computed it.
    pub device: String,
}

impl Validation {
    /// Takes the snapshot. No step is under way.
    pub fn new(
        tasks: &mut Tasks,
        kernels: &Kernels,
        learner: &Learner,
        place: Place,
        batches: &[Batch],
    ) -> Result<Self> {
        let copies = tasks.copies(&learner.values)?;
        let snapshot = hold_all(tasks, copies)?;
        let has_own_layers = !learner.base.is_empty();
        let layers = match has_own_layers {
            true => tasks.register_like(&learner.base)?,
            // What lies around the layers is the first.
            false => snapshot[1..].to_vec(),
        };
        let replica = Replica::new(tasks, kernels, place, layers)?;
        let rows = batches.iter().map(|batch| batch.rows.len()).sum();
        let losses = hold_all(tasks, batches.iter().map(|_| 0.0))?;
        Ok(Self {
            replica,
            has_own_layers,
            snapshot,
            batches: Vec::new(),
            ends: None,
            losses,
            rows,
        })
    }

    /// Submits all of it, with matrices in a format of integers where there is one. `shared` has
    /// what is not in the snapshot.
    pub fn submit(
        &mut self,
        tasks: &mut Tasks,
        shared: Shared<'_>,
        batches: &[Batch],
        format: Option<Format>,
    ) -> Result<()> {
        let snapshot = self.snapshot.clone();
        let outer = if self.has_own_layers { shared.outer } else { snapshot[0] };
        let mut shared = Shared { outer, values: &snapshot, ..shared };
        // Room for the largest: none waits for another one before it.
        for batch in batches {
            let architecture = &shared.kernels.architecture;
            self.replica.activations.fit(tasks, architecture, batch, Keep::Result)?;
        }
        if let Some(format) = format {
            shared.outer = self.quantize(tasks, shared, format)?;
            // An adapter is worked in already.
            shared.base = &[];
        }
        for (batch, loss) in batches.iter().zip(&self.losses) {
            let batch = self.replica.forward(tasks, shared, batch, Keep::Result)?;
            self.batches.push(batch);
            self.replica.score(tasks, shared.outer, batch, *loss)?;
        }
        tasks.flush();
        Ok(())
    }

    /// Submits what rounds all matrices; returns the handle of the ends.
    fn quantize(
        &mut self,
        tasks: &mut Tasks,
        shared: Shared<'_>,
        format: Format,
    ) -> Result<HandleId> {
        let place = self.replica.place;
        let by = Format::ALL.into_iter().position(|own| own == format).unwrap_or_default();
        for (index, layer) in self.replica.layers.iter().enumerate() {
            if !shared.base.is_empty() {
                self.replica.merge(tasks, shared, index)?;
            }
            tasks.submit(place, (Kernel::QuantizeLayer, by), [(*layer, ReadWrite)])?;
        }
        let ends = tasks.register_like(&[shared.outer])?[0];
        self.ends = Some(ends);
        tasks.submit(place, (Kernel::QuantizeEnds, 0), [(shared.outer, Read), (ends, Write)])?;
        Ok(ends)
    }

    /// Where it is computed.
    pub fn place(&self) -> Place {
        self.replica.place
    }

    /// What came of it, once all of it has ended.
    pub fn read(&self, tasks: &mut Tasks) -> Result<Validated> {
        let mut sum = 0.0;
        for loss in &self.losses {
            sum += tasks.look(*loss, |content| match content {
                Content::Loss(loss) => *loss,
                _ => f64::NAN,
            })?;
        }
        Ok(Validated { loss: sum / self.rows as f64, device: self.replica.name.clone() })
    }

    /// Frees all that it has, once nothing of it runs any more.
    pub fn release(self, tasks: &mut Tasks) -> Result<()> {
        let Self { replica, has_own_layers, snapshot, batches, ends, losses, .. } = self;
        replica.release(tasks, has_own_layers)?;
        let mut all = snapshot.into_iter().chain(batches).chain(ends).chain(losses);
        all.try_for_each(|handle| tasks.release(handle))
    }
}
