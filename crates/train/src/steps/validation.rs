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
use crate::blocks::quantized::Format;
use crate::error::Result;
use het_runtime::HandleId;
use het_runtime::Mode::{Read, ReadWrite, Write};
use std::sync::Arc;

/// What is under way.
#[derive(Debug)]
pub(super) struct Validation {
    replica: Replica,
    has_own_layers: bool,
    /// Snapshots, and batches.
    handles: Vec<HandleId>,
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
    /// Submits all of it, with matrices in a format of integers where there is one. No step is
    /// under way.
    pub fn begin(
        tasks: &mut Tasks,
        kernels: &Arc<Kernels>,
        (learner, outer): (&Learner, HandleId),
        place: Place,
        (batches, format): (&[Batch], Option<Format>),
    ) -> Result<Self> {
        let copies = tasks.copies(&learner.values)?;
        let snapshot = hold_all(tasks, copies)?;
        let (layers, outer) = match learner.base.is_empty() {
            // What lies around the layers is the first.
            true => (snapshot[1..].to_vec(), snapshot[0]),
            false => (tasks.register_like(&learner.base)?, outer),
        };
        let has_own_layers = !learner.base.is_empty();
        let mut replica = Replica::new(tasks, kernels, place, layers)?;
        // Room for the largest: none waits for another one before it.
        let fit =
            |batch| replica.activations.fit(tasks, &kernels.architecture, batch, Keep::Result);
        batches.iter().try_for_each(fit)?;
        let rows = batches.iter().map(|batch| batch.rows.len()).sum();
        let losses = hold_all(tasks, batches.iter().map(|_| 0.0))?;
        let mut own = Self { replica, has_own_layers, handles: snapshot.clone(), losses, rows };
        let mut shared = Shared { kernels, outer, base: &learner.base, values: &snapshot };
        if let Some(format) = format {
            shared.outer = own.quantize(tasks, shared, format)?;
            // An adapter is worked in already.
            shared.base = &[];
        }
        for (row, batch) in batches.iter().enumerate() {
            let batch = own.replica.forward(tasks, shared, batch, Keep::Result)?;
            own.handles.push(batch);
            own.replica.score(tasks, shared.outer, batch, own.losses[row])?;
        }
        tasks.flush();
        Ok(own)
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
        self.handles.push(ends);
        tasks.submit(place, (Kernel::QuantizeEnds, 0), [(shared.outer, Read), (ends, Write)])?;
        Ok(ends)
    }

    /// Where it is computed.
    pub fn place(&self) -> Place {
        self.replica.place
    }

    /// Waits for all of it.
    pub fn end(self, tasks: &mut Tasks) -> Result<Validated> {
        tasks.wait_for_all()?;
        let mut sum = 0.0;
        for loss in &self.losses {
            sum += tasks.look(*loss, |content| match content {
                Content::Loss(loss) => *loss,
                _ => f64::NAN,
            })?;
        }
        let validated =
            Validated { loss: sum / self.rows as f64, device: self.replica.name.clone() };
        self.release(tasks)?;
        Ok(validated)
    }

    /// Frees all that it has, once nothing of it runs any more.
    pub fn release(self, tasks: &mut Tasks) -> Result<()> {
        self.replica.release(tasks, self.has_own_layers)?;
        let mut all = self.handles.into_iter().chain(self.losses);
        all.try_for_each(|handle| tasks.release(handle))
    }
}
