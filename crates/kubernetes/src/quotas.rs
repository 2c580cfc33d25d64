//! The `Quotas` object of a scheduler: what tenants may have, and whether that holds.

use std::time::Duration;

use futures_util::{StreamExt, pin_mut};
use het_wire::resource::{GROUP, QUOTAS_KIND, QUOTAS_PLURAL, QuotasStatus, VERSION};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{Config, Event};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::leader::Leadership;
use crate::watch::Watches;

/// A connection that says nothing for longer is given up.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// The object as somebody wrote it.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotasObject {
    pub uid: String,
    pub generation: i64,
    /// All of it.
    pub object: Value,
    /// As it was last written; nothing of a new one.
    pub status: QuotasStatus,
}

/// What changed about the object.
#[derive(Debug, Clone, PartialEq)]
pub enum QuotasNews {
    Is(Box<QuotasObject>),
    /// It is not there, or not any more.
    Gone,
}

/// The API of the one object that has a scheduler's name; cheap to clone.
#[derive(Clone)]
pub struct QuotasApi {
    api: Api<DynamicObject>,
    scheduler: String,
    leadership: Leadership,
    threads: Handle,
}

impl std::fmt::Debug for QuotasApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QuotasApi")
    }
}

impl QuotasApi {
    pub(crate) fn new(
        client: Client,
        scheduler: &str,
        leadership: Leadership,
        threads: Handle,
    ) -> Self {
        let api = api(client);
        Self { api, scheduler: scheduler.to_owned(), leadership, threads }
    }

    /// The name of the object.
    pub fn name(&self) -> &str {
        &self.scheduler
    }

    /// Follows it until nobody takes news any more.
    pub(crate) async fn watch(self, watches: Watches, news: mpsc::Sender<QuotasNews>) {
        let one = Config::default().fields(&only(&self.scheduler));
        let events = watches.follow(self.api, &resource(), one);
        pin_mut!(events);
        // Whoever began knows of one, perhaps.
        let (mut is_there, mut is_listed) = (true, false);
        while let Some(event) = events.next().await {
            let tell = match event {
                Ok(Event::Init) => {
                    is_listed = false;
                    None
                }
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    (is_there, is_listed) = (true, true);
                    Some(QuotasNews::Is(Box::new(QuotasObject::of(object))))
                }
                Ok(Event::InitDone) if is_there && !is_listed => {
                    is_there = false;
                    Some(QuotasNews::Gone)
                }
                Ok(Event::Delete(_)) => {
                    is_there = false;
                    Some(QuotasNews::Gone)
                }
                // The stream begins anew by itself.
                Ok(Event::InitDone) | Err(_) => None,
            };
            if let Some(tell) = tell
                && news.send(tell).await.is_err()
            {
                return;
            }
        }
    }

    /// Has an object say whether it holds. Waits for nothing; where that is not heard its next
    /// change says it again.
    pub fn write_status(&self, object: &QuotasObject, status: &QuotasStatus) {
        let change = json!([
            // Another object may have taken its place.
            { "op": "test", "path": "/metadata/uid", "value": object.uid },
            { "op": "add", "path": "/status", "value": status },
        ]);
        let change = serde_json::from_value(change).expect("these are operations");
        let change: Patch<()> = Patch::Json(change);
        let this = self.clone();
        drop(self.threads.spawn(async move {
            let parameters = PatchParams::default();
            let patch = this.api.patch_status(&this.scheduler, &parameters, &change);
            let _ = this.leadership.within_term(REQUEST_MAX, patch).await;
        }));
    }
}

fn api(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &resource())
}

fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, QUOTAS_KIND);
    ApiResource::from_gvk_with_plural(&kind, QUOTAS_PLURAL)
}

/// A field selector: whoever may list them need not be allowed to get one.
fn only(scheduler: &str) -> String {
    format!("metadata.name={scheduler}")
}

/// The object of a scheduler as it is now.
///
/// # Errors
/// When the server does not answer, or knows no such objects.
pub(crate) async fn list(client: Client, scheduler: &str) -> Result<Option<QuotasObject>, Error> {
    let parameters = ListParams::default().fields(&only(scheduler));
    let listed = api(client).list(&parameters).await?;
    Ok(listed.items.into_iter().next().map(QuotasObject::of))
}

impl QuotasObject {
    fn of(object: DynamicObject) -> Self {
        let status = object.data.get("status").cloned().unwrap_or_default();
        Self {
            uid: object.metadata.uid.unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            status: serde_json::from_value(status).unwrap_or_default(),
            object: object.data,
        }
    }
}
