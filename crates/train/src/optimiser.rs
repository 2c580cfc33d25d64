//! AdamW with clipping, and the learning rate of every step.

use het_blocks::meter::{Work, spend};
use multiversion::multiversion;
use rayon::prelude::*;
use serde::Serialize;

const EPSILON: f32 = 1e-8;
/// Values that a thread updates at once; sums are over pieces of it, whatever the threads.
const PIECE: usize = 1 << 15;

/// How AdamW steps (Loshchilov & Hutter 2019, algorithm 2).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Settings {
    /// Peak learning rate
    pub lr: f32,
    pub schedule: Schedule,
    /// Steps over which the rate rises to its peak; none says a tenth of all
    pub warmup: Option<u64>,
    /// What the last step's rate is of the peak, where the schedule comes down
    pub lr_final: f32,
    pub weight_decay: f32,
    pub beta1: f32,
    pub beta2: f32,
    /// Gradients are cut to this norm over all of them; 0 cuts nothing
    pub max_grad_norm: f32,
}

/// What becomes of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Stays at its peak
    Constant,
    /// Comes down in a straight line
    Linear,
    /// Comes down as half a cosine
    #[default]
    Cosine,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lr: 3e-3,
            schedule: Schedule::Cosine,
            warmup: None,
            lr_final: 0.1,
            weight_decay: 0.01,
            beta1: 0.9,
            beta2: 0.999,
            max_grad_norm: 1.0,
        }
    }
}

impl Settings {
    /// The rate of `step` of `steps`, which count from 1.
    pub fn rate(&self, step: u64, steps: u64) -> f32 {
        let warmup = self.warmup.unwrap_or_else(|| steps.div_ceil(10));
        if step <= warmup {
            return self.lr * step as f32 / warmup as f32;
        }
        let done = (step - warmup) as f64 / steps.saturating_sub(warmup).max(1) as f64;
        let done = done.min(1.0);
        let left = match self.schedule {
            Schedule::Constant => return self.lr,
            Schedule::Linear => 1.0 - done,
            Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
        };
        let last = f64::from(self.lr_final);
        self.lr * (last + (1.0 - last) * left) as f32
    }

    /// Refuses values with which nothing is learned, by the name of the option.
    pub fn check(&self) -> std::result::Result<(), String> {
        let from_zero = |value: f32| value.is_finite() && value >= 0.0;
        let share = |value: f32| (0.0..1.0).contains(&value);
        let checks = [
            ("lr", from_zero(self.lr), "a number from 0 on"),
            ("lr-final", from_zero(self.lr_final), "a number from 0 on"),
            ("weight-decay", from_zero(self.weight_decay), "a number from 0 on"),
            ("max-grad-norm", from_zero(self.max_grad_norm), "a number from 0 on"),
            ("beta1", share(self.beta1), "from 0 to below 1"),
            ("beta2", share(self.beta2), "from 0 to below 1"),
        ];
        match checks.iter().find(|(_, holds, _)| !holds) {
            None => Ok(()),
            Some((name, _, wanted)) => Err(format!("`--{name}` must be {wanted}")),
        }
    }
}

/// Values that learn, their gradient of the same length, and whether they decay.
#[derive(Debug)]
pub struct Slice<'a> {
    pub values: &'a mut [f32],
    pub gradient: &'a [f32],
    pub decays: bool,
}

/// First and second moments of some slices, one behind the other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AdamW {
    pub first: Vec<f32>,
    pub second: Vec<f32>,
}

/// What one step does to every value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// What gradients are multiplied by.
    scale: f32,
    rate: f32,
    decay: f32,
    betas: [f32; 2],
    /// `1 / (1 - beta^step)`
    corrections: [f32; 2],
}

/// One step that is asked for, before the norm of its gradient is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    pub settings: Settings,
    /// What gradients are multiplied by before they are cut.
    pub scale: f32,
    /// The learning rate.
    pub rate: f32,
    /// Counts from 1.
    pub step: u64,
}

impl Request {
    /// What the step does where the gradients have this norm; `None` where it is not finite.
    pub fn rule(&self, norm: f64) -> Option<Rule> {
        let Self { settings, scale, rate, step } = *self;
        let norm = f64::from(scale) * norm;
        if !norm.is_finite() {
            return None;
        }
        let most = f64::from(settings.max_grad_norm);
        let cut = if most > 0.0 && norm > most { (most / norm) as f32 } else { 1.0 };
        let exponent = step.min(i32::MAX as u64) as i32;
        let betas = [settings.beta1, settings.beta2];
        Some(Rule {
            scale: scale * cut,
            rate,
            decay: settings.weight_decay,
            betas,
            corrections: betas.map(|beta| 1.0 / (1.0 - beta.powi(exponent))),
        })
    }
}

