//! Lists of jobs, one job, and changes of jobs.

use std::sync::Arc;

use axum::extract::State as Shared;
use axum::response::{IntoResponse, Response};
use het_core::{JobChange, JobId, Millis, Priority};
use het_files::Links;
use het_host::JobDir;
use het_service::calls::{self, change_job, find, live_report, operate};
use het_service::report::Detail;
use het_service::{Selection, Which};
use het_wire::api::{JobChanges, JobList, JobLogs, JobRow, LogsQuery};
use het_wire::quantity;
use het_wire::report::{ExplanationReport, RunReport};
use het_wire::text::Lang;
use serde::Deserialize;

use super::auth::{Auth, Standing, Verb};
use super::disk::on_disk;
use super::following::follow;
use super::refuse::{ApiError, Body, InPath, InQuery};
use super::requester::{Acting, CountedBy};
use super::seen::Seen;
use super::{Api, Caller, Code, PAGE_MAX};

/// Which jobs a list shows.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListQuery {
    /// Ended jobs too.
    all: Switch,
    after: u64,
    limit: Option<usize>,
    tenant: Option<String>,
    state: Option<String>,
    /// Only jobs that a selector names: an id, `last`, a name of a job or of an array, `42[]` for
    /// the array of a job, `42[3]` for one job of it.
    select: Option<String>,
}

/// `?all=true`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
enum Switch {
    #[default]
    #[serde(rename = "false")]
    Off,
    #[serde(rename = "true")]
    On,
}

pub async fn list(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    InQuery(query): InQuery<ListQuery>,
) -> Result<Seen<JobList>, ApiError> {
    let limit = query.limit.unwrap_or(PAGE_MAX);
    if !(1..=PAGE_MAX).contains(&limit) {
        let text = format!("`limit` is 1 to {PAGE_MAX}");
        return Err(ApiError::new(Code::BadRequest, text));
    }
    let which = if query.all == Switch::On { Which::All } else { Which::Live };
    let selection = Selection { after: query.after, limit: limit + 1, which };
    let shown = |row: &JobRow| {
        caller.may(Verb::ReadJobs, &row.tenant)
            && query.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
            && query.state.as_ref().is_none_or(|state| *state == row.state)
    };
    let mut rows = match &query.select {
        None => api.0.service.jobs().list(&selection, shown),
        Some(selector) => {
            let named = calls::select(&api.0.service, &caller, selector)?.into_iter();
            let of_page = |row: &Arc<JobRow>| {
                row.id > query.after && (which == Which::All || row.ended_at.is_none())
            };
            named.filter(|row| of_page(row) && shown(row)).take(limit + 1).collect()
        }
    };
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(|row| row.id);
    let items = rows.iter().map(|row| (**row).clone()).collect();
    Seen::by(&api, &caller, JobList::new(items, next))
}

pub async fn row(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    InPath(selector): InPath<String>,
) -> Result<Seen<JobRow>, ApiError> {
    let row = find(&api.0.service, &caller, &selector)?;
    Seen::by(&api, &caller, (*row).clone())
}

pub async fn show(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    CountedBy(counted_by): CountedBy,
    InPath(selector): InPath<String>,
) -> Result<Seen<RunReport>, ApiError> {
    let id = JobId(find(&api.0.service, &caller, &selector)?.id);
    if let Some(report) = live_report(&api.0.service, id).await? {
        return Seen::by(&api, &caller, report);
    }
    let report = api.0.home.job(id.0).report();
    let read = move || {
        let text = het_files::read(&report, Links::Refused, JobDir::REPORT_BYTES_MAX).ok()?;
        serde_json::from_slice::<RunReport>(&text).ok()
    };
    let archived = on_disk(&api.0, &counted_by, read).await?.ok_or_else(|| {
        ApiError::new(Code::NotFound, format!("the report of job {id} is gone"))
            .hint("its last line is in `het ps --all`")
    })?;
    Seen::by(&api, &caller, archived)
}

