//! What objects of others are told: why they wait, and what became of them. Pods as kube-scheduler
//! does it, by the condition `PodScheduled` and by events; groups of pods by conditions and events,
//! workloads by events.

mod groups;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use het_wire::resource::TrainingJobStatus;
use jiff::Timestamp;
use kube::Error;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::client::{CONFLICT, NOT_FOUND};
use crate::events::{self, EventText};
use crate::jobs::Jobs;
use crate::leader::Leadership;
use crate::names::{self, Binding};
use crate::objects::{self, PodObject};
use crate::owners::{Foreign, ForeignKind, JobOwner};
use groups::GroupEntry;

/// Writes under way at once.
const WRITES_MAX: usize = 32;
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Between two tries of what has to be written; doubled up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Why an object waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// More nodes would help: those who add nodes look for that.
    pub is_unschedulable: bool,
    /// For people.
    pub message: String,
}

/// Where objects of others are told how they stand; cheap to clone.
#[derive(Debug, Clone)]
pub struct ForeignConditions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    jobs: Jobs,
    binding: Binding,
    leadership: Leadership,
    threads: Handle,
    permits: Semaphore,
    /// By uid.
    entries: Mutex<BTreeMap<String, Entry>>,
    /// The version in which groups of pods are served.
    groups: OnceLock<&'static str>,
}

/// What is known of one that waits.
#[derive(Debug, Default)]
struct Entry {
    /// What is to be written.
    newest: Option<Waits>,
    /// Somebody writes, and looks for the newest when that is done.
    is_writing: bool,
    /// Whether the event that was made last was of one that more nodes would help.
    told: Option<bool>,
    group: GroupEntry,
}

impl ForeignConditions {
    pub(crate) fn new(
        jobs: Jobs,
        binding: Binding,
        leadership: Leadership,
        threads: Handle,
    ) -> Self {
        let (permits, entries) = (Semaphore::new(WRITES_MAX), Mutex::default());
        let groups = OnceLock::new();
        Self(Arc::new(Shared { jobs, binding, leadership, threads, permits, entries, groups }))
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

    /// Has one told why it waits, in place of what was not written yet. Waits for nothing; what the
    /// server does not take is not tried again.
    pub fn waits(&self, object: Foreign, why: Waits) {
        let mut entries = self.entries();
        let entry = entries.entry(object.owner.uid.clone()).or_default();
        entry.newest = Some(why);
        if !entry.is_writing {
            entry.is_writing = true;
            drop(self.0.threads.spawn(self.clone().write(object)));
        }
    }

    /// It is not there any more, or waits no more.
    pub fn forget(&self, uid: &str) {
        self.entries().remove(uid);
    }

    /// What is to be written of one, and whether it is news that an event tells of.
    fn next(&self, uid: &str) -> Option<(Waits, bool)> {
        let mut entries = self.entries();
        let entry = entries.get_mut(uid)?;
        let next = entry.newest.take();
        entry.is_writing = next.is_some();
        let next = next?;
        let is_news = entry.told.replace(next.is_unschedulable) != Some(next.is_unschedulable);
        Some((next, is_news))
    }

    async fn write(self, object: Foreign) {
        loop {
            let _permit = self.0.permits.acquire().await;
            let Some((next, is_news)) = self.next(&object.owner.uid) else { return };
            let reason = if next.is_unschedulable { "Unschedulable" } else { "Waiting" };
            let is_written = match object.kind {
                ForeignKind::Pod => {
                    self.write_condition(&object.owner, ("False", reason), &next.message).await
                }
                ForeignKind::Group => {
                    self.write_group(&object.owner, reason, &next).await;
                    true
                }
                // Conditions of workloads are their controllers'.
                ForeignKind::Workload(_) => true,
            };
            if is_written && is_news {
                let text =
                    EventText { is_warning: true, reason: "FailedScheduling", note: &next.message };
                self.make_event(&object, text).await;
            }
        }
    }

    /// Tells a workload that its job has come into another state, for good where it is over. Waits
    /// for nothing.
    pub fn stands(&self, object: Foreign, status: TrainingJobStatus, is_over: bool) {
        let this = self.clone();
        drop(self.0.threads.spawn(async move {
            let _permit = this.0.permits.acquire().await;
            if is_over {
                this.write_end(&object, &status.state).await;
            }
            let (reason, note) = (events::reason(&status), events::note(&status));
            let is_warning = events::is_warning(&status);
            this.make_event(&object, EventText { is_warning, reason: &reason, note: &note }).await;
        }));
    }

    /// Notes on a workload how its job ended, as [`Self::stands`] does of one that is over: the
    /// note of an earlier time was not written, or lost. Waits for nothing.
    pub fn ended(&self, object: Foreign, state: String) {
        let this = self.clone();
        drop(self.0.threads.spawn(async move { this.write_end(&object, &state).await }));
    }

    /// Notes on a workload how its job ended: nobody takes it in again while it says so. Goes on
    /// until it is written, its object is gone, or another server leads.
    async fn write_end(&self, Foreign { kind, owner }: &Foreign, state: &str) {
        let ForeignKind::Workload(kind) = kind else { return };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.0.jobs.client(), &owner.namespace, &kind.resource());
        let mut pause = PAUSE;
        loop {
            let note = json!({
                "metadata": { "uid": owner.uid, "annotations": {
                    names::ENDED: state,
                    names::SCHEDULER_LABEL: self.0.jobs.scheduler(),
                    names::WRITE: names::write_of(self.0.leadership.epoch()),
                } },
            });
            let (parameters, note) = (PatchParams::default(), Patch::Merge(note));
            match self.within_term(api.patch(&owner.name, &parameters, &note)).await {
                Some(Ok(_)) => return,
                // Gone, or another of its name.
                Some(Err(Error::Api(status))) if matches!(status.code, NOT_FOUND | CONFLICT) => {
                    return;
                }
                _ if self.0.leadership.left().is_none() => return,
                _ => sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSE_MAX);
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
            let pod = Foreign { kind: ForeignKind::Pod, owner: pod };
            this.make_event(
                &pod,
                EventText { is_warning: false, reason: "Scheduled", note: &note },
            )
            .await;
        }));
    }

    /// Tells a pod that it is to go for others, and why it cannot yet. Waits for nothing.
    pub(crate) fn not_evicted(&self, pod: JobOwner, why: String) {
        let this = self.clone();
        drop(self.0.threads.spawn(async move {
            let _permit = this.0.permits.acquire().await;
            let pod = Foreign { kind: ForeignKind::Pod, owner: pod };
            let text = EventText { is_warning: true, reason: "EvictionBlocked", note: &why };
            this.make_event(&pod, text).await;
        }));
    }

    async fn make_event(&self, object: &Foreign, text: EventText<'_>) {
        let at = (self.0.jobs.scheduler(), Timestamp::now());
        let event: Value = events::made((&object.owner, object.reference()), text, at);
        let path = events::path(&object.owner.namespace);
        let _ = self.within_term(self.0.jobs.make(path, &event)).await;
    }

    /// `None` where it took too long, or this server leads no more.
    async fn within_term<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        self.0.leadership.within_term(REQUEST_MAX, request).await
    }
}
