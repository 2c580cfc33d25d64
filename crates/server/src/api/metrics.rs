//! `GET /metrics`, as OpenMetrics text: read off the state when it is asked for.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use axum::extract::State as Shared;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use het_core::State;
use het_service::redaction::Viewer;
use het_service::{Caller, Code, Replica};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use super::Api;
use super::auth::{Auth, Verb};
use super::refuse::ApiError;

pub(super) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge>;
type Shares = Family<Labels, Gauge<f64, AtomicU64>>;

pub async fn metrics(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
) -> Result<impl IntoResponse, ApiError> {
    caller.check_server(Verb::ReadServer)?;
    let mut registry = api.0.service.query(move |replica| read(replica, &caller)).await?;
    let writable = ConstGauge::new(i64::from(api.0.service.storage_trouble().is_none()));
    registry.register("store_writable", "1 while changes can be made durable, else 0", writable);
    let mut text = String::new();
    encode(&mut text, &registry)
        .map_err(|_| ApiError::new(Code::Busy, "the figures could not be written down"))?;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text))
}

fn read(replica: &Replica, caller: &Caller) -> Registry {
    let state = replica.state();
    let mut registry = Registry::with_prefix("het");
    jobs(&mut registry, state, &Viewer::new(caller, &|_| None));
    waiting(&mut registry, state);
    devices(&mut registry, state);
    let events = ConstCounter::new(replica.sequence());
    registry.register("log_events", "Events written to the log", events);
    let plans = ConstCounter::new(state.generation().0);
    registry.register("plans", "Plans committed", plans);
    registry
}

fn jobs(registry: &mut Registry, state: &State, viewer: &Viewer<'_>) {
    let family = Gauges::default();
    registry.register("jobs", "Jobs that the server holds, by state and tenant", family.clone());
    let mut counts: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for job in state.jobs().values() {
        let state = job.state(state.leases()).word();
        *counts.entry((state, viewer.label(job.spec.tenant.as_str()))).or_default() += 1;
    }
    for ((state, tenant), count) in counts {
        let labels = vec![("state", state.to_owned()), ("tenant", tenant.to_owned())];
        family.get_or_create(&labels).set(count);
    }
}

fn waiting(registry: &mut Registry, state: &State) {
    let family = Gauges::default();
    let about = "Stages that could start if there were devices, by priority";
    registry.register("waiting_stages", about, family.clone());
    for key in state.waiting() {
        let priority = state.stage(key).0.priority().word().to_owned();
        family.get_or_create(&vec![("priority", priority)]).inc();
    }
}

fn devices(registry: &mut Registry, state: &State) {
    let (held, capacity) = (Shares::default(), Shares::default());
    registry.register("device_units_held", "Units of a device that leases hold", held.clone());
    registry.register("device_units", "Units of a device in service", capacity.clone());
    let topology = state.topology();
    for id in topology.device_ids().filter(|&id| !state.is_removed(topology.device(id).node)) {
        let device = topology.device(id);
        let labels = vec![
            ("device", format!("{}/{}", topology.node(device.node).name, device.name)),
            ("class", topology.class_of(id).id.to_string()),
        ];
        held.get_or_create(&labels).set(f64::from(state.held(id).0) / 10_000.0);
        capacity.get_or_create(&labels).set(f64::from(state.service()[id.index()].0) / 10_000.0);
    }
}
