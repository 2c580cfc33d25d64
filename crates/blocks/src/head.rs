//! The language-model head: logits of the next token, softly capped where a model says so.

use super::linear::{self, Linear};
use super::math;
use rayon::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// `[vocabulary, hidden]`
    pub linear: Linear<'a>,
    /// `logits = cap tanh(logits / cap)`
    pub cap: Option<f32>,
}

#[derive(Debug, Default)]
pub struct Workspace {
    linear: linear::Workspace,
}

impl Head<'_> {
    /// `logits[rows, vocabulary] = head(x[rows, hidden])`
    pub fn forward(&self, x: &[f32], logits: &mut [f32]) {
        self.linear.forward(x, logits);
        if let Some(cap) = self.cap {
            let rows = logits.par_chunks_exact_mut(self.linear.outputs());
            rows.for_each(|row| math::soft_cap(row, cap));
        }
    }

    /// Turns `upstream`, the gradient of the logits, into that of the uncapped ones; then writes
    /// that of `x` to `into_x[rows, hidden]` and adds that of the weight.
    ///
    /// `logits` are what the forward wrote; they are not looked at without a cap.
    pub fn backward(
        &self,
        x: &[f32],
        logits: &[f32],
        upstream: &mut [f32],
        gradient: &mut linear::Gradient<'_>,
        workspace: &mut Workspace,
        into_x: &mut [f32],
    ) {
        if let Some(cap) = self.cap {
            let width = self.linear.outputs();
            let rows = upstream.par_chunks_exact_mut(width).zip(logits.par_chunks_exact(width));
            rows.for_each(|(upstream, logits)| math::soft_cap_backward(logits, cap, upstream));
        }
        gradient.add(self.linear, x, upstream, &mut workspace.linear);
        self.linear.backward(upstream, into_x);
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{Check, drawn};
    use super::super::linear::Weight;
    use super::*;

    fn check(cap: Option<f32>) {
        const ROWS: usize = 2;
        const HIDDEN: usize = 5;
        const VOCABULARY: usize = 7;
        let (x, weight) = (drawn(1, ROWS * HIDDEN), drawn(2, VOCABULARY * HIDDEN));
        fn head(weight: &[f32], cap: Option<f32>) -> Head<'_> {
            let weight = Weight::F32(weight);
            Head { linear: Linear { inputs: HIDDEN, weight, bias: &[] }, cap }
        }
        let forward = |x: &[f32], weight: &[f32]| {
            let mut logits = vec![0.0; ROWS * VOCABULARY];
            head(weight, cap).forward(x, &mut logits);
            logits
        };
        let check = Check::new(ROWS * VOCABULARY);
        let (mut into_x, mut into_weight) = (vec![0.0; x.len()], vec![0.0; weight.len()]);
        let mut gradient = linear::Gradient::Full { weight: &mut into_weight, bias: &mut [] };
        head(&weight, cap).backward(
            &x,
            &forward(&x, &weight),
            &mut check.upstream().to_vec(),
            &mut gradient,
            &mut Workspace::default(),
            &mut into_x,
        );
        check.gradient("x", &x, &into_x, |x| forward(x, &weight));
        check.gradient("weight", &weight, &into_weight, |weight| forward(&x, weight));
    }

    #[test]
    fn the_gradients_are_right_with_and_without_a_cap() {
        check(None);
        check(Some(1.5));
    }
}
