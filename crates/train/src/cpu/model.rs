//! A model ready to compute: embedding, layers, and the scored head.

use super::ends::Ends;
use super::layer::{Block, Tape, Workspace};
use crate::architecture::Architecture;
use crate::error::{Error, Result};
use crate::weights::{Parameters, Weights};
use het_blocks::attention::{Context, Input, KeyValues};
use het_blocks::linear::Numbers;
use het_blocks::math;
use het_blocks::rotation::Table;
use rayon::prelude::*;

/// A model with parameters that may have an adapter merged in.
#[derive(Debug)]
pub struct Model {
    pub architecture: Architecture,
    pub parameters: Parameters,
    /// Angles for each of the architecture's ropes.
    tables: Vec<Table>,
}

impl Model {
    pub fn new(weights: &Weights) -> Self {
        Self::of(weights.architecture.clone(), weights.parameters.clone())
    }

    pub fn of(architecture: Architecture, parameters: Parameters) -> Self {
        let tables = architecture.ropes.iter().map(|_| Table::default()).collect();
        Self { architecture, parameters, tables }
    }

    /// Makes positions up to `length` known; before every forward.
    pub fn reach(&mut self, length: usize) {
        for (table, rope) in self.tables.iter_mut().zip(&self.architecture.ropes) {
            table.reach(rope, length);
        }
    }

    pub fn layer(&self, index: usize) -> Block<'_> {
        Block {
            architecture: &self.architecture,
            numbers: Numbers::F32,
            index,
            weights: &self.parameters.layers[index],
            table: self.architecture.layers[index].rope.map(|rope| &self.tables[rope]),
        }
    }

    fn ends(&self) -> Ends<'_> {
        let (architecture, outer) = (&self.architecture, &*self.parameters.outer);
        Ends { architecture, numbers: Numbers::F32, outer }
    }

    /// The residual stream after all layers for new ends of sequences, in `stream`; `past[i]` has
    /// one entry a sequence for layer `i`, which grows.
    pub fn extend(
        &self,
        tokens: &[u32],
        positions: &[u32],
        bounds: &[usize],
        past: &mut [Vec<KeyValues>],
        (stream, tape): (&mut Vec<f32>, &mut Tape),
    ) {
        let (mut out, mut workspace) = (Vec::new(), Workspace::default());
        self.ends().embedding().forward(tokens, positions, stream);
        for (index, past) in past.iter_mut().enumerate() {
            let (input, context) = (Input { x: stream, bounds }, Context::After(past));
            self.layer(index).forward(input, context, tape, &mut workspace, &mut out);
            std::mem::swap(stream, &mut out);
        }
    }

    /// Logits of the next token after some rows of `hidden`: `[rows, vocabulary]`
    pub fn logits(&self, hidden: &[f32], rows: &[usize]) -> Vec<f32> {
        self.ends().logits(hidden, rows)
    }

    /// The most likely next token after some rows of `hidden`; refuses logits that have no order.
    pub fn most_likely(&self, hidden: &[f32], rows: &[usize]) -> Result<Vec<u32>> {
        let logits = self.logits(hidden, rows);
        if logits.iter().any(|logit| !logit.is_finite()) {
            return Err(Error::NotFinite { what: "a score of a next token".into() });
        }
        let rows = logits.par_chunks_exact(self.architecture.vocabulary);
        Ok(rows.map(|row| math::argmax(row) as u32).collect())
    }
}
