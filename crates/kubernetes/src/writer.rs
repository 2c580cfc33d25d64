//! What is written to the API server. Each write may be made twice and is made once: names are
//! fixed, and what is already there is looked at.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use het_core::{LeaseId, Millis, Name};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::channel::{Message, Sender};
use crate::objects::{self, ObjectKey, PodObject, PodRow};
use crate::pods::{Objects, Pod};

/// Requests under way at once.
const REQUESTS_MAX: usize = 128;
/// Of one gang.
const GANG_REQUESTS_MAX: usize = 32;
/// Between two tries of a request that the server could not take; doubled up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

const CONFLICT: u16 = 409;
const NOT_FOUND: u16 = 404;
/// A connection that says nothing for longer is given up.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// Writes for one scheduler; cheap to clone.
#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    scheduler: Arc<str>,
    sender: Sender,
    requests: Arc<Semaphore>,
}

/// Whether a gang that is being made is still wanted; shared with whoever makes it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted(Arc<AtomicBool>);

impl Wanted {
    pub fn no_more(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A pod that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Made {
    uid: String,
    /// It has a node already.
    node: Option<Name>,
}

impl Made {
    fn of(row: PodRow) -> Self {
        Self { uid: row.uid, node: row.node }
    }
}

/// Why a gang cannot begin.
enum Refusal {
    /// Somebody stopped it.
    Stopped,
    /// One sentence for people.
    For(String),
}

impl Writer {
    pub fn new(client: Client, scheduler: &str, sender: Sender) -> Self {
        let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
        Self { client, scheduler: scheduler.into(), sender, requests }
    }

    fn pods(&self, namespace: &str) -> Api<PodObject> {
        Api::namespaced_with(self.client.clone(), namespace, &objects::pods())
    }

    /// Makes all pods of a gang, then gives each its node. Says what was made.
    pub async fn begin(
        self,
        (lease, wanted): (LeaseId, Wanted),
        namespace: String,
        objects: Objects,
    ) {
        let mut made: BTreeMap<String, Made> = BTreeMap::new();
        let refused = self.try_begin((lease, &wanted), &namespace, &objects, &mut made).await;
        let refused = match refused {
            Ok(()) | Err(Refusal::Stopped) => None,
            Err(Refusal::For(reason)) => Some(reason),
        };
        let uid_of = |pod: &Pod| made.get(&pod.name).map(|made| made.uid.clone());
        let made = objects.pods.iter().map(uid_of).collect();
        self.sender.send(Message::Begun { lease, made, refused }).await;
    }

    async fn try_begin(
        &self,
        (lease, wanted): (LeaseId, &Wanted),
        namespace: &str,
        objects: &Objects,
        made: &mut BTreeMap<String, Made>,
    ) -> Result<(), Refusal> {
        if let Some(service) = &objects.service {
            self.make_service(namespace, service, wanted).await?;
        }
        let pods = &objects.pods;
        let makes = (0..pods.len()).map(|at| async move {
            (at, self.make_pod(lease, namespace, &pods[at], wanted).await)
        });
        let mut results = stream::iter(makes).buffer_unordered(GANG_REQUESTS_MAX);
        let mut refused = None;
        while let Some((at, result)) = results.next().await {
            match result {
                Ok(one) => drop(made.insert(pods[at].name.clone(), one)),
                Err(why) => drop(refused.get_or_insert(why)),
            }
        }
        if let Some(why) = refused {
            return Err(why);
        }
        let made = &*made;
        let binds = (0..pods.len()).map(|at| async move {
            self.bind(namespace, &pods[at], &made[&pods[at].name], wanted).await
        });
        let mut results = stream::iter(binds).buffer_unordered(GANG_REQUESTS_MAX);
        while let Some(result) = results.next().await {
            result?;
        }
        Ok(())
    }

    async fn make_service(
        &self,
        namespace: &str,
        service: &Value,
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        match self.tried(wanted, || self.create::<Value>(namespace, "services", service)).await {
            Ok(_) => Ok(()),
            Err(Tried::Refused(Error::Api(status))) if status.code == CONFLICT => Ok(()),
            Err(tried) => Err(tried.refusal("the service of the gang")),
        }
    }

    async fn make_pod(
        &self,
        lease: LeaseId,
        namespace: &str,
        pod: &Pod,
        wanted: &Wanted,
    ) -> Result<Made, Refusal> {
        let what = format!("pod `{}`", pod.name);
        let create = || self.create::<PodObject>(namespace, "pods", &pod.object);
        match self.tried(wanted, create).await {
            Ok(made) => Ok(Made::of(self.row(made))),
            Err(Tried::Refused(Error::Api(status))) if status.code == CONFLICT => {
                let there = self.tried(wanted, || self.get(namespace, &pod.name)).await;
                let there = there.map_err(|tried| tried.refusal(&what))?;
                match there.lease() == Some(lease) && !there.is_deleting {
                    true => Ok(Made::of(there)),
                    false => Err(Refusal::For(format!("{what} is there already"))),
                }
            }
            Err(tried) => Err(tried.refusal(&what)),
        }
    }

    fn row(&self, pod: PodObject) -> PodRow {
        PodRow::of(pod, &self.scheduler).expect("the server gives every object a name")
    }

    async fn create<T: DeserializeOwned>(
        &self,
        namespace: &str,
        plural: &str,
        object: &Value,
    ) -> Result<T, Error> {
        let path = format!("/api/v1/namespaces/{namespace}/{plural}");
        let body = object.to_string().into_bytes();
        let request = Request::new(path).create(&PostParams::default(), body);
        self.client.request(request.map_err(Error::BuildRequest)?).await
    }

    async fn bind(
        &self,
        namespace: &str,
        pod: &Pod,
        made: &Made,
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        if made.node.as_ref().is_some_and(|node| node.as_str() == pod.node) {
            return Ok(());
        }
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": pod.name, "uid": made.uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": pod.node },
        });
        let what = format!("pod `{}` on node `{}`", pod.name, pod.node);
        let plural = format!("pods/{}/binding", pod.name);
        match self.tried(wanted, || self.create::<Value>(namespace, &plural, &binding)).await {
            Ok(_) => Ok(()),
            // The answer to an earlier try may have been lost.
            Err(Tried::Refused(Error::Api(status))) if status.code == CONFLICT => {
                let there = self.tried(wanted, || self.get(namespace, &pod.name)).await;
                match there.map_err(|tried| tried.refusal(&what))? {
                    row if row.node.as_ref().is_some_and(|node| node.as_str() == pod.node) => {
                        Ok(())
                    }
                    _ => Err(Refusal::For(format!("{what}: {}", status.message))),
                }
            }
            Err(tried) => Err(tried.refusal(&what)),
        }
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<PodRow, Error> {
        Ok(self.row(self.pods(namespace).get(name).await?))
    }

