//! Which object a job is of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use het_core::JobId;
use het_wire::resource::{GROUP, KIND, VERSION};
use serde_json::{Value, json};

use crate::group_api::{API_GROUP, KIND as GROUP_KIND, VERSIONS};
use crate::names::ObjectKey;
use crate::workload_kinds::WorkloadKind;

/// The object that owns what is made for a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobOwner {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// What kind of object of somebody else a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForeignKind {
    Pod,
    /// Pods that start together.
    Group,
    Workload(WorkloadKind),
}

/// An object of somebody else that is a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Foreign {
    pub kind: ForeignKind,
    pub owner: JobOwner,
}

/// What the key of a job begins with that is a pod of somebody else; its uid follows.
const POD_KEY: &str = "pod/";
/// The same of a group of pods.
const GROUP_KEY: &str = "podgroup/";
/// The same of a workload; its kind and its uid follow.
const WORKLOAD_KEY: &str = "workload/";

impl ForeignKind {
    /// Kind and uid of the object of a job that was submitted under this key.
    pub fn of_key(key: &str) -> Option<(Self, &str)> {
        if let Some(uid) = key.strip_prefix(POD_KEY) {
            return Some((Self::Pod, uid));
        }
        if let Some(uid) = key.strip_prefix(GROUP_KEY) {
            return Some((Self::Group, uid));
        }
        let (kind, uid) = key.strip_prefix(WORKLOAD_KEY)?.split_once('/')?;
        Some((Self::Workload(WorkloadKind::of_name(kind)?), uid))
    }
}

impl Foreign {
    /// Under which its job is submitted.
    pub fn key(&self) -> String {
        let uid = &self.owner.uid;
        match self.kind {
            ForeignKind::Pod => format!("{POD_KEY}{uid}"),
            ForeignKind::Group => format!("{GROUP_KEY}{uid}"),
            ForeignKind::Workload(kind) => format!("{WORKLOAD_KEY}{}/{uid}", kind.name()),
        }
    }

    /// As events refer to it.
    pub(crate) fn reference(&self) -> Value {
        let (version, kind) = match self.kind {
            ForeignKind::Pod => ("v1".to_owned(), "Pod"),
            ForeignKind::Group => (format!("{API_GROUP}/{}", VERSIONS[0]), GROUP_KIND),
            ForeignKind::Workload(kind) => (kind.api_version(), kind.name()),
        };
        let JobOwner { namespace, name, uid } = &self.owner;
        json!({
            "apiVersion": version, "kind": kind, "name": name, "namespace": namespace, "uid": uid,
        })
    }
}

/// Which object a job is of; shared by the engine and whoever takes jobs in. What is made for a job
/// lies in its object's namespace and goes with it.
#[derive(Debug, Clone, Default)]
pub struct JobOwners(Arc<Mutex<Owners>>);

#[derive(Debug, Default)]
struct Owners {
    objects: BTreeMap<JobId, JobOwner>,
    /// Jobs that are an object of somebody else.
    foreign: BTreeMap<JobId, Foreign>,
    /// Of those, jobs that are ended because their object asks for something else, or no more.
    withdrawn: BTreeSet<JobId>,
}

impl JobOwners {
    fn lock(&self) -> MutexGuard<'_, Owners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, job: JobId, owner: JobOwner) {
        self.lock().objects.insert(job, owner);
    }

    /// Of a job that is an object of somebody else.
    pub fn insert_foreign(&self, job: JobId, object: Foreign) {
        let mut owners = self.lock();
        owners.withdrawn.remove(&job);
        owners.foreign.insert(job, object);
    }

    /// The job is to end because its object asks for something else, or no more.
    pub fn withdraw(&self, job: JobId) {
        self.lock().withdrawn.insert(job);
    }

    /// Who is told how a job stands: nobody where it ends for the sake of its object.
    pub fn told(&self, job: JobId) -> Option<Foreign> {
        let owners = self.lock();
        let object = owners.foreign.get(&job).filter(|_| !owners.withdrawn.contains(&job));
        object.cloned()
    }

    /// It does not end.
    pub fn keep(&self, job: JobId) {
        self.lock().withdrawn.remove(&job);
    }

    pub fn remove(&self, job: JobId) {
        let mut owners = self.lock();
        owners.objects.remove(&job);
        owners.foreign.remove(&job);
        owners.withdrawn.remove(&job);
    }

    pub fn get(&self, job: JobId) -> Option<JobOwner> {
        self.lock().objects.get(&job).cloned()
    }

    pub fn foreign(&self, job: JobId) -> Option<Foreign> {
        self.lock().foreign.get(&job).cloned()
    }

    /// Objects of somebody else that have a job.
    pub(crate) fn all_foreign(&self) -> Vec<Foreign> {
        self.lock().foreign.values().cloned().collect()
    }
}

impl JobOwner {
    /// Its name in the cluster.
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// As objects name who owns them.
    pub(crate) fn reference(&self) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": KIND,
            "name": self.name, "uid": self.uid, "controller": true,
        })
    }
}
