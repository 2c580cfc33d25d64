//! The engine in virtual time: stages with steps and checkpoints, nodes that fail and come back,
//! stragglers. Deterministic: the same plans give the same facts.
//!
//! Knows: virtual time, how long the work of each stage really takes, and what goes wrong when.
//! Must never know: which policy runs, or a clock.

mod agenda;
mod engine;
mod model;

pub use engine::Sim;
pub use model::{Fault, StageModel};
