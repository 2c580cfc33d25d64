//! AdamW on a flat vector, and the learning rate of every step.

use serde::{Deserialize, Serialize};

const BETA_1: f32 = 0.9;
const BETA_2: f32 = 0.999;
const EPSILON: f32 = 1e-8;
const WEIGHT_DECAY: f32 = 0.01;
const GRADIENT_NORM_MAX: f64 = 1.0;

/// First and second moments (Loshchilov & Hutter 2019, algorithm 2).
#[derive(Debug, Clone, PartialEq)]
pub struct AdamW {
    pub first: Vec<f32>,
    pub second: Vec<f32>,
}

impl AdamW {
    pub fn new(length: usize) -> Self {
        Self { first: vec![0.0; length], second: vec![0.0; length] }
    }

    /// One update; `step` counts from 1. The gradient is cut to a norm of one first.
    pub fn update(&mut self, values: &mut [f32], gradient: &[f32], rate: f32, step: u64) {
        let norm = gradient.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
        let cut = if norm > GRADIENT_NORM_MAX { (GRADIENT_NORM_MAX / norm) as f32 } else { 1.0 };
        let exponent = step.min(i32::MAX as u64) as i32;
        let correct_1 = 1.0 / (1.0 - BETA_1.powi(exponent));
        let correct_2 = 1.0 / (1.0 - BETA_2.powi(exponent));
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((value, gradient), (first, second)) in values.iter_mut().zip(gradient).zip(moments) {
            let gradient = gradient * cut;
            *first = BETA_1 * *first + (1.0 - BETA_1) * gradient;
            *second = BETA_2 * *second + (1.0 - BETA_2) * gradient * gradient;
            let direction = *first * correct_1 / ((*second * correct_2).sqrt() + EPSILON);
            *value -= rate * (direction + WEIGHT_DECAY * *value);
        }
    }
}

/// Linear warm-up over a tenth of the steps, then half a cosine down to a tenth of the peak.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub peak: f32,
    pub steps: u64,
}

impl Schedule {
    /// The rate of `step`, which counts from 1.
    pub fn rate(&self, step: u64) -> f32 {
        let warm_up = self.steps.div_ceil(10).max(1);
        if step <= warm_up {
            return self.peak * step as f32 / warm_up as f32;
        }
        let done = (step - warm_up) as f64 / (self.steps - warm_up).max(1) as f64;
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos());
        self.peak * (0.1 + 0.9 * cosine) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_warms_up_and_comes_down() {
        let schedule = Schedule { peak: 1.0, steps: 100 };
        assert_eq!(schedule.rate(10), 1.0);
        assert!(schedule.rate(1) < schedule.rate(5) && schedule.rate(50) < schedule.rate(20));
        assert!((schedule.rate(100) - 0.1).abs() < 1e-6);
    }

    #[test]
    fn adam_finds_the_bottom_of_a_bowl() {
        let (mut values, mut adam) = (vec![3.0, -2.0], AdamW::new(2));
        for step in 1..=600 {
            let gradient: Vec<f32> = values.iter().map(|v| 2.0 * v).collect();
            adam.update(&mut values, &gradient, 0.02, step);
        }
        assert!(values.iter().all(|v| v.abs() < 0.05), "{values:?}");
    }
}
