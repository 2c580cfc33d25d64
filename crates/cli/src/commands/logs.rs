//! `het logs`, and following a log while its program writes.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anstream::{eprintln, println};
use clap::Args;
use het_wire::report::RunReport;
use nix::unistd::{Whence, lseek};

use crate::client::{client_if_any, escaped};
use crate::fail::{Fail, code};
use crate::local::{home, read, select, without_report};

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Job id, `last`, or a job's name.
    #[arg(default_value = "last")]
    pub job: String,
    /// Only this stage.
    #[arg(long)]
    pub stage: Option<String>,
    /// Only this rank.
    #[arg(long)]
    pub rank: Option<u32>,
    /// Only this attempt; the last one if absent.
    #[arg(long)]
    pub attempt: Option<u32>,
    /// Only the last lines.
    #[arg(long)]
    pub tail: Option<usize>,
}

pub fn logs(args: &LogsArgs) -> Result<u8, Fail> {
    let report = match of_server(&args.job)? {
        Some(report) => report,
        None => {
            let job = select(&home()?, &args.job)?;
            read(&job).ok_or_else(|| without_report(&job))?
        }
    };
    let stages = report.stages.iter().map(|stage| stage.name.clone());
    let wanted = |name: &String| args.stage.as_ref().is_none_or(|stage| stage == name);
    if let Some(stage) = &args.stage
        && !stages.clone().any(|name| name == *stage)
    {
        let known: Vec<String> = stages.collect();
        return Err(Fail::new(code::NOT_FOUND, format!("the job has no stage `{stage}`"))
            .hint(format!("its stages are {}", known.join(", "))));
    }
    let mut files = Vec::new();
    for stage in stages.filter(wanted) {
        files.extend(log_files(Path::new(&report.workdir), &stage, args));
    }
    if files.is_empty() {
        eprintln!("no process has written anything yet");
    }
    let titled = files.len() > 1;
    for path in files {
        let bytes = written(&path).map_err(|error| Fail::file(&path, error))?;
        if titled {
            println!("==> {} <==", path.display());
        }
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let skip = args.tail.map_or(0, |tail| lines.len().saturating_sub(tail));
        lines[skip..].iter().for_each(|line| println!("{line}"));
    }
    Ok(code::OK)
}

/// What is in a log, without the hole that its beginning may have become.
fn written(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    // Where a file system knows no holes there are none; an empty file is all hole.
    let begins = lseek(&file, 0, Whence::SeekData).unwrap_or(0);
    file.seek(SeekFrom::Start(u64::try_from(begins).unwrap_or(0)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The report of a job that is a running server's.
fn of_server(selector: &str) -> Result<Option<RunReport>, Fail> {
    let Some(mut client) = client_if_any()? else { return Ok(None) };
    match client.get(&format!("/api/v1/jobs/{}/report", escaped(selector))) {
        Ok(report) => Ok(Some(report)),
        // It may be a job that ran without the server.
        Err(fail) if fail.code() == code::NOT_FOUND => Ok(None),
        Err(fail) => Err(fail),
    }
}

/// The files of one stage: the asked or last attempt, the asked or all ranks.
fn log_files(workdir: &Path, stage: &str, args: &LogsArgs) -> Vec<PathBuf> {
    let attempts = numbered(&workdir.join("logs").join(stage), "attempt-", "");
    let attempt = match args.attempt {
        Some(number) => attempts.into_iter().find(|(n, _)| *n == number),
        None => attempts.into_iter().next_back(),
    };
    let ranks = attempt.map(|(_, dir)| numbered(&dir, "rank-", ".log")).unwrap_or_default();
    let wanted = ranks.into_iter().filter(|(n, _)| args.rank.is_none_or(|rank| rank == *n));
    wanted.map(|(_, path)| path).collect()
}

/// Entries named `PREFIXnSUFFIX`, by n.
fn numbered(dir: &Path, prefix: &str, suffix: &str) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let number = name.to_str()?.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok()?;
            Some((number, entry.path()))
        })
        .collect();
    found.sort();
    found
}
