//! `het history`, and how a job is named on the command line.

use std::env;
use std::fs;

use het_server::{Home, JobDir};
use het_wire::report::RunReport;
use serde_json::{Value, json};

use crate::args::ListArgs;
use crate::fail::{Fail, code};
use crate::output::{Column, Shown, list};

const COLUMNS: &[Column] = &[
    Column("ID", "id", Shown::Always),
    Column("NAME", "name", Shown::Always),
    Column("STATE", "state", Shown::Always),
    Column("PRIORITY", "priority", Shown::Always),
    Column("SUBMITTED", "submitted_at", Shown::Always),
    Column("WALL_S", "wall_s", Shown::Always),
    Column("DEVICE_S", "device_seconds", Shown::Always),
    Column("EXIT", "exit_code", Shown::Always),
    Column("POLICY", "policy", Shown::Wide),
    Column("RESUMES", "resumes", Shown::Wide),
    Column("WORKDIR", "workdir", Shown::Wide),
];

pub fn history(args: &ListArgs) -> Result<u8, Fail> {
    let jobs = home()?.jobs()?;
    let items: Vec<Value> = jobs.iter().rev().filter_map(|job| item(&read(job)?)).collect();
    list("RunList", &items, COLUMNS, args.output);
    Ok(code::OK)
}

fn item(report: &RunReport) -> Option<Value> {
    let mut value = serde_json::to_value(report).ok()?;
    let object = value.as_object_mut()?;
    object.remove("apiVersion");
    object.remove("kind");
    for field in ["wall_s", "device_seconds"] {
        let rounded = object.get(field)?.as_f64().map(|seconds| (seconds * 10.0).round() / 10.0);
        object.insert(field.to_owned(), json!(rounded));
    }
    Some(value)
}

/// The state directory of this user.
pub fn home() -> Result<Home, Fail> {
    Ok(Home::find(|name| env::var(name).ok())?)
}

/// The newest report of a job, if it has one that can be read.
pub fn read(job: &JobDir) -> Option<RunReport> {
    let text = fs::read_to_string(job.report()).ok()?;
    serde_json::from_str(&text).ok()
}

/// Of a job that nothing is known of but its directory: it is a server's, which tells of its live
/// jobs itself, or one whose run was cut off at once.
pub fn without_report(job: &JobDir) -> Fail {
    match job.store().exists() {
        true => Fail::new(code::NOT_FOUND, format!("job {} has no report yet", job.id)).hint(
            format!("`het run --resume {}` goes on with it where its run was killed", job.id),
        ),
        false => {
            let text = format!("job {} is a server's, and that does not answer", job.id);
            let hint =
                format!("`het server` starts it; files of the job: `{}`", job.path.display());
            Fail::new(code::UNREACHABLE, text).hint(hint)
        }
    }
}

/// The job that a selector names: an id, `last`, or a job's name (its newest run).
pub fn select(home: &Home, selector: &str) -> Result<JobDir, Fail> {
    let jobs = home.jobs()?;
    let found = match selector.parse::<u64>() {
        Ok(id) => jobs.iter().find(|job| job.id == id),
        Err(_) if selector == "last" => jobs.last(),
        Err(_) => jobs.iter().rev().find(|job| read(job).is_some_and(|r| r.name == selector)),
    };
    found.cloned().ok_or_else(|| {
        let message = match jobs.is_empty() {
            true => "no job has run here yet".to_owned(),
            false => format!("there is no job `{selector}`"),
        };
        Fail::new(code::NOT_FOUND, message).hint("`het history` lists the jobs")
    })
}
