//! The feed-forward block: up, activation, down; with or without a gate.

use super::activation::Activation;
use super::linear::{self, Linear};
use super::matrix::sized;
use super::meter::{Work, spend};
use rayon::prelude::*;

/// Rows that one thread takes at least.
const ROWS_AT_ONCE: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub feed_forward: usize,
    pub activation: Activation,
    pub gate: Gate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `down(f(gate(x)) × up(x))`: `up` has the gates' rows and then the ups' (Shazeer 2020).
    Gated,
    /// `down(f(up(x)))`
    Plain,
}

#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// `[up_width, hidden]`
    pub up: Linear<'a>,
    /// `[hidden, feed_forward]`
    pub down: Linear<'a>,
}

/// What the backward needs.
#[derive(Debug, Clone, Default)]
pub struct Saved {
    /// Before the activation: `[rows, up_width]`
    up: Vec<f32>,
}

/// Where gradients of [`Parameters`] are added to.
#[derive(Debug)]
pub struct Gradients<'a> {
    pub up: linear::Gradient<'a>,
    pub down: linear::Gradient<'a>,
}

#[derive(Debug, Default)]
pub struct Workspace {
    activated: Vec<f32>,
    into_activated: Vec<f32>,
    into_up: Vec<f32>,
    linear: linear::Workspace,
}

impl Shape {
    /// Rows of the up projection.
    pub fn up_width(&self) -> usize {
        match self.gate {
            Gate::Gated => 2 * self.feed_forward,
            Gate::Plain => self.feed_forward,
        }
    }

    /// `out[rows, hidden] += mlp(x[rows, hidden])`
    pub fn forward(
        &self,
        parameters: Parameters<'_>,
        x: &[f32],
        saved: &mut Saved,
        workspace: &mut Workspace,
        out: &mut [f32],
    ) {
        let count = x.len() / parameters.up.inputs;
        parameters.up.forward(x, sized(&mut saved.up, count * self.up_width()));
        let activated = sized(&mut workspace.activated, count * self.feed_forward);
        self.activate(&saved.up, activated);
        parameters.down.add_forward(activated, out);
    }

    /// Adds the gradients of the parameters, and writes that of `x` to `into_x[rows, hidden]`.
    pub fn backward(
        &self,
        parameters: Parameters<'_>,
        x: &[f32],
        saved: &Saved,
        upstream: &[f32],
        gradients: &mut Gradients<'_>,
        workspace: &mut Workspace,
        into_x: &mut [f32],
    ) {
        let Workspace { activated, into_activated, into_up, linear } = workspace;
        let count = x.len() / parameters.up.inputs;
        let into_activated = sized(into_activated, count * self.feed_forward);
        parameters.down.backward(upstream, into_activated);
        let into_up = sized(into_up, count * self.up_width());
        let activated = sized(activated, count * self.feed_forward);
        let rows = into_up
            .par_chunks_exact_mut(self.up_width())
            .zip(saved.up.par_chunks_exact(self.up_width()))
            .zip(into_activated.par_chunks_exact(self.feed_forward))
            .zip(activated.par_chunks_exact_mut(self.feed_forward))
            .with_min_len(ROWS_AT_ONCE);
        spend(Work::Activations, || {
            rows.for_each(|(((into_up, up), upstream), activated)| match self.gate {
                Gate::Gated => self.activation.gated_backward(up, upstream, into_up, activated),
                Gate::Plain => self.activation.plain_backward(up, upstream, into_up, activated),
            });
        });
        gradients.down.add(parameters.down, activated, upstream, linear);
        gradients.up.add(parameters.up, x, into_up, linear);
        parameters.up.backward(into_up, into_x);
    }

    fn activate(&self, up: &[f32], activated: &mut [f32]) {
        let rows = activated
            .par_chunks_exact_mut(self.feed_forward)
            .zip(up.par_chunks_exact(self.up_width()))
            .with_min_len(ROWS_AT_ONCE);
        spend(Work::Activations, || {
            rows.for_each(|(activated, up)| match self.gate {
                Gate::Gated => self.activation.gated(up, activated),
                Gate::Plain => self.activation.plain(up, activated),
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{Check, drawn};
    use super::super::linear::Weight;
    use super::*;

    const ROWS: usize = 3;
    const HIDDEN: usize = 5;

    fn check(activation: Activation, gate: Gate) {
        let shape = Shape { feed_forward: 7, activation, gate };
        let width = shape.up_width();
        let values = [
            drawn(1, ROWS * HIDDEN),
            drawn(2, width * HIDDEN),
            drawn(3, width),
            drawn(4, HIDDEN * 7),
            drawn(5, HIDDEN),
        ];
        fn parameters(values: &[Vec<f32>; 5]) -> Parameters<'_> {
            Parameters {
                up: Linear { inputs: HIDDEN, weight: Weight::F32(&values[1]), bias: &values[2] },
                down: Linear { inputs: 7, weight: Weight::F32(&values[3]), bias: &values[4] },
            }
        }
        let forward = |values: &[Vec<f32>; 5]| {
            let (mut saved, mut out) = (Saved::default(), vec![0.0; ROWS * HIDDEN]);
            let workspace = &mut Workspace::default();
            shape.forward(parameters(values), &values[0], &mut saved, workspace, &mut out);
            (out, saved)
        };
        let check = Check::new(ROWS * HIDDEN);
        let (_, saved) = forward(&values);
        let mut found = values.clone().map(|values| vec![0.0; values.len()]);
        let [into_x, up, up_bias, down, down_bias] = &mut found;
        let mut gradients = Gradients {
            up: linear::Gradient::Full { weight: up, bias: up_bias },
            down: linear::Gradient::Full { weight: down, bias: down_bias },
        };
        shape.backward(
            parameters(&values),
            &values[0],
            &saved,
            check.upstream(),
            &mut gradients,
            &mut Workspace::default(),
            into_x,
        );
        for (index, name) in ["x", "up", "up bias", "down", "down bias"].into_iter().enumerate() {
            check.gradient(name, &values[index], &found[index], |moved| {
                let mut values = values.clone();
                values[index] = moved.to_vec();
                forward(&values).0
            });
        }
    }

    #[test]
    fn the_gradients_are_right_for_every_activation() {
        use Activation::{Gelu, GeluTanh, Silu};
        for activation in [Silu, Gelu, GeluTanh] {
            check(activation, Gate::Gated);
            check(activation, Gate::Plain);
        }
    }

    #[test]
    fn a_relu_passes_what_is_positive() {
        let (mut out, mut gradient) = ([0.0; 3], [0.0; 3]);
        Activation::Relu.plain(&[-1.0, 0.0, 2.0], &mut out);
        let again = &mut [9.0; 3];
        Activation::Relu.plain_backward(&[-1.0, 0.0, 2.0], &[3.0; 3], &mut gradient, again);
        assert_eq!((out, gradient, *again), ([0.0, 0.0, 2.0], [0.0, 0.0, 3.0], out));
    }
}
