//! `het trace`: published workloads become our trace format.

use std::error::Error as _;
use std::fs;

use anstream::{eprintln, print};
use het_lab::workload::{Format, WorkloadError, read_jobs, write_trace};

use crate::args::{TraceArgs, TraceCommand};
use crate::fail::{Fail, code};

pub fn trace(args: &TraceArgs) -> Result<u8, Fail> {
    let TraceCommand::Import { format: word, files, output } = &args.what;
    let word = word.as_deref().map(format).transpose()?;
    let mut jobs = Vec::new();
    for file in files {
        jobs.extend(read_jobs(file, word).map_err(|error| unusable(&error))?);
    }
    jobs.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
    let text = write_trace(&jobs);
    match output {
        Some(path) => {
            fs::write(path, text).map_err(|error| Fail::file(path, error))?;
            eprintln!("{} jobs in `{}`", jobs.len(), path.display());
        }
        None => print!("{text}"),
    }
    Ok(code::OK)
}

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
