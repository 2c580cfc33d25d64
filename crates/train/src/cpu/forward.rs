//! One decoder block and the scored head, over rows of many sequences laid end to end.

use super::attention::{self, Inputs};
use super::math;
use super::matrix::{add_product, product, rows, rows_mut, sized, split_lengths, split_rows};
use crate::batch::Batch;
use crate::config::Config;
use crate::weights::{Layer, Weights};
use rayon::prelude::*;
use std::sync::Arc;

/// Rows of logits that are alive at once: each is a whole vocabulary wide.
const HEAD_ROWS: usize = 128;

/// A Llama ready to compute: shared embedding, own (possibly merged) layers, rotation table.
#[derive(Debug)]
pub struct Model {
    pub config: Config,
    pub embedding: Arc<Vec<f32>>,
    pub norm: Arc<Vec<f32>>,
    pub layers: Vec<Layer>,
    rotation: Rotation,
}

/// What a block remembers for its backward pass.
#[derive(Debug, Default)]
pub struct Tape {
    pub input: Vec<f32>,
    pub input_inverse: Vec<f32>,
    /// After rotation.
    pub qkv: Vec<f32>,
    pub probabilities: Vec<f32>,
    pub mixed: Vec<f32>,
    pub middle: Vec<f32>,
    pub middle_inverse: Vec<f32>,
    pub gate_up: Vec<f32>,
}

/// Buffers that every block uses in turn.
#[derive(Debug, Default)]
pub struct Scratch {
    pub normed: Vec<f32>,
    pub gated: Vec<f32>,
    pub logits: Vec<f32>,
}

impl Model {
    pub fn new(weights: &Weights) -> Self {
        Self {
            rotation: Rotation::new(&weights.config),
            config: weights.config.clone(),
            embedding: weights.embedding.clone(),
            norm: weights.norm.clone(),
            layers: weights.layers.clone(),
        }
    }

    pub fn embed(&self, tokens: &[u32], out: &mut Vec<f32>) {
        let width = self.config.hidden;
        out.clear();
        for &token in tokens {
            out.extend(&self.embedding[token as usize * width..][..width]);
        }
    }

    /// `out = block(tape.input)`. `mix` rotates `qkv` and fills `mixed` by attention.
    pub fn block(
        &self,
        layer: &Layer,
        tape: &mut Tape,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
        mix: impl FnOnce(&mut [f32], &mut [f32], &mut Vec<f32>),
    ) {
        let config = &self.config;
        let (hidden, wide) = (config.hidden, config.feed_forward);
        let count = tape.input.len() / hidden;
        let normed = sized(&mut scratch.normed, count * hidden);
        self.normalise(&tape.input, &layer.attention_norm, normed, &mut tape.input_inverse);
        let qkv = sized(&mut tape.qkv, count * config.qkv_width());
        product(
            rows_mut(qkv, config.qkv_width()),
            rows(normed, hidden),
            rows(&layer.qkv, hidden).transpose(),
        );
        let mixed = sized(&mut tape.mixed, count * config.q_width());
        mix(qkv, mixed, &mut tape.probabilities);
        tape.middle.clone_from(&tape.input);
        add_product(
            rows_mut(&mut tape.middle, hidden),
            rows(mixed, config.q_width()),
            rows(&layer.output, config.q_width()).transpose(),
            1.0,
        );
        self.normalise(&tape.middle, &layer.mlp_norm, normed, &mut tape.middle_inverse);
        let gate_up = sized(&mut tape.gate_up, count * 2 * wide);
        product(
            rows_mut(gate_up, 2 * wide),
            rows(normed, hidden),
            rows(&layer.gate_up, hidden).transpose(),
        );
        let gated = sized(&mut scratch.gated, count * wide);
        gate_rows(gate_up, gated, wide);
        out.clone_from(&tape.middle);
        add_product(
            rows_mut(out, hidden),
            rows(gated, wide),
            rows(&layer.down, wide).transpose(),
            1.0,
        );
    }

    /// Rotation and causal attention of whole sequences.
    pub fn mix_whole(
        &self,
        bounds: &[usize],
        qkv: &mut [f32],
        mixed: &mut [f32],
        probabilities: &mut Vec<f32>,
    ) {
        let config = &self.config;
        let lengths = || bounds.windows(2).map(|pair| pair[1] - pair[0]);
        let stored = |length| attention::probabilities_length(config, length, length);
        let mut probabilities = sized(probabilities, lengths().map(stored).sum());
        let pieces = split_rows(qkv, bounds, config.qkv_width())
            .into_par_iter()
            .zip(split_rows(mixed, bounds, config.q_width()))
            .zip(split_lengths(&mut probabilities, lengths().map(stored)));
        pieces.for_each(|((qkv, mixed), probabilities)| {
            self.rotate(qkv, 0, 1.0);
            let inputs = Inputs::whole(config, rows(qkv, config.qkv_width()));
            attention::attend(config, inputs, rows_mut(mixed, config.q_width()), probabilities);
        });
    }

