//! What a request that cannot be served is told.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use het_wire::api::Refusal;
use serde::de::DeserializeOwned;

use crate::service::NotHeard;

/// Why a request is not served: stays the same between versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    BadRequest,
    NoSuchMethod,
    BadJobFile,
    /// The machine can never run it.
    Impossible,
    NoToken,
    NotAllowed,
    NotFound,
    Conflict,
    TooLarge,
    TooMany,
    Busy,
}

impl Code {
    pub fn word(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::NoSuchMethod => "no_such_method",
            Self::BadJobFile => "bad_job_file",
            Self::Impossible => "impossible",
            Self::NoToken => "no_token",
            Self::NotAllowed => "not_allowed",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::TooLarge => "too_large",
            Self::TooMany => "too_many",
            Self::Busy => "busy",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::NoSuchMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::BadJobFile | Self::Impossible => StatusCode::UNPROCESSABLE_ENTITY,
            Self::NoToken => StatusCode::UNAUTHORIZED,
            Self::NotAllowed => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Conflict => StatusCode::CONFLICT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// A refused request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub code: Code,
    pub message: String,
    pub hint: Option<String>,
}

impl ApiError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub fn no_job(selector: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no job `{selector}`"))
            .hint("`het ps --all` lists the jobs")
    }
}

impl From<NotHeard> for ApiError {
    fn from(why: NotHeard) -> Self {
        Self::new(Code::Busy, why.to_string()).hint("try again in a moment")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { code, message, hint } = self;
        let refusal = Refusal { code: code.word().to_owned(), message, hint };
        (code.status(), Json(refusal)).into_response()
    }
}

/// A JSON body; one that is none is refused like everything else.
pub(super) struct Sent<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Sent<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = Json::<T>::from_request(request, state).await;
        body.map(|Json(body)| Self(body)).map_err(|rejection: JsonRejection| {
            let code = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
                _ => Code::BadRequest,
            };
            ApiError::new(code, rejection.body_text())
                .hint("`/openapi.json` says what a body looks like")
        })
    }
}
