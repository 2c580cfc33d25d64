//! Devices, and taking them out of service.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State as Shared};
use het_core::{DeviceId, Event, State, Topology};
use het_wire::api::{DeviceList, DeviceRow, DeviceState};
use serde::Deserialize;

use super::auth::{Caller, Verb};
use super::refuse::{ApiError, Code};
use super::{Api, Parts};
use crate::service::Asked;

/// What each device gives and how much of it is held.
pub async fn list(Shared(api): Shared<Api>, caller: Caller) -> Result<Json<DeviceList>, ApiError> {
    caller.check_server(Verb::ReadServer)?;
    let parts = Arc::clone(&api.0);
    let rows = api.0.desk.look(move |control| {
        let state = control.state();
        state.topology().device_ids().map(|id| row(&parts, state, id)).collect()
    });
    Ok(Json(DeviceList::new(rows.await?)))
}

/// What can be done to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    Drain,
    Undrain,
}

pub async fn change(
    Shared(api): Shared<Api>,
    caller: Caller,
    Path((name, service)): Path<(String, Service)>,
) -> Result<Json<DeviceRow>, ApiError> {
    caller.check_server(Verb::ServeDevices)?;
    let device = find(&api.0.topology, &name).ok_or_else(|| {
        ApiError::new(Code::NotFound, format!("there is no device `{name}`"))
            .hint("`het devices` lists them")
    })?;
    if service == Service::Undrain && api.0.gone.contains(&device) {
        let text = format!("`{name}` is not in the machine any more");
        let hint = "when it is back, start the server again: it takes it into service";
        return Err(ApiError::new(Code::Conflict, text).hint(hint));
    }
    let changed = api.0.desk.tell(move |control| {
        let (drained, failed) =
            (control.state().is_drained(device), control.state().has_failed(device));
        let events = match service {
            Service::Drain => (!drained).then_some(Event::DeviceDrained { device }).into_iter(),
            Service::Undrain => drained.then_some(Event::DeviceUndrained { device }).into_iter(),
        };
        // Whoever takes it back says that it is whole again.
        let repaired = failed && service == Service::Undrain;
        let repaired = repaired.then_some(Event::DeviceRepaired { device });
        Asked { events: events.chain(repaired).collect(), answer: () }
    });
    changed.await?;
    let parts = Arc::clone(&api.0);
    Ok(Json(api.0.desk.look(move |control| row(&parts, control.state(), device)).await?))
}

/// By `NODE/DEVICE`, or by the device's own name.
fn find(topology: &Topology, name: &str) -> Option<DeviceId> {
    topology.device_ids().find(|&id| {
        let own = topology.device(id).name.as_str();
        name == own || name == full_name(topology, id)
    })
}

fn full_name(topology: &Topology, id: DeviceId) -> String {
    let device = topology.device(id);
    format!("{}/{}", topology.node(device.node).name, device.name)
}

fn row(parts: &Parts, state: &State, id: DeviceId) -> DeviceRow {
    let topology = state.topology();
    let held = state.held(id).whole_units();
    DeviceRow {
        name: full_name(topology, id),
        class: topology.class_of(id).id.to_string(),
        kind: topology.class_of(id).kind.to_string(),
        units: topology.device(id).capacity.whole_units(),
        held,
        occupant: state
            .occupant(id)
            .map(|by| format!("{}: {} ({})", by.user, by.command, by.process)),
        state: match (state.is_drained(id), state.is_up(id)) {
            _ if parts.gone.contains(&id) => DeviceState::Gone,
            (true, _) if held > 0 => DeviceState::Draining,
            (true, _) => DeviceState::Drained,
            (false, true) => DeviceState::Up,
            (false, false) if state.occupant(id).is_some() => DeviceState::Occupied,
            (false, false) => DeviceState::Failed,
        },
    }
}
