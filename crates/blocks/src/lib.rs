//! The kernels of a decoder: embedding, norm, attention, MLP, head and loss.
//!
//! Each block has a forward and a backward over slices whose shapes are arguments. What a backward
//! needs is written by the forward into buffers of the caller (`Saved`); temporary ones are the
//! caller's too (`Workspace`), and their old content does not matter. Rows are tokens of sequences
//! laid end to end; `bounds` says where each sequence begins.
//!
//! Never knows models, files, adapters or steps.

pub mod activation;
pub mod attention;
pub mod bf16;
#[cfg(test)]
mod check;
pub mod embedding;
pub mod head;
pub mod linear;
pub mod loss;
pub mod math;
pub mod matrix;
pub mod meter;
pub mod mlp;
pub mod norm;
pub mod quantized;
pub mod rotation;
pub mod scores;