impl AdamW {
    pub fn new(length: usize) -> Self {
        Self { first: vec![0.0; length], second: vec![0.0; length] }
    }

    /// One update of all slices. Returns whether all values are finite afterwards.
    pub fn update(&mut self, rule: &Rule, slices: Vec<Slice<'_>>) -> bool {
        let (mut first, mut second) = (&mut self.first[..], &mut self.second[..]);
        spend(Work::Optimiser, || {
            slices.into_iter().all(|Slice { values, gradient, decays }| {
                let (own_first, rest_first) = std::mem::take(&mut first).split_at_mut(values.len());
                let (own_second, rest_second) =
                    std::mem::take(&mut second).split_at_mut(values.len());
                (first, second) = (rest_first, rest_second);
                let rule = Rule { decay: if decays { rule.decay } else { 0.0 }, ..*rule };
                let pieces = values.par_chunks_mut(PIECE).zip(gradient.par_chunks(PIECE));
                let pieces = pieces.zip(own_first.par_chunks_mut(PIECE));
                let pieces = pieces.zip(own_second.par_chunks_mut(PIECE));
                let finite = pieces.map(|(((values, gradient), first), second)| {
                    update_piece(values, gradient, first, second, rule)
                });
                finite.reduce(|| true, |a, b| a && b)
            })
        })
    }
}

/// The norm of all gradients, the same for any number of threads. Each is a list of parts that lie
/// apart, and counts as if they lay one behind the other.
pub fn norm(gradients: &[Vec<&[f32]>]) -> f64 {
    spend(Work::Optimiser, || {
        let sums = gradients.iter().map(|parts| {
            let squares = pieces(parts).into_par_iter().map(|piece| match piece.as_slice() {
                [whole] => squares(whole),
                parts => squares(&parts.concat()),
            });
            squares.collect::<Vec<f64>>().iter().sum::<f64>()
        });
        sums.sum::<f64>().sqrt()
    })
}

