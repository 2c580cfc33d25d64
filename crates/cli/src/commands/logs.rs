//! `het logs`: what the processes of a job wrote, and what they are writing.

mod following;
mod pods;

use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anstream::{eprintln, println};
use clap::Args;
use het_files::{Links, open};
use het_wire::report::RunReport;
use nix::errno::Errno;
use nix::unistd::{Whence, geteuid, lseek};

use self::following::{Source, follow};
use self::pods::of_cluster;
use crate::client::{Client, client_if_any, escaped, shared_home};
use crate::fail::{Fail, code};
use crate::live::{TerminalLines, numbered};
use crate::local::{home, read, select, take_rights_of_owner, without_report};
use crate::selection;

/// Most that is shown of a log. Ours are cut before; a file that a user named may be longer.
const SHOWN_BYTES_MAX: u64 = 512 << 20;

/// Where lines are looked for at the end of a log, and by how much more if there are too few.
const TAIL_BYTES: u64 = 256 << 10;
const TAIL_GROWTH: u64 = 8;

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Job id, `last`, the name of a job or an array, `42[]` for all of an array.
    #[arg(default_value = "last")]
    pub job: String,
    /// Only this stage.
    #[arg(long)]
    pub stage: Option<String>,
    /// Only this rank.
    #[arg(long)]
    pub rank: Option<u32>,
    /// Only this attempt; the last one if absent.
    #[arg(long, conflicts_with = "follow")]
    pub attempt: Option<u32>,
    /// Only the last lines.
    #[arg(long)]
    pub tail: Option<usize>,
    /// The bytes as they are, also on a terminal, which what programs write may control.
    #[arg(long, conflicts_with = "follow")]
    pub raw: bool,
    /// Go on with what is written until the job has ended, attempt after attempt.
    #[arg(short, long)]
    pub follow: bool,
}

pub fn logs(args: &LogsArgs) -> Result<u8, Fail> {
    match members(&args.job)?.as_slice() {
        [] => of_job(args, &args.job, Titles::WhereSeveral),
        [only] => of_job(args, &only.to_string(), Titles::WhereSeveral),
        _ if args.follow => {
            let text = format!("`{}` is many jobs, and one can be followed at a time", args.job);
            Err(Fail::new(code::USAGE, text).hint("name one of them, such as `sweep-3`"))
        }
        ids => {
            ids.iter()
                .try_for_each(|id| of_job(args, &id.to_string(), Titles::Always).map(drop))?;
            Ok(code::OK)
        }
    }
}

/// The jobs of a server that a name or `42[]` stands for, where these are of an array.
fn members(selector: &str) -> Result<Vec<u64>, Fail> {
    if selector == "last" || selector.parse::<u64>().is_ok() {
        return Ok(Vec::new());
    }
    let Some(mut client) = client_if_any()? else { return Ok(Vec::new()) };
    match selection::select(&mut client, &[selector.to_owned()]) {
        Ok(ids) => Ok(ids),
        // It may be a job that ran without the server.
        Err(fail) if fail.code() == code::NOT_FOUND => Ok(Vec::new()),
        Err(fail) => Err(fail),
    }
}

/// Whether the name of each log stands above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Titles {
    Always,
    WhereSeveral,
}

fn of_job(args: &LogsArgs, job: &str, titles: Titles) -> Result<u8, Fail> {
    if let Some(code) = of_cluster(args, job, titles)? {
        return Ok(code);
    }
    let (report, source) = report(job)?;
    let stages: Vec<&String> = report.stages.iter().map(|stage| &stage.name).collect();
    if let Some(stage) = &args.stage
        && !stages.contains(&stage)
    {
        let known: Vec<&str> = stages.iter().map(|name| name.as_str()).collect();
        return Err(Fail::new(code::NOT_FOUND, format!("the job has no stage `{stage}`"))
            .hint(format!("its stages are {}", known.join(", "))));
    }
    let logs = Path::new(&report.workdir).join("logs");
    if geteuid().is_root() && shared_home()?.is_some() && logs.exists() {
        // What a user left there leads root nowhere that the user may not go.
        take_rights_of_owner(&logs)?;
    }
    let files = log_files(&report, args);
    if files.is_empty() {
        eprintln!("no process has written anything yet");
    }
    if args.follow {
        return follow(args, &report, source, &files);
    }
    let titled = files.len() > 1 || titles == Titles::Always;
    for path in files {
        if titled {
            println!("==> {} <==", path.display());
        }
        let Written { bytes, .. } =
            tail(&path, args.tail).map_err(|error| Fail::file(&path, error))?;
        print(&bytes, shown(args));
    }
    Ok(code::OK)
}

