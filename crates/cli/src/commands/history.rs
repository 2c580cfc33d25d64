//! `het history`, and how a job is named on the command line.

use het_wire::report::RunReport;
use serde_json::{Value, json};

use crate::fail::{Fail, code};
use crate::local::{home, read};
use crate::output::{Column, ListArgs, Shown, list};

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
