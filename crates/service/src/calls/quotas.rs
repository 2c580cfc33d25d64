//! What tenants may have.

use std::sync::Arc;

use het_core::{Bytes, Event, Priority, Quotas, Share, State};
use het_wire::api::QuotaRow;

use crate::{CallError, Caller, Change, Code, Handle, Verb, Whose, may};

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

/// Whether a caller may ask for this priority for a job of a tenant.
///
/// # Errors
/// When quotas allow less, to whoever administers no jobs of others.
pub async fn check_priority(
    handle: &Handle,
    caller: &Caller,
    tenant: &str,
    priority: Priority,
) -> Result<(), CallError> {
    if priority <= Priority::Normal || may(caller.role, Verb::ChangeJobs, Whose::Others) {
        return Ok(());
    }
    let name = tenant.to_owned();
    let most = handle.query(move |replica| replica.state().quotas().priority_max(&name)).await?;
    if priority <= most {
        return Ok(());
    }
    let text = format!("jobs of `{tenant}` have priority `{most}` at most");
    Err(CallError::new(Code::NotAllowed, text)
        .hint("ask for less, or an operator for `het set JOB --priority`"))
}

/// The disk space that a rank of a tenant's jobs may take up, where it has a limit.
///
/// # Errors
/// When a caller asks for more, who administers no jobs of others.
pub async fn scratch_max(
    handle: &Handle,
    caller: &Caller,
    tenant: &str,
    asked: Option<Bytes>,
) -> Result<Option<Bytes>, CallError> {
    let name = tenant.to_owned();
    let most = handle.query(move |replica| replica.state().quotas().scratch_max(&name)).await?;
    match (most, asked) {
        (Some(most), Some(asked))
            if asked > most && !may(caller.role, Verb::ChangeJobs, Whose::Others) =>
        {
            let text = format!("jobs of `{tenant}` have {most} of `scratch` a rank at most");
            Err(CallError::new(Code::NotAllowed, text)
                .hint("ask for less, or an administrator for `scratch_max` in the quotas"))
        }
        _ => Ok(most),
    }
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
