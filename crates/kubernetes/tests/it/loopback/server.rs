//! The API server: what is asked of it is carried out or goes wrong, and all writes are noted.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower_service::Service;

use super::ask::{Ask, Verb, text};
use super::body::Answer;
use super::faults::{Fault, Faults, Tally};
use super::kubelet::Programs;
use super::pods;
use super::store::{Key, Kind, Store, failure};

/// The scheduler, and its Lease.
pub const SCHEDULER: &str = "heterosis";
pub const NAMESPACE: &str = "default";

/// A write as it was answered.
#[derive(Debug)]
pub struct Write {
    pub verb: Verb,
    pub key: Key,
    /// Which leader says that it wrote it.
    pub epoch: Option<u64>,
    /// The newest epoch then.
    pub newest: u64,
    pub code: u16,
    pub is_late: bool,
}

impl Write {
    /// One line for people.
    pub fn told(&self) -> String {
        let Self { verb, key, epoch, newest, code, is_late } = self;
        let late = if *is_late { "late, " } else { "" };
        let epoch = epoch.map_or(String::new(), |epoch| format!("epoch {epoch} of {newest}, "));
        format!("{verb:?} {:?} {}/{}: {late}{epoch}{code}", key.kind, key.namespace, key.name)
    }

    /// Which law of leaders it broke.
    pub fn breach(&self) -> Option<String> {
        let is_fenced =
            self.verb == Verb::Bind || (self.verb == Verb::Create && self.key.kind == Kind::Pod);
        if !is_fenced || self.code >= 300 {
            return None;
        }
        match self.epoch {
            Some(epoch) if epoch >= self.newest => None,
            _ => Some(format!("the server took {self:?}")),
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Server(Arc<Mutex<Inner>>);

pub struct Inner {
    pub store: Store,
    pub faults: Faults,
    pub programs: Programs,
    pub writes: Vec<Write>,
    /// Of connections that broke.
    late: Vec<Ask>,
    /// By the uid of a job's object: all leases that its status ever named.
    named: BTreeMap<String, BTreeSet<u64>>,
    /// Laws that were broken.
    pub broken: Vec<String>,
}

enum Reply {
    Object(u16, Value),
    Stream(Answer),
}

impl Reply {
    fn failure(code: u16, reason: &str, message: &str) -> Self {
        Self::Object(code, failure(code, reason, message))
    }

    fn not_found(key: &Key) -> Self {
        Self::failure(404, "NotFound", &format!("\"{}\" not found", key.name))
    }

    fn conflict(reason: &str, message: &str) -> Self {
        Self::failure(409, reason, message)
    }

    fn code(&self) -> u16 {
        match self {
            Self::Object(code, _) => *code,
            Self::Stream(_) => 200,
        }
    }

    fn response(self) -> Response<Answer> {
        let code = self.code();
        let answer = match self {
            Self::Object(_, object) => Answer::Whole(Some(object.to_string().into())),
            Self::Stream(answer) => answer,
        };
        let response = Response::builder().status(code).body(answer);
        response.expect("it is a code of HTTP")
    }
}

impl Server {
    pub fn new(faults: Faults, programs: Programs) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            store: Store::default(),
            faults,
            programs,
            writes: Vec::new(),
            late: Vec::new(),
            named: BTreeMap::new(),
            broken: Vec::new(),
        })))
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, ask: &Ask) -> io::Result<Response<Answer>> {
        let mut inner = self.lock();
        let lost = || Err(io::Error::from(io::ErrorKind::ConnectionReset));
        match inner.faults.of_request(ask) {
            Some(Fault::Refused(code)) => {
                let reply = Reply::failure(code, "ServerTimeout", "try again later");
                inner.note(ask, code, false);
                Ok(reply.response())
            }
            Some(Fault::Lost) => {
                inner.carry_out(ask, false);
                lost()
            }
            Some(Fault::LostAs(code)) => {
                inner.carry_out(ask, false);
                Ok(Reply::failure(code, "Timeout", "it took too long").response())
            }
            Some(Fault::Late) => {
                inner.late.push(ask.clone());
                lost()
            }
            Some(Fault::Stale(by)) => {
                let version = inner.store.version().saturating_sub(by);
                let list = inner.store.list(ask.key.kind, &ask.key.namespace, version);
                Ok(Reply::Object(200, list).response())
            }
            None => Ok(inner.carry_out(ask, false).response()),
        }
    }
}

impl Service<Request<Body>> for Server {
    type Response = Response<Answer>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Response<Answer>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.map_err(io::Error::other)?;
            if head.uri.path().ends_with("/events") {
                // What people read has no part in what holds.
                return Ok(Reply::Object(201, json!({})).response());
            }
            let ask = Ask::of(&head.method, &head.uri, &body);
            let ask = ask.unwrap_or_else(|| panic!("not known: {} {}", head.method, head.uri));
            this.answer(&ask)
        })
    }
}