/// The newest report of a job, and where there will be newer ones.
fn report(selector: &str) -> Result<(RunReport, Source), Fail> {
    if let Some((report, server)) = of_server(selector)? {
        return Ok((report, Source::Server(Box::new(server))));
    }
    let job = select(&home()?, selector)?;
    let report = read(&job).ok_or_else(|| without_report(&job))?;
    Ok((report, Source::Run(job)))
}

/// The report of a job that is a running server's.
fn of_server(selector: &str) -> Result<Option<(RunReport, Client)>, Fail> {
    let Some(mut client) = client_if_any()? else { return Ok(None) };
    match client.get(&format!("/api/v1/jobs/{}/report", escaped(selector))) {
        Ok(report) => Ok(Some((report, client))),
        // It may be a job that ran without the server.
        Err(fail) if fail.code() == code::NOT_FOUND => Ok(None),
        Err(fail) => Err(fail),
    }
}

/// What is shown of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Lines with their colours, and nothing else that a terminal would obey.
    Lines,
    Bytes,
}

fn shown(args: &LogsArgs) -> Shown {
    match io::stdout().is_terminal() && !args.raw {
        true => Shown::Lines,
        false => Shown::Bytes,
    }
}

fn print(bytes: &[u8], shown: Shown) {
    if shown == Shown::Lines {
        let mut lines = TerminalLines::default();
        let whole = lines.feed(bytes);
        whole.iter().chain(&lines.finish()).for_each(|line| println!("{}", line.coloured()));
        return;
    }
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        panic!("failed printing to stdout: {error}");
    }
}

/// What is in a log, from an offset on.
struct Written {
    bytes: Vec<u8>,
    begin: u64,
}

/// The last lines of a log, or all of it.
fn tail(path: &Path, lines: Option<usize>) -> io::Result<Written> {
    let Some(lines) = lines else { return written(path, SHOWN_BYTES_MAX) };
    let mut bytes_max = TAIL_BYTES;
    loop {
        let Written { mut bytes, begin } = written(path, bytes_max)?;
        let body = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        let end =
            if lines == 0 { Some(bytes.len()) } else { ends.nth(lines - 1).map(|it| it.0 + 1) };
        let is_all = (bytes.len() as u64) < bytes_max || bytes_max >= SHOWN_BYTES_MAX;
        if end.is_some() || is_all {
            let skipped = end.unwrap_or(0);
            bytes.drain(..skipped);
            return Ok(Written { bytes, begin: begin + skipped as u64 });
        }
        bytes_max *= TAIL_GROWTH;
    }
}

/// The newest part of a log, without the hole that its beginning may have become.
fn written(path: &Path, bytes_max: u64) -> io::Result<Written> {
    let mut file = open(path, Links::Followed)?;
    let length = i64::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let newest = length.saturating_sub_unsigned(bytes_max).max(0);
    let data = match lseek(&file, newest, Whence::SeekData) {
        // All of it is hole.
        Err(Errno::ENXIO) => length,
        // Where a file system knows no holes there are none.
        data => data.unwrap_or(newest),
    };
    let begin = file.seek(SeekFrom::Start(data.unsigned_abs()))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(Written { bytes, begin })
}

/// The asked or last attempt of each stage, the asked or all ranks.
fn log_files(report: &RunReport, args: &LogsArgs) -> Vec<PathBuf> {
    let stages = report.stages.iter().map(|stage| stage.name.as_str());
    let wanted = stages.filter(|name| args.stage.as_ref().is_none_or(|stage| stage == name));
    let files = wanted.flat_map(|stage| {
        let attempts =
            numbered(&Path::new(&report.workdir).join("logs").join(stage), "attempt-", "");
        let attempt = match args.attempt {
            Some(number) => attempts.into_iter().find(|(n, _)| *n == number),
            None => attempts.into_iter().next_back(),
        };
        // Standard error has a log of its own where it goes to a file of its own.
        let of_attempt = |(_, dir): (u32, PathBuf)| {
            let mut logs = numbered(&dir, "rank-", ".log");
            logs.extend(numbered(&dir, "rank-", ".err.log"));
            logs.sort();
            logs
        };
        attempt.map(of_attempt).unwrap_or_default()
    });
    let wanted = files.filter(|(n, _)| args.rank.is_none_or(|rank| rank == *n));
    wanted.map(|(_, path)| path).collect()
}
