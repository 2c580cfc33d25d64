//! Workload files: their formats by name, and what is wrong with one.

use std::error::Error as _;

use het_lab::workload::{Format, WorkloadError};

use crate::fail::{Fail, code};

/// The format of that name.
pub fn format(word: &str) -> Result<Format, Fail> {
    Format::ALL.into_iter().find(|format| format.word() == word).ok_or_else(|| {
        let known: Vec<&str> = Format::ALL.iter().map(|format| format.word()).collect();
        Fail::new(code::USAGE, format!("there is no trace format `{word}`"))
            .hint(format!("choose one of {}", known.join(", ")))
    })
}

/// A workload that cannot be used, with what lies beneath.
pub fn unusable(error: &WorkloadError) -> Fail {
    let because = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    let fail = Fail::new(code::USAGE, format!("{error}{because}"));
    match error {
        WorkloadError::UnknownFormat { .. } => fail.hint("name it with `--format`"),
        _ => fail,
    }
}
