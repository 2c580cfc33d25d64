//! Why a stored record cannot be read.

use het_core::TopologyError;
use thiserror::Error;

/// Why a stored record cannot be read.
#[derive(Debug, Error)]
pub enum RecordError {
    #[error("the record is not the JSON this version writes")]
    Json(#[from] serde_json::Error),
    #[error("the record uses the word `{word}`, which this version does not know")]
    UnknownWord { word: String },
    #[error("it has version {version}, which this version of Heterosis does not know")]
    Version { version: u32 },
    #[error("it has a number that no job and no lease has")]
    Number,
    #[error("the record has a topology that does not fit together")]
    Topology(#[from] TopologyError),
}
