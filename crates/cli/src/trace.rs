//! `het trace`: published workloads become our trace format.

use std::error::Error as _;
use std::fs;
use std::path::Path;

use anstream::{eprintln, print};
use het_lab::workload::{
    Cluster, ClusterMix, FineTuning, Format, Shapes, TraceJob, WorkloadError, cluster_mix, convert,
    fine_tuning, read_jobs, write_trace,
};

use crate::args::{Preset, TraceArgs, TraceCommand};
use crate::fail::{Fail, code};

pub fn trace(args: &TraceArgs) -> Result<u8, Fail> {
    match &args.what {
        TraceCommand::Import { format: word, files, output } => {
            let word = word.as_deref().map(format).transpose()?;
            let mut jobs = Vec::new();
            for file in files {
                jobs.extend(read_jobs(file, word).map_err(|error| unusable(&error))?);
            }
            jobs.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
            write(&jobs, output.as_deref())
        }
        TraceCommand::Convert { file, format: word, to, output } => {
            let word = word.as_deref().map(format).transpose()?;
            let jobs = read_jobs(file, word).map_err(|error| unusable(&error))?;
            let text = convert(&jobs, format(to)?).map_err(|error| {
                Fail::new(code::USAGE, error.to_string()).hint("`--to het` takes every job")
            })?;
            write_text(&text, jobs.len(), output.as_deref())
        }
        TraceCommand::Gen { preset, jobs, load, devices, rule, validate_on, seed, output } => {
            if !(0.01..=100.0).contains(load) {
                let message = format!("a load of {load} is out of range");
                return Err(Fail::new(code::USAGE, message).hint("give 0.01 to 100"));
            }
            if !rule.is_empty() && *preset != Preset::FineTuning {
                let message = "`--rule` is about fine-tuning";
                return Err(Fail::new(code::USAGE, message).hint("leave it out"));
            }
            let (jobs, load, devices, seed) = (*jobs, *load, *devices, *seed);
            let like = |of| cluster_mix(&ClusterMix { of, jobs, load, devices, seed });
            let drawn = match preset {
                Preset::Philly => like(Cluster::Philly),
                Preset::Llm => like(Cluster::Llm),
                Preset::FineTuning => {
                    let shapes = shapes(rule, validate_on)?;
                    fine_tuning(&FineTuning { jobs, load, h100s: devices, shapes, seed })
                }
            };
            write(&drawn, output.as_deref())
        }
    }
}

fn shapes(rule: &[u32], validate_on: &str) -> Result<Shapes, Fail> {
    match *rule {
        [] => Ok(Shapes::Any),
        [a, b, c, d] => {
            Ok(Shapes::Ruled { h100s: [a, b, c, d], validate_on: validate_on.to_owned() })
        }
        _ => {
            let message = format!("a rule of {} numbers", rule.len());
            Err(Fail::new(code::USAGE, message).hint("give four, for example `1,1,2,4`"))
        }
    }
}

fn write(jobs: &[TraceJob], output: Option<&Path>) -> Result<u8, Fail> {
    write_text(&write_trace(jobs), jobs.len(), output)
}

fn write_text(text: &str, jobs: usize, output: Option<&Path>) -> Result<u8, Fail> {
    match output {
        Some(path) => {
            fs::write(path, text).map_err(|error| Fail::file(path, error))?;
            eprintln!("{jobs} jobs in `{}`", path.display());
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
