//! Cross-entropy of the next token.

use super::math;
use super::meter::{Work, spend};
use rayon::prelude::*;

/// `Σ -log softmax(logits)[target]` over `logits[rows, vocabulary]` and `targets[rows]`; the logits
/// become the gradient of that sum.
///
/// One pass does both, since a vocabulary of logits is too long to go through twice.
pub fn forward_backward(logits: &mut [f32], targets: &[u32]) -> f64 {
    let vocabulary = logits.len() / targets.len().max(1);
    let rows = logits.par_chunks_exact_mut(vocabulary.max(1)).zip(targets);
    let losses: Vec<f32> = spend(Work::Loss, || {
        rows.map(|(logits, &target)| math::cross_entropy(logits, target as usize)).collect()
    });
    losses.iter().map(|&loss| f64::from(loss)).sum()
}

#[cfg(test)]
mod tests {
    use super::super::check::drawn;
    use super::*;

    #[test]
    fn the_gradient_is_right() {
        const STEP: f32 = 1.0 / 256.0;
        let (logits, targets) = (drawn(1, 3 * 13), [4, 0, 12]);
        let loss = |logits: &[f32]| forward_backward(&mut logits.to_vec(), &targets);
        let mut gradient = logits.clone();
        forward_backward(&mut gradient, &targets);
        for index in 0..logits.len() {
            let moved = |by: f32| {
                let mut logits = logits.clone();
                logits[index] += by;
                loss(&logits)
            };
            let slope = (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP);
            assert!((slope - f64::from(gradient[index])).abs() < 1e-3, "{index}: {slope}");
        }
    }
}
