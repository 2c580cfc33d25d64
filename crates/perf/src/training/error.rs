//! Why the time of a step cannot be predicted.

use std::error::Error;
use std::fmt;

use super::{ConfigProblem, Precision};

/// Why the time of a step cannot be predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepError {
    Config(ConfigProblem),
    /// The device class has no figure for this precision.
    NoPeak {
        precision: Precision,
    },
    /// Not the stages of the configuration, or not the layers of the model.
    Stages {
        stages: usize,
        layers: u32,
    },
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problem) => problem.fmt(f),
            Self::NoPeak { precision } => {
                write!(f, "the device class has no figure for {precision:?}")
            }
            Self::Stages { stages, layers } => write!(
                f,
                "{layers} layers on {stages} stages are not what configuration and model say"
            ),
        }
    }
}

impl Error for StepError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(problem) => Some(problem),
            Self::NoPeak { .. } | Self::Stages { .. } => None,
        }
    }
}
