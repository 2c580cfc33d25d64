//! The gradients are there, and they are right.

use std::sync::Arc;

use het_blocks::linear::Numbers;
use het_train::batch::{Batch, Sequence};
use het_train::lora::Adapter;
use het_train::optimiser::{Request, Settings};
use het_train::precision;
use het_train::steps::Executor;
use het_train::weights::Weights;
use het_train::workers::Workers;

#[test]
fn every_adapter_tensor_learns() {
    let weights = weights();
    let adapter = Adapter::random(&weights.architecture, 4, 8.0, 1);
    let mut executor =
        Executor::adapting(&weights, &adapter, Workers::default()).expect("it starts");
    for step in 1..=3 {
        executor.begin_step().expect("the adapter fits");
        executor.add_gradients(&batch()).expect("the batch is valid");
        let gradient = executor.adapter_gradient().expect("it is computed");
        for (name, _, place) in adapter.tensors() {
            let largest = gradient[place].iter().fold(0f32, |m, g| m.max(g.abs()));
            // B starts at zero, so A cannot matter before B has moved.
            match name.contains("lora_A") && step == 1 {
                true => assert_eq!(largest, 0.0, "{name} at step {step}"),
                false => assert!(largest > 1e-6, "{name} has no gradient at step {step}"),
            }
        }
        let settings = Settings::default();
        let step = executor.update(Request { settings, scale: 1.0, rate: 0.01, step });
        assert!(step.expect("it is computed").is_finite);
    }
}

#[test]
fn the_loss_curve_equals_float64_pytorch() {
    let fixture = include_str!("reference/loss_curve.json");
    let fixture: serde_json::Value = serde_json::from_str(fixture).expect("the fixture is JSON");
    let expected: Vec<f64> =
        fixture["losses"].as_array().expect("a list").iter().filter_map(|v| v.as_f64()).collect();
    let curve = curve(expected.len() as u64);
    for (step, (ours, exact)) in curve.iter().zip(&expected).enumerate() {
        let error = (ours - exact).abs() / exact;
        assert!(error < 1e-4, "step {}: {ours}, not {exact}", step + 1);
    }
    assert!(curve[19] < curve[0] * 0.9, "{curve:?}");
}

/// Losses of the run that `reference/loss_curve.py` makes in float64.
fn curve(steps: u64) -> Vec<f64> {
    let weights = weights();
    let mut adapter = Adapter::zeros(&weights.architecture, 4, 8.0);
    for (name, shape, place) in adapter.tensors().collect::<Vec<_>>() {
        if name.contains("lora_A") {
            for (index, value) in adapter.values[place].iter_mut().enumerate() {
                *value = ((0.7 * index as f64).sin() / (shape[1] as f64).sqrt()) as f32;
            }
        }
    }
    let mut executor =
        Executor::adapting(&weights, &adapter, Workers::default()).expect("it starts");
    losses(&mut executor, Settings { lr: 0.01, ..Settings::default() }, steps)
}

/// Mean losses of so many steps on the same batch.
fn losses(executor: &mut Executor, settings: Settings, steps: u64) -> Vec<f64> {
    let batch = batch();
    let steps = (1..=steps).map(|step| {
        executor.begin_step().expect("the adapter fits");
        executor.add_gradients(&batch).expect("the batch is valid");
        let scored = batch.rows.len() as f32;
        let (scale, rate) = (1.0 / scored, settings.rate(step, steps));
        let step = executor.update(Request { settings, scale, rate, step });
        let step = step.expect("it is computed");
        assert!(step.is_finite);
        step.loss / f64::from(scored)
    });
    steps.collect()
}

/// Losses of ten steps, of an adapter or of all parameters, in such numbers.
fn curve_in(numbers: Numbers, trains_all: bool) -> Vec<f64> {
    let mut weights = het_train::tiny::weights(1);
    let mut executor = if trains_all {
        Executor::learning(weights, numbers, Workers::default())
    } else {
        if numbers == Numbers::Bf16 {
            precision::store_in_bf16(&mut weights.parameters, &weights.architecture);
        }
        let adapter = Adapter::random(&weights.architecture, 4, 8.0, 1);
        Executor::adapting(&Arc::new(weights), &adapter, Workers::default())
    }
    .expect("it starts");
    losses(&mut executor, Settings { lr: 0.01, ..Settings::default() }, 10)
}

#[test]
fn training_in_bf16_learns_as_in_f32() {
    for trains_all in [false, true] {
        let exact = curve_in(Numbers::F32, trains_all);
        let rounded = curve_in(Numbers::Bf16, trains_all);
        assert_ne!(rounded[0], exact[0], "it is rounded");
        for (rounded, exact) in rounded.iter().zip(&exact) {
            assert!((rounded - exact).abs() < 0.01 * exact, "{rounded}, not {exact}");
        }
        assert!(rounded[9] < 0.97 * rounded[0], "{rounded:?}");
    }
}

#[test]
fn a_loss_without_gradients_is_the_same_loss() {
    let weights = weights();
    let adapter = Adapter::random(&weights.architecture, 4, 8.0, 1);
    let mut executor =
        Executor::adapting(&weights, &adapter, Workers::default()).expect("it starts");
    executor.begin_step().expect("the adapter fits");
    executor.add_gradients(&batch()).expect("a valid batch");
    let with = executor.step_loss().expect("it is computed");
    assert_eq!(with, executor.loss(&batch()).expect("a valid batch"));
}

fn weights() -> Arc<Weights> {
    Arc::new(het_train::tiny::weights(1))
}

/// Three sequences of unlike lengths, two of three predictions scored.
fn batch() -> Batch {
    let sequences = [20, 33, 70].into_iter().enumerate().map(|(index, length)| Sequence {
        tokens: (0..length).map(|i| (i * 37 + index as u32 * 11) % 259).collect(),
        scored: (0..length).map(|i| i % 3 != 0).collect(),
    });
    Batch::pack(&sequences.collect::<Vec<_>>(), 128)
}
