//! Why a call is refused or gets no answer.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// The kind of a refusal: stays the same between versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    BadRequest,
    NoSuchMethod,
    BadJobFile,
    /// The cluster can never run it.
    Impossible,
    NoToken,
    NotAllowed,
    NotFound,
    Conflict,
    TooLarge,
    /// Its body is of another kind.
    NotJson,
    /// Its body did not come in time.
    TooSlow,
    TooMany,
    Busy,
    /// The store cannot be written: the disk is full, read-only or broken.
    InsufficientStorage,
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
            Self::NotJson => "not_json",
            Self::TooSlow => "too_slow",
            Self::TooMany => "too_many",
            Self::Busy => "busy",
            Self::InsufficientStorage => "insufficient_storage",
        }
    }
}

/// Why a caller gets no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    #[error("too much waits for the control loop")]
    Busy,
    #[error("the server is going down")]
    Gone,
    #[error("nothing can be changed at present: {0}")]
    Unwritable(Arc<str>),
}

/// A refused call, with a next step where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    pub code: Code,
    pub message: String,
    pub hint: Option<String>,
}

impl CallError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn no_job(selector: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no job `{selector}`"))
            .hint("`het ps --all` lists the jobs")
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CallError {}

impl From<Unavailable> for CallError {
    fn from(why: Unavailable) -> Self {
        match why {
            Unavailable::Unwritable(_) => Self::new(Code::InsufficientStorage, why.to_string())
                .hint("mend the disk of the state directory: the server goes on by itself"),
            _ => Self::new(Code::Busy, why.to_string()).hint("try again in a moment"),
        }
    }
}
