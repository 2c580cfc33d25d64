//! Measured training runs, as they are published or as profilers write them, and what limits one.

mod kineto;
mod runs;
mod timeline;

pub use kineto::{ProfiledSteps, read_kineto, read_progress};
pub use runs::read_training_runs;
pub use timeline::{CopySum, DeviceTime, KernelSum, TimelineProfile, Use, read_timeline};
