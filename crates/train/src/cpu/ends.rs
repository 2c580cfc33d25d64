//! What lies around the layers: the embedding before them, and the scored head after them.

use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::weights::Outer;
use het_blocks::embedding::Embedding;
use het_blocks::head::{self, Head};
use het_blocks::linear::{self, Linear, Numbers};
use het_blocks::loss;
use het_blocks::matrix::{copied, sized};
use het_blocks::norm::{self, STATISTICS};

/// Rows of logits that are alive at once: each is a whole vocabulary wide.
pub const HEAD_ROWS: usize = 256;

/// Both ends of a model, ready to compute.
#[derive(Debug, Clone, Copy)]
pub struct Ends<'a> {
    pub architecture: &'a Architecture,
    /// What products with weights in f32 compute in.
    pub numbers: Numbers,
    pub outer: &'a Outer,
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

impl<'a> Ends<'a> {
    pub fn embedding(&self) -> Embedding<'a> {
        Embedding {
            width: self.architecture.hidden,
            scale: self.architecture.embedding_scale,
            tokens: self.outer.embedding(),
            positions: &self.outer.positions,
        }
    }

    fn head(&self) -> Head<'a> {
        let (inputs, weight) = (self.architecture.hidden, self.outer.head(self.numbers));
        let linear = Linear { inputs, weight, bias: &[] };
        Head { linear, cap: self.architecture.logit_cap }
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
        let (norm, parameters) = (self.architecture.norm, self.outer.norm.norm());
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

    /// Leaves gathered rows, their norms and their logits in `workspace`.
    fn compute_logits(&self, hidden: &[f32], rows: &[usize], workspace: &mut HeadWorkspace) {
        let (width, norm) = (self.architecture.hidden, self.architecture.norm);
        let HeadWorkspace { gathered, normed, statistics, logits, .. } = workspace;
        gathered.clear();
        rows.iter().for_each(|row| gathered.extend(&hidden[row * width..][..width]));
        let normed = sized(normed, gathered.len());
        let statistics = sized(statistics, rows.len() * STATISTICS);
        norm.forward(gathered, self.outer.norm.norm(), normed, statistics);
        self.head().forward(normed, sized(logits, rows.len() * self.architecture.vocabulary));
    }
}
