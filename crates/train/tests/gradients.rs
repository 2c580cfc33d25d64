//! Does it train what it should? Every adapter matrix has a gradient, and losses and gradients
//! agree with a float64 reference that shares no code with the driver.

use std::sync::Arc;

use het_blocks::attention;
use het_train::batch::{Batch, Sequence};
use het_train::lora::Adapter;
use het_train::optimiser::{Request, Settings};
use het_train::steps::{Executor, Step};
use het_train::tiny;
use het_train::weights::Weights;
use het_train::workers::Workers;

const RANK: usize = 2;
const ALPHA: f32 = 4.0;
const STEPS: u64 = 6;
/// Of the tiny model
const THETA: f64 = 10_000.0;

fn batch(seed: u32) -> Batch {
    let sequence = |start: u32| Sequence {
        tokens: (0..12).map(|i| (start + i * i * 7) % 259).collect(),
        scored: (0..12).map(|i| i >= 4).collect(),
    };
    Batch::pack(&[sequence(seed), sequence(seed * 3 + 11)], 64)
}

/// A plain decoder in float64: one sequence at a time, one number at a time.
struct Reference<'a> {
    weights: &'a Weights,
}

fn matvec(matrix: &[f32], x: &[f64]) -> Vec<f64> {
    let rows = matrix.chunks_exact(x.len());
    rows.map(|row| row.iter().zip(x).map(|(&w, v)| f64::from(w) * v).sum()).collect()
}

impl Reference<'_> {
    fn norm(&self, x: &[f64], weight: &[f32]) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let epsilon = f64::from(self.weights.architecture.norm.epsilon);
        let scale = 1.0 / (mean + epsilon).sqrt();
        x.iter().zip(weight).map(|(v, &w)| v * scale * f64::from(w)).collect()
    }

    /// Rotates pairs (i, i + half) as Hugging Face's Llama does.
    fn rotate(&self, head: &mut [f64], position: usize) {
        let half = head.len() / 2;
        for i in 0..half {
            let power = 2.0 * i as f64 / head.len() as f64;
            let angle = position as f64 / THETA.powf(power);
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * angle.cos() - b * angle.sin();
            head[i + half] = b * angle.cos() + a * angle.sin();
        }
    }

    /// Hidden states of one sequence after the last norm.
    fn hidden(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let architecture = &self.weights.architecture;
        let attention::Shape { head_size: size, heads, kv_heads, .. } = architecture.attention;
        let outer = &self.weights.parameters.outer;
        let embedding = outer.embedding.chunks_exact(architecture.hidden);
        let rows: Vec<&[f32]> = embedding.collect();
        let lookup = |&token: &u32| rows[token as usize].iter().map(|&v| f64::from(v)).collect();
        let mut states: Vec<Vec<f64>> = tokens.iter().map(lookup).collect();
        for layer in &self.weights.parameters.layers {
            let (mut queries, mut keys, mut values) = (vec![], vec![], vec![]);
            for (position, state) in states.iter().enumerate() {
                let normed = self.norm(state, &layer.attention_norm.weight);
                let mut qkv = matvec(&layer.qkv.weight, &normed);
                let turned = (heads + kv_heads) * size;
                let parts = qkv[..turned].chunks_exact_mut(size);
                parts.for_each(|head| self.rotate(head, position));
                values.push(qkv.split_off(turned));
                keys.push(qkv.split_off(heads * size));
                queries.push(qkv);
            }
            for position in 0..states.len() {
                let mut mixed = Vec::new();
                for head in 0..heads {
                    let kv = head / (heads / kv_heads) * size;
                    let query = &queries[position][head * size..][..size];
                    let score = |key: &Vec<f64>| {
                        let dot: f64 = query.iter().zip(&key[kv..]).map(|(a, b)| a * b).sum();
                        (dot / (size as f64).sqrt()).exp()
                    };
                    let weights: Vec<f64> = keys[..=position].iter().map(score).collect();
                    let total: f64 = weights.iter().sum();
                    let column = |i: usize| {
                        let terms = weights.iter().zip(&values);
                        terms.map(|(w, value)| w / total * value[kv + i]).sum::<f64>()
                    };
                    mixed.extend((0..size).map(column));
                }
                let out = matvec(&layer.output.weight, &mixed);
                states[position].iter_mut().zip(out).for_each(|(s, o)| *s += o);
                let normed = self.norm(&states[position], &layer.mlp_norm.weight);
                let mut gate = matvec(&layer.up.weight, &normed);
                let up = gate.split_off(architecture.mlp.feed_forward);
                let silu = gate.iter().map(|g| g / (1.0 + (-g).exp()));
                let inner: Vec<f64> = silu.zip(&up).map(|(g, u)| g * u).collect();
                let out = matvec(&layer.down.weight, &inner);
                states[position].iter_mut().zip(out).for_each(|(s, o)| *s += o);
            }
        }
        states.iter().map(|state| self.norm(state, &outer.norm.weight)).collect()
    }

    /// Cross entropy summed over the scored rows.
    fn loss(&self, batch: &Batch) -> f64 {
        let bounds = batch.bounds.windows(2);
        let states: Vec<Vec<f64>> =
            bounds.flat_map(|ends| self.hidden(&batch.tokens[ends[0]..ends[1]])).collect();
        let row_loss = |(&row, &target): (&usize, &u32)| {
            let logits = matvec(&self.weights.parameters.outer.embedding, &states[row]);
            let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
            total.ln() - logits[target as usize]
        };
        batch.rows.iter().zip(&batch.targets).map(row_loss).sum()
    }
}

