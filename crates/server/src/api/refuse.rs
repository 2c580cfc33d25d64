//! What a request that cannot be served is told.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::RETRY_AFTER;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use het_service::{CallError, Code, Unavailable};
use het_wire::api::Refusal;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// A refused request: what the service says, as HTTP has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError(CallError);

impl ApiError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(CallError::new(code, message))
    }

    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self(self.0.hint(hint))
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        Self(error)
    }
}

impl From<Unavailable> for ApiError {
    fn from(why: Unavailable) -> Self {
        Self(why.into())
    }
}

fn status(code: Code) -> StatusCode {
    match code {
        Code::BadRequest => StatusCode::BAD_REQUEST,
        Code::NoSuchMethod => StatusCode::METHOD_NOT_ALLOWED,
        Code::BadJobFile | Code::Impossible => StatusCode::UNPROCESSABLE_ENTITY,
        Code::NoToken => StatusCode::UNAUTHORIZED,
        Code::NotAllowed => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Conflict => StatusCode::CONFLICT,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::TooSlow => StatusCode::REQUEST_TIMEOUT,
        Code::TooMany => StatusCode::TOO_MANY_REQUESTS,
        Code::Busy => StatusCode::SERVICE_UNAVAILABLE,
        Code::InsufficientStorage => StatusCode::INSUFFICIENT_STORAGE,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let CallError { code, message, hint } = self.0;
        let refusal = Refusal { code: code.word().to_owned(), message, hint };
        let mut answer = (status(code), Json(refusal)).into_response();
        if matches!(code, Code::Busy | Code::TooMany) {
            answer.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        answer
    }
}

/// After how long whoever finds the server busy may come again (RFC 9110, section 10.2.3).
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");
/// How long a body may take to come.
const BODY_LIMIT: Duration = Duration::from_secs(30);

/// A JSON body; one that is none, or that does not come, is refused like everything else.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = timeout(BODY_LIMIT, Json::<T>::from_request(request, state)).await;
        let body = body.map_err(|_| {
            let text = format!("the body did not come within {} s", BODY_LIMIT.as_secs());
            ApiError::new(Code::TooSlow, text).hint("send the whole request at once")
        })?;
        body.map(|Json(body)| Self(body)).map_err(|rejection: JsonRejection| {
            let code = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
                StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::NotJson,
                _ => Code::BadRequest,
            };
            ApiError::new(code, rejection.body_text())
                .hint("`/openapi.json` says what a body looks like")
        })
    }
}

/// What stands in the path of a request.
pub(super) struct InPath<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|rejection| {
            ApiError::new(Code::BadRequest, rejection.body_text())
                .hint("`/openapi.json` says what a path looks like")
        })
    }
}

/// What stands behind the `?` of a request.
pub(super) struct InQuery<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for InQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|rejection| {
            ApiError::new(Code::BadRequest, rejection.body_text())
                .hint("`/openapi.json` says what may be asked for")
        })
    }
}
