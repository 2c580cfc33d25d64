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
    /// What may stand for `{operation}` in its path.
    pub operations: &'static [&'static str],
    pub query: &'static [Query],
    pub body: Option<fn() -> Schema>,
    pub answer: Answer,
    pub handler: fn() -> MethodRouter<Api>,
}

/// What may stand behind the `?`: its name, its kind, and what it is for.
#[derive(Debug, Clone, Copy)]
pub struct Query(pub &'static str, pub Kind, pub &'static str);

/// What a value of a query looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Number,
    /// From 1 to [`super::PAGE_MAX`].
    PageLength,
    /// `true` or `false`.
    Flag,
}

/// What a route answers with.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    Text,
    /// OpenMetrics.
    Figures,
    Json(fn() -> Schema),
    /// The same with 201 where something was made, and with 200 where it was there.
    Created(fn() -> Schema),
    /// Server-sent events with this as their data.
    Stream(fn() -> Schema),
    /// JSON that has no schema of its own.
    Object,
}
