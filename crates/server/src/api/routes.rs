//! Every route, once: the router, the OpenAPI document and the tests of who may what are made from
//! this table.

use std::future::{Ready, ready};

use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, patch, post, put};
use axum::{Json, Router};
use schemars::schema_for;
use serde_json::Value;

use het_wire::api::{
    Backup, Change, DeviceList, DeviceRow, EventPage, JobChanges, JobList, JobLogs, JobRow,
    PreemptionList, QuotaList, QuotasText, ServerInfo, ServerStopped, StoreCheck, Submission,
    Submitted,
};
use het_wire::report::{ExplanationReport, RunReport};

use super::auth::{Verb, authorised};
use super::limits::limited;
use super::openapi::openapi;
use super::refuse::ApiError;
use super::{
    Api, BODY_BYTES_MAX, Code, devices, events, jobs, metrics, preempt, quotas, site, submit, watch,
};

pub use super::route::{Answer, Kind, Query, Route};

const LIST_QUERY: &[Query] = &[
    Query("all", Kind::Flag, "ended jobs too"),
    Query("after", Kind::Number, "only jobs with a later id: the `next` of the page before"),
    Query("limit", Kind::PageLength, "lines of a page"),
    Query("tenant", Kind::Text, "only jobs of this tenant"),
    Query("state", Kind::Text, "only jobs in this state"),
    Query("select", Kind::Text, "only jobs that a selector names: `last`, a name, `42[]`, `42[3]`"),
];

const LOGS_QUERY: &[Query] = &[
    Query("stage", Kind::Text, "only this stage"),
    Query("rank", Kind::Number, "only this rank"),
    Query("attempt", Kind::Number, "only this attempt; the last of each stage without"),
    Query("tail", Kind::Number, "the last lines of each pod; 10,000 without"),
    Query(
        "follow",
        Kind::Flag,
        "server-sent events `log` with a piece each (`pod`, `stage`, `attempt`, `rank`, `ranks`, \
         `text`, `ended`, `missing`) until the job has ended, which `end` says",
    ),
];

const LANG: Query = Query("lang", Kind::Text, "`en` or `zh`");