fn reference_loss(base: &Weights, adapter: &Adapter, batch: &Batch) -> f64 {
    let parameters = adapter.merged(&base.parameters);
    let merged = Weights { parameters, ..base.clone() };
    Reference { weights: &merged }.loss(batch)
}

/// Trains the tiny model; `watch` sees step, adapter before the step, its loss and its gradient.
fn train(mut watch: impl FnMut(u64, &Adapter, &Batch, f64, &[f32])) {
    let base = Arc::new(tiny::weights(7));
    let adapter = Adapter::random(&base.architecture, RANK, ALPHA, 1);
    let mut executor = Executor::adapting(&base, &adapter, Workers::default()).expect("it starts");
    let settings = Settings { lr: 1e-2, ..Settings::default() };
    for step in 1..=STEPS {
        let batch = batch(5);
        let adapter = executor.adapter().expect("it learns");
        executor.begin_step().expect("same shape");
        executor.add_gradients(&batch).expect("tokens fit");
        let loss = executor.step_loss().expect("it is computed");
        let gradient = executor.adapter_gradient().expect("it is computed");
        watch(step, &adapter, &batch, loss, &gradient);
        let (scale, rate) = (1.0 / batch.rows.len() as f32, settings.rate(step, STEPS));
        let step = executor.update(Request { settings, scale, rate, step });
        assert_eq!(step.expect("it is computed"), Step { loss, is_finite: true });
    }
}

#[test]
fn every_adapter_matrix_has_a_gradient() {
    train(|step, adapter, _, _, gradient| {
        for (name, _, range) in adapter.tensors() {
            let moved = gradient[range].iter().any(|&value| value != 0.0);
            // `B` starts at zero, so at the first step nothing reaches `A` yet.
            match (step, name.contains("lora_A")) {
                (1, true) => assert!(!moved, "{name} has a gradient while `B` is zero"),
                _ => assert!(moved, "{name} has no gradient at step {step}"),
            }
        }
    });
}

#[test]
fn the_loss_curve_equals_a_float64_reference() {
    let base = tiny::weights(7);
    let mut curve = Vec::new();
    train(|step, adapter, batch, loss, _| {
        let expected = reference_loss(&base, adapter, batch);
        let error = (loss - expected).abs() / expected;
        assert!(error < 1e-4, "step {step}: {loss} instead of {expected}");
        curve.push(loss);
    });
    assert!(curve[STEPS as usize - 1] < 0.9 * curve[0], "it learns: {curve:?}");
}

#[test]
fn gradients_equal_central_differences_in_float64() {
    let base = tiny::weights(7);
    train(|step, adapter, batch, _, gradient| {
        if step != 3 {
            return;
        }
        for (name, _, range) in adapter.tensors() {
            // Along the gradient of one matrix: its slope is the squared norm.
            let slope: f64 = gradient[range.clone()].iter().map(|&g| f64::from(g).powi(2)).sum();
            let length = 2e-3 / slope.sqrt().max(1e-9);
            let moved = |sign: f64| {
                let mut adapter = adapter.clone();
                for index in range.clone() {
                    adapter.values[index] += (sign * length * f64::from(gradient[index])) as f32;
                }
                reference_loss(&base, &adapter, batch)
            };
            let measured = (moved(1.0) - moved(-1.0)) / (2.0 * length);
            let error = (measured - slope).abs() / slope;
            assert!(error < 0.02, "{name}: slope {slope}, measured {measured}");
        }
    });
}

#[test]
fn the_same_inputs_give_the_same_bits() {
    let mut first = Vec::new();
    train(|_, _, _, loss, _| first.push(loss.to_bits()));
    let mut second = Vec::new();
    train(|_, _, _, loss, _| second.push(loss.to_bits()));
    assert_eq!(first, second);
}
