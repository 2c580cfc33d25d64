//! The only way out for an answer: as its caller may see it.

use axum::Json;
use axum::response::{IntoResponse, Response};
use het_core::JobId;
use het_service::redaction::{Redact, Viewer};
use serde::Serialize;

use super::refuse::ApiError;
use super::{Api, Caller, Code};

/// An answer without what names the jobs of others.
#[derive(Debug)]
pub struct Seen<T>(T);

impl<T: Redact> Seen<T> {
    /// # Errors
    /// When all of it is of a job that the caller may not look at.
    pub(super) fn by(api: &Api, caller: &Caller, answer: T) -> Result<Self, ApiError> {
        let jobs = api.0.service.jobs();
        let tenant_of = |id: JobId| jobs.row(id).map(|row| row.tenant.clone());
        let seen = answer.redacted(&Viewer::new(caller, &tenant_of));
        seen.map(Self).ok_or_else(|| ApiError::new(Code::NotFound, "there is no such job"))
    }
}

impl<T: Serialize> Seen<T> {
    /// As JSON, for a stream.
    pub(super) fn text(&self) -> String {
        serde_json::to_string(&self.0).expect("texts and numbers always become JSON")
    }
}

impl<T: Serialize> IntoResponse for Seen<T> {
    fn into_response(self) -> Response {
        Json(self.0).into_response()
    }
}
