//! Matrices of integers for inference: weights of 8 or 4 bits, activations rounded to 8 as they
//! come.
//!
//! Int8 weights have one scale for each output, int4 weights a scale and a least value for each
//! group of 32 inputs, as ggml's `q4_1`. A row of activations has one scale, the row's largest
//! value over 127 (Dettmers et al. 2022, LLM.int8(), section 2.1). Products are summed in i32,
//! exactly, so every instruction set gives the same bits.
//!
//! Weights lie in panels of 16 outputs, each in groups of 32 inputs: what a kernel reads next lies
//! next. Inputs beyond the last are zeros.

mod activations;
mod kernels;
mod matrix;

pub use kernels::Instructions;
pub use matrix::{Format, INPUTS_MAX, Matrix};

/// Outputs of a panel: i32 lanes of the widest vector.
const LANES: usize = 16;
/// Inputs that one lane of an integer product takes at once.
const QUAD: usize = 4;
/// Inputs that share the scale of an int4 weight.
const GROUP: usize = 32;
const QUADS_IN_GROUP: usize = GROUP / QUAD;
