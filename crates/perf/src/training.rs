//! How long a step of training a transformer takes under a parallel configuration, and how much
//! memory it needs: physics with a few constants per device class, scaled by a user's own
//! measurements.
//!
//! The story: a `Transformer` and a `ParallelConfig` say what is computed and how it is cut, a
//! `Machine` what it runs on. `memory` says what one device must hold, `layer` what one layer of
//! one microbatch costs, `step` adds layers, pipeline, exchange and optimizer up, `calibration`
//! fits the constants to steps that were measured.

mod calibration;
mod collective;
mod config;
mod constants;
mod error;
mod exchange;
mod island;
mod layer;
mod machine;
mod memory;
mod step;
mod transformer;
mod tuning;

pub use calibration::{Calibration, MeasuredStep};
pub use config::{
    Attention, ConfigProblem, GradientWidth, Offload, Optimizer, Overlap, ParallelConfig,
    Precision, Recompute, SequenceParallel, Zero,
};
pub use constants::Efficiency;
pub use error::StepError;
pub use island::{BUS_PART, Island};
pub use layer::{Direction, LayerTime, head_time_s, layer_time};
pub use machine::{DeviceFigures, Machine};
pub use memory::{RESERVED, StageMemory, StagePlace, stage_memory};
pub use step::{Limit, Stage, StepTime, pipeline_time_s, step_time, uneven_step_time};
pub use transformer::{Embeddings, Experts, FeedForward, FeedForwardKind, Transformer, days};
pub use tuning::Tuning;
