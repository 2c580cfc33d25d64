//! What making room for a more urgent job would cost a running one, and making it.

use axum::extract::State as Shared;
use het_core::JobId;
use het_service::calls::{find, preview_preemption};
use het_wire::api::PreemptionList;
use serde::Deserialize;

use super::Api;
use super::auth::{Auth, Verb};
use super::jobs::language;
use super::refuse::{ApiError, InPath, InQuery};
use super::requester::Acting;
use super::seen::Seen;

/// In which language sentences are wanted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreviewQuery {
    #[serde(default)]
    lang: String,
}

/// What would be stopped of it or for it, stage by stage, and what that costs; nothing is stopped.
pub async fn preview(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    InPath(selector): InPath<String>,
    InQuery(query): InQuery<PreviewQuery>,
) -> Result<Seen<PreemptionList>, ApiError> {
    let id = JobId(find(&api.0.service, &caller, &selector)?.id);
    let rows = preview_preemption(&api.0.service, id, language(&query.lang)).await?;
    Seen::by(&api, &caller, PreemptionList::new(rows))
}

/// Stops what can make room, whether or not that pays.
pub async fn preempt(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    Acting(service): Acting,
    InPath(selector): InPath<String>,
) -> Result<Seen<PreemptionList>, ApiError> {
    let found = find(&api.0.service, &caller, &selector)?;
    caller.check(Verb::ChangeJobs, &found.tenant)?;
    let rows = het_service::calls::preempt(&service, JobId(found.id)).await?;
    Seen::by(&api, &caller, PreemptionList::new(rows))
}
