//! Lists of jobs, one job, and changes of jobs.

use axum::Json;
use axum::extract::{Path, Query, State as Shared};
use het_control::Controller;
use het_core::{Event, Job, JobChange, JobId, Millis, Priority};
use het_node::Node;
use het_wire::api::{JobChanges, JobList, JobRow};
use het_wire::quantity;
use het_wire::report::{ExplanationReport, RunReport};
use het_wire::text::Lang;
use serde::Deserialize;

use super::auth::{Caller, Verb};
use super::refuse::{ApiError, Code, Sent};
use super::{Api, PAGE_MAX};
use crate::EventStore;
use crate::report::{Detail, explanation, report};
use crate::service::{Asked, Wanted, Which};

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
}

/// `?all` or `?all=true`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
enum Switch {
    #[default]
    #[serde(rename = "false")]
    Off,
    #[serde(rename = "true", alias = "")]
    On,
}

pub async fn list(
    Shared(api): Shared<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<JobList>, ApiError> {
    let limit = query.limit.unwrap_or(PAGE_MAX);
    if !(1..=PAGE_MAX).contains(&limit) {
        let text = format!("`limit` is 1 to {PAGE_MAX}");
        return Err(ApiError::new(Code::BadRequest, text));
    }
    let which = if query.all == Switch::On { Which::All } else { Which::Live };
    let wanted = Wanted { after: query.after, limit: limit + 1, which };
    let shown = |row: &JobRow| {
        caller.may(Verb::ReadJobs, &row.tenant)
            && query.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
            && query.state.as_ref().is_none_or(|state| *state == row.state)
    };
    let mut rows = api.0.desk.board().list(&wanted, shown);
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(|row| row.id);
    Ok(Json(JobList::new(rows.iter().map(|row| (**row).clone()).collect(), next)))
}

/// The line of the job that a selector names: an id, `last`, or a name (its newest job).
pub(super) fn find(api: &Api, caller: &Caller, selector: &str) -> Result<JobRow, ApiError> {
    let board = api.0.desk.board();
    let may_see = |row: &JobRow| caller.may(Verb::ReadJobs, &row.tenant);
    let row = match selector.parse::<u64>() {
        Ok(id) => board.row(JobId(id)).filter(|row| may_see(row)),
        Err(_) if selector == "last" => board.newest(may_see),
        Err(_) => board.named(selector, may_see),
    };
    // Somebody else's job is not there, rather than forbidden: its id says nothing.
    row.map(|row| (*row).clone()).ok_or_else(|| ApiError::no_job(selector))
}

pub async fn row(
    Shared(api): Shared<Api>,
    caller: Caller,
    Path(selector): Path<String>,
) -> Result<Json<JobRow>, ApiError> {
    Ok(Json(find(&api, &caller, &selector)?))
}

pub async fn show(
    Shared(api): Shared<Api>,
    caller: Caller,
    Path(selector): Path<String>,
) -> Result<Json<RunReport>, ApiError> {
    let id = JobId(find(&api, &caller, &selector)?.id);
    let live = api
        .0
        .desk
        .look(move |control| report(control.state(), id, control.policy().name(), control.now()));
    if let Some(report) = live.await? {
        return Ok(Json(report));
    }
    let text = std::fs::read_to_string(api.0.home.job(id.0).report()).ok();
    let archived = text.and_then(|text| serde_json::from_str(&text).ok());
    archived.map(Json).ok_or_else(|| {
        ApiError::new(Code::NotFound, format!("the report of job {id} is gone"))
            .hint("its last line is in `het ps --all`")
    })
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
    caller: Caller,
    Path(selector): Path<String>,
    Query(query): Query<ExplainQuery>,
) -> Result<Json<ExplanationReport>, ApiError> {
    let id = JobId(find(&api, &caller, &selector)?.id);
    let lang = if query.lang.starts_with("zh") { Lang::Zh } else { Lang::En };
    let detail = if query.placement { Detail::Placement } else { Detail::Reasons };
    let look = move |control: &Controller<Node, EventStore>| {
        explanation(&control.situation(), id, (lang, detail))
    };
    let told = api.0.desk.look(look).await?;
    told.map(Json).ok_or_else(|| {
        ApiError::new(Code::NotFound, format!("job {id} ended long ago"))
            .hint(format!("`het describe {id}` has its report"))
    })
}

/// What can be done to a job that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deed {
    Cancel,
    Hold,
    Release,
}

impl Deed {
    /// The fact that it brings, unless it is one already.
    fn event(self, job: &Job, id: JobId) -> Option<Event> {
        match self {
            Self::Cancel => Some(Event::JobCancelled { job: id }),
            Self::Hold => (!job.held).then_some(Event::JobHeld { job: id }),
            Self::Release => job.held.then_some(Event::JobReleased { job: id }),
        }
    }
}

pub async fn change(
    Shared(api): Shared<Api>,
    caller: Caller,
    Path((selector, deed)): Path<(String, Deed)>,
) -> Result<Json<JobRow>, ApiError> {
    to_live_job(&api, &caller, &selector, move |job, id| deed.event(job, id)).await
}

pub async fn set(
    Shared(api): Shared<Api>,
    caller: Caller,
    Path(selector): Path<String>,
    Sent(changes): Sent<JobChanges>,
) -> Result<Json<JobRow>, ApiError> {
    let change = read(&changes)?;
    let event = move |_: &Job, job| Some(Event::JobChanged { job, change });
    to_live_job(&api, &caller, &selector, event).await
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

/// Brings a fact about a job that has not ended, and answers with its line.
async fn to_live_job(
    api: &Api,
    caller: &Caller,
    selector: &str,
    event: impl FnOnce(&Job, JobId) -> Option<Event> + Send + 'static,
) -> Result<Json<JobRow>, ApiError> {
    let row = find(api, caller, selector)?;
    caller.check(Verb::ChangeJobs, &row.tenant)?;
    let id = JobId(row.id);
    let told = api.0.desk.tell(move |control| {
        match control.state().job(id).filter(|job| job.end.is_none()) {
            Some(job) => Asked { events: event(job, id).into_iter().collect(), answer: Ok(()) },
            None => {
                let text = format!("job {id} has ended");
                let refused = ApiError::new(Code::Conflict, text).hint("submit it again");
                Asked { events: Vec::new(), answer: Err(refused) }
            }
        }
    });
    told.await??;
    Ok(Json(find(api, caller, &row.id.to_string())?))
}
