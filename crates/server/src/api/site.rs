//! The server itself: health, version, its end.

use axum::extract::State as Shared;
use het_service::Unavailable;
use het_service::report::stamp;
use het_wire::API_VERSION;
use het_wire::api::{Backup, ServerInfo, ServerStopped, StoreCheck, WatchError};
use serde::Deserialize;

use super::Api;
use super::Code;
use super::auth::{Auth, Verb};
use super::refuse::{ApiError, InQuery};
use super::seen::Seen;
use crate::restore::{Environments, back_up};
use crate::store::store_check;

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
) -> Result<Seen<ServerInfo>, ApiError> {
    caller.check_server(Verb::ReadServer)?;
    let query = api.0.service.query(|replica| (replica.policy().name(), replica.sequence()));
    let (policy, events) = query.await?;
    let info = ServerInfo {
        api_version: API_VERSION.to_owned(),
        kind: "Server".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        policy: policy.to_owned(),
        started_at: stamp(api.0.started),
        jobs_live: api.0.service.jobs().live_count(),
        events,
        storage: api.0.service.storage_trouble().map(|why| why.to_string()),
        watch_errors: watch_errors(&api),
    };
    Seen::by(&api, &caller, info)
}

/// What of a cluster cannot be followed.
pub(super) fn watch_errors(api: &Api) -> Vec<WatchError> {
    api.0.cluster.iter().flat_map(|cluster| cluster.watch_errors()).collect()
}

/// Reads the whole store and names what is damaged.
pub async fn check(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
) -> Result<Seen<StoreCheck>, ApiError> {
    caller.check_server(Verb::ReadLog)?;
    let log = api.0.log.clone();
    let checked = tokio::task::spawn_blocking(move || log.check()).await;
    let checked = checked.map_err(|error| ApiError::new(Code::Busy, error.to_string()))?;
    Seen::by(&api, &caller, store_check(&checked, &api.0.home.store()))
}

/// What a backup holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupQuery {
    #[serde(default)]
    environments: bool,
}

/// Writes a backup beside the store, from where the server's user takes it.
pub async fn backup(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    InQuery(query): InQuery<BackupQuery>,
) -> Result<Seen<Backup>, ApiError> {
    caller.check_server(Verb::ReadLog)?;
    let environments = match query.environments {
        true => Environments::Included,
        false => Environments::LeftOut,
    };
    let (log, home) = (api.0.log.clone(), api.0.home.clone());
    let written = tokio::task::spawn_blocking(move || back_up(&log, &home, environments)).await;
    let events = written.map_err(|_| Unavailable::Gone)?.map_err(|error| {
        ApiError::new(Code::InsufficientStorage, format!("no backup can be made: {error}"))
    })?;
    let path = api.0.home.backup().display().to_string();
    Seen::by(&api, &caller, Backup { path, events })
}

/// Ends the service; running jobs go on and are taken up by the next one.
pub async fn stop(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
) -> Result<Seen<ServerStopped>, ApiError> {
    caller.check_server(Verb::StopServer)?;
    api.0.service.stop().await?;
    let jobs_running = api.0.service.jobs().live_count();
    Seen::by(&api, &caller, ServerStopped { stopped: true, jobs_running })
}
