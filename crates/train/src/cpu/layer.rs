//! One residual layer, composed of blocks as the architecture says.

use crate::architecture::{Architecture, PostNorms};
use crate::lora::Adapter;
use crate::weights::{Layer, Pair};
use het_blocks::attention::{self, Context, Input};
use het_blocks::linear::{self, Numbers};
use het_blocks::matrix::{copied, sized};
use het_blocks::mlp;
use het_blocks::norm::{self, STATISTICS};
use het_blocks::rotation::Table;

/// A layer ready to compute.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    pub architecture: &'a Architecture,
    /// What products with weights in f32 compute in.
    pub numbers: Numbers,
    pub index: usize,
    pub weights: &'a Layer,
    pub table: Option<&'a Table>,
}

/// What a layer remembers for its backward, beside its input.
#[derive(Debug, Clone, Default)]
pub struct Tape {
    input_statistics: Vec<f32>,
    attention: attention::Saved,
    attention_result: Normed,
    /// The residual stream after attention
    middle: Vec<f32>,
    middle_statistics: Vec<f32>,
    mlp: mlp::Saved,
    mlp_result: Normed,
}

/// A result that is normalised before it joins the residual stream; empty without such norms.
#[derive(Debug, Clone, Default)]
struct Normed {
    result: Vec<f32>,
    statistics: Vec<f32>,
}

/// Buffers that every layer uses in turn.
#[derive(Debug, Default)]
pub struct Workspace {
    normed: Vec<f32>,
    into_result: Vec<f32>,
    into_normed: Vec<f32>,
    attention: attention::Workspace,
    mlp: mlp::Workspace,
}

/// Where the gradients of a layer are added to.
#[derive(Debug)]
pub struct Gradients<'a> {
    attention_norm: norm::Gradient<'a>,
    attention: attention::Gradients<'a>,
    attention_post_norm: norm::Gradient<'a>,
    mlp_norm: norm::Gradient<'a>,
    mlp: mlp::Gradients<'a>,
    mlp_post_norm: norm::Gradient<'a>,
}

impl<'a> Gradients<'a> {
    /// Of everything, as a layer's own.
    pub fn full(layer: &'a mut Layer) -> Self {
        let linear = |pair: &'a mut Pair| linear::Gradient::Full {
            weight: &mut pair.weight,
            bias: &mut pair.bias,
        };
        Self {
            attention_norm: layer.attention_norm.norm_gradient(),
            attention: attention::Gradients {
                qkv: linear(&mut layer.qkv),
                output: linear(&mut layer.output),
                query_norm: &mut layer.query_norm.weight,
                key_norm: &mut layer.key_norm.weight,
            },
            attention_post_norm: layer.attention_post_norm.norm_gradient(),
            mlp_norm: layer.mlp_norm.norm_gradient(),
            mlp: mlp::Gradients { up: linear(&mut layer.up), down: linear(&mut layer.down) },
            mlp_post_norm: layer.mlp_post_norm.norm_gradient(),
        }
    }

    /// Of one layer of an adapter alone: its values, and their gradient.
    pub fn low_rank(
        adapter: &'a Adapter,
        layer: usize,
        values: &'a [f32],
        gradient: &'a mut [f32],
    ) -> Self {
        let groups = adapter
            .low_rank(layer, values, gradient)
            .map(|group| group.map_or(linear::Gradient::Frozen, linear::Gradient::LowRank));
        let [qkv, output, up, down] = groups;
        let (query_norm, key_norm) = Default::default();
        Self {
            attention_norm: norm::Gradient::default(),
            attention: attention::Gradients { qkv, output, query_norm, key_norm },
            attention_post_norm: norm::Gradient::default(),
            mlp_norm: norm::Gradient::default(),
            mlp: mlp::Gradients { up, down },
            mlp_post_norm: norm::Gradient::default(),
        }
    }
}

