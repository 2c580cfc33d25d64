//! `het trace`: published workloads become our trace format.

use std::fs;
use std::path::{Path, PathBuf};

use anstream::{eprintln, print};
use clap::{Args, Subcommand, ValueEnum};
use het_lab::workload::{
    Cluster, ClusterMix, FineTuning, Shapes, TraceJob, cluster_mix, convert, fine_tuning,
    read_jobs, write_speeds, write_trace,
};
use het_lab::{LoggedTrace, trace_of_log};

use crate::fail::{Fail, code};
use crate::workload::{format, history, unusable};

#[derive(Debug, Args)]
pub struct TraceArgs {
    #[command(subcommand)]
    pub what: TraceCommand,
}

/// What `het trace gen` draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Fine-tuning of models of 1 to 14 billion parameters.
    FineTuning,
    /// Microsoft's Philly, 2017: one stage a job.
    Philly,
    /// A cluster for large language models, 2023: needs a cluster with cores.
    Llm,
}

#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Write a trace in the format of somebody else, where that has words for all of its jobs.
    Convert {
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Format of the file; by its name where absent.
        #[arg(long)]
        format: Option<String>,
        /// `het`, `gavel` or `philly`.
        #[arg(long, value_name = "FORMAT")]
        to: String,
        /// Where to write; standard output where absent.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Write what the jobs of a server's log really were: a trace of those that succeeded, and a
    /// throughput table of their measured speeds, for `het sim`.
    Export {
        /// A backup (`het server backup`), or the store of a server that does not run.
        #[arg(value_name = "STORE")]
        store: PathBuf,
        /// Where to write the throughput table.
        #[arg(long, value_name = "FILE")]
        profiles: PathBuf,
        /// Where to write the trace; standard output where absent.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Draw jobs: a mix of fine-tuning (prepare data, load the model, train, validate), to be run
    /// with `--profiles roofline`, or jobs like those of a published cluster.
    Gen {
        #[arg(long, value_enum, default_value_t = Preset::FineTuning)]
        preset: Preset,
        #[arg(long, default_value_t = 200)]
        jobs: u32,
        /// Accelerator work that arrives, over what the devices can do meanwhile.
        #[arg(long, default_value_t = 1.0)]
        load: f64,
        /// Accelerators that the load is meant for; of fine-tuning, H100.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
        devices: u32,
        /// Fix the devices of every stage by a rule: how many H100 train a model of 1, 3, 8 and 14
        /// billion parameters, for example `1,1,2,4`; any shape where absent.
        #[arg(long, value_name = "N,N,N,N", value_delimiter = ',')]
        rule: Vec<u32>,
        /// With `--rule`: class that validates.
        #[arg(long, default_value = "ascend-910b", requires = "rule")]
        validate_on: String,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Where to write; standard output where absent.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Read published files and write one trace of ours.
    Import {
        /// `gavel`, `philly`, `sia`, `pollux`, `alibaba-openb` or `sacct` (what `sacct -a -X -P -o
        /// JobID,JobName,Account,QOS,Submit,ElapsedRaw,ReqTRES` prints); by the file's name where
        /// absent.
        #[arg(long)]
        format: Option<String>,
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Where to write; standard output where absent.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

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
        TraceCommand::Export { store, profiles, output } => {
            let (past, events) = history(store)?;
            let LoggedTrace { jobs, speeds, left_out } = trace_of_log(past, &events);
            fs::write(profiles, write_speeds(&speeds))
                .map_err(|error| Fail::file(profiles, error))?;
            if left_out > 0 {
                eprintln!("! {left_out} jobs did not succeed and are left out");
            }
            write(&jobs, output.as_deref())
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
