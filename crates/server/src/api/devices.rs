//! Devices, and taking them out of service.

use axum::Json;
use axum::extract::State as Shared;
use het_service::calls::{Availability, device_named, device_rows, set_availability};
use het_wire::api::{DeviceList, DeviceRow};
use serde::Deserialize;

use super::Api;
use super::auth::{Auth, Verb};
use super::refuse::{ApiError, InPath};

/// What each device gives and how much of it is held.
pub async fn list(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
) -> Result<Json<DeviceList>, ApiError> {
    caller.check_server(Verb::ReadServer)?;
    let rows = device_rows(&api.0.service).await?;
    Ok(Json(DeviceList::new(rows)))
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
    InPath((name, operation)): InPath<(String, Operation)>,
) -> Result<Json<DeviceRow>, ApiError> {
    caller.check_server(Verb::ServeDevices)?;
    let device = device_named(&api.0.service.topology(), &name)?;
    let wanted = match operation {
        Operation::Drain => Availability::Drained,
        Operation::Undrain => Availability::InService,
    };
    Ok(Json(set_availability(&api.0.service, device, wanted).await?))
}
