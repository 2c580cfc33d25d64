//! Devices, and taking them out of service.

use std::collections::BTreeSet;
use std::sync::Arc;

use het_core::{DeviceId, Event, State, Topology};
use het_wire::api::{DeviceRow, DeviceState};

use crate::{CallError, Change, Code, Handle};

/// Whether an operator wants a device to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    Drained,
    InService,
}

/// What each device gives and how much of it is held. `gone` are not in the machine any more.
///
/// # Errors
/// When the replica cannot be reached.
pub async fn device_rows(
    handle: &Handle,
    gone: Arc<BTreeSet<DeviceId>>,
) -> Result<Vec<DeviceRow>, CallError> {
    let rows = move |state: &State| {
        state.topology().device_ids().map(|id| row(state, id, gone.contains(&id))).collect()
    };
    Ok(handle.query(move |replica| rows(replica.state())).await?)
}

/// Takes a device out of service or back, and returns its row.
///
/// # Errors
/// When it is gone, or the loop cannot be reached.
pub async fn set_availability(
    handle: &Handle,
    device: DeviceId,
    wanted: Availability,
    gone: &BTreeSet<DeviceId>,
) -> Result<DeviceRow, CallError> {
    let is_gone = gone.contains(&device);
    if wanted == Availability::InService && is_gone {
        let name = handle.query(move |replica| name_of(replica.state().topology(), device)).await?;
        let text = format!("`{name}` is not in the machine any more");
        let hint = "when it is back, start the server again: it takes it into service";
        return Err(CallError::new(Code::Conflict, text).hint(hint));
    }
    let change = move |state: &State| {
        let (drained, failed) = (state.is_drained(device), state.has_failed(device));
        let event = match wanted {
            Availability::Drained => (!drained).then_some(Event::DeviceDrained { device }),
            Availability::InService => drained.then_some(Event::DeviceUndrained { device }),
        };
        // An operator who takes it back says that it is repaired.
        let repaired = failed && wanted == Availability::InService;
        let repaired = repaired.then_some(Event::DeviceRepaired { device });
        Change { events: event.into_iter().chain(repaired).collect(), answer: () }
    };
    handle.change(change).await?;
    Ok(handle.query(move |replica| row(replica.state(), device, is_gone)).await?)
}

/// By `NODE/DEVICE`, or by the device's own name.
///
/// # Errors
/// When there is no such device.
pub fn device_named(topology: &Topology, name: &str) -> Result<DeviceId, CallError> {
    let is_it = |id: &DeviceId| topology.device(*id).name == name || name_of(topology, *id) == name;
    topology.device_ids().find(is_it).ok_or_else(|| {
        CallError::new(Code::NotFound, format!("there is no device `{name}`"))
            .hint("`het devices` lists them")
    })
}

fn name_of(topology: &Topology, id: DeviceId) -> String {
    let device = topology.device(id);
    format!("{}/{}", topology.node(device.node).name, device.name)
}

fn row(state: &State, id: DeviceId, is_gone: bool) -> DeviceRow {
    let topology = state.topology();
    let held = state.held(id).whole_units();
    DeviceRow {
        name: name_of(topology, id),
        class: topology.class_of(id).id.to_string(),
        kind: topology.class_of(id).kind.to_string(),
        units: topology.device(id).capacity.whole_units(),
        held,
        occupant: state
            .occupant(id)
            .map(|by| format!("{}: {} ({})", by.user, by.command, by.process)),
        state: match (state.is_drained(id), state.is_up(id)) {
            _ if is_gone => DeviceState::Gone,
            (true, _) if held > 0 => DeviceState::Draining,
            (true, _) => DeviceState::Drained,
            (false, true) => DeviceState::Up,
            (false, false) if state.occupant(id).is_some() => DeviceState::Occupied,
            (false, false) => DeviceState::Failed,
        },
    }
}