    /// Deletes pods, each within a grace and only the one of its uid. Goes on until the server has
    /// taken it.
    pub async fn delete(self, pods: Vec<(ObjectKey, String)>, grace: Millis) {
        let (this, wanted) = (&self, &Wanted::default());
        let deletes = pods.into_iter().map(|(key, uid)| async move {
            let parameters = DeleteParams {
                grace_period_seconds: Some(grace.0.div_ceil(1_000) as u32),
                preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
                ..DeleteParams::default()
            };
            let api = this.pods(&key.namespace);
            // Gone, or replaced by another of its name: neither is ours to delete.
            let delete = || api.delete(&key.name, &parameters);
            let _ = this.tried_until(wanted, is_of_another, delete).await;
        });
        stream::iter(deletes).buffer_unordered(GANG_REQUESTS_MAX).collect::<()>().await;
    }

    /// Deletes the service of a gang that has ended: its name is of that attempt alone.
    pub async fn delete_service(self, key: ObjectKey) {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        let (wanted, parameters) = (Wanted::default(), DeleteParams::default());
        // Perhaps it was never made.
        let delete = || api.delete(&key.name, &parameters);
        let _ = self.tried_until(&wanted, is_of_another, delete).await;
    }

    /// Looks at a pod of which nobody has heard.
    pub async fn look(self, lease: LeaseId, rank: u32, key: ObjectKey) {
        let wanted = Wanted::default();
        let get = || self.get(&key.namespace, &key.name);
        let row = self.tried_until(&wanted, is_of_another, get).await;
        let row = row.ok().map(Box::new);
        let message = Message::Looked { lease, rank, row };
        self.sender.send(message).await;
    }

    /// Makes a request until the server has taken or refused it, or nobody wants it any more.
    async fn tried<T, F: Future<Output = Result<T, Error>>>(
        &self,
        wanted: &Wanted,
        request: impl Fn() -> F,
    ) -> Result<T, Tried> {
        self.tried_until(wanted, is_final, request).await
    }

    async fn tried_until<T, F: Future<Output = Result<T, Error>>>(
        &self,
        wanted: &Wanted,
        is_final: fn(&Error) -> bool,
        request: impl Fn() -> F,
    ) -> Result<T, Tried> {
        let mut pause = PAUSE;
        while !wanted.is_over() {
            let permit = self.requests.acquire().await.expect("it is never closed");
            let result = timeout(REQUEST_MAX, request()).await;
            drop(permit);
            match result {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) if is_final(&error) => return Err(Tried::Refused(error)),
                Ok(Err(_)) | Err(_) => sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Err(Tried::Stopped)
    }
}

/// Why a request has no answer.
enum Tried {
    Stopped,
    Refused(Error),
}

impl Tried {
    fn refusal(self, what: &str) -> Refusal {
        match self {
            Self::Stopped => Refusal::Stopped,
            Self::Refused(Error::Api(status)) => {
                Refusal::For(format!("{what} was refused: {}", status.message))
            }
            Self::Refused(error) => Refusal::For(format!("{what} was refused: {error}")),
        }
    }
}

/// Whether what was meant is not there any more. Whatever else is said may be said no more later:
/// what has to go is not left because rights were missing for a while.
fn is_of_another(error: &Error) -> bool {
    matches!(error, Error::Api(status) if matches!(status.code, NOT_FOUND | CONFLICT))
}

/// Whether the same request would be refused again.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Api(status) => matches!(status.code, 400..=428 | 430..=499) && status.code != 408,
        Error::SerdeError(_) | Error::BuildRequest(_) => true,
        _ => false,
    }
}
