//! The gradients are there, and they are right.

use std::sync::Arc;

use het_train::batch::{Batch, Sequence};
use het_train::cpu::Cpu;
use het_train::driver::Driver;
use het_train::lora::Adapter;
use het_train::optimiser::{AdamW, Settings, Slice};
use het_train::weights::Weights;

#[test]
fn every_adapter_tensor_learns() {
    let weights = weights();
    let mut driver = Cpu::new(weights.clone());
    let mut adapter = Adapter::random(&weights.architecture, 4, 8.0, 1);
    let mut moments = AdamW::new(adapter.values.len());
    for step in 1..=3 {
        driver.use_adapter(&adapter).expect("the adapter fits");
        let mut gradient = vec![0.0; adapter.values.len()];
        driver.gradients(&adapter, &batch(), &mut gradient).expect("the batch is valid");
        for (name, _, place) in adapter.tensors() {
            let largest = gradient[place].iter().fold(0f32, |m, g| m.max(g.abs()));
            // B starts at zero, so A cannot matter before B has moved.
            match name.contains("lora_A") && step == 1 {
                true => assert_eq!(largest, 0.0, "{name} at step {step}"),
                false => assert!(largest > 1e-6, "{name} has no gradient at step {step}"),
            }
        }
        let (values, gradient) = (&mut adapter.values, &gradient[..]);
        let slices = vec![Slice { values, gradient, decays: true }];
        assert!(moments.update(&Settings::default(), slices, 1.0, 0.01, step));
    }
}

#[test]
fn the_loss_curve_equals_float64_pytorch() {
    let fixture = include_str!("reference/loss_curve.json");
    let fixture: serde_json::Value = serde_json::from_str(fixture).expect("the fixture is JSON");
    let expected: Vec<f64> =
        fixture["losses"].as_array().expect("a list").iter().filter_map(|v| v.as_f64()).collect();
    let weights = weights();
    let mut driver = Cpu::new(weights.clone());
    let curve = curve(&mut driver, expected.len() as u64);
    for (step, (ours, exact)) in curve.iter().zip(&expected).enumerate() {
        let error = (ours - exact).abs() / exact;
        assert!(error < 1e-4, "step {}: {ours}, not {exact}", step + 1);
    }
    assert!(curve[19] < curve[0] * 0.9, "{curve:?}");
}

/// Losses of the run that `reference/loss_curve.py` makes in float64.
fn curve(driver: &mut dyn Driver, steps: u64) -> Vec<f64> {
    let mut adapter = Adapter::zeros(&weights().architecture, 4, 8.0);
    for (name, shape, place) in adapter.tensors().collect::<Vec<_>>() {
        if name.contains("lora_A") {
            for (index, value) in adapter.values[place].iter_mut().enumerate() {
                *value = ((0.7 * index as f64).sin() / (shape[1] as f64).sqrt()) as f32;
            }
        }
    }
    let mut moments = AdamW::new(adapter.values.len());
    let settings = Settings { lr: 0.01, ..Settings::default() };
    let batch = batch();
    let steps = (1..=steps).map(|step| {
        driver.use_adapter(&adapter).expect("the adapter fits");
        let mut gradient = vec![0.0; adapter.values.len()];
        let loss = driver.gradients(&adapter, &batch, &mut gradient).expect("the batch is valid");
        let scored = batch.rows.len() as f32;
        let slices = vec![Slice { values: &mut adapter.values, gradient: &gradient, decays: true }];
        let rate = settings.rate(step, steps);
        assert!(moments.update(&settings, slices, 1.0 / scored, rate, step));
        loss / f64::from(scored)
    });
    steps.collect()
}

#[test]
fn a_loss_without_gradients_is_the_same_loss() {
    let weights = weights();
    let mut driver = Cpu::new(weights.clone());
    let adapter = Adapter::random(&weights.architecture, 4, 8.0, 1);
    driver.use_adapter(&adapter).expect("the adapter fits");
    let mut gradient = vec![0.0; adapter.values.len()];
    let with = driver.gradients(&adapter, &batch(), &mut gradient).expect("a valid batch");
    assert_eq!(with, driver.loss(&batch()).expect("a valid batch"));
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
