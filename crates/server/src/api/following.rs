//! `GET /api/v1/jobs/{job}/logs?follow=true`: what the pods of a job write, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use het_core::JobId;
use het_service::Handle;
use het_wire::api::{FollowedLogs, JobRow, LogPiece, LogsQuery};
use tokio::sync::broadcast::error::RecvError;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::Api;
use super::auth::Standing;
use super::refuse::ApiError;
use super::watch::until;
use crate::served::JobMaker;

/// Events `log`, each with a piece of what a pod wrote, then `end` once the job has ended and all
/// of it was told. A stream without `end` was broken off: its caller took too little for too long,
/// or has lost its right.
pub(super) async fn follow(
    (api, standing, counted_by): (Api, Standing, &str),
    cluster: &Arc<dyn JobMaker>,
    row: &JobRow,
    query: LogsQuery,
) -> Result<Response, ApiError> {
    let place = api.0.limits.follower(counted_by).await?;
    let id = JobId(row.id);
    let ended = Box::pin(job_ended(api.0.service.clone(), id));
    let pieces = cluster.follow_logs(id, &row.tenant, query, ended);
    let stream = ReceiverStream::new(pieces).map(|told| Ok::<_, Infallible>(sent(told)));
    let stream = until(stream, async move {
        // Kept until the stream is dropped.
        let _place = place;
        standing.ended(api).await;
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()).into_response())
}

fn sent(told: FollowedLogs) -> Sent {
    match told {
        FollowedLogs::Piece(piece) => Sent::default().event("log").data(text(&piece)),
        FollowedLogs::End => Sent::default().event("end").data("{}"),
    }
}

fn text(piece: &LogPiece) -> String {
    serde_json::to_string(piece).expect("texts and numbers always become JSON")
}

async fn job_ended(service: Handle, job: JobId) {
    // Before the look, so that nothing falls between the two.
    let mut changes = service.jobs().watch();
    loop {
        let row = service.jobs().row(job);
        if row.is_none_or(|row| row.ended_at.is_some()) {
            return;
        }
        // One that was missed is looked for as well.
        if matches!(changes.recv().await, Err(RecvError::Closed)) {
            return;
        }
    }
}
