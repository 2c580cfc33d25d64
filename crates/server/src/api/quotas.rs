//! What tenants may have.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Shared;
use het_core::{Event, Share, State};
use het_wire::api::{QuotaList, QuotaRow, QuotasText};
use het_wire::quotas::parse;

use super::auth::{Caller, Verb};
use super::refuse::{ApiError, Code, Sent};
use super::{Api, FILE_BYTES_MAX};
use crate::service::Asked;

/// Those of tenants that the caller may see.
pub async fn list(Shared(api): Shared<Api>, caller: Caller) -> Result<Json<QuotaList>, ApiError> {
    let mut items = api.0.desk.look(|control| rows(control.state())).await?;
    items.retain(|row| caller.may(Verb::ReadQuotas, &row.tenant));
    Ok(Json(QuotaList::new(items)))
}

/// From now on these hold, and none that were set before. What is held already stays.
pub async fn set(
    Shared(api): Shared<Api>,
    caller: Caller,
    Sent(text): Sent<QuotasText>,
) -> Result<Json<QuotaList>, ApiError> {
    caller.check_server(Verb::SetQuotas)?;
    if text.file.len() > FILE_BYTES_MAX {
        let message = format!("the quota file is longer than {FILE_BYTES_MAX} bytes");
        return Err(ApiError::new(Code::TooLarge, message));
    }
    let quotas = parse(&text.file, &text.source, &api.0.topology)
        .map_err(|problems| ApiError::new(Code::BadJobFile, problems.to_string()))?;
    let event = Event::QuotasSet { quotas: Arc::new(quotas) };
    api.0.desk.tell(move |_| Asked { events: vec![event], answer: () }).await?;
    Ok(Json(QuotaList::new(api.0.desk.look(|control| rows(control.state())).await?)))
}

fn rows(state: &State) -> Vec<QuotaRow> {
    let topology = state.topology();
    let units = |share: Option<Share>| share.map(Share::whole_units);
    let tenants = state.quotas().tenants.iter();
    let rows = tenants.flat_map(|(tenant, quota)| {
        quota.classes.iter().map(move |(class, of_class)| {
            let index = topology.classes.iter().position(|known| known.id == *class);
            let used = index.and_then(|index| state.used(tenant.as_str())?.get(index).copied());
            QuotaRow {
                tenant: tenant.to_string(),
                weight: quota.weight,
                class: class.to_string(),
                quota: units(of_class.entitled),
                limit: units(of_class.limit),
                held: used.unwrap_or(Share::ZERO).whole_units(),
            }
        })
    });
    rows.collect()
}
