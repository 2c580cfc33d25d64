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
use crate::blocks::norm;
use crate::driver::Driver;
use crate::error::Result;
use crate::lora::Adapter;
use crate::precision;
use crate::weights::{Parameters, Weights};
use layer::{Gradients, Reach, Tape, Workspace};
use model::{HeadGradients, HeadWorkspace, Model};
use rayon::prelude::*;
use std::sync::Arc;

#[derive(Debug)]
pub struct Cpu {
    base: Arc<Weights>,
    model: Model,
    tapes: Vec<Tape>,
    last: Vec<f32>,
    /// Gradient of the residual stream
    stream: Vec<f32>,
    workspace: Workspace,
    head: HeadWorkspace,
}

impl Cpu {
    pub fn new(base: Arc<Weights>) -> Self {
        let model = Model::new(&base);
        let tapes = model.architecture.layers.iter().map(|_| Tape::default()).collect();
        let (last, stream, workspace, head) = Default::default();
        Self { base, model, tapes, last, stream, workspace, head }
    }

    /// The loss summed over the scored rows; adds the gradients of that sum for every parameter.
    pub fn full_gradients(&mut self, batch: &Batch, gradient: &mut Parameters) -> Result<f64> {
        self.check(batch)?;
        self.forward(batch);
        let Self { model, tapes, last, stream, workspace, head, .. } = self;
        let stream = sized(stream, last.len());
        let outer = Arc::make_mut(&mut gradient.outer);
        let tied = outer.head.is_empty();
        let into_head = if tied { &mut outer.embedding } else { &mut outer.head };
        let gradients = HeadGradients {
            stream: &mut *stream,
            head: linear::Gradient::Full { weight: into_head, bias: &mut [] },
            norm: outer.norm.norm_gradient(),
        };
        let loss = model.score(last, batch, head, Some(gradients));
        for (index, tape) in tapes.iter_mut().enumerate().rev() {
            let mut own = Gradients::full(&mut gradient.layers[index]);
            let (layer, bounds) = (model.layer(index), &batch.bounds);
            layer.backward(bounds, tape, Reach::Input, &mut own, workspace, stream);
        }
        let mut tables =
            embedding::Gradient { tokens: &mut outer.embedding, positions: &mut outer.positions };
        let (places, padding) = (positions(&batch.bounds), model.architecture.padding);
        model.embedding().backward(&batch.tokens, &places, padding, stream, &mut tables);
        Ok(loss)
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
        let Self { model, tapes, last, workspace, .. } = self;
        model.reach(batch.longest());
        let places = positions(&batch.bounds);
        model.embedding().forward(&batch.tokens, &places, &mut tapes[0].input);
        for index in 0..tapes.len() {
            let (done, rest) = tapes.split_at_mut(index + 1);
            let out = rest.first_mut().map_or(&mut *last, |next| &mut next.input);
            let (layer, tape) = (model.layer(index), &mut done[index]);
            layer.forward(&batch.bounds, Context::Whole, tape, workspace, out);
        }
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
        let base = &self.base.parameters.layers;
        let layers = self.model.parameters.layers.par_iter_mut().zip(base).enumerate();
        layers.for_each(|(index, (merged, base))| adapter.merge_layer(index, base, merged));
        Ok(())
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
        let Self { model, tapes, last, stream, workspace, head, .. } = self;
        let stream = sized(stream, last.len());
        let gradients = HeadGradients {
            stream: &mut *stream,
            head: linear::Gradient::Frozen,
            norm: norm::Gradient::default(),
        };
        let loss = model.score(last, batch, head, Some(gradients));
        for (index, tape) in tapes.iter_mut().enumerate().rev() {
            let mut own = Gradients::low_rank(adapter, index, gradient);
            // Below the first layer's matrices nothing learns.
            let reach = if index > 0 { Reach::Input } else { Reach::Matrices };
            let (layer, bounds) = (model.layer(index), &batch.bounds);
            layer.backward(bounds, tape, reach, &mut own, workspace, stream);
        }
        Ok(loss)
    }
}
