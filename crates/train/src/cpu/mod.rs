//! The `cpu` driver: blocks with hand-written backwards over plain slices.
//!
//! Knows how to compute fast on the cores of one machine. Never knows files, steps or schedules.

pub mod generate;
mod layer;
pub mod model;

use crate::batch::Batch;
use crate::blocks::attention::Context;
use crate::blocks::embedding::{self, positions};
use crate::blocks::linear;
use crate::blocks::matrix::sized;
use crate::blocks::meter::{Work, spend};
use crate::blocks::norm;
use crate::driver::{Driver, Recompute};
use crate::error::{Error, Result};
use crate::lora::Adapter;
use crate::precision;
use crate::weights::{Parameters, Weights};
use layer::{Gradients, Reach, Tape, Workspace};
use model::{HeadGradients, HeadWorkspace, Model};
use rayon::prelude::*;
use std::sync::Arc;

#[derive(Debug)]
pub struct Cpu {
    /// What adapters are merged into; none where all parameters learn.
    base: Option<Arc<Weights>>,
    model: Model,
    recompute: Recompute,
    /// One a layer; of those that are computed again, the input alone.
    tapes: Vec<Tape>,
    /// Of the layer that is being computed again.
    again: Tape,
    last: Vec<f32>,
    /// Gradient of the residual stream
    stream: Vec<f32>,
    workspace: Workspace,
    head: HeadWorkspace,
}

impl Cpu {
    pub fn new(base: Arc<Weights>) -> Self {
        let model = Model::new(&base);
        Self::of(model, Some(base))
    }

    /// For parameters that all learn: there is no other copy of them.
    pub fn owning(weights: Weights) -> Self {
        Self::of(Model::of(weights.architecture, weights.parameters), None)
    }

    fn of(model: Model, base: Option<Arc<Weights>>) -> Self {
        let tapes = model.architecture.layers.iter().map(|_| Tape::default()).collect();
        let (recompute, again, last, stream, workspace, head) = Default::default();
        Self { base, model, recompute, tapes, again, last, stream, workspace, head }
    }

    /// Logits of the next token after every token of the batch: `[tokens, vocabulary]`
    pub fn logits(&mut self, batch: &Batch) -> Result<Vec<f32>> {
        self.check(batch)?;
        self.forward(batch);
        let rows: Vec<usize> = (0..batch.tokens.len()).collect();
        Ok(self.model.logits(&self.last, &rows))
    }

    fn check(&self, batch: &Batch) -> Result<()> {
        batch.check_vocabulary(self.model.architecture.vocabulary)?;
        self.model.architecture.check_length(batch.longest())
    }

    /// Runs all layers, leaving one tape a layer and the output in `last`.
    fn forward(&mut self, batch: &Batch) {
        let Self { model, recompute, tapes, again, last, workspace, .. } = self;
        model.reach(batch.longest());
        let places = positions(&batch.bounds);
        model.embedding().forward(&batch.tokens, &places, &mut tapes[0].input);
        for index in 0..tapes.len() {
            let (done, rest) = tapes.split_at_mut(index + 1);
            let out = rest.first_mut().map_or(&mut *last, |next| &mut next.input);
            let (layer, tape, bounds) = (model.layer(index), &mut done[index], &batch.bounds);
            match recompute {
                Recompute::Nothing => layer.forward(bounds, Context::Whole, tape, workspace, out),
                Recompute::Layers => {
                    std::mem::swap(&mut again.input, &mut tape.input);
                    layer.forward(bounds, Context::WholeForwardOnly, again, workspace, out);
                    std::mem::swap(&mut again.input, &mut tape.input);
                }
            }
        }
    }

    /// The loss after [`Cpu::forward`]; fills `stream` with the gradient of the last layer's
    /// result.
    fn score(
        &mut self,
        batch: &Batch,
        head_gradient: linear::Gradient<'_>,
        norm: norm::Gradient<'_>,
    ) -> f64 {
        let Self { model, last, stream, head, .. } = self;
        let stream = sized(stream, last.len());
        let gradients = HeadGradients { stream, head: head_gradient, norm };
        model.score(last, batch, head, Some(gradients))
    }

