//! The planner's word against published measurements: training runs and their step times.

mod figures;
mod fit;
mod runs;
mod score;

pub use figures::figures;
pub use fit::{Constant, Weighted, fit};
pub use runs::{Setup, TrainingRun, read_training_runs};
pub use score::{Prediction, Score, predict, score};
