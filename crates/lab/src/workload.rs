//! Published and generated workloads: what was submitted when, and how fast it runs where.

mod cluster_mix;
mod convert;
mod fine_tuning;
mod gavel;
mod openb;
mod philly;
mod roofline;
mod sacct;
mod sia;
mod source;
mod speeds;
mod trace;

use std::path::{Path, PathBuf};

use thiserror::Error;

pub use cluster_mix::{Cluster, ClusterMix, cluster_mix};
pub use convert::{CannotConvert, convert};
pub use fine_tuning::{FineTuning, Shapes, fine_tuning};
pub use openb::read_pods;
pub use roofline::roofline;
pub(crate) use source::{CsvTable, Fields, text as read_text};
pub use source::{Spot, TraceError};
pub use speeds::Speeds;
pub use trace::{Apart, TraceJob, TraceStage, Work, read_trace, write_trace};

/// Formats that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Ours: JSON Lines, one job a line.
    Het,
    /// Gavel's tab-separated traces, with and without working directory and SLO.
    Gavel,
    /// The reduced Philly list: submit time, duration, GPUs, virtual cluster.
    Philly,
    /// Sia's lists of elastic jobs: submit time, application, tuned devices and batch.
    Sia,
    /// Pollux's, with the same columns.
    Pollux,
    /// The pods of Alibaba's 2023 GPU cluster.
    AlibabaOpenb,
    /// What Slurm's `sacct -P` prints.
    Sacct,
}

impl Format {
    pub const ALL: [Self; 7] = [
        Self::Het,
        Self::Gavel,
        Self::Philly,
        Self::Sia,
        Self::Pollux,
        Self::AlibabaOpenb,
        Self::Sacct,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Self::Het => "het",
            Self::Gavel => "gavel",
            Self::Philly => "philly",
            Self::Sia => "sia",
            Self::Pollux => "pollux",
            Self::AlibabaOpenb => "alibaba-openb",
            Self::Sacct => "sacct",
        }
    }

    /// What a file's name says about its format.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let plain = name.strip_suffix(".gz").unwrap_or(name);
        match plain.rsplit_once('.')?.1 {
            "jsonl" => Some(Self::Het),
            "trace" => Some(Self::Gavel),
            "csv" if plain.starts_with("philly") => Some(Self::Philly),
            "csv" if plain.starts_with("workload") => Some(Self::Sia),
            "csv" if plain.starts_with("openb_pod_list") => Some(Self::AlibabaOpenb),
            "sacct" => Some(Self::Sacct),
            _ => None,
        }
    }
}

/// Why a workload cannot be used.
#[derive(Debug, Error)]
pub enum WorkloadError {
    #[error("`{}` cannot be read", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Malformed(#[from] TraceError),
    #[error("`{}` does not say its format", path.display())]
    UnknownFormat { path: PathBuf },
}

/// Reads the jobs of a file, by arrival. A file that ends in `.gz` is unpacked on the way.
///
/// # Errors
/// When the file cannot be read, or with file, line, column and reason of the first malformed
/// line: nothing is skipped.
pub fn read_jobs(path: &Path, format: Option<Format>) -> Result<Vec<TraceJob>, WorkloadError> {
    let unknown = || WorkloadError::UnknownFormat { path: path.to_owned() };
    let format = format.or_else(|| Format::of(path)).ok_or_else(unknown)?;
    let text = source::text(path)?;
    let mut jobs = match format {
        Format::Het => read_trace(path, &text)?,
        Format::Gavel => gavel::jobs(path, &text)?,
        Format::Sia | Format::Pollux => sia::jobs(&CsvTable::of(path, &text), format.word())?,
        Format::AlibabaOpenb => openb::jobs(&CsvTable::of(path, &text))?,
        Format::Sacct => sacct::jobs(&CsvTable::of(path, &text).separated_by('|'))?,
        Format::Philly => philly::jobs(&CsvTable::of(path, &text))?,
    };
    jobs.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
    Ok(jobs)
}

/// Writes a throughput table that [`read_speeds`] reads.
pub fn write_speeds(speeds: &Speeds) -> String {
    gavel::write_speeds(speeds)
}

/// Reads a throughput table, or a folder of measured applications.
///
/// # Errors
/// When something cannot be read or is no such table.
pub fn read_speeds(path: &Path) -> Result<Speeds, WorkloadError> {
    if path.is_dir() {
        return sia::applications(path);
    }
    Ok(gavel::speeds(path, &source::text(path)?)?)
}