    /// Takes `stream` through one layer.
    fn layer_backward(
        &mut self,
        index: usize,
        bounds: &[usize],
        reach: Reach,
        own: &mut Gradients<'_>,
    ) {
        let Self { model, recompute, tapes, again, last, stream, workspace, .. } = self;
        let (layer, tape) = (model.layer(index), &mut tapes[index]);
        let tape = match recompute {
            Recompute::Nothing => tape,
            Recompute::Layers => {
                std::mem::swap(&mut again.input, &mut tape.input);
                // Nobody needs the result of the last layer any more.
                layer.forward(bounds, Context::Whole, again, workspace, last);
                again
            }
        };
        layer.backward(bounds, tape, reach, own, workspace, stream);
    }
}

impl Driver for Cpu {
    fn detail(&self) -> String {
        let arithmetic = precision::arithmetic(&self.model.parameters);
        match rayon::current_num_threads() {
            1 => format!("{arithmetic} on 1 cpu thread"),
            threads => format!("{arithmetic} on {threads} cpu threads"),
        }
    }

    fn use_adapter(&mut self, adapter: &Adapter) -> Result<()> {
        let Some(base) = &self.base else {
            let what = "its weights all learn, and take no adapter".to_owned();
            return Err(Error::DriverFailed { driver: "cpu".to_owned(), what });
        };
        let base = &base.parameters.layers;
        let layers = self.model.parameters.layers.par_iter_mut().zip(base).enumerate();
        spend(Work::LowRank, || {
            layers.for_each(|(index, (merged, base))| adapter.merge_layer(index, base, merged));
        });
        Ok(())
    }

    fn parameters(&mut self) -> &mut Parameters {
        &mut self.model.parameters
    }

    fn set_recompute(&mut self, recompute: Recompute) {
        self.recompute = recompute;
    }

    fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        end: Option<u32>,
        new_max: usize,
    ) -> Result<Vec<Vec<u32>>> {
        generate::generate(&mut self.model, prompts, end, new_max)
    }

    fn loss(&mut self, batch: &Batch) -> Result<f64> {
        self.check(batch)?;
        let Self { model, tapes, last, workspace, head, .. } = self;
        model.reach(batch.longest());
        let tape = &mut tapes[0];
        let places = positions(&batch.bounds);
        model.embedding().forward(&batch.tokens, &places, &mut tape.input);
        for index in 0..model.architecture.layers.len() {
            let layer = model.layer(index);
            layer.forward(&batch.bounds, Context::WholeForwardOnly, tape, workspace, last);
            std::mem::swap(&mut tape.input, last);
        }
        Ok(model.score(&tape.input, batch, head, None))
    }

    fn gradients(&mut self, adapter: &Adapter, batch: &Batch, gradient: &mut [f32]) -> Result<f64> {
        self.check(batch)?;
        self.forward(batch);
        let loss = self.score(batch, linear::Gradient::Frozen, norm::Gradient::default());
        for index in (0..self.tapes.len()).rev() {
            let mut own = Gradients::low_rank(adapter, index, gradient);
            // Below the first layer's matrices nothing learns.
            let reach = if index > 0 { Reach::Input } else { Reach::Matrices };
            self.layer_backward(index, &batch.bounds, reach, &mut own);
        }
        Ok(loss)
    }

    fn full_gradients(&mut self, batch: &Batch, gradient: &mut Parameters) -> Result<f64> {
        self.check(batch)?;
        self.forward(batch);
        let outer = Arc::make_mut(&mut gradient.outer);
        let tied = outer.head.is_empty();
        let into_head = if tied { &mut outer.embedding } else { &mut outer.head };
        let head = linear::Gradient::Full { weight: into_head, bias: &mut [] };
        let loss = self.score(batch, head, outer.norm.norm_gradient());
        for index in (0..self.tapes.len()).rev() {
            let mut own = Gradients::full(&mut gradient.layers[index]);
            self.layer_backward(index, &batch.bounds, Reach::Input, &mut own);
        }
        let mut tables =
            embedding::Gradient { tokens: &mut outer.embedding, positions: &mut outer.positions };
        let (places, padding) = (positions(&batch.bounds), self.model.architecture.padding);
        let embedding = self.model.embedding();
        embedding.backward(&batch.tokens, &places, padding, &self.stream, &mut tables);
        Ok(loss)
    }
}
