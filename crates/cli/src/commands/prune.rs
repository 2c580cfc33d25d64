//! `het prune`: removes the files of jobs that have ended. Only directories below `jobs/` of the
//! state directory go: one that a user named for a job's outputs never does. On a server of several
//! users each removes the own files, and root what the server has of ended jobs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anstream::eprintln;
use clap::Args;
use het_core::{Bytes, Millis};
use het_files::{Usage, remove_tree, usage};
use het_server::{EventStore, Home, JobDir, StoreError};
use het_wire::api::JobList;
use het_wire::quantity::{duration, size};
use het_wire::report::RunReport;
use jiff::Timestamp;
use nix::unistd::{User, geteuid};
use serde_json::{Value, json};

use crate::client::{Client, client, shared_home};
use crate::fail::{Fail, code};
use crate::local::{home, open_server_home, read};
use crate::output::{self, Column, Form, Shown};

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("rule").required(true).multiple(true))]
pub struct PruneArgs {
    /// Remove the files of jobs that ended longer ago than this, `30d`.
    #[arg(long, value_name = "DURATION", group = "rule", value_parser = span)]
    pub older_than: Option<Millis>,
    /// Keep those of so many jobs that ended last.
    #[arg(long, value_name = "JOBS", group = "rule")]
    pub keep: Option<usize>,
    /// Remove the oldest until the others have no more than this, `200GiB`.
    #[arg(long, value_name = "SIZE", group = "rule", value_parser = bytes)]
    pub size: Option<Bytes>,
    /// Only say what would be removed.
    #[arg(long)]
    pub dry_run: bool,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

fn span(text: &str) -> Result<Millis, String> {
    duration(text).ok_or_else(|| "write a duration, as in `30d`".to_owned())
}

fn bytes(text: &str) -> Result<Bytes, String> {
    size(text).ok_or_else(|| "write a size, as in `200GiB`".to_owned())
}

const COLUMNS: &[Column] = &[
    Column("ID", "id", Shown::Always),
    Column("NAME", "name", Shown::Always),
    Column("ENDED", "ended_at", Shown::Always),
    Column("FILES", "files", Shown::Always),
    Column("BYTES", "bytes", Shown::Always),
];

/// A job that has ended, and what its directory takes up.
#[derive(Debug, Clone)]
struct Ended {
    dir: JobDir,
    name: String,
    at: Timestamp,
    files: u64,
    bytes: u64,
}

pub fn prune(args: &PruneArgs) -> Result<u8, Fail> {
    let mut ended = match shared_home()? {
        Some(shared) if !geteuid().is_root() => of_user(&shared)?,
        shared => {
            let home = if shared.is_some() { open_server_home()? } else { home()? };
            let (jobs, needed) = (home.jobs()?, needed(&home)?);
            ended(&jobs, &jobs.iter().map(read).collect::<Vec<_>>(), &needed)
        }
    };
    ended.sort_by_key(|job| (job.at, job.dir.id));
    let (now, total) = (Timestamp::now(), ended.len());
    let leaving = &ended[..total - kept(args, &ended, now)];
    let items: Vec<Value> = leaving.iter().map(item).collect();
    output::list("PrunedList", &items, COLUMNS, args.output);
    let freed: u64 = leaving.iter().map(|job| job.bytes).sum();
    let text = format!("{} of {total} ended jobs · {freed} bytes", leaving.len());
    if args.dry_run {
        eprintln!("{text} would be removed");
        return Ok(code::OK);
    }
    for job in leaving {
        remove_tree(&job.dir.path).map_err(|error| Fail::file(&job.dir.path, error))?;
    }
    eprintln!("{text} removed");
    Ok(code::OK)
}

/// How many of these, oldest first, stay: each rule lets the oldest go.
fn kept(args: &PruneArgs, ended: &[Ended], now: Timestamp) -> usize {
    let by_age = args.older_than.map_or(ended.len(), |span| {
        let age = |job: &Ended| now.duration_since(job.at).as_millis().max(0) as u128;
        ended.iter().filter(|job| age(job) <= u128::from(span.0)).count()
    });
    let by_count = args.keep.unwrap_or(usize::MAX);
    let by_size = args.size.map_or(ended.len(), |limit| {
        let mut sum = 0_u64;
        let newest = ended.iter().rev().map(|job| {
            sum = sum.saturating_add(job.bytes);
            sum
        });
        newest.take_while(|sum| *sum <= limit.0).count()
    });
    by_age.min(by_count).min(by_size).min(ended.len())
}

fn item(job: &Ended) -> Value {
    let Ended { dir, name, at, files, bytes } = job;
    let ended_at = at.to_string();
    json!({ "id": dir.id, "name": name, "ended_at": ended_at, "files": files, "bytes": bytes })
}

/// The same of jobs that ran as the calling user on a server of several, which says what they are.
fn of_user(home: &Home) -> Result<Vec<Ended>, Fail> {
    let user = User::from_uid(geteuid()).ok().flatten();
    let user = user.ok_or_else(|| Fail::new(code::FAILED, "this user has no name"))?;
    let jobs = home.jobs_of(&user.name)?;
    let mut client = client()?;
    let needed = of_server(&mut client)?;
    let report = |job: &JobDir| match client.get(&format!("/api/v1/jobs/{}/report", job.id)) {
        Ok(report) => Ok(Some(report)),
        // Nobody knows of it any more: it is for its user to say what becomes of it.
        Err(fail) if fail.code() == code::NOT_FOUND => Ok(None),
        Err(fail) => Err(fail),
    };
    let reports = jobs.iter().map(report).collect::<Result<Vec<_>, Fail>>()?;
    Ok(ended(&jobs, &reports, &needed))
}

/// Jobs whose report says that they have ended, and in whose directories no other works. The newest
/// directory stays: the next job gets the number after it.
fn ended(jobs: &[JobDir], reports: &[Option<RunReport>], needed: &BTreeSet<PathBuf>) -> Vec<Ended> {
    let is_live = |report: &&RunReport| ended_at(report).is_none();
    let live = reports.iter().flatten().filter(is_live).map(|report| real(&report.workdir));
    let needed: BTreeSet<PathBuf> = live.chain(needed.iter().cloned()).collect();
    let newest = jobs.len().saturating_sub(1);
    let rows = jobs[..newest].iter().zip(reports);
    let ended = rows.filter_map(|(dir, report)| {
        let report = report.as_ref()?;
        let at = ended_at(report)?;
        let path = real(&dir.path);
        if needed.iter().any(|other| other.starts_with(&path)) {
            return None;
        }
        let Usage { files, bytes } = usage([dir.path.clone()], u64::MAX);
        Some(Ended { dir: dir.clone(), name: report.name.clone(), at, files, bytes })
    });
    ended.collect()
}

fn ended_at(report: &RunReport) -> Option<Timestamp> {
    report.ended_at.as_ref()?.parse().ok()
}

/// Without links, where it is there.
fn real(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Directories in which jobs of the server work that have not ended: one that was requeued works in
/// that of the job before.
fn needed(home: &Home) -> Result<BTreeSet<PathBuf>, Fail> {
    let path = home.store();
    if !path.exists() {
        return Ok(BTreeSet::new());
    }
    match EventStore::open(&path) {
        Ok(mut store) => {
            let state = store.recover()?.past.state;
            let live = state.jobs().values().filter(|job| job.end.is_none());
            Ok(live.map(|job| real(&job.spec.workdir)).collect())
        }
        Err(StoreError::InUse) => of_server(&mut client()?),
        Err(error) => Err(error.into()),
    }
}

fn of_server(client: &mut Client) -> Result<BTreeSet<PathBuf>, Fail> {
    let (mut needed, mut after) = (BTreeSet::new(), Some(0));
    while let Some(from) = after {
        let page: JobList = client.get(&format!("/api/v1/jobs?after={from}"))?;
        for row in &page.items {
            let report: RunReport = client.get(&format!("/api/v1/jobs/{}/report", row.id))?;
            needed.insert(real(&report.workdir));
        }
        after = page.next;
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64, age_s: i64, bytes: u64) -> Ended {
        let dir = JobDir { id, path: PathBuf::new(), run: PathBuf::new() };
        let at = Timestamp::from_second(1_000_000 - age_s).expect("it is in range");
        Ended { dir, name: String::new(), at, files: 1, bytes }
    }

    fn check(older_than: Option<u64>, keep: Option<usize>, size: Option<u64>, expected: usize) {
        let ended = [job(1, 400, 10), job(2, 300, 10), job(3, 200, 10), job(4, 100, 10)];
        let args = PruneArgs {
            older_than: older_than.map(Millis::seconds),
            keep,
            size: size.map(Bytes),
            dry_run: true,
            output: Form::Table,
        };
        let now = Timestamp::from_second(1_000_000).expect("it is in range");
        assert_eq!(kept(&args, &ended, now), expected);
    }

    #[test]
    fn each_rule_lets_the_oldest_go() {
        check(Some(250), None, None, 2);
        check(Some(1_000), None, None, 4);
        check(None, Some(3), None, 3);
        check(None, Some(9), None, 4);
        check(None, None, Some(25), 2);
        check(None, None, Some(0), 0);
        check(Some(350), Some(2), Some(1_000), 2);
    }
}
