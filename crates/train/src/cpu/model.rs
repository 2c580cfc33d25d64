//! A model ready to compute: embedding, layers, and the scored head.

use super::layer::{Block, Tape, Workspace};
use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::blocks::attention::{Context, KeyValues};
use crate::blocks::embedding::Embedding;
use crate::blocks::head::{self, Head};
use crate::blocks::linear::{self, Linear};
use crate::blocks::matrix::{copied, sized};
use crate::blocks::norm::{self, STATISTICS};
use crate::blocks::rotation::Table;
use crate::blocks::{loss, math};
use crate::error::{Error, Result};
use crate::weights::{Parameters, Weights};
use rayon::prelude::*;

/// Rows of logits that are alive at once: each is a whole vocabulary wide.
pub const HEAD_ROWS: usize = 256;

/// A model with parameters that may have an adapter merged in.
#[derive(Debug)]
pub struct Model {
    pub architecture: Architecture,
    pub parameters: Parameters,
    /// Angles for each of the architecture's ropes.
    tables: Vec<Table>,
}

/// Buffers of the head.
#[derive(Debug, Default)]
pub struct HeadWorkspace {
    gathered: Vec<f32>,
    normed: Vec<f32>,
    statistics: Vec<f32>,
    logits: Vec<f32>,
    capped: Vec<f32>,
    into_normed: Vec<f32>,
    head: head::Workspace,
}

/// Where gradients of what lies around the layers are added to.
#[derive(Debug)]
pub struct HeadGradients<'a> {
    /// Of the last layer's result: `[rows, hidden]`
    pub stream: &'a mut [f32],
    pub head: linear::Gradient<'a>,
    pub norm: norm::Gradient<'a>,
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
            index,
            weights: &self.parameters.layers[index],
            table: self.architecture.layers[index].rope.map(|rope| &self.tables[rope]),
        }
    }

    pub fn embedding(&self) -> Embedding<'_> {
        let outer = &self.parameters.outer;
        Embedding {
            width: self.architecture.hidden,
            scale: self.architecture.embedding_scale,
            tokens: outer.embedding(),
            positions: &outer.positions,
        }
    }

    fn head(&self) -> Head<'_> {
        let (inputs, weight) = (self.architecture.hidden, self.parameters.outer.head());
        let linear = Linear { inputs, weight, bias: &[] };
        Head { linear, cap: self.architecture.logit_cap }
    }

    /// The residual stream after all layers for new ends of sequences, in `tape.input`; `past[i]`
    /// has one entry a sequence for layer `i`, which grows.
    pub fn extend(
        &self,
        tokens: &[u32],
        positions: &[u32],
        bounds: &[usize],
        past: &mut [Vec<KeyValues>],
        tape: &mut Tape,
    ) {
        let (mut out, mut workspace) = (Vec::new(), Workspace::default());
        self.embedding().forward(tokens, positions, &mut tape.input);
        for (index, past) in past.iter_mut().enumerate() {
            let context = Context::After(past);
            self.layer(index).forward(bounds, context, tape, &mut workspace, &mut out);
            std::mem::swap(&mut tape.input, &mut out);
        }
    }

    /// Summed loss over the scored rows of `hidden`, the last layer's output.
    ///
    /// With `gradients`, also fills their stream and adds the parameters' own.
    pub fn score(
        &self,
        hidden: &[f32],
        batch: &Batch,
        workspace: &mut HeadWorkspace,
        mut gradients: Option<HeadGradients<'_>>,
    ) -> f64 {
        if let Some(gradients) = &mut gradients {
            gradients.stream.fill(0.0);
        }
        let chunks = batch.rows.chunks(HEAD_ROWS).zip(batch.targets.chunks(HEAD_ROWS));
        let losses = chunks.map(|(rows, targets)| {
            self.compute_logits(hidden, rows, workspace);
            // A cap's slope follows from the logits, which the loss turns into their gradient.
            let HeadWorkspace { logits, capped, .. } = workspace;
            match self.architecture.logit_cap {
                Some(_) => {
                    copied(capped, logits);
                }
                None => capped.clear(),
            }
            let loss = loss::forward_backward(logits, targets);
            if let Some(gradients) = &mut gradients {
                self.score_backward(rows, workspace, gradients);
            }
            loss
        });
        losses.sum()
    }

    /// From the gradient of the logits of some rows to that of the last layer's output.
    fn score_backward(
        &self,
        rows: &[usize],
        workspace: &mut HeadWorkspace,
        gradients: &mut HeadGradients<'_>,
    ) {
        let HeadWorkspace { gathered, normed, statistics, logits, capped, into_normed, head } =
            workspace;
        let (norm, parameters) = (self.architecture.norm, self.parameters.outer.norm.norm());
        let into_normed = sized(into_normed, normed.len());
        self.head().backward(normed, capped, logits, &mut gradients.head, head, into_normed);
        norm.backward_parameters(into_normed, gathered, statistics, &mut gradients.norm);
        let width = self.architecture.hidden;
        for (index, &row) in rows.iter().enumerate() {
            let place = index * width..(index + 1) * width;
            norm.backward_row(
                &into_normed[place.clone()],
                &gathered[place],
                parameters,
                &statistics[index * STATISTICS..][..STATISTICS],
                &mut gradients.stream[row * width..][..width],
            );
        }
    }

    /// Logits of the next token after some rows of `hidden`: `[rows, vocabulary]`
    pub fn logits(&self, hidden: &[f32], rows: &[usize]) -> Vec<f32> {
        let mut workspace = HeadWorkspace::default();
        self.compute_logits(hidden, rows, &mut workspace);
        workspace.logits
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

    /// Leaves gathered rows, their norms and their logits in `workspace`.
    fn compute_logits(&self, hidden: &[f32], rows: &[usize], workspace: &mut HeadWorkspace) {
        let (width, norm) = (self.architecture.hidden, self.architecture.norm);
        let HeadWorkspace { gathered, normed, statistics, logits, .. } = workspace;
        gathered.clear();
        rows.iter().for_each(|row| gathered.extend(&hidden[row * width..][..width]));
        let normed = sized(normed, gathered.len());
        let statistics = sized(statistics, rows.len() * STATISTICS);
        norm.forward(gathered, self.parameters.outer.norm.norm(), normed, statistics);
        self.head().forward(normed, sized(logits, rows.len() * self.architecture.vocabulary));
    }
}
