//! The planner's word against published measurements: training runs and their step times.

mod figures;
mod fit;
mod kineto;
mod runs;
mod score;

pub use figures::{device_figures, figures};
pub use fit::{Constant, Weighted, fit};
pub use kineto::{ProfiledSteps, read_kineto, read_progress};
pub use runs::{Setup, TrainingRun, read_training_runs};
pub use score::{Prediction, Score, predict, score};
