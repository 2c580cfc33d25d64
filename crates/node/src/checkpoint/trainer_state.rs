//! The `trainer_state.json` of Hugging Face `Trainer`.

use std::path::Path;

use het_core::{Micro, Progress};
use het_files::{Links, read};
use serde::Deserialize;
use serde_json::Value;

/// What `Trainer` writes last into a checkpoint.
pub(super) const STATE_FILE: &str = "trainer_state.json";
/// Most bytes that are read: the file contains the whole log of a run.
const STATE_BYTES_MAX: u64 = 64 << 20;

/// The part of the file that is progress.
#[derive(Debug, Deserialize)]
pub(super) struct TrainerState {
    global_step: u64,
    #[serde(default)]
    max_steps: u64,
    #[serde(default)]
    log_history: Vec<Value>,
}

impl TrainerState {
    /// The state in a checkpoint directory; `None` while it is incomplete, because half a file is
    /// not JSON.
    pub(super) fn read(checkpoint: &Path) -> Option<Self> {
        let text = read(&checkpoint.join(STATE_FILE), Links::Refused, STATE_BYTES_MAX).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn progress(&self) -> Progress {
        let loss = self.log_history.iter().rev().find_map(|row| row.get("loss")?.as_f64());
        Progress {
            step: Some(self.global_step),
            total: (self.max_steps > 0).then_some(self.max_steps),
            loss: loss.and_then(Micro::from_f64),
            ..Progress::default()
        }
    }
}