impl Block<'_> {
    /// `out = layer(input)`, of rows `[rows, hidden]`
    pub fn forward(
        &self,
        Input { x, bounds }: Input<'_>,
        context: Context<'_>,
        tape: &mut Tape,
        workspace: &mut Workspace,
        out: &mut Vec<f32>,
    ) {
        let (norm, layer) = (self.architecture.norm, self.weights);
        let count = x.len() / self.architecture.hidden;
        let normed = sized(&mut workspace.normed, x.len());
        let statistics = sized(&mut tape.input_statistics, count * STATISTICS);
        norm.forward(x, layer.attention_norm.norm(), normed, statistics);
        copied(&mut tape.middle, x);
        let shape = self.architecture.attention_of(self.index);
        let parameters = self.attention_parameters();
        let post_norm = &layer.attention_post_norm;
        self.join(post_norm, &mut tape.attention_result, &mut tape.middle, |stream| {
            let input = Input { x: normed, bounds };
            shape.forward(parameters, input, context, &mut tape.attention, stream);
        });
        let statistics = sized(&mut tape.middle_statistics, count * STATISTICS);
        norm.forward(&tape.middle, layer.mlp_norm.norm(), normed, statistics);
        copied(out, &tape.middle);
        self.join(&layer.mlp_post_norm, &mut tape.mlp_result, out, |stream| {
            let (shape, parameters) = (&self.architecture.mlp, self.mlp_parameters());
            shape.forward(parameters, normed, &mut tape.mlp, &mut workspace.mlp, stream);
        });
    }

    /// Turns `stream` from the gradient of the layer's result into that of its input, and adds the
    /// gradients of the parameters.
    ///
    /// Without `Reach::Input` the stream is left before the first norm: nothing below learns.
    pub fn backward(
        &self,
        Input { x, bounds }: Input<'_>,
        tape: &mut Tape,
        reach: Reach,
        gradients: &mut Gradients<'_>,
        workspace: &mut Workspace,
        stream: &mut [f32],
    ) {
        self.mlp_backward(tape, gradients, workspace, stream);
        let Workspace { normed, into_result, into_normed, attention, .. } = workspace;
        let (norm, layer) = (self.architecture.norm, self.weights);
        let normed = sized(normed, x.len());
        norm.forward(x, layer.attention_norm.norm(), normed, &mut tape.input_statistics);
        let upstream = self.part_backward(
            &layer.attention_post_norm,
            &tape.attention_result,
            stream,
            &mut gradients.attention_post_norm,
            into_result,
        );
        let into_normed = sized(into_normed, x.len());
        self.architecture.attention_of(self.index).backward(
            self.attention_parameters(),
            Input { x: normed, bounds },
            &tape.attention,
            upstream,
            &mut gradients.attention,
            attention,
            (reach == Reach::Input).then_some(&mut *into_normed),
        );
        if reach == Reach::Input {
            let statistics = &tape.input_statistics;
            let own = &mut gradients.attention_norm;
            norm.backward_parameters(into_normed, x, statistics, own);
            norm.backward(into_normed, x, layer.attention_norm.norm(), statistics, stream);
        }
    }

    fn mlp_backward(
        &self,
        tape: &mut Tape,
        gradients: &mut Gradients<'_>,
        workspace: &mut Workspace,
        stream: &mut [f32],
    ) {
        let Workspace { normed, into_result, into_normed, mlp, .. } = workspace;
        let (norm, layer) = (self.architecture.norm, self.weights);
        let normed = sized(normed, tape.middle.len());
        norm.forward(&tape.middle, layer.mlp_norm.norm(), normed, &mut tape.middle_statistics);
        let upstream = self.part_backward(
            &layer.mlp_post_norm,
            &tape.mlp_result,
            stream,
            &mut gradients.mlp_post_norm,
            into_result,
        );
        let into_normed = sized(into_normed, tape.middle.len());
        self.architecture.mlp.backward(
            self.mlp_parameters(),
            normed,
            &tape.mlp,
            upstream,
            &mut gradients.mlp,
            mlp,
            into_normed,
        );
        let (x, statistics) = (&tape.middle, &tape.middle_statistics);
        norm.backward_parameters(into_normed, x, statistics, &mut gradients.mlp_norm);
        norm.backward(into_normed, x, layer.mlp_norm.norm(), statistics, stream);
    }

    fn attention_parameters(&self) -> attention::Parameters<'_> {
        let layer = self.weights;
        attention::Parameters {
            qkv: layer.qkv.linear(self.architecture.hidden, self.numbers),
            output: layer.output.linear(self.architecture.attention.q_width(), self.numbers),
            query_norm: &layer.query_norm.weight,
            key_norm: &layer.key_norm.weight,
            table: self.table,
        }
    }

    fn mlp_parameters(&self) -> mlp::Parameters<'_> {
        let Architecture { hidden, mlp, .. } = self.architecture;
        mlp::Parameters {
            up: self.weights.up.linear(*hidden, self.numbers),
            down: self.weights.down.linear(mlp.feed_forward, self.numbers),
        }
    }

    /// Adds what `part` computes to the residual stream, by way of a norm where there is one.
    fn join(
        &self,
        post_norm: &Pair,
        kept: &mut Normed,
        stream: &mut [f32],
        part: impl FnOnce(&mut [f32]),
    ) {
        if self.architecture.post_norms == PostNorms::None {
            return part(stream);
        }
        let Normed { result, statistics } = kept;
        let result = sized(result, stream.len());
        result.fill(0.0);
        part(result);
        let count = stream.len() / self.architecture.hidden;
        let statistics = sized(statistics, count * STATISTICS);
        let mut normed = vec![0.0; result.len()];
        self.architecture.norm.forward(result, post_norm.norm(), &mut normed, statistics);
        stream.iter_mut().zip(&normed).for_each(|(sum, value)| *sum += value);
    }

    /// The gradient of what a part computed, given that of the residual stream that it joined.
    fn part_backward<'a>(
        &self,
        post_norm: &Pair,
        kept: &Normed,
        stream: &'a [f32],
        gradient: &mut norm::Gradient<'_>,
        into_result: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        if self.architecture.post_norms == PostNorms::None {
            return stream;
        }
        let (norm, Normed { result, statistics }) = (self.architecture.norm, kept);
        norm.backward_parameters(stream, result, statistics, gradient);
        let into_result = sized(into_result, result.len());
        into_result.fill(0.0);
        norm.backward(stream, result, post_norm.norm(), statistics, into_result);
        into_result
    }
}

/// How far down a backward goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// To the layer's input.
    Input,
    /// To its matrices: nothing below learns.
    Matrices,
}
