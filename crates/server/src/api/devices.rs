//! Devices, and taking them out of service.

use axum::extract::State as Shared;
use het_devices::DeviceLoad;
use het_service::calls::{Availability, device_named, device_rows, set_availability};
use het_wire::api::{DeviceList, DeviceRow};
use serde::Deserialize;

use super::Api;
use super::auth::{Auth, Verb};
use super::refuse::{ApiError, InPath};
use super::requester::Acting;
use super::seen::Seen;

/// What each device gives and how much of it is held.
pub async fn list(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
) -> Result<Seen<DeviceList>, ApiError> {
    caller.check_server(Verb::ReadServer)?;
    let load = api.0.load.read().devices;
    let rows = device_rows(&api.0.service).await?.into_iter();
    let rows = rows.map(|(id, row)| with_load(row, load.get(&id).copied().unwrap_or_default()));
    Seen::by(&api, &caller, DeviceList::new(rows.collect()))
}

fn with_load(row: DeviceRow, load: DeviceLoad) -> DeviceRow {
    let percent = |part: f64| (part * 100.0).round() as u32;
    DeviceRow {
        busy_pct: load.busy.map(percent),
        memory_used_bytes: load.memory_used.map(|used| used.0),
        clock_pct: load.clock.map(|clock| percent(clock.part())),
        ..row
    }
}

/// What can be done to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Drain,
    Undrain,
}

pub async fn change(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    Acting(service): Acting,
    InPath((name, operation)): InPath<(String, Operation)>,
) -> Result<Seen<DeviceRow>, ApiError> {
    caller.check_server(Verb::ServeDevices)?;
    let device = device_named(&api.0.service.topology(), &name)?;
    let wanted = match operation {
        Operation::Drain => Availability::Drained,
        Operation::Undrain => Availability::InService,
    };
    Seen::by(&api, &caller, set_availability(&service, device, wanted).await?)
}
