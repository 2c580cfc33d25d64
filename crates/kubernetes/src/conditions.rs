//! What pods of others are told: why they wait, and that they have a node. As kube-scheduler does,
//! by the condition `PodScheduled` and by events.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::events::{self, Told};
use crate::jobs::{JobOwner, Jobs};
use crate::leader::Leadership;
use crate::names::Binding;
use crate::objects::{self, PodObject};

/// Writes under way at once.
const WRITES_MAX: usize = 32;
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// Why a pod waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodWaits {
    /// More nodes would help: those who add nodes look for that.
    pub is_unschedulable: bool,
    /// For people.
    pub message: String,
}

/// Where pods of others are told how they stand; cheap to clone.
#[derive(Debug, Clone)]
pub struct PodConditions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    jobs: Jobs,
    binding: Binding,
    leadership: Leadership,
    threads: Handle,
    permits: Semaphore,
    /// By uid.
    entries: Mutex<BTreeMap<String, Entry>>,
}

/// What is known of a pod that waits.
#[derive(Debug, Default)]
struct Entry {
    /// What is to be written.
    newest: Option<PodWaits>,
    /// Somebody writes, and looks for the newest when that is done.
    is_writing: bool,
    /// Whether the event that was made last was of one that more nodes would help.
    told: Option<bool>,
}

impl PodConditions {
    pub(crate) fn new(
        jobs: Jobs,
        binding: Binding,
        leadership: Leadership,
        threads: Handle,
    ) -> Self {
        let (permits, entries) = (Semaphore::new(WRITES_MAX), Mutex::default());
        Self(Arc::new(Shared { jobs, binding, leadership, threads, permits, entries }))
    }

    /// Of whoever gives the pod its node: `PodScheduled` is kube-scheduler's word where that is it.
    fn condition(&self) -> &'static str {
        match self.0.binding {
            Binding::Own => "PodScheduled",
            Binding::KubeScheduler => "heterosis.dev/Placed",
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a pod told why it waits, in place of what was not written yet. Waits for nothing; what
    /// the server does not take is not tried again.
    pub fn waits(&self, pod: JobOwner, why: PodWaits) {
        let mut entries = self.entries();
        let entry = entries.entry(pod.uid.clone()).or_default();
        entry.newest = Some(why);
        if !entry.is_writing {
            entry.is_writing = true;
            drop(self.0.threads.spawn(self.clone().write(pod)));
        }
    }

    /// The pod is not there any more, or waits no more.
    pub fn forget(&self, uid: &str) {
        self.entries().remove(uid);
    }

    /// What is to be written of a pod, and whether it is news that an event tells of.
    fn next(&self, uid: &str) -> Option<(PodWaits, bool)> {
        let mut entries = self.entries();
        let entry = entries.get_mut(uid)?;
        let next = entry.newest.take();
        entry.is_writing = next.is_some();
        let next = next?;
        let is_news = entry.told.replace(next.is_unschedulable) != Some(next.is_unschedulable);
        Some((next, is_news))
    }

    async fn write(self, pod: JobOwner) {
        loop {
            let _permit = self.0.permits.acquire().await;
            let Some((next, is_news)) = self.next(&pod.uid) else { return };
            let reason = if next.is_unschedulable { "Unschedulable" } else { "Waiting" };
            let is_written = self.write_condition(&pod, ("False", reason), &next.message).await;
            if is_written && is_news {
                let told =
                    Told { is_warning: true, reason: "FailedScheduling", note: &next.message };
                self.tell(&pod, told).await;
            }
        }
    }

    /// Status and reason of the condition of a pod; whether the server took it.
    async fn write_condition(
        &self,
        pod: &JobOwner,
        (status, reason): (&str, &str),
        message: &str,
    ) -> bool {
        let patch = Patch::Strategic(json!({
            "metadata": { "uid": pod.uid },
            "status": { "conditions": [{
                "type": self.condition(), "status": status, "reason": reason,
                "message": message,
                "lastTransitionTime": format!("{:.0}", Timestamp::now()),
            }] },
        }));
        let api: Api<PodObject> =
            Api::namespaced_with(self.0.jobs.client(), &pod.namespace, &objects::pods());
        let parameters = PatchParams::default();
        let written = api.patch_status(&pod.name, &parameters, &patch);
        matches!(self.within_term(written).await, Some(Ok(_)))
    }

    /// Tells a pod that it has a node. Waits for nothing.
    pub(crate) fn scheduled(&self, pod: JobOwner, node: String) {
        self.forget(&pod.uid);
        let this = self.clone();
        drop(self.0.threads.spawn(async move {
            let _permit = this.0.permits.acquire().await;
            if this.0.binding == Binding::KubeScheduler {
                // kube-scheduler says itself that it has bound it.
                let note = format!("its gate was removed for node {node}");
                let _ = this.write_condition(&pod, ("True", "Placed"), &note).await;
                return;
            }
            let JobOwner { namespace, name, .. } = &pod;
            let note = format!("Successfully assigned {namespace}/{name} to {node}");
            this.tell(&pod, Told { is_warning: false, reason: "Scheduled", note: &note }).await;
        }));
    }

    async fn tell(&self, pod: &JobOwner, told: Told<'_>) {
        let regarding = json!({
            "apiVersion": "v1", "kind": "Pod",
            "name": pod.name, "namespace": pod.namespace, "uid": pod.uid,
        });
        let at = (self.0.jobs.scheduler(), Timestamp::now());
        let event: Value = events::made((pod, regarding), told, at);
        let path = events::path(&pod.namespace);
        let _ = self.within_term(self.0.jobs.make(path, &event)).await;
    }

    /// `None` where it took too long, or this server leads no more.
    async fn within_term<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        self.0.leadership.within_term(REQUEST_MAX, request).await
    }
}
