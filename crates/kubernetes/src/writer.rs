//! What is written to the API server. Each write may be made twice and is made once: names are
//! fixed, and what is already there is looked at.

mod claims;
mod groups;
mod workloads;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::{StreamExt, pin_mut, stream};
use het_core::{LeaseId, Millis, Name};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{Request, Status};
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::channel::{Message, Sender};
use crate::client::{CONFLICT, NOT_FOUND};
use crate::conditions::ForeignConditions;
use crate::dra::DeviceBook;
use crate::leader::Leadership;
use crate::names::{self, Binding, HOSTNAME, ObjectKey, Scheduler};
use crate::objects::{self, PodObject, PodRow};
use crate::owners::JobOwner;
use crate::pods::{self, Objects, Pod};
use crate::statuses::{NotNamed, Statuses};

/// Requests under way at once.
const REQUESTS_MAX: usize = 128;
/// Of one gang.
const GANG_REQUESTS_MAX: usize = 32;
/// Between two tries of a request that the server could not take; doubled up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

const INTERNAL: u16 = 500;
/// A connection that says nothing for longer is given up.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// Writes for one scheduler; cheap to clone.
#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    scheduler: Scheduler,
    sender: Sender,
    leadership: Leadership,
    statuses: Statuses,
    conditions: ForeignConditions,
    book: DeviceBook,
    requests: Arc<Semaphore>,
}

/// Whether a gang that is being made is still wanted; shared with whoever makes it.
#[derive(Debug, Clone)]
pub(crate) struct Wanted(watch::Sender<bool>);

impl Default for Wanted {
    fn default() -> Self {
        Self(watch::channel(true).0)
    }
}

impl Wanted {
    pub fn no_more(&self) {
        self.0.send_replace(false);
    }

    fn is_over(&self) -> bool {
        !*self.0.borrow()
    }

    async fn over(&self) {
        let _ = self.0.subscribe().wait_for(|is_wanted| !is_wanted).await;
    }
}

/// The lease for which a gang is made, and the status that has to name it before.
#[derive(Debug, Clone)]
pub(crate) struct Right {
    pub lease: LeaseId,
    pub wanted: Wanted,
    /// The uid of the job's object; nobody is told of a job that has none.
    pub job: Option<String>,
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
    pub fn new(
        client: Client,
        scheduler: Scheduler,
        sender: Sender,
        (leadership, statuses, conditions): (Leadership, Statuses, ForeignConditions),
        book: DeviceBook,
    ) -> Self {
        let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
        Self { client, scheduler, sender, leadership, statuses, conditions, book, requests }
    }

    fn pods(&self, namespace: &str) -> Api<PodObject> {
        Api::namespaced_with(self.client.clone(), namespace, &objects::pods())
    }

    /// Makes all pods of a gang, then gives each its node. Says what was made.
    pub async fn begin(self, right: Right, namespace: String, objects: Objects) {
        let mut made: BTreeMap<String, Made> = BTreeMap::new();
        let lease = right.lease;
        let refused = match self.is_named(&right).await {
            Ok(()) => self.try_begin((lease, &right.wanted), &namespace, &objects, &mut made).await,
            Err(refused) => Err(refused),
        };
        if refused.is_ok() {
            self.tell_others(&namespace, &objects);
        }
        let refused = match refused {
            Ok(()) | Err(Refusal::Stopped) => None,
            Err(Refusal::For(reason)) => Some(reason),
        };
        let uid_of = |pod: &Pod| made.get(&pod.name).map(|made| made.uid.clone());
        let made = objects.pods.iter().map(uid_of).collect();
        self.sender.send(Message::Begun { lease, made, refused }).await;
    }

    /// Tells pods of others that they have their nodes.
    fn tell_others(&self, namespace: &str, objects: &Objects) {
        for pod in &objects.pods {
            if let pods::PodObject::Of { uid, .. } = &pod.object {
                let (name, uid) = (pod.name.clone(), uid.clone());
                let owner = JobOwner { namespace: namespace.to_owned(), name, uid };
                self.conditions.scheduled(owner, pod.node.clone());
            }
        }
    }

    /// Waits until the status of the job names the lease: a successor knows nothing else of it.
    async fn is_named(&self, right: &Right) -> Result<(), Refusal> {
        let Some(job) = &right.job else { return Ok(()) };
        let named = self.statuses.names(job, right.lease);
        let over = right.wanted.over();
        pin_mut!(named, over);
        match select(named, over).await {
            Either::Left((Ok(()), _)) => Ok(()),
            Either::Left((Err(NotNamed::Gone), _)) => {
                Err(Refusal::For("the job's object is not there any more".to_owned()))
            }
            Either::Left((Err(NotNamed::Refused(why)), _)) => Err(Refusal::For(why)),
            Either::Right(_) => Err(Refusal::Stopped),
        }
    }

