//! What tenants may have.

use axum::extract::State as Shared;
use het_service::calls::{quota_rows, set_quotas};
use het_wire::api::{QuotaList, QuotasText};
use het_wire::quotas::parse;

use super::auth::{Auth, Verb};
use super::refuse::{ApiError, Body};
use super::requester::Acting;
use super::seen::Seen;
use super::{Api, Code, FILE_BYTES_MAX};

/// Those of tenants that the caller may see.
pub async fn list(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
) -> Result<Seen<QuotaList>, ApiError> {
    Seen::by(&api, &caller, QuotaList::new(quota_rows(&api.0.service).await?))
}

/// From now on these hold, and none that were set before. What is held already stays.
pub async fn set(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    Acting(service): Acting,
    Body(text): Body<QuotasText>,
) -> Result<Seen<QuotaList>, ApiError> {
    caller.check_server(Verb::SetQuotas)?;
    if let Some(name) = api.0.cluster.as_ref().and_then(|cluster| cluster.quotas()) {
        let message = format!("the object `{name}` says what tenants may have");
        let hint = format!("change it: kubectl edit quotas.heterosis.dev {name}");
        return Err(ApiError::new(Code::NotAllowed, message).hint(hint));
    }
    if text.file.len() > FILE_BYTES_MAX {
        let message = format!("the quota file is longer than {FILE_BYTES_MAX} bytes");
        return Err(ApiError::new(Code::TooLarge, message));
    }
    let quotas = parse(&text.file, &text.source, &api.0.service.topology())
        .map_err(|problems| ApiError::new(Code::BadJobFile, problems.to_string()))?;
    set_quotas(&service, quotas).await?;
    Seen::by(&api, &caller, QuotaList::new(quota_rows(&api.0.service).await?))
}
