//! The daily verbs against a server: submit, list, look, wait, change.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

use anstream::{eprintln, println};
use het_wire::api::{
    Begin, Change, JobChanges, JobList, JobRow, PreemptionList, Submission, Submitted,
};
use het_wire::report::RunReport;
use hyper::Method;
use owo_colors::OwoColorize;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::{
    DescribeArgs, Form, PreemptArgs, PsArgs, SelectArgs, SetArgs, SubmitArgs, WaitArgs,
};
use crate::client::{Client, Next};
use crate::fail::{Fail, code};
use crate::output::{self, Column, Shown};
use crate::request::{JobText, Member, Request};
use crate::run::path_with_companions;
use crate::server::{client, client_again, on_demand};
use crate::summary::{self, Keeper};

const COLUMNS: &[Column] = &[
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

const SUBMITTED_COLUMNS: &[Column] = &[
    Column("ID", "id", Shown::Always),
    Column("NAME", "name", Shown::Always),
    Column("WORKDIR", "workdir", Shown::Wide),
];

const PREEMPTION_COLUMNS: &[Column] = &[
    Column("ID", "id", Shown::Always),
    Column("STAGE", "stage", Shown::Always),
    Column("FOR", "beneficiary", Shown::Always),
    Column("ITS STAGE", "beneficiary_stage", Shown::Wide),
    Column("SAVE_S", "save_s", Shown::Wide),
    Column("LOAD_S", "load_s", Shown::Wide),
    Column("LOST_S", "lost_s", Shown::Always),
    Column("COST_DEVICE_S", "cost_device_s", Shown::Always),
    Column("GAIN_DEVICE_S", "gain_device_s", Shown::Always),
    Column("PAYS", "pays", Shown::Always),
    Column("PREEMPTIONS", "preemptions", Shown::Always),
    Column("OF_AT_MOST", "preemptions_max", Shown::Wide),
];

/// Every change of every job.
pub const WATCH: &str = "/api/v1/watch";

pub fn submit(args: &SubmitArgs) -> Result<u8, Fail> {
    let request = Request::read(args.file.as_deref(), &args.command, &args.short)?;
    let members = request.members(args.array.as_deref())?;
    let array = members.iter().any(|member| member.index.is_some());
    let tell = if array { tell_array } else { tell_submitted };
    let mut client = on_demand()?;
    let mut items = Vec::new();
    let mut queue = |Member { index, job }: Member| -> Result<(), Fail> {
        let workdir = args.workdir.as_ref().map(|dir| match index {
            Some(index) => dir.join(index.to_string()),
            None => dir.clone(),
        });
        let mut submission = submission(job, workdir.as_deref())?;
        if args.hold {
            submission.begin = Begin::Held;
        }
        let key = args.key.as_ref().map(|key| match index {
            Some(index) => format!("{key}-{index}"),
            None => key.clone(),
        });
        let submitted: Submitted = client.post_once("/api/v1/jobs", &submission, key.as_deref())?;
        for warning in &submitted.warnings {
            eprintln!("{} {warning}", "warning:".yellow());
        }
        items.push(submitted);
        Ok(())
    };
    let queued = members.into_iter().try_for_each(&mut queue);
    let ids: Vec<u64> = items.iter().map(|submitted| submitted.id).collect();
    // Also where one was refused: those before it are queued.
    if queued.is_ok() || !items.is_empty() {
        tell(&items, args.output);
    }
    queued?;
    if args.wait { wait_for(&mut client, &ids, None) } else { Ok(code::OK) }
}

fn tell_submitted(items: &[Submitted], form: Form) {
    for one in items {
        output::object(&serde_json::to_value(one).unwrap_or_default(), form, || {
            println!("{}", one.id);
            let how = if one.known { "was submitted before" } else { "is queued" };
            eprintln!(
                "job {} {} {how} · `het wait {0}` waits for it, `het ps --all` lists it",
                one.id, one.name
            );
        });
    }
}

fn tell_array(items: &[Submitted], form: Form) {
    let values = items.iter().filter_map(|item| serde_json::to_value(item).ok());
    output::list("SubmittedList", &values.collect::<Vec<_>>(), SUBMITTED_COLUMNS, form);
}

/// A submission of a job from this directory.
pub fn submission(job: JobText, workdir: Option<&Path>) -> Result<Submission, Fail> {
    let cwd = env::current_dir().map_err(|error| Fail::file(Path::new("."), error))?;
    let workdir = workdir.map(|path| {
        let path = std::path::absolute(path).map_err(|error| Fail::file(path, error))?;
        Ok::<_, Fail>(path.to_string_lossy().into_owned())
    });
    Ok(Submission {
        file: job.text,
        source: job.source,
        cwd: cwd.to_string_lossy().into_owned(),
        path: Some(path_with_companions()),
        workdir: workdir.transpose()?,
        begin: Begin::Queued,
    })
}

pub fn ps(args: &PsArgs) -> Result<u8, Fail> {
    let mut client = client()?;
    let mut rows = list(&mut client, if args.all { "all=true" } else { "all=false" })?;
    if let Some(state) = &args.state {
        rows.retain(|row| row.state == *state);
    }
    let items: Vec<Value> = rows.iter().filter_map(|row| serde_json::to_value(row).ok()).collect();
    output::list("JobList", &items, COLUMNS, args.output);
    Ok(code::OK)
}

/// Every page of a list.
fn list(client: &mut Client, query: &str) -> Result<Vec<JobRow>, Fail> {
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

pub fn describe(args: &DescribeArgs) -> Result<u8, Fail> {
    let mut client = client()?;
    let id = one(&mut client, &args.job)?;
    let report: RunReport = client.get(&format!("/api/v1/jobs/{id}/report"))?;
    let value = serde_json::to_value(&report).unwrap_or_default();
    output::object(&value, args.output, || summary::print(&report, Keeper::Server));
    Ok(code::OK)
}

pub fn wait(args: &WaitArgs) -> Result<u8, Fail> {
    let mut client = client()?;
    let ids = select(&mut client, &args.jobs)?;
    let limit = args.timeout.as_deref().map(seconds).transpose()?;
    wait_for(&mut client, &ids, limit)
}

fn seconds(text: &str) -> Result<Duration, Fail> {
    let millis = het_wire::quantity::duration(text).ok_or_else(|| {
        Fail::new(code::USAGE, format!("`{text}` is no duration")).hint("write `90s` or `1h30m`")
    })?;
    Ok(Duration::from_millis(millis.0))
}

/// Waits until all of these have ended; the code of the first, in their order, that did not end
/// with 0.
fn wait_for(client: &mut Client, ids: &[u64], limit: Option<Duration>) -> Result<u8, Fail> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    // Opened before the look: nothing falls between the two.
    let mut changes = crate::server::client()?.open(WATCH)?;
    let mut codes = BTreeMap::new();
    look(client, ids, &mut codes)?;
    while codes.len() < ids.len() {
        match changes.next(deadline) {
            Next::Told(told) => match serde_json::from_str::<Change>(&told.data) {
                Ok(Change { job, .. }) if job.ended_at.is_some() && ids.contains(&job.id) => {
                    codes.insert(job.id, job.exit_code);
                }
                Ok(_) => {}
                // Too slow: something was missed.
                Err(_) => look(client, ids, &mut codes)?,
            },
            Next::Ended => {
                *client = client_again()?;
                changes = client_again()?.open(WATCH)?;
                look(client, ids, &mut codes)?;
            }
            Next::Deadline => {
                let left = ids.len() - codes.len();
                let text = format!("{left} of {} jobs have not ended", ids.len());
                let hint = "they go on: wait again, or cancel them";
                return Err(Fail::new(code::TIMEOUT, text).hint(hint));
            }
        }
    }
    let failed = ids.iter().filter_map(|id| codes[id]).find(|code| *code != 0);
    Ok(failed.map_or(code::OK, |code| u8::try_from(code).unwrap_or(code::FAILED)))
}

/// Finds out which of these have ended already, and how.
fn look(
    client: &mut Client,
    ids: &[u64],
    codes: &mut BTreeMap<u64, Option<i32>>,
) -> Result<(), Fail> {
    for id in ids {
        let row: JobRow = client.get(&format!("/api/v1/jobs/{id}"))?;
        if row.ended_at.is_some() {
            codes.insert(*id, row.exit_code);
        }
    }
    Ok(())
}

/// `cancel`, `hold` and `release`.
pub fn change(args: &SelectArgs, operation: &str) -> Result<u8, Fail> {
    each(args, ("JobList", COLUMNS), |client, id| {
        Ok(vec![operate::<JobRow>(client, id, operation)?])
    })
}

/// New jobs for ended ones.
pub fn requeue(args: &SelectArgs) -> Result<u8, Fail> {
    each(args, ("SubmittedList", SUBMITTED_COLUMNS), |client, id| {
        Ok(vec![operate::<Submitted>(client, id, "requeue")?])
    })
}

/// Another priority or time limit.
pub fn set(args: &SetArgs) -> Result<u8, Fail> {
    let changes =
        JobChanges { priority: args.priority.clone(), time_limit: args.time_limit.clone() };
    each(&args.select, ("JobList", COLUMNS), |client, id| {
        let row: JobRow = client.send(Method::PATCH, &format!("/api/v1/jobs/{id}"), &changes)?;
        Ok(vec![row])
    })
}

/// Room for more urgent jobs, or what it would cost.
pub fn preempt(args: &PreemptArgs) -> Result<u8, Fail> {
    each(&args.select, ("PreemptionList", PREEMPTION_COLUMNS), |client, id| {
        let path = format!("/api/v1/jobs/{id}/preemption");
        let list: PreemptionList = match args.dry_run {
            true => client.get(&path)?,
            false => client.post(&path, &Value::Null)?,
        };
        if list.items.is_empty() {
            eprintln!("job {id}: nobody of higher priority waits for what it holds");
        }
        Ok(list.items)
    })
}

fn operate<T: DeserializeOwned>(client: &mut Client, id: u64, operation: &str) -> Result<T, Fail> {
    client.post(&format!("/api/v1/jobs/{id}/{operation}"), &Value::Null)
}

/// Does something to each job that was selected, and shows what came of it.
fn each<T: Serialize>(
    args: &SelectArgs,
    shown: (&str, &[Column]),
    operation: impl Fn(&mut Client, u64) -> Result<Vec<T>, Fail>,
) -> Result<u8, Fail> {
    let mut client = client()?;
    let ids = select(&mut client, &args.jobs)?;
    Ok(all(ids, shown, args.output, |id| operation(&mut client, id)))
}

/// Does something to each of several things, also where it cannot be done to some, and shows what
/// came of it. Returns the last code that is not 0.
pub fn all<I, T: Serialize>(
    wanted: impl IntoIterator<Item = I>,
    (kind, columns): (&str, &[Column]),
    form: Form,
    mut operation: impl FnMut(I) -> Result<Vec<T>, Fail>,
) -> u8 {
    let mut items = Vec::new();
    let mut code = code::OK;
    for one in wanted {
        match operation(one) {
            Ok(rows) => items.extend(rows.iter().filter_map(|row| serde_json::to_value(row).ok())),
            Err(fail) => {
                fail.print();
                code = fail.code();
            }
        }
    }
    if form != Form::Table || !items.is_empty() {
        output::list(kind, &items, columns, form);
    }
    code
}

/// The jobs that selectors name: `42`, `40-45`, `last`, `all` (that have not ended), a name.
fn select(client: &mut Client, selectors: &[String]) -> Result<Vec<u64>, Fail> {
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
            None => ids.push(one(client, selector)?),
        }
    }
    let mut seen = BTreeSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(ids)
}

fn one(client: &mut Client, selector: &str) -> Result<u64, Fail> {
    let row: JobRow = client.get(&format!("/api/v1/jobs/{}", escaped(selector)))?;
    Ok(row.id)
}

/// A selector as a part of a path.
pub fn escaped(selector: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    selector
        .bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}
