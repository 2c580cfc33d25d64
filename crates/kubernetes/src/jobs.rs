//! `TrainingJob` objects: who asks for what, and what they are told.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, pin_mut};
use het_wire::resource::{GROUP, KIND, PLURAL, TrainingJobStatus, VERSION};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::core::{GroupVersionKind, Request};
use kube::runtime::watcher::{Config, Event};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::names::{self, ObjectKey, SCHEDULER, SCHEDULER_LABEL};
use crate::owners::JobOwner;
use crate::watch::Watches;

/// News of jobs that may wait for whoever takes them in.
const NEWS_MAX: usize = 4_096;
/// A job as somebody made it.
#[derive(Debug, Clone, PartialEq)]
pub struct JobObject {
    pub owner: JobOwner,
    pub spec: Value,
    /// As it was last written; nothing of a new job.
    pub status: TrainingJobStatus,
    pub is_deleting: bool,
}

/// What changed about jobs.
#[derive(Debug, Clone, PartialEq)]
pub enum JobNews {
    Is(Box<JobObject>),
    Gone { uid: String },
}

/// The API of the jobs of one scheduler: those whose label names it, and for the usual one those
/// without the label. Cheap to clone.
#[derive(Clone)]
pub struct Jobs {
    client: Client,
    scheduler: Arc<str>,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Jobs")
    }
}

fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, KIND), PLURAL)
}

impl Jobs {
    pub(crate) fn new(client: Client, scheduler: &str) -> Self {
        Self { client, scheduler: scheduler.into() }
    }

    /// `None` of an object without a name, and of other schedulers' jobs.
    fn object(&self, object: DynamicObject) -> Option<JobObject> {
        let is_ours = names::is_for(object.metadata.labels.as_ref(), &self.scheduler);
        is_ours.then(|| JobObject::of(object)).flatten()
    }

    fn all(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource())
    }

    pub(crate) fn within(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &resource())
    }

    /// All that there are.
    ///
    /// # Errors
    /// When the server does not answer, or does not know what a `TrainingJob` is.
    pub async fn list(&self) -> Result<Vec<JobObject>, Error> {
        let listed = self.all().list(&ListParams::default()).await?;
        Ok(listed.items.into_iter().filter_map(|object| self.object(object)).collect())
    }

    /// Makes one.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn create(
        &self,
        namespace: &str,
        name: &str,
        spec: &Value,
    ) -> Result<JobObject, Error> {
        let mut object = DynamicObject::new(name, &resource());
        object.data = json!({ "spec": spec });
        if &*self.scheduler != SCHEDULER {
            let label = (SCHEDULER_LABEL.to_owned(), self.scheduler.to_string());
            object.metadata.labels = Some([label].into());
        }
        let made = self.within(namespace).create(&PostParams::default(), &object).await?;
        Ok(JobObject::of(made).expect("the server gives every object a name"))
    }

    /// Follows them until nobody takes news any more.
    pub(crate) async fn watch(self, watches: Watches, news: mpsc::Sender<JobNews>) {
        let events = watches.follow(self.all(), &resource(), Config::default());
        pin_mut!(events);
        let mut known: BTreeMap<ObjectKey, String> = BTreeMap::new();
        let mut listed: Option<BTreeMap<ObjectKey, String>> = None;
        while let Some(event) = events.next().await {
            let mut tell = Vec::new();
            match event {
                Ok(Event::Init) => listed = Some(BTreeMap::new()),
                Ok(Event::InitDone) => {
                    let now = listed.take().unwrap_or_default();
                    let gone = known.values().filter(|uid| !now.values().any(|it| it == *uid));
                    tell.extend(gone.map(|uid| JobNews::Gone { uid: uid.clone() }));
                    known = now;
                }
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    let key = key_of(&object);
                    match self.object(object) {
                        Some(job) => {
                            let uid = job.owner.uid.clone();
                            listed.as_mut().unwrap_or(&mut known).insert(key, uid);
                            tell.push(JobNews::Is(Box::new(job)));
                        }
                        // Somebody gave it to another scheduler.
                        None => tell.extend(known.remove(&key).map(|uid| JobNews::Gone { uid })),
                    }
                }
                Ok(Event::Delete(object)) => {
                    let gone = known.remove(&key_of(&object));
                    tell.extend(gone.map(|uid| JobNews::Gone { uid }));
                }
                // The stream begins anew by itself.
                Err(_) => {}
            }
            for one in tell {
                if news.send(one).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Makes any object that its API is asked of by this path.
    ///
    /// # Errors
    /// When the server does not take it.
    pub(crate) async fn make(&self, path: String, object: &Value) -> Result<(), Error> {
        let body = object.to_string().into_bytes();
        let request = Request::new(path).create(&PostParams::default(), body);
        let made: Result<Value, Error> =
            self.client.request(request.map_err(Error::BuildRequest)?).await;
        made.map(drop)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(crate) fn scheduler(&self) -> &str {
        &self.scheduler
    }

    /// An object as it is now, with its version; `None` where another has its name.
    ///
    /// # Errors
    /// When it is not there, or the server does not answer.
    pub(crate) async fn get(&self, owner: &JobOwner) -> Result<Option<(JobObject, String)>, Error> {
        let object = self.within(&owner.namespace).get(&owner.name).await?;
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        let object = JobObject::of(object).filter(|object| object.owner.uid == owner.uid);
        Ok(object.map(|object| (object, version)))
    }
}

pub(crate) fn news() -> (mpsc::Sender<JobNews>, mpsc::Receiver<JobNews>) {
    mpsc::channel(NEWS_MAX)
}

impl JobObject {
    /// `None` of an object without a name.
    fn of(mut object: DynamicObject) -> Option<Self> {
        let status = object.data.get_mut("status").map(Value::take).unwrap_or_default();
        Some(Self {
            owner: JobOwner {
                namespace: object.metadata.namespace.unwrap_or_default(),
                name: object.metadata.name?,
                uid: object.metadata.uid.unwrap_or_default(),
            },
            spec: object.data.get_mut("spec").map(Value::take).unwrap_or_default(),
            // What an earlier version wrote and this one cannot read is written anew.
            status: serde_json::from_value(status).unwrap_or_default(),
            is_deleting: object.metadata.deletion_timestamp.is_some(),
        })
    }
}

fn key_of(object: &DynamicObject) -> ObjectKey {
    ObjectKey {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}
