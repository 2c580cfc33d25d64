//! Workload files: their formats by name, and what is wrong with one.

use std::error::Error as _;
use std::path::Path;

use het_core::{Event, Time};
use het_lab::Past;
use het_lab::workload::{Format, WorkloadError};
use het_server::{EventStore, StoreError};

use crate::fail::{Fail, code};

/// The format of that name.
pub fn format(word: &str) -> Result<Format, Fail> {
    Format::ALL.into_iter().find(|format| format.word() == word).ok_or_else(|| {
        let known: Vec<&str> = Format::ALL.iter().map(|format| format.word()).collect();
        Fail::new(code::USAGE, format!("there is no trace format `{word}`"))
            .hint(format!("choose one of {}", known.join(", ")))
    })
}

/// What the store of a server has kept: a backup, or the store of one that does not run.
pub fn history(path: &Path) -> Result<(Past, Vec<(Time, Event)>), Fail> {
    let store = EventStore::open(path).map_err(|error| match error {
        StoreError::InUse => Fail::new(code::CONFLICT, format!("`{}` is in use", path.display()))
            .hint("`het server backup FILE` copies what a running server has"),
        error => Fail::new(code::USAGE, format!("`{}`: {error}", path.display()))
            .hint("name a backup of `het server backup`, or `server/events.redb` of a home"),
    })?;
    store.history().map_err(Fail::from_error)
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