/// Cuts a list of parts into pieces of [`PIECE`] values; those in which a part ends are of several.
fn pieces<'a>(parts: &[&'a [f32]]) -> Vec<Vec<&'a [f32]>> {
    let mut pieces: Vec<Vec<&[f32]>> = Vec::new();
    let mut room = 0;
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty() {
            if room == 0 {
                pieces.push(Vec::new());
                room = PIECE;
            }
            let (own, after) = rest.split_at(rest.len().min(room));
            if let Some(piece) = pieces.last_mut() {
                piece.push(own);
            }
            (rest, room) = (after, room - own.len());
        }
    }
    pieces
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn squares(gradient: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0f64; LANES];
    let whole = gradient.chunks_exact(LANES);
    let rest = whole.remainder();
    for chunk in whole {
        for lane in 0..LANES {
            let value = f64::from(chunk[lane]);
            lanes[lane] += value * value;
        }
    }
    let rest: f64 = rest.iter().map(|&value| f64::from(value).powi(2)).sum();
    lanes.iter().sum::<f64>() + rest
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn update_piece(
    values: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    rule: Rule,
) -> bool {
    let length = values.len();
    let (gradient, first, second) =
        (&gradient[..length], &mut first[..length], &mut second[..length]);
    let [beta_1, beta_2] = rule.betas;
    let [correct_1, correct_2] = rule.corrections;
    let mut finite = true;
    for i in 0..length {
        let g = gradient[i] * rule.scale;
        first[i] = beta_1 * first[i] + (1.0 - beta_1) * g;
        second[i] = beta_2 * second[i] + (1.0 - beta_2) * g * g;
        let direction = first[i] * correct_1 / ((second[i] * correct_2).sqrt() + EPSILON);
        values[i] -= rule.rate * (direction + rule.decay * values[i]);
        finite &= values[i].abs() < f32::INFINITY;
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice<'a>(values: &'a mut [f32], gradient: &'a [f32]) -> Vec<Slice<'a>> {
        vec![Slice { values, gradient, decays: true }]
    }

    /// The first step at a rate of 0.1; `None` where the gradient has no norm.
    fn first_step(
        adam: &mut AdamW,
        settings: Settings,
        scale: f32,
        slices: Vec<Slice<'_>>,
    ) -> Option<bool> {
        let gradients: Vec<_> = slices.iter().map(|slice| vec![slice.gradient]).collect();
        let request = Request { settings, scale, rate: 0.1, step: 1 };
        Some(adam.update(&request.rule(norm(&gradients))?, slices))
    }

    #[test]
    fn rates_rise_and_come_down_as_their_schedules_say() {
        let rates = |schedule| {
            let settings = Settings { lr: 1.0, schedule, ..Settings::default() };
            [1, 5, 10, 55, 100, 200].map(|step| settings.rate(step, 100))
        };
        let close = |found: [f32; 6], wanted: [f32; 6]| {
            let near = |(a, b): (f32, f32)| (a - b).abs() < 1e-6;
            assert!(found.into_iter().zip(wanted).all(near), "{found:?}, not {wanted:?}");
        };
        close(rates(Schedule::Constant), [0.1, 0.5, 1.0, 1.0, 1.0, 1.0]);
        close(rates(Schedule::Linear), [0.1, 0.5, 1.0, 0.55, 0.1, 0.1]);
        close(rates(Schedule::Cosine), [0.1, 0.5, 1.0, 0.55, 0.1, 0.1]);
        let at_once = Settings { warmup: Some(0), lr: 1.0, ..Settings::default() };
        assert!(at_once.rate(1, 100) > 0.99);
    }

    #[test]
    fn adam_finds_the_bottom_of_a_bowl() {
        let (mut values, mut adam) = (vec![3.0, -2.0], AdamW::new(2));
        for step in 1..=600 {
            let gradient: Vec<f32> = values.iter().map(|v| 2.0 * v).collect();
            let request = Request { settings: Settings::default(), scale: 1.0, rate: 0.02, step };
            let rule = request.rule(norm(&[vec![&gradient[..]]])).expect("it is finite");
            assert!(adam.update(&rule, slice(&mut values, &gradient)));
        }
        assert!(values.iter().all(|v| v.abs() < 0.05), "{values:?}");
    }

    #[test]
    fn a_gradient_is_cut_to_the_norm_over_all_slices() {
        let moved = |gradients: [&[f32]; 2], most: f32| {
            let settings = Settings { max_grad_norm: most, ..Settings::default() };
            let mut adam = AdamW::new(3);
            let (mut one, mut two) = (vec![0.0; 2], vec![0.0]);
            let mut slices = slice(&mut one, gradients[0]);
            slices.extend(slice(&mut two, gradients[1]));
            assert_eq!(first_step(&mut adam, settings, 0.5, slices), Some(true));
            adam.first
        };
        // The norm of (6, 0, 8) / 2 is 5.
        let cut = moved([&[6.0, 0.0], &[8.0]], 1.0);
        for (found, wanted) in cut.iter().zip([0.06, 0.0, 0.08]) {
            assert!((found - wanted).abs() < 1e-6, "{cut:?}");
        }
        let whole = moved([&[6.0, 0.0], &[8.0]], 0.0);
        assert!((whole[2] - 0.4).abs() < 1e-6, "{whole:?}");
    }

    #[test]
    fn what_does_not_decay_stays_without_a_gradient() {
        let settings = Settings { weight_decay: 0.5, ..Settings::default() };
        let (mut decays, mut stays) = (vec![1.0], vec![1.0]);
        let slices = vec![
            Slice { values: &mut decays, gradient: &[0.0], decays: true },
            Slice { values: &mut stays, gradient: &[0.0], decays: false },
        ];
        assert_eq!(first_step(&mut AdamW::new(2), settings, 1.0, slices), Some(true));
        assert_eq!((decays[0], stays[0]), (0.95, 1.0));
    }

    #[test]
    fn a_gradient_that_is_no_number_has_no_rule() {
        let (mut values, mut adam) = (vec![1.0, 2.0], AdamW::new(2));
        let slices = slice(&mut values, &[f32::NAN, 1.0]);
        assert_eq!(first_step(&mut adam, Settings::default(), 1.0, slices), None);
    }

    #[test]
    fn the_norm_of_parts_is_that_of_the_whole() {
        let whole: Vec<f32> = (0..3 * PIECE + 77).map(|index| (index as f32).sin()).collect();
        let (first, rest) = whole.split_at(PIECE / 2 + 3);
        let (second, third) = rest.split_at(2 * PIECE);
        let apart = norm(&[vec![first, second, &[], third]]);
        assert_eq!(apart.to_bits(), norm(&[vec![&whole[..]]]).to_bits());
    }
}
