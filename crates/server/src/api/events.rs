//! `GET /api/v1/events`: the log as it was written, for archives and audits.

use axum::extract::State as Shared;
use het_wire::api::EventPage;
use serde::Deserialize;

use super::auth::{Auth, Verb};
use super::refuse::{ApiError, InQuery};
use super::seen::Seen;
use super::{Api, Code, PAGE_MAX};
use crate::StoreError;

/// Which events.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    #[serde(default)]
    from: u64,
    limit: Option<usize>,
}

pub async fn events(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    InQuery(query): InQuery<EventsQuery>,
) -> Result<Seen<EventPage>, ApiError> {
    caller.check_server(Verb::ReadLog)?;
    let limit = query.limit.unwrap_or(PAGE_MAX);
    if !(1..=PAGE_MAX).contains(&limit) {
        let text = format!("`limit` is 1 to {PAGE_MAX}");
        return Err(ApiError::new(Code::BadRequest, text));
    }
    let reader = api.0.log.clone();
    // A page may have to come from the disk, for which nobody else is to wait.
    let read = move || Ok((reader.chain()?, reader.page(query.from, limit)?));
    let page = tokio::task::spawn_blocking(read).await;
    let page = page
        .map_err(|error| error.to_string())
        .and_then(|page| page.map_err(|error: StoreError| error.to_string()));
    let (chain, rows) = page.map_err(|error| {
        ApiError::new(Code::Busy, format!("the log cannot be read: {error}"))
            .hint("look at the server's log")
    })?;
    let next = rows.last().filter(|_| rows.len() == limit).map(|row| row.sequence + 1);
    Seen::by(&api, &caller, EventPage::new(rows, chain, next))
}
