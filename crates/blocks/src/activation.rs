//! Activation functions of MLPs.

use super::math;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x sigmoid(x)`
    Silu,
    /// `x Φ(x)`, with the error function
    Gelu,
    /// GELU by its approximation with a hyperbolic tangent (Hendrycks & Gimpel 2016)
    GeluTanh,
    Relu,
}

impl Activation {
    /// `out = f(gate) × up`, where a row of `gate_up` is the gates and then the ups.
    pub fn gated(self, gate_up: &[f32], out: &mut [f32]) {
        match self {
            Self::Silu => math::silu_gated(gate_up, out),
            Self::Gelu => math::gelu_gated(gate_up, out),
            Self::GeluTanh => math::gelu_tanh_gated(gate_up, out),
            Self::Relu => math::relu_gated(gate_up, out),
        }
    }

    /// Writes the gradient of a `gate_up` row, given that of [`Activation::gated`]'s result, and
    /// that result again to `out`.
    pub fn gated_backward(
        self,
        gate_up: &[f32],
        upstream: &[f32],
        gradient: &mut [f32],
        out: &mut [f32],
    ) {
        match self {
            Self::Silu => math::silu_gated_backward(gate_up, upstream, gradient, out),
            Self::Gelu => math::gelu_gated_backward(gate_up, upstream, gradient, out),
            Self::GeluTanh => math::gelu_tanh_gated_backward(gate_up, upstream, gradient, out),
            Self::Relu => math::relu_gated_backward(gate_up, upstream, gradient, out),
        }
    }

    /// `out = f(x)`
    pub fn plain(self, x: &[f32], out: &mut [f32]) {
        match self {
            Self::Silu => math::silu_plain(x, out),
            Self::Gelu => math::gelu_plain(x, out),
            Self::GeluTanh => math::gelu_tanh_plain(x, out),
            Self::Relu => math::relu_plain(x, out),
        }
    }

    /// Writes the gradient of `x`, given that of [`Activation::plain`]'s result, and that result
    /// again to `out`.
    pub fn plain_backward(
        self,
        x: &[f32],
        upstream: &[f32],
        gradient: &mut [f32],
        out: &mut [f32],
    ) {
        match self {
            Self::Silu => math::silu_plain_backward(x, upstream, gradient, out),
            Self::Gelu => math::gelu_plain_backward(x, upstream, gradient, out),
            Self::GeluTanh => math::gelu_tanh_plain_backward(x, upstream, gradient, out),
            Self::Relu => math::relu_plain_backward(x, upstream, gradient, out),
        }
    }
}
