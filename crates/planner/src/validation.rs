//! The planner's word against measurements: training runs and their step times.

mod figures;
mod fit;
mod score;

use het_perf::training::{Island, ParallelConfig, Transformer};

pub use figures::{device_figures, figures};
pub use fit::{Constant, Weighted, fit};
pub use score::{Prediction, Score, median, predict, score};

/// A training run that somebody measured.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingRun {
    /// Who published it; the file's name where it does not say.
    pub source: String,
    pub model: String,
    /// `None` where it does not say enough to predict it.
    pub setup: Option<Setup>,
}

/// What ran on what, and how long a step took.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    pub model: Transformer,
    pub config: ParallelConfig,
    /// Device class, as in the catalogue.
    pub class: &'static str,
    pub island: Island,
    pub seconds: f64,
}
