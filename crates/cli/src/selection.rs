//! Jobs of the server by selectors, and doing something to each of them.

use std::collections::BTreeSet;

use clap::Args;
use het_wire::api::{JobList, JobRow};
use serde::Serialize;

use crate::client::{Client, client, escaped};
use crate::fail::{Fail, code};
use crate::output::{Column, Form, Shown, all};

#[derive(Debug, Args)]
pub struct SelectArgs {
    /// `42`, `40-45`, `last`, `all`, the name of a job or an array, `42[]` for all of an array.
    #[arg(required = true)]
    pub jobs: Vec<String>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

pub const JOB_COLUMNS: &[Column] = &[
    Column("ID", "id", Shown::Always),
    Column("NAME", "name", Shown::Always),
    Column("STATE", "state", Shown::Always),
    Column("PRIORITY", "priority", Shown::Always),
    Column("TENANT", "tenant", Shown::Wide),
    Column("STAGE", "stage", Shown::Always),
    Column("DEVICES", "devices", Shown::Always),
    Column("STEP", "step", Shown::Wide),
    Column("TOTAL", "total", Shown::Wide),
    Column("SUBMITTED", "submitted_at", Shown::Always),
    Column("EXIT", "exit_code", Shown::Always),
    Column("REASON", "reason", Shown::Always),
];

pub const SUBMITTED_COLUMNS: &[Column] = &[
    Column("ID", "id", Shown::Always),
    Column("NAME", "name", Shown::Always),
    Column("WORKDIR", "workdir", Shown::Wide),
];

/// Every page of a list.
pub fn list(client: &mut Client, query: &str) -> Result<Vec<JobRow>, Fail> {
    let mut rows = Vec::new();
    let mut after = 0;
    loop {
        let page: JobList = client.get(&format!("/api/v1/jobs?{query}&after={after}"))?;
        rows.extend(page.items);
        match page.next {
            Some(next) => after = next,
            None => return Ok(rows),
        }
    }
}

/// Does something to each job that was selected, and shows what came of it.
pub fn each<T: Serialize>(
    args: &SelectArgs,
    shown: (&str, &[Column]),
    operation: impl Fn(&mut Client, u64) -> Result<Vec<T>, Fail>,
) -> Result<u8, Fail> {
    let mut client = client()?;
    let mut ids = select(&mut client, &args.jobs)?;
    if ids.len() > 1 {
        // Of several, those that have ended are none to change.
        let live: BTreeSet<u64> =
            list(&mut client, "all=false")?.iter().map(|row| row.id).collect();
        if ids.iter().any(|id| live.contains(id)) {
            ids.retain(|id| live.contains(id));
        }
    }
    Ok(all(ids, shown, args.output, |id| operation(&mut client, id)))
}

/// The jobs that selectors name: `42`, `40-45`, `last`, `all` (that have not ended), a name of a
/// job or of an array, `42[]` for the array of a job, `42[3]` for one job of it.
pub fn select(client: &mut Client, selectors: &[String]) -> Result<Vec<u64>, Fail> {
    let mut ids = Vec::new();
    for selector in selectors {
        let range = selector
            .split_once('-')
            .and_then(|(from, to)| Some((from.parse::<u64>().ok()?, to.parse::<u64>().ok()?)));
        match range {
            _ if selector == "all" => {
                ids.extend(list(client, "all=false")?.iter().map(|row| row.id));
            }
            Some((from, to)) => {
                let rows = list(client, "all=true")?;
                let inside = rows.iter().map(|row| row.id).filter(|id| (from..=to).contains(id));
                let before = ids.len();
                ids.extend(inside);
                if ids.len() == before {
                    return Err(Fail::new(code::NOT_FOUND, format!("no job is in `{selector}`"))
                        .hint("`het ps --all` lists the jobs"));
                }
            }
            None => {
                let query = format!("all=true&select={}", escaped(selector));
                ids.extend(list(client, &query)?.iter().map(|row| row.id));
            }
        }
    }
    let mut seen = BTreeSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(ids)
}

pub fn one(client: &mut Client, selector: &str) -> Result<u64, Fail> {
    match select(client, &[selector.to_owned()])?.as_slice() {
        [only] => Ok(*only),
        ids => {
            let text = format!("`{selector}` is {} jobs, and this is of one", ids.len());
            Err(Fail::new(code::USAGE, text).hint("name one of them, such as `sweep-3` or `42[3]`"))
        }
    }
}
