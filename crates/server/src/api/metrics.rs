//! `GET /metrics`, as OpenMetrics text: read off the state when it is asked for.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use axum::extract::State as Shared;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use het_core::{DeviceId, StageState, State, Topology};
use het_devices::{Clock, NodeLoad, Pressure};
use het_service::redaction::Viewer;
use het_service::{Caller, Code, Decisions, Replica};
use het_wire::api::WatchError;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use super::Api;
use super::auth::{Auth, Verb};
use super::refuse::ApiError;
use super::site::watch_errors;

pub(super) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge>;
type Shares = Family<Labels, Gauge<f64, AtomicU64>>;

pub async fn metrics(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
) -> Result<impl IntoResponse, ApiError> {
    caller.check_server(Verb::ReadServer)?;
    let load = api.0.load.read();
    let mut registry = api.0.service.query(move |replica| read(replica, &caller, &load)).await?;
    let writable = ConstGauge::new(i64::from(api.0.service.storage_trouble().is_none()));
    registry.register("store_writable", "1 while changes can be made durable, else 0", writable);
    if api.0.cluster.is_some() {
        watches(&mut registry, watch_errors(&api));
    }
    let mut text = String::new();
    encode(&mut text, &registry)
        .map_err(|_| ApiError::new(Code::Busy, "the figures could not be written down"))?;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text))
}

fn read(replica: &Replica, caller: &Caller, load: &NodeLoad) -> Registry {
    let state = replica.state();
    let mut registry = Registry::with_prefix("het");
    jobs(&mut registry, state, &Viewer::new(caller, &|_| None));
    waiting(&mut registry, state);
    devices(&mut registry, state);
    loads(&mut registry, state, load);
    let events = ConstCounter::new(replica.sequence());
    registry.register("log_events", "Events written to the log", events);
    let plans = ConstCounter::new(state.generation().0);
    registry.register("plans", "Plans committed", plans);
    decisions(&mut registry, replica.decisions());
    registry
}

fn watches(registry: &mut Registry, errors: Vec<WatchError>) {
    let family = Gauges::default();
    let about = "1 while objects of the cluster cannot be followed, by resource and reason";
    registry.register("kubernetes_watch_failing", about, family.clone());
    for WatchError { resource, reason, .. } in errors {
        family.get_or_create(&vec![("resource", resource), ("reason", reason)]).set(1);
    }
}

fn decisions(registry: &mut Registry, Decisions { turns, time, longest }: Decisions) {
    let about = "Decisions made since the server began";
    registry.register("decisions", about, ConstCounter::new(turns));
    let about = "Time that these decisions took";
    registry.register("decision_seconds", about, ConstCounter::new(time.0 as f64 / 1e3));
    let about = "Time that the longest decision since the server began took";
    registry.register("decision_longest_seconds", about, ConstGauge::new(longest.0 as f64 / 1e3));
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
    let (count, oldest) = (Gauges::default(), Shares::default());
    let about = "Stages that could start if there were devices, by priority";
    registry.register("waiting_stages", about, count.clone());
    let about = "How long the one of them waits that waits longest, by priority";
    registry.register("waiting_stages_oldest_seconds", about, oldest.clone());
    for key in state.waiting() {
        let (job, _, stage) = state.stage(key);
        let labels = vec![("priority", job.priority().word().to_owned())];
        count.get_or_create(&labels).inc();
        let (StageState::Queued { since } | StageState::Stopped { since, .. }) = stage.state else {
            continue;
        };
        let waited = state.now().since(since).as_seconds();
        let oldest = oldest.get_or_create(&labels);
        oldest.set(oldest.get().max(waited));
    }
}

fn device_labels(topology: &Topology, id: DeviceId) -> Labels {
    let device = topology.device(id);
    vec![
        ("device", format!("{}/{}", topology.node(device.node).name, device.name)),
        ("class", topology.class_of(id).id.to_string()),
    ]
}

/// What is measured of devices and of the node, and what that leaves of their speeds.
fn loads(registry: &mut Registry, state: &State, load: &NodeLoad) {
    let [busy, used, clock, throttled, pace] = [
        ("device_busy_ratio", "Part of the last seconds in which a device worked"),
        ("device_memory_used_bytes", "Memory of a device that programs hold"),
        ("device_clock_ratio", "A device's clock, as a part of the rated one"),
        ("device_throttled", "1 while heat or a lack of power holds a device's clock down, else 0"),
        ("device_pace_ratio", "What is left of a device's usual speed for whoever comes"),
    ]
    .map(|(name, about)| {
        let family = Shares::default();
        registry.register(name, about, family.clone());
        family
    });
    let set = |family: &Shares, labels: &Labels, value: Option<f64>| {
        value.map(|value| family.get_or_create(labels).set(value))
    };
    let topology = state.topology();
    for id in topology.device_ids().filter(|&id| !state.is_gone(id)) {
        let labels = device_labels(topology, id);
        set(&pace, &labels, Some(state.pace(id).as_f64()));
        let Some(load) = load.devices.get(&id) else { continue };
        set(&busy, &labels, load.busy);
        set(&used, &labels, load.memory_used.map(|used| used.0 as f64));
        set(&clock, &labels, load.clock.map(Clock::part));
        set(&throttled, &labels, Some(f64::from(u8::from(load.throttled_to.is_some()))));
    }
    let Some(Pressure { cpu_some, memory_full, io_full }) = load.pressure else { return };
    let pressure = Shares::default();
    let about =
        "Part of the last ten seconds in which some, or all, tasks of the node waited for it";
    registry.register("node_pressure_ratio", about, pressure.clone());
    let waits =
        [("cpu", "some", cpu_some), ("memory", "full", memory_full), ("io", "full", io_full)];
    for (resource, who, part) in waits {
        let labels = vec![("resource", resource.to_owned()), ("tasks", who.to_owned())];
        pressure.get_or_create(&labels).set(part);
    }
}

fn devices(registry: &mut Registry, state: &State) {
    let (held, capacity) = (Shares::default(), Shares::default());
    registry.register("device_units_held", "Units of a device that leases hold", held.clone());
    registry.register("device_units", "Units of a device in service", capacity.clone());
    let topology = state.topology();
    for id in topology.device_ids().filter(|&id| !state.is_removed(topology.device(id).node)) {
        let labels = device_labels(topology, id);
        held.get_or_create(&labels).set(f64::from(state.held(id).0) / 10_000.0);
        capacity.get_or_create(&labels).set(f64::from(state.service()[id.index()].0) / 10_000.0);
    }
}
