//! What tenants may have.

use std::sync::Arc;

use het_core::{Event, Quotas, Share, State};
use het_wire::api::QuotaRow;

use crate::{CallError, Change, Handle};

/// Those of all tenants.
///
/// # Errors
/// When the replica cannot be reached.
pub async fn quota_rows(handle: &Handle) -> Result<Vec<QuotaRow>, CallError> {
    let items = handle.query(|replica| rows(replica.state())).await?;
    Ok(items)
}

/// From now on these hold, and none that were set before. What is held already stays.
///
/// # Errors
/// When the loop cannot be reached.
pub async fn set_quotas(handle: &Handle, quotas: Quotas) -> Result<(), CallError> {
    let event = Event::QuotasSet { quotas: Arc::new(quotas) };
    Ok(handle.change(move |_| Change { events: vec![event], answer: () }).await?)
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
