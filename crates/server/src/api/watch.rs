//! `GET /api/v1/watch`: every change of a job's line, as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::State as Shared;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use het_core::JobId;
use het_service::calls::find;
use het_wire::api::Change;
use serde::Deserialize;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Stream, StreamExt};

use super::auth::{Auth, Standing};
use super::refuse::{ApiError, InQuery};
use super::seen::Seen;
use super::{Api, Caller};

/// Whose changes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchQuery {
    /// Only this job: an id, `last`, or a name.
    #[serde(default)]
    job: Option<String>,
}

/// First the line of the job asked for, then each change. An event `missed` says that the watcher
/// was too slow: it has to look at the list again. The stream ends with the watcher's token.
pub async fn watch(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    standing: Standing,
    InQuery(query): InQuery<WatchQuery>,
) -> Result<Sse<impl Stream<Item = Result<Sent, Infallible>>>, ApiError> {
    let jobs = Arc::clone(api.0.service.jobs());
    // Listening begins before the look, so that nothing falls between the two.
    let changes = BroadcastStream::new(jobs.watch());
    let row = query.job.map(|selector| find(&api.0.service, &caller, &selector)).transpose()?;
    let only = row.as_ref().map(|row| JobId(row.id));
    let sequence = jobs.sequence();
    let first = row.and_then(|job| sent(&api, &caller, Change { sequence, job: (*job).clone() }));
    let serving = api.clone();
    let later = changes.filter_map(move |change| match change {
        Ok(change) => {
            let wanted = only.is_none_or(|id| id.0 == change.job.id);
            wanted.then(|| sent(&serving, &caller, (*change).clone())).flatten()
        }
        Err(_) => Some(Sent::default().event("missed").data("{}")),
    });
    let stream = tokio_stream::iter(first).chain(later).map(Ok);
    let stream = until(stream, standing.ended(api));
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

/// A stream that ends when something else does.
pub(super) fn until<T>(
    inner: impl Stream<Item = T>,
    end: impl Future<Output = ()>,
) -> impl Stream<Item = T> {
    Until { inner: Box::pin(inner), end: Box::pin(end) }
}

struct Until<S, E> {
    inner: Pin<Box<S>>,
    end: Pin<Box<E>>,
}

impl<S: Stream, E: Future<Output = ()>> Stream for Until<S, E> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => self.inner.as_mut().poll_next(context),
        }
    }
}

/// `None` where the caller may not look at the job.
fn sent(api: &Api, caller: &Caller, change: Change) -> Option<Sent> {
    let id = change.sequence.to_string();
    let seen = Seen::by(api, caller, change).ok()?;
    Some(Sent::default().event("change").id(id).data(seen.text()))
}
