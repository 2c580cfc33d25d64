//! The `cpu` driver: a Llama with a hand-written backward pass over plain slices.
//!
//! Knows how to compute fast on the cores of one machine. Never knows files, steps or schedules.

pub mod attention;
pub mod backward;
pub mod forward;
pub mod generate;
pub mod math;
pub mod matrix;

use crate::batch::Batch;
use crate::driver::Driver;
use crate::error::Result;
use crate::lora::Adapter;
use crate::weights::Weights;
use backward::{Gradients, block_backward};
use forward::{Model, Scratch, Tape};
use matrix::sized;
use rayon::prelude::*;
use std::sync::Arc;

#[derive(Debug)]
pub struct Cpu {
    base: Arc<Weights>,
    model: Model,
    tapes: Vec<Tape>,
    last: Vec<f32>,
    scratch: Scratch,
    gradients: Gradients,
}

impl Cpu {
    pub fn new(base: Arc<Weights>) -> Self {
        let model = Model::new(&base);
        let tapes = (0..base.config.layers).map(|_| Tape::default()).collect();
        let (last, scratch, gradients) = Default::default();
        Self { base, model, tapes, last, scratch, gradients }
    }

    /// Runs all blocks, leaving one tape a block and the output in `last`.
    fn forward(&mut self, batch: &Batch) {
        let Self { model, tapes, last, scratch, .. } = self;
        model.embed(&batch.tokens, &mut tapes[0].input);
        for (index, layer) in model.layers.iter().enumerate() {
            let (done, rest) = tapes.split_at_mut(index + 1);
            let out = rest.first_mut().map_or(&mut *last, |next| &mut next.input);
            model.block(layer, &mut done[index], scratch, out, |qkv, mixed, probabilities| {
                model.mix_whole(&batch.bounds, qkv, mixed, probabilities);
            });
        }
    }
}

impl Driver for Cpu {
    fn detail(&self) -> String {
        match rayon::current_num_threads() {
            1 => "f32 arithmetic on 1 cpu thread".to_owned(),
            threads => format!("f32 arithmetic on {threads} cpu threads"),
        }
    }

    fn use_adapter(&mut self, adapter: &Adapter) -> Result<()> {
        let layers = self.model.layers.par_iter_mut().zip(&self.base.layers).enumerate();
        layers.for_each(|(index, (merged, base))| adapter.merge_layer(index, base, merged));
        Ok(())
    }

    fn loss(&mut self, batch: &Batch) -> Result<f64> {
        batch.check_vocabulary(self.model.config.vocabulary)?;
        let Self { model, tapes, last, scratch, .. } = self;
        let tape = &mut tapes[0];
        model.embed(&batch.tokens, &mut tape.input);
        for layer in &model.layers {
            model.block(layer, tape, scratch, last, |qkv, mixed, probabilities| {
                model.mix_whole(&batch.bounds, qkv, mixed, probabilities);
            });
            std::mem::swap(&mut tape.input, last);
        }
        Ok(model.score(&tape.input, batch, scratch, None))
    }

    fn gradients(&mut self, adapter: &Adapter, batch: &Batch, gradient: &mut [f32]) -> Result<f64> {
        batch.check_vocabulary(self.model.config.vocabulary)?;
        self.forward(batch);
        let Self { model, tapes, last, scratch, gradients, .. } = self;
        let stream = sized(&mut gradients.stream, last.len());
        let loss = model.score(last, batch, scratch, Some(stream));
        for index in (0..model.layers.len()).rev() {
            let tape = &mut tapes[index];
            let bounds = &batch.bounds;
            block_backward(model, index, tape, bounds, adapter, scratch, gradients, gradient);
        }
        Ok(loss)
    }
}
