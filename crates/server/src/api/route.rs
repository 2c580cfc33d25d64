//! What a route is.

use axum::routing::MethodRouter;
use schemars::Schema;

use super::Api;
use super::auth::Verb;

/// One route.
#[derive(Debug)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    /// What it takes to be allowed it; `None` for everybody.
    pub verb: Option<Verb>,
    pub about: &'static str,
    pub query: &'static [(&'static str, &'static str)],
    pub body: Option<fn() -> Schema>,
    pub answer: Answer,
    pub handler: fn() -> MethodRouter<Api>,
}

/// What a route answers with.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    Text,
    Json(fn() -> Schema),
    /// Server-sent events with this as their data.
    Stream(fn() -> Schema),
    /// JSON that has no schema of its own.
    Object,
}