    async fn try_begin(
        &self,
        (lease, wanted): (LeaseId, &Wanted),
        namespace: &str,
        objects: &Objects,
        made: &mut BTreeMap<String, Made>,
    ) -> Result<(), Refusal> {
        if let Some(group) = &objects.group {
            self.make_group(namespace, group, wanted).await?;
        }
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
        // A gang that does not get all of its devices gets no node.
        let allocations = (0..pods.len()).map(|at| async move {
            self.allocate(namespace, (&pods[at], &made[&pods[at].name]), wanted).await
        });
        self.each(allocations).await?;
        let binds = (0..pods.len()).map(|at| async move {
            self.give_node(namespace, &pods[at], &made[&pods[at].name], wanted).await
        });
        self.each(binds).await
    }

    /// # Errors
    /// The first of any.
    async fn each(
        &self,
        acts: impl Iterator<Item = impl Future<Output = Result<(), Refusal>>>,
    ) -> Result<(), Refusal> {
        let mut results = stream::iter(acts).buffer_unordered(GANG_REQUESTS_MAX);
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
        let object = match &pod.object {
            pods::PodObject::New(object) => object,
            pods::PodObject::Of { uid, .. } => return Ok(Made { uid: uid.clone(), node: None }),
        };
        let what = format!("pod `{}`", pod.name);
        let create = || self.create::<PodObject>(namespace, "pods", object);
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

    /// Gives a pod its node, or sees to it that kube-scheduler does.
    async fn give_node(
        &self,
        namespace: &str,
        pod: &Pod,
        made: &Made,
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        match (self.scheduler.binding, &pod.object) {
            (Binding::Own, _) => self.bind(namespace, pod, made, wanted).await,
            // It was made for its node alone.
            (Binding::KubeScheduler, pods::PodObject::New(_)) => Ok(()),
            (Binding::KubeScheduler, pods::PodObject::Of { uid, hostname }) => {
                self.remove_gate(namespace, &pod.name, (uid, hostname, &pod.node), wanted).await
            }
        }
    }

    /// Removes the gate of a pod, which may stand on one node alone from then on.
    async fn remove_gate(
        &self,
        namespace: &str,
        name: &str,
        (uid, hostname, node): (&str, &str, &str),
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        let change = json!({
            "metadata": {
                // Another pod may have taken its place.
                "uid": uid,
                "labels": { names::SCHEDULER_LABEL: &*self.scheduler.name },
                "annotations": {
                    names::EPOCH: self.leadership.epoch().to_string(), names::NODE: node,
                },
            },
            "spec": { "schedulingGates": null, "nodeSelector": { HOSTNAME: hostname } },
        });
        let (api, change) = (self.pods(namespace), Patch::Merge(change));
        let parameters = PatchParams::default();
        let patched = self.tried(wanted, || api.patch(name, &parameters, &change)).await;
        patched.map(drop).map_err(|tried| tried.refusal(&format!("the gate of pod `{name}`")))
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
            "metadata": {
                "name": pod.name, "uid": made.uid,
                "labels": { names::SCHEDULER_LABEL: &*self.scheduler.name },
                "annotations": { names::EPOCH: self.leadership.epoch().to_string() },
            },
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

    /// Deletes pods, each within a grace or its own and only the one of its uid. Goes on until the
    /// server has taken it.
    pub async fn delete(self, pods: Vec<(ObjectKey, String)>, grace: Option<Millis>) {
        let (this, wanted) = (&self, &Wanted::default());
        let deletes = pods.into_iter().map(|(key, uid)| async move {
            let parameters = DeleteParams {
                grace_period_seconds: grace.map(|grace| grace.0.div_ceil(1_000) as u32),
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

    /// Evicts a pod of somebody else, within its own grace. Its disruption budgets are heard: where
    /// one does not allow it now, that is said once, and it is tried until one does.
    pub async fn evict(self, pod: JobOwner) {
        let JobOwner { namespace, name, uid } = &pod;
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": name, "namespace": namespace },
            "deleteOptions": { "preconditions": { "uid": uid } },
        });
        let (plural, is_told) = (format!("pods/{name}/eviction"), AtomicBool::new(false));
        let evict = || async {
            let answer = self.create::<Value>(namespace, &plural, &eviction).await;
            let evicted = answer.and_then(failure_in);
            if let Err(Error::Api(status)) = &evicted
                && is_against_budget(status)
                && !is_told.swap(true, Ordering::Relaxed)
            {
                self.conditions.not_evicted(pod.clone(), status.message.clone());
            }
            evicted
        };
        let _ = self.tried_until(&Wanted::default(), is_of_another, evict).await;
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
            // Whoever leads next goes on with it.
            let Some(left) = self.leadership.left() else { return Err(Tried::Stopped) };
            let result = timeout(REQUEST_MAX.min(left), request()).await;
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

/// The failure that the body of an answer says, whatever its code says: of several budgets for one
/// pod the API server answers so.
fn failure_in(answer: Value) -> Result<(), Error> {
    if answer["status"] != "Failure" {
        return Ok(());
    }
    let status: Status = serde_json::from_value(answer).map_err(Error::SerdeError)?;
    Err(Error::Api(Box::new(status)))
}

/// Whether a disruption budget does not allow it, or the server cannot tell: of several budgets for
/// one pod it never can.
fn is_against_budget(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let is_of_budget = causes.into_iter().any(|cause| cause.reason == "DisruptionBudget");
    is_of_budget || status.code == INTERNAL
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