    /// Rotates the queries and keys of consecutive positions; `turn` -1 undoes it.
    pub fn rotate(&self, qkv: &mut [f32], first_position: usize, turn: f32) {
        let config = &self.config;
        let turned = config.q_width() + config.kv_width();
        for (index, row) in qkv.chunks_exact_mut(config.qkv_width()).enumerate() {
            let (cosine, sine) = self.rotation.at(first_position + index);
            for head in row[..turned].chunks_exact_mut(config.head_size) {
                math::rotate(head, cosine, sine, turn);
            }
        }
    }

    /// RMS-normalises every row and keeps the inverse of each row's RMS.
    pub fn normalise(&self, x: &[f32], weight: &[f32], out: &mut [f32], inverse: &mut Vec<f32>) {
        let (width, epsilon) = (self.config.hidden, self.config.norm_epsilon);
        let inverse = sized(inverse, x.len() / width);
        let rows = x.par_chunks_exact(width).zip(out.par_chunks_exact_mut(width)).zip(inverse);
        rows.with_min_len(16).for_each(|((x, out), inverse)| {
            *inverse = math::rms_norm(x, weight, epsilon, out);
        });
    }

    /// Summed loss over the scored rows of `hidden`, the last block's output.
    ///
    /// With `gradient`, also fills it with the gradient of that sum with respect to `hidden`.
    pub fn score(
        &self,
        hidden: &[f32],
        batch: &Batch,
        scratch: &mut Scratch,
        mut gradient: Option<&mut [f32]>,
    ) -> f64 {
        let (width, vocabulary) = (self.config.hidden, self.config.vocabulary);
        let head = rows(&self.embedding, width);
        let mut total = 0.0;
        if let Some(gradient) = gradient.as_deref_mut() {
            gradient.fill(0.0);
        }
        for (rows_here, targets) in
            batch.rows.chunks(HEAD_ROWS).zip(batch.targets.chunks(HEAD_ROWS))
        {
            let mut gathered = Vec::with_capacity(rows_here.len() * width);
            rows_here.iter().for_each(|row| gathered.extend(&hidden[row * width..][..width]));
            let mut normed = vec![0.0; gathered.len()];
            let mut inverse = Vec::new();
            self.normalise(&gathered, &self.norm, &mut normed, &mut inverse);
            let logits = sized(&mut scratch.logits, rows_here.len() * vocabulary);
            product(rows_mut(logits, vocabulary), rows(&normed, width), head.transpose());
            let losses: Vec<f32> = logits
                .par_chunks_exact_mut(vocabulary)
                .zip(targets)
                .map(|(logits, &target)| math::cross_entropy(logits, target as usize))
                .collect();
            total += losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
            let Some(gradient) = gradient.as_deref_mut() else { continue };
            let upstream = &mut normed;
            product(rows_mut(upstream, width), rows(logits, vocabulary), head);
            for (index, &row) in rows_here.iter().enumerate() {
                math::rms_norm_backward(
                    &upstream[index * width..][..width],
                    &gathered[index * width..][..width],
                    &self.norm,
                    inverse[index],
                    &mut gradient[row * width..][..width],
                );
            }
        }
        total
    }

    /// The most likely next token after each of the given rows of `hidden`.
    pub fn most_likely(&self, hidden: &[f32], rows_wanted: &[usize]) -> Vec<u32> {
        let (width, vocabulary) = (self.config.hidden, self.config.vocabulary);
        let mut gathered = Vec::with_capacity(rows_wanted.len() * width);
        rows_wanted.iter().for_each(|row| gathered.extend(&hidden[row * width..][..width]));
        let mut normed = vec![0.0; gathered.len()];
        self.normalise(&gathered, &self.norm, &mut normed, &mut Vec::new());
        let mut logits = vec![0.0; rows_wanted.len() * vocabulary];
        product(
            rows_mut(&mut logits, vocabulary),
            rows(&normed, width),
            rows(&self.embedding, width).transpose(),
        );
        logits.par_chunks_exact(vocabulary).map(|row| math::argmax(row) as u32).collect()
    }
}

/// `gated = silu(gate) * up` for every row.
pub fn gate_rows(gate_up: &[f32], gated: &mut [f32], wide: usize) {
    gate_up
        .par_chunks_exact(2 * wide)
        .zip(gated.par_chunks_exact_mut(wide))
        .with_min_len(8)
        .for_each(|(gate_up, gated)| math::gated(gate_up, gated));
}

/// Cosines and sines of every position, `[positions, head_size / 2]`.
#[derive(Debug)]
struct Rotation {
    cosine: Vec<f32>,
    sine: Vec<f32>,
    half: usize,
}

impl Rotation {
    fn new(config: &Config) -> Self {
        let half = config.head_size / 2;
        let theta = f64::from(config.rope_theta);
        let angle = |position: usize, index: usize| {
            position as f64 * theta.powf(-(index as f64) / half as f64)
        };
        let all = |f: fn(f64) -> f64| -> Vec<f32> {
            let positions = 0..config.positions_max;
            positions
                .flat_map(|position| (0..half).map(move |index| (position, index)))
                .map(|(position, index)| f(angle(position, index)) as f32)
                .collect()
        };
        Self { cosine: all(f64::cos), sine: all(f64::sin), half }
    }

    fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let start = position * self.half;
        (&self.cosine[start..][..self.half], &self.sine[start..][..self.half])
    }
}
