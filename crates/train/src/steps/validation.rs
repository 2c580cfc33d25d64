//! The held-out loss of a snapshot of what has learned, computed beside the training.
//!
//! Nothing that it reads is written by a step, so that no step waits for it.

use super::activations::Keep;
use super::content::Content;
use super::kernels::{Kernel, Kernels};
use super::replica::{Replica, Shared};
use super::tasks::{Place, Tasks, Urgency};
use super::{Executor, Learner, hold_all, no_learner};
use crate::batch::Batch;
use crate::error::Result;
use het_blocks::quantized::Format;
use het_runtime::HandleId;
use het_runtime::Mode::{Read, ReadWrite, Write};

/// Of the time that a training step takes for a token, what its forward takes.
const FORWARD_PART: f64 = 1.0 / 3.0;

/// When a validation is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// While devices train.
    BetweenSteps,
    /// Once they have nothing else to do.
    AfterAllSteps,
}

fn tokens_of(batches: &[Batch]) -> f64 {
    batches.iter().map(|batch| batch.tokens.len()).sum::<usize>() as f64
}

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

impl Executor {
    /// Begins to compute the held-out loss of what has been learned so far, with its matrices in a
    /// format of integers where there is one: between steps on the slowest device, and only while
    /// it has nothing else to do; after all of them on the fastest.
    pub fn begin_validation(
        &mut self,
        batches: &[Batch],
        format: Option<Format>,
        when: When,
    ) -> Result<()> {
        self.settle()?;
        self.forget_lost()?;
        let begun = self.submit_validation(batches, format, when);
        self.or_without_validation(begun)
    }

    /// What a validation between steps would take of the device that computes it, in seconds:
    /// infinite before its speed is known.
    pub fn validation_seconds(&self, batches: &[Batch]) -> f64 {
        let (_, speed) = self.validating_replica(batches, When::BetweenSteps);
        FORWARD_PART * tokens_of(batches) / speed
    }

    /// The replica that is to validate, and its speed in tokens a second: between steps the one
    /// that is worth least, later the fastest. One that the values would be longer on their way to
    /// than it computes is passed over: what else crosses the link would wait.
    fn validating_replica(&self, batches: &[Batch], when: When) -> (usize, f64) {
        let mut rows = self.shares.by_speed();
        if when == When::AfterAllSteps {
            rows.reverse();
        }
        let values = self.learner.as_ref().map_or(&[][..], |learner| &learner.values);
        let is_worth_it = |(row, speed): &(usize, f64)| {
            let copying = self.tasks.copy_seconds(self.replicas[*row].place.class, values);
            copying <= FORWARD_PART * tokens_of(batches) / speed
        };
        let first = rows.iter().copied().find(|(row, _)| *row == 0).unwrap_or_default();
        rows.iter().copied().find(is_worth_it).unwrap_or(first)
    }

    fn submit_validation(
        &mut self,
        batches: &[Batch],
        format: Option<Format>,
        when: When,
    ) -> Result<()> {
        let (row, _) = self.validating_replica(batches, when);
        let Self { tasks, kernels, outer, learner: Some(learner), replicas, .. } = self else {
            return Err(no_learner());
        };
        let place = Place { class: replicas[row].place.class, urgency: Urgency::Background };
        let validation = Validation::new(tasks, kernels, learner, place, batches)?;
        let shared = Shared { kernels, outer: *outer, base: &learner.base, values: &[] };
        self.validation.insert(validation).submit(tasks, shared, batches, format)
    }

    /// A validation that fails, for whatever reason, fails no run.
    fn or_without_validation<T: Default>(&mut self, result: Result<T>) -> Result<T> {
        let Err(error) = result else { return result };
        // What was lost shows when all has ended.
        let _ = self.tasks.wait_for_all();
        self.forget_lost()?;
        let reason = self.tasks.take_failed().unwrap_or_else(|| error.to_string());
        if let Some(validation) = self.validation.take() {
            self.news.push(format!("no held-out loss, the training goes on: {reason}"));
            validation.release(&mut self.tasks)?;
        }
        Ok(T::default())
    }

    /// What came of the validation that was begun last, once it has ended; waits for that where it
    /// is to. `None` where none is under way any more.
    pub fn take_validated(&mut self, is_to_wait: bool) -> Result<Option<Validated>> {
        if !is_to_wait && self.tasks.has_background() {
            return Ok(None);
        }
        let ended = self.end_validation();
        self.or_without_validation(ended)
    }

    fn end_validation(&mut self) -> Result<Option<Validated>> {
        self.tasks.wait_for_all()?;
        self.forget_lost()?;
        let Some(validation) = &self.validation else { return Ok(None) };
        let validated = validation.read(&mut self.tasks)?;
        let ended = self.validation.take();
        ended.into_iter().try_for_each(|own| own.release(&mut self.tasks))?;
        Ok(Some(validated))
    }
}
