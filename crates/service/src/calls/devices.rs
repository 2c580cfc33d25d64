//! Devices, and taking them out of service.

use het_core::{DegradationCause, DeviceId, Event, Share, State, Topology};
use het_wire::api::{DeviceRow, DeviceState, SlowCause};

use crate::{CallError, Change, Code, Handle};

/// Whether an operator wants a device to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    Drained,
    InService,
}

/// What each device gives and how much of it is held, of all nodes that are part of the cluster.
///
/// # Errors
/// When the replica cannot be reached.
pub async fn device_rows(handle: &Handle) -> Result<Vec<(DeviceId, DeviceRow)>, CallError> {
    let rows = |state: &State| {
        let topology = state.topology();
        let stays = |id: &DeviceId| !state.is_removed(topology.device(*id).node);
        topology.device_ids().filter(stays).map(|id| (id, row(state, id))).collect()
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
) -> Result<DeviceRow, CallError> {
    let look = move |state: &State| (state.is_gone(device), name_of(state.topology(), device));
    let (is_gone, name) = handle.query(move |replica| look(replica.state())).await?;
    if wanted == Availability::InService && is_gone {
        let text = format!("`{name}` is not in the machine any more");
        let hint = "when it is back, start the server again: it takes it into service";
        return Err(CallError::new(Code::Conflict, text).hint(hint));
    }
    let change = move |state: &State| {
        let suspected = state.suspected_since(device).is_some() || state.slowness(device).is_some();
        let (drained, failed) = (state.is_drained(device), state.has_failed(device));
        let event = match wanted {
            Availability::Drained => (!drained).then_some(Event::DeviceDrained { device }),
            Availability::InService => {
                (drained || suspected).then_some(Event::DeviceUndrained { device })
            }
        };
        // An operator who takes it back says that it is repaired.
        let repaired = failed && wanted == Availability::InService;
        let repaired = repaired.then_some(Event::DeviceRepaired { device });
        Change { events: event.into_iter().chain(repaired).collect(), answer: () }
    };
    handle.change(change).await?;
    Ok(handle.query(move |replica| row(replica.state(), device)).await?)
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

fn row(state: &State, id: DeviceId) -> DeviceRow {
    let topology = state.topology();
    let held = state.held(id).whole_units();
    let degraded = state.degraded(id).map(|degraded| &degraded.degradation.cause);
    let contender = match degraded {
        Some(DegradationCause::Contention { by }) => by.as_ref(),
        _ => None,
    };
    let slow_cause = match (state.slowness(id), degraded) {
        (_, Some(DegradationCause::Contention { .. })) => Some(SlowCause::Contention),
        (_, Some(DegradationCause::Throttling)) => Some(SlowCause::Throttling),
        (_, Some(DegradationCause::MemoryPressure)) => Some(SlowCause::MemoryPressure),
        (slowness, None) => slowness.map(|_| SlowCause::Steps),
    };
    DeviceRow {
        name: name_of(topology, id),
        class: topology.class_of(id).id.to_string(),
        kind: topology.class_of(id).kind.to_string(),
        units: topology.device(id).capacity.whole_units(),
        held,
        occupant: state
            .occupant(id)
            .or(contender)
            .map(|by| format!("{}: {} ({})", by.user, by.command, by.process)),
        pace_pct: slow_cause.map(|_| (state.pace(id).as_f64() * 100.0) as u32),
        slow_cause,
        busy_pct: None,
        memory_used_bytes: None,
        clock_pct: None,
        state: match (state.is_drained(id), state.is_up(id)) {
            _ if state.is_gone(id) => DeviceState::Gone,
            (true, _) if held > 0 => DeviceState::Draining,
            (true, _) => DeviceState::Drained,
            (false, true) if slow_cause.is_some() => DeviceState::Slow,
            (false, true) => DeviceState::Up,
            (false, false) if state.is_only_suspected(id) => DeviceState::Suspected,
            (false, false) if is_used_by_others(state, id) => DeviceState::Occupied,
            (false, false) => DeviceState::Failed,
        },
    }
}

fn is_used_by_others(state: &State, id: DeviceId) -> bool {
    state.occupant(id).is_some() || state.taken_of(id) > Share::ZERO
}