/// Every route.
pub const ROUTES: &[Route] = &[
    Route {
        method: "get",
        path: "/healthz",
        verb: None,
        about: "The process lives",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Text,
        handler: || get(site::healthz),
    },
    Route {
        method: "get",
        path: "/readyz",
        verb: None,
        about: "Recovery is over and the control loop runs",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Text,
        handler: || get(site::readyz),
    },
    Route {
        method: "get",
        path: "/openapi.json",
        verb: None,
        about: "This document",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Object,
        handler: || get(document),
    },
    Route {
        method: "get",
        path: "/metrics",
        verb: Some(Verb::ReadServer),
        about: "Figures as OpenMetrics text",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Figures,
        handler: || get(metrics::metrics),
    },
    Route {
        method: "get",
        path: "/api/v1/server",
        verb: Some(Verb::ReadServer),
        about: "Version, policy and load",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Json(|| schema_for!(ServerInfo)),
        handler: || get(site::info),
    },
    Route {
        method: "post",
        path: "/api/v1/server/stop",
        verb: Some(Verb::StopServer),
        about: "End the service; running jobs go on and are taken up by the next one",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Json(|| schema_for!(ServerStopped)),
        handler: || post(site::stop),
    },
    Route {
        method: "get",
        path: "/api/v1/server/check",
        verb: Some(Verb::ReadLog),
        about: "Read the event store and name what is damaged",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Json(|| schema_for!(StoreCheck)),
        handler: || get(site::check),
    },
    Route {
        method: "post",
        path: "/api/v1/server/backup",
        verb: Some(Verb::ReadLog),
        about: "Write a backup of the event store and of kept files into the state directory; one \
                that is there is replaced",
        operations: &[],
        query: &[Query("environments", Kind::Flag, "take the variables of submitters along")],
        body: None,
        answer: Answer::Json(|| schema_for!(Backup)),
        handler: || post(site::backup),
    },
    Route {
        method: "get",
        path: "/api/v1/devices",
        verb: Some(Verb::ReadServer),
        about: "Devices and how much of them is held",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Json(|| schema_for!(DeviceList)),
        handler: || get(devices::list),
    },
    Route {
        method: "post",
        path: "/api/v1/devices/{device}/{operation}",
        verb: Some(Verb::ServeDevices),
        about: "Take a device out of service (`{operation}` is `drain`) or back (`undrain`): what \
                runs there and saves goes elsewhere, what does not may end there",
        operations: &["drain", "undrain"],
        query: &[],
        body: None,
        answer: Answer::Json(|| schema_for!(DeviceRow)),
        handler: || post(devices::change),
    },
    Route {
        method: "get",
        path: "/api/v1/quotas",
        verb: Some(Verb::ReadQuotas),
        about: "What tenants may have and have",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Json(|| schema_for!(QuotaList)),
        handler: || get(quotas::list),
    },
    Route {
        method: "put",
        path: "/api/v1/quotas",
        verb: Some(Verb::SetQuotas),
        about: "Set what tenants may have, instead of all that was set before",
        operations: &[],
        query: &[],
        body: Some(|| schema_for!(QuotasText)),
        answer: Answer::Json(|| schema_for!(QuotaList)),
        handler: || put(quotas::set),
    },
    Route {
        method: "post",
        path: "/api/v1/jobs",
        verb: Some(Verb::SubmitJobs),
        about: "Queue a job; it is durable when this answers. With an `Idempotency-Key` header a \
                second submission is the first one",
        operations: &[],
        query: &[],
        body: Some(|| schema_for!(Submission)),
        answer: Answer::Created(|| schema_for!(Submitted)),
        handler: || post(submit::submit),
    },
    Route {
        method: "get",
        path: "/api/v1/jobs",
        verb: Some(Verb::ReadJobs),
        about: "Jobs that have not ended, oldest first",
        operations: &[],
        query: LIST_QUERY,
        body: None,
        answer: Answer::Json(|| schema_for!(JobList)),
        handler: || get(jobs::list),
    },
    Route {
        method: "get",
        path: "/api/v1/jobs/{job}",
        verb: Some(Verb::ReadJobs),
        about: "The line of a job: `{job}` is an id, `last`, or a name",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Json(|| schema_for!(JobRow)),
        handler: || get(jobs::row),
    },
    Route {
        method: "get",
        path: "/api/v1/jobs/{job}/report",
        verb: Some(Verb::ReadJobs),
        about: "Everything there is to say about a job",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Json(|| schema_for!(RunReport)),
        handler: || get(jobs::show),
    },
    Route {
        method: "get",
        path: "/api/v1/jobs/{job}/logs",
        verb: Some(Verb::ReadJobs),
        about: "What the pods of a job of a cluster wrote last",
        operations: &[],
        query: LOGS_QUERY,
        body: None,
        answer: Answer::Json(|| schema_for!(JobLogs)),
        handler: || get(jobs::logs),
    },
    Route {
        method: "get",
        path: "/api/v1/jobs/{job}/explanation",
        verb: Some(Verb::ReadJobs),
        about: "Why its stages stand where they stand or wait",
        operations: &[],
        query: &[LANG, Query("placement", Kind::Flag, "and what each alternative is weighed by")],
        body: None,
        answer: Answer::Json(|| schema_for!(ExplanationReport)),
        handler: || get(jobs::explain),
    },
    Route {
        method: "patch",
        path: "/api/v1/jobs/{job}",
        verb: Some(Verb::ChangeJobs),
        about: "Change the priority or the time limit of a job that has not ended",
        operations: &[],
        query: &[],
        body: Some(|| schema_for!(JobChanges)),
        answer: Answer::Json(|| schema_for!(JobRow)),
        handler: || patch(jobs::set),
    },
    Route {
        method: "get",
        path: "/api/v1/jobs/{job}/preemption",
        verb: Some(Verb::ReadJobs),
        about: "Whom the next decision stops for it, or what becomes of it if it runs, and what \
                that costs; nothing is stopped",
        operations: &[],
        query: &[LANG],
        body: None,
        answer: Answer::Json(|| schema_for!(PreemptionList)),
        handler: || get(preempt::preview),
    },
    Route {
        method: "post",
        path: "/api/v1/jobs/{job}/preemption",
        verb: Some(Verb::ChangeJobs),
        about: "Stop it for the most urgent job that waits for what it holds, whether or not that \
                pays",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Json(|| schema_for!(PreemptionList)),
        handler: || post(preempt::preempt),
    },
    Route {
        method: "post",
        path: "/api/v1/jobs/{job}/{operation}",
        verb: Some(Verb::ChangeJobs),
        about: "Change a job: `{operation}` is `cancel`, `hold` or `release`",
        operations: &["cancel", "hold", "release"],
        query: &[],
        body: None,
        answer: Answer::Json(|| schema_for!(JobRow)),
        handler: || post(jobs::change),
    },
    Route {
        method: "post",
        path: "/api/v1/jobs/{job}/requeue",
        verb: Some(Verb::SubmitJobs),
        about: "Queue a failed or cancelled job again, as a new one that goes on from its newest \
                checkpoints",
        operations: &[],
        query: &[],
        body: None,
        answer: Answer::Created(|| schema_for!(Submitted)),
        handler: || post(submit::requeue),
    },
    Route {
        method: "get",
        path: "/api/v1/events",
        verb: Some(Verb::ReadLog),
        about: "The log as it was written, each event chained to the one before by a hash",
        operations: &[],
        query: &[
            Query("from", Kind::Number, "the first event's number"),
            Query("limit", Kind::PageLength, "how many at most"),
        ],
        body: None,
        answer: Answer::Json(|| schema_for!(EventPage)),
        handler: || get(events::events),
    },
    Route {
        method: "get",
        path: "/api/v1/watch",
        verb: Some(Verb::ReadJobs),
        about: "Changes of jobs as they happen",
        operations: &[],
        query: &[Query("job", Kind::Text, "only this one")],
        body: None,
        answer: Answer::Stream(|| schema_for!(Change)),
        handler: || get(watch::watch),
    },
];

/// `GET /openapi.json`: this table as a document.
fn document() -> Ready<Json<Value>> {
    ready(Json(openapi(ROUTES)))
}

/// The router of all routes.
pub fn router(api: Api) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let handler = (route.handler)();
        let handler = match route.verb {
            // Before anything is read but the head of the request.
            Some(verb) => handler.route_layer(from_fn_with_state((api.clone(), verb), authorised)),
            None => handler,
        };
        router = router.route(route.path, handler);
    }
    let lost = || async { ApiError::new(Code::NotFound, "there is nothing here") };
    router
        .fallback(lost)
        .method_not_allowed_fallback(|| async {
            ApiError::new(Code::NoSuchMethod, "this cannot be done here")
                .hint("`/openapi.json` lists what can")
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(api.clone(), limited))
        .with_state(api)
}