pub async fn logs(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    standing: Standing,
    CountedBy(counted_by): CountedBy,
    InPath(selector): InPath<String>,
    InQuery(query): InQuery<LogsQuery>,
) -> Result<Response, ApiError> {
    let row = find(&api.0.service, &caller, &selector)?;
    let Some(cluster) = &api.0.cluster else {
        let text = format!("what job {} wrote are files where it ran", row.id);
        return Err(ApiError::new(Code::Conflict, text).hint("`het logs` shows them there"));
    };
    if query.follow {
        return follow((api.clone(), standing, &counted_by), cluster, &row, query).await;
    }
    let items = cluster.logs(JobId(row.id), &row.tenant, query).await;
    let items = items.map_err(|text| ApiError::new(Code::Busy, text).hint("try it again"))?;
    let logs = Seen::by(&api, &caller, JobLogs::new(row.id, row.tenant.clone(), items));
    logs.map(IntoResponse::into_response)
}

/// In which language sentences are wanted, and how much is to be said.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainQuery {
    #[serde(default)]
    lang: String,
    #[serde(default)]
    placement: bool,
}

pub async fn explain(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    InPath(selector): InPath<String>,
    InQuery(query): InQuery<ExplainQuery>,
) -> Result<Seen<ExplanationReport>, ApiError> {
    let id = JobId(find(&api.0.service, &caller, &selector)?.id);
    let lang = language(&query.lang);
    let detail = if query.placement { Detail::Placement } else { Detail::Reasons };
    Seen::by(&api, &caller, calls::explain(&api.0.service, id, (lang, detail)).await?)
}

/// By its tag.
pub(super) fn language(tag: &str) -> Lang {
    if tag.starts_with("zh") { Lang::Zh } else { Lang::En }
}

/// What can be done to a job that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Cancel,
    Hold,
    Release,
}

pub async fn change(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    Acting(service): Acting,
    InPath((selector, operation)): InPath<(String, Operation)>,
) -> Result<Seen<JobRow>, ApiError> {
    let id = changeable(&api, &caller, &selector)?;
    let operation = match operation {
        Operation::Cancel => calls::Operation::Cancel,
        Operation::Hold => calls::Operation::Hold,
        Operation::Release => calls::Operation::Release,
    };
    operate(&service, id, operation).await?;
    row_of(&api, &caller, id)
}

pub async fn set(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    Acting(service): Acting,
    InPath(selector): InPath<String>,
    Body(changes): Body<JobChanges>,
) -> Result<Seen<JobRow>, ApiError> {
    let change = read(&changes)?;
    let id = changeable(&api, &caller, &selector)?;
    if let Some(priority) = change.priority {
        let tenant = find(&api.0.service, &caller, &id.to_string())?.tenant.clone();
        calls::check_priority(&service, &caller, &tenant, priority).await?;
    }
    change_job(&service, id, change).await?;
    row_of(&api, &caller, id)
}

/// # Errors
/// When there is no such job, or the caller may not change it.
fn changeable(api: &Api, caller: &Caller, selector: &str) -> Result<JobId, ApiError> {
    let row = find(&api.0.service, caller, selector)?;
    caller.check(Verb::ChangeJobs, &row.tenant)?;
    Ok(JobId(row.id))
}

fn row_of(api: &Api, caller: &Caller, id: JobId) -> Result<Seen<JobRow>, ApiError> {
    let row = find(&api.0.service, caller, &id.to_string())?;
    Seen::by(api, caller, (*row).clone())
}

/// # Errors
/// What is no priority, or no duration.
fn read(changes: &JobChanges) -> Result<JobChange, ApiError> {
    let wrong = |text: String| ApiError::new(Code::BadRequest, text);
    let priority = |word: &String| {
        let known = Priority::ALL.into_iter().find(|priority| priority.word() == word);
        let hint = "write `urgent`, `high`, `normal` or `low`";
        known.ok_or_else(|| wrong(format!("`{word}` is no priority")).hint(hint))
    };
    let span = |text: &String| {
        let span = quantity::duration(text).filter(|span| *span > Millis(0));
        span.ok_or_else(|| wrong(format!("`{text}` is no duration")).hint("write `90s` or `6h`"))
    };
    Ok(JobChange {
        priority: changes.priority.as_ref().map(priority).transpose()?,
        time_limit: changes.time_limit.as_ref().map(span).transpose()?,
    })
}
