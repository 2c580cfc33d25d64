//! The server itself: health, version, its end.

use axum::Json;
use axum::extract::State as Shared;
use het_service::report::stamp;
use het_wire::API_VERSION;
use het_wire::api::ServerInfo;
use serde_json::{Value, json};

use super::Api;
use super::auth::{Auth, Verb};
use super::refuse::ApiError;

/// The process lives, also while its disk cannot be written: a restart would mend nothing.
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// The loop hears: recovery is over and the log can be written.
pub async fn readyz(Shared(api): Shared<Api>) -> Result<&'static str, ApiError> {
    api.0.service.ready().await?;
    Ok("ok\n")
}

pub async fn info(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
) -> Result<Json<ServerInfo>, ApiError> {
    caller.check_server(Verb::ReadServer)?;
    let query = api.0.service.query(|replica| (replica.policy().name(), replica.sequence()));
    let (policy, events) = query.await?;
    Ok(Json(ServerInfo {
        api_version: API_VERSION.to_owned(),
        kind: "Server".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        policy: policy.to_owned(),
        started_at: stamp(api.0.started),
        jobs_live: api.0.service.jobs().live_count(),
        events,
        storage: api.0.service.storage_trouble().map(|why| why.to_string()),
    }))
}

/// Ends the service; running jobs go on and are taken up by the next one.
pub async fn stop(Shared(api): Shared<Api>, Auth(caller): Auth) -> Result<Json<Value>, ApiError> {
    caller.check_server(Verb::StopServer)?;
    api.0.service.stop().await?;
    Ok(Json(json!({ "stopped": true, "jobs_running": api.0.service.jobs().live_count() })))
}
