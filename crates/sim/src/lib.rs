//! The engine in virtual time: stages with steps and checkpoints, elastic jobs that choose their
//! batch, nodes that fail and come back, stragglers. Deterministic: the same plans give the same
//! facts.
//!
//! Knows: virtual time, how long the work of each stage really takes, and what goes wrong when.
//! Must never know: which policy runs, or a clock.

mod adoption;
mod elastic;
mod engine;
mod event_queue;
mod model;

pub use elastic::{Application, PROGRESS_PER_STEP, StepTime, StepTimes, first_rotation};
pub use engine::Sim;
pub use model::{Fault, StageModel};