impl Inner {
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.faults.tally)
    }

    /// Carries out what was sent long ago.
    pub fn deliver_late(&mut self) {
        for ask in std::mem::take(&mut self.late) {
            self.carry_out(&ask, true);
        }
    }

    /// The epoch that the Lease says; 0 where nobody leads.
    pub fn newest_epoch(&self) -> u64 {
        let lease = self.store.get(&Key::new(Kind::Lease, NAMESPACE, SCHEDULER));
        lease.map_or(0, |lease| lease["spec"]["leaseTransitions"].as_u64().unwrap_or(0) + 1)
    }

    /// The time of the leader before is over.
    pub fn expire_lease(&mut self) {
        let key = Key::new(Kind::Lease, NAMESPACE, SCHEDULER);
        if self.store.get(&key).is_some() {
            self.store.update(&key, |lease| lease["spec"]["holderIdentity"] = json!(""));
        }
    }

    fn note(&mut self, ask: &Ask, code: u16, is_late: bool) {
        if ask.verb.writes() {
            let (epoch, newest) = (ask.epoch(), self.newest_epoch());
            let (verb, key) = (ask.verb, ask.key.clone());
            self.writes.push(Write { verb, key, epoch, newest, code, is_late });
        }
    }

    fn carry_out(&mut self, ask: &Ask, is_late: bool) -> Reply {
        let reply = match ask.verb {
            Verb::Get => match self.store.get(&ask.key) {
                Some(object) => Reply::Object(200, Value::clone(object)),
                None => Reply::not_found(&ask.key),
            },
            Verb::List => {
                let version = self.store.version();
                Reply::Object(200, self.store.list(ask.key.kind, &ask.key.namespace, version))
            }
            Verb::Watch => {
                let cut = self.faults.of_watch(ask);
                Reply::Stream(self.store.watch(ask.key.kind, ask.after, cut))
            }
            Verb::Create => self.create(ask),
            Verb::Bind => self.bind(ask),
            Verb::Delete => self.delete(ask),
            Verb::Patch => self.patch(ask),
            Verb::Replace => self.replace(ask),
        };
        self.note(ask, reply.code(), is_late);
        reply
    }

    /// As the ValidatingAdmissionPolicy among the manifests has it.
    fn fence(&mut self, ask: &Ask) -> Option<Reply> {
        let scheduler = text(&ask.body, "/metadata/labels/heterosis.dev~1scheduler");
        let is_stale = ask.epoch().is_some_and(|epoch| epoch < self.newest_epoch());
        if scheduler != Some(SCHEDULER) || !is_stale {
            return None;
        }
        self.faults.count("writes of a stale epoch");
        Some(Reply::failure(403, "Forbidden", "another server leads since the one that made this"))
    }

    fn create(&mut self, ask: &Ask) -> Reply {
        let mut object = ask.body.clone();
        if ask.key.kind == Kind::Pod {
            if let Some(refusal) = self.fence(ask) {
                return refusal;
            }
            if self.faults.exceeds_quota(&ask.key.name) {
                return Reply::failure(403, "Forbidden", "exceeded quota");
            }
            object["status"] = json!({ "phase": "Pending" });
        }
        if self.store.get(&ask.key).is_some() {
            return Reply::conflict("AlreadyExists", &format!("\"{}\" exists", ask.key.name));
        }
        let made = self.store.create(ask.key.clone(), object);
        if ask.key.kind == Kind::Pod {
            self.check_named(&made);
        }
        Reply::Object(201, Value::clone(&made))
    }

    /// Nothing is made for a lease before the status of its job names it.
    fn check_named(&mut self, pod: &Value) {
        let Some(job) = pods::owner_of(pod) else { return };
        let lease = pods::lease_of(pod);
        let names = |leases: &BTreeSet<u64>| lease.is_some_and(|lease| leases.contains(&lease));
        if !self.named.get(job).is_some_and(names) {
            let name = text(pod, "/metadata/name").unwrap_or_default();
            self.broken.push(format!("pod {name} was made before a status named its lease"));
        }
    }

    fn bind(&mut self, ask: &Ask) -> Reply {
        if let Some(refusal) = self.fence(ask) {
            return refusal;
        }
        let Some(pod) = self.store.get(&ask.key).cloned() else {
            return Reply::not_found(&ask.key);
        };
        let uid = text(&ask.body, "/metadata/uid");
        if uid.is_some() && uid != text(&pod, "/metadata/uid") {
            return Reply::conflict("Conflict", "the uid is another pod's");
        }
        if pods::is_deleting(&pod) {
            return Reply::conflict("Conflict", "the pod is being deleted");
        }
        if let Some(node) = pods::node_of(&pod) {
            return Reply::conflict("Conflict", &format!("the pod is assigned to {node} already"));
        }
        let node = text(&ask.body, "/target/name").unwrap_or_default().to_owned();
        self.store.update(&ask.key, |pod| pod["spec"]["nodeName"] = json!(node));
        self.check_bound(&ask.key, &node);
        Reply::Object(201, json!({ "kind": "Status", "status": "Success", "code": 201 }))
    }

    /// A node runs no more than it has, and a rank of a lease runs once.
    fn check_bound(&mut self, key: &Key, node: &str) {
        let pod = Arc::clone(self.store.get(key).expect("it was bound just now"));
        let live = || self.store.of_kind(Kind::Pod).filter(|(_, pod)| pods::is_live_on_node(pod));
        let there = live().filter(|(_, pod)| pods::node_of(pod) == Some(node));
        let cores: u64 = there.map(|(_, pod)| pods::cores_of(pod)).sum();
        let rank = (pods::lease_of(&pod), pods::rank_of(&pod));
        let twins = live().filter(|(_, pod)| (pods::lease_of(pod), pods::rank_of(pod)) == rank);
        let twins = twins.count();
        let name = &key.name;
        if cores > pods::NODE_CORES && !self.faults.may_be_stale() {
            self.broken.push(format!("{node} runs {cores} cores with {name}, more than it has"));
        }
        if twins > 1 {
            self.broken.push(format!("{name} is one of {twins} live pods of its rank"));
        }
    }

    fn delete(&mut self, ask: &Ask) -> Reply {
        let Some(object) = self.store.get(&ask.key).cloned() else {
            return Reply::not_found(&ask.key);
        };
        let uid = text(&ask.body, "/preconditions/uid");
        if uid.is_some() && uid != text(&object, "/metadata/uid") {
            return Reply::conflict("Conflict", "the uid is another object's");
        }
        let grace = ask.body.pointer("/gracePeriodSeconds").and_then(Value::as_u64);
        let object = self.remove_within(&ask.key, grace.unwrap_or(30));
        Reply::Object(200, Value::clone(&object))
    }

    /// Pods that have a node are for its kubelet to remove, once their programs have ended.
    pub fn remove_within(&mut self, key: &Key, grace: u64) -> Arc<Value> {
        let object = self.store.get(key).expect("somebody has looked");
        if key.kind != Kind::Pod || grace == 0 || !pods::is_live_on_node(object) {
            return self.store.remove(key);
        }
        if pods::is_deleting(object) {
            return Arc::clone(object);
        }
        self.store.update(key, |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-28T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        })
    }

    /// A JSON patch of a status: tests of what is there, and the new one.
    fn patch(&mut self, ask: &Ask) -> Reply {
        let Some(object) = self.store.get(&ask.key).cloned() else {
            return Reply::not_found(&ask.key);
        };
        let operations = ask.body.as_array().cloned().unwrap_or_default();
        let mut status = None;
        for operation in &operations {
            let path = text(operation, "/path").unwrap_or_default();
            let value = operation.get("value").cloned().unwrap_or_default();
            match (text(operation, "/op"), path) {
                (Some("test"), path) if object.pointer(path) == Some(&value) => {}
                (Some("test"), path) => {
                    self.faults.count("swaps of a status that another had changed");
                    return Reply::failure(422, "Invalid", &format!("{path} is another"));
                }
                (Some("add"), "/status") => status = Some(value),
                _ => panic!("not known: {operation}"),
            }
        }
        let status = status.expect("a status was to be written");
        self.check_status(&object, &status);
        let object = self.store.update(&ask.key, |job| job["status"] = status);
        Reply::Object(200, Value::clone(&object))
    }

    /// After a leader has written a status, the ones before write it no more.
    fn check_status(&mut self, object: &Value, status: &Value) {
        let epoch = |status: &Value| status["written"]["epoch"].as_u64();
        if epoch(status) < epoch(&object["status"]) {
            let name = text(object, "/metadata/name").unwrap_or_default();
            self.broken.push(format!("the status of {name} was written by an earlier leader"));
        }
        let job = text(object, "/metadata/uid").unwrap_or_default().to_owned();
        let stages = status["stages"].as_array().into_iter().flatten();
        let leases = stages.filter_map(|stage| stage["lease"].as_u64());
        self.named.entry(job).or_default().extend(leases);
    }

    fn replace(&mut self, ask: &Ask) -> Reply {
        let Some(object) = self.store.get(&ask.key) else { return Reply::not_found(&ask.key) };
        let version = text(&ask.body, "/metadata/resourceVersion");
        if version.is_some() && version != text(object, "/metadata/resourceVersion") {
            return Reply::conflict("Conflict", "the object has been modified");
        }
        let body = ask.body.clone();
        let object = self.store.update(&ask.key, |object| object["spec"] = body["spec"].clone());
        Reply::Object(200, Value::clone(&object))
    }
}
