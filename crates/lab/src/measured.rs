//! Measured training runs, as they are published or as profilers write them.

mod kineto;
mod runs;

pub use kineto::{ProfiledSteps, read_kineto, read_progress};
pub use runs::read_training_runs;
