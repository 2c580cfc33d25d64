//! How workloads of others are unsuspended and suspended, and their pods get nodes.

use het_core::{LeaseId, Name};
use kube::Error;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;

use super::{CONFLICT, Made, NOT_FOUND, Refusal, Wanted, Writer, is_final};
use crate::channel::Message;
use crate::names::{self, ObjectKey};
use crate::owners::JobOwner;
use crate::pods::{Pod, PodObject};
use crate::workload_kinds::WorkloadName;
use crate::workloads::{SuspendedBy, version_of};

impl Writer {
    /// Has a workload begin, or go on.
    pub async fn unsuspend(self, lease: LeaseId, wanted: Wanted, by: SuspendedBy) {
        let request = || self.try_unsuspend(&by, &wanted);
        let reason = match self.tried_until(&wanted, is_refused, request).await {
            Ok(true) => return,
            Ok(false) => "it is not there any more".to_owned(),
            Err(tried) => match tried.refusal(&format!("the start of `{}`", by.name.key.name)) {
                Refusal::Stopped => return,
                Refusal::For(reason) => reason,
            },
        };
        self.sender.send(Message::NotUnsuspended { lease, reason }).await;
    }

    /// Stops a workload, and says since which version of its own object it is. Goes on until the
    /// server has taken it, or it is gone.
    pub async fn suspend(self, lease: LeaseId, by: SuspendedBy, own: WorkloadName) {
        let request = || self.try_suspend(&by, &own);
        if let Ok(Some(version)) = self.tried_until(&Wanted::default(), is_gone, request).await {
            self.sender.send(Message::Suspended { lease, version }).await;
        }
    }

    /// Whether the object is still the one that is meant.
    async fn try_unsuspend(&self, by: &SuspendedBy, wanted: &Wanted) -> Result<bool, Error> {
        let object = self.api_of(&by.name).get(&by.name.key.name).await?;
        if object.metadata.uid.as_ref() != Some(&by.uid) {
            return Ok(false);
        }
        // What is wanted no more by now is not begun: the suspension that follows changes the
        // object that was read here.
        if !wanted.is_over() && by.name.kind.is_suspended(&object.data["spec"]) {
            self.swap(by, &object, false).await?;
        }
        Ok(true)
    }

    /// The version of a workload since which it is suspended; `None` where it is another by now.
    /// It is written even where it is suspended: what was sent before and not answered is refused
    /// then.
    async fn try_suspend(
        &self,
        by: &SuspendedBy,
        own: &WorkloadName,
    ) -> Result<Option<u64>, Error> {
        let object = self.api_of(&by.name).get(&by.name.key.name).await?;
        if object.metadata.uid.as_ref() != Some(&by.uid) {
            return Ok(None);
        }
        let mut changed = self.swap(by, &object, true).await?;
        if by.name != *own {
            changed = self.api_of(own).get(&own.key.name).await?;
        }
        Ok(Some(version_of(&changed.metadata)))
    }

    fn api_of(&self, WorkloadName { kind, key }: &WorkloadName) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &key.namespace, &kind.resource())
    }

    /// Compares and swaps: what a leader that stood still began to write does not undo what was
    /// written since.
    async fn swap(
        &self,
        by: &SuspendedBy,
        object: &DynamicObject,
        is_suspended: bool,
    ) -> Result<DynamicObject, Error> {
        let change = json!({
            "metadata": {
                "resourceVersion": object.metadata.resource_version,
                "annotations": {
                    names::SCHEDULER_LABEL: &*self.scheduler.name,
                    names::WRITE: names::write_of(self.leadership.epoch()),
                },
            },
            "spec": by.name.kind.suspension(is_suspended),
        });
        let (parameters, change) = (PatchParams::default(), Patch::Merge(change));
        self.api_of(&by.name).patch(&by.name.key.name, &parameters, &change).await
    }

    /// Gives a pod of a workload the node of its slot.
    pub async fn place(
        self,
        lease: LeaseId,
        (key, uid): (ObjectKey, String),
        (node, hostname): (Name, String),
    ) {
        let ObjectKey { namespace, name } = key;
        let object = PodObject::Of { uid: uid.clone(), hostname };
        let pod = Pod { name, node: node.to_string(), object, claim: None };
        let made = Made { uid: uid.clone(), node: None };
        match self.give_node(&namespace, &pod, &made, &Wanted::default()).await {
            Ok(()) => {
                let owner = JobOwner { namespace, name: pod.name, uid };
                self.conditions.scheduled(owner, pod.node);
            }
            Err(Refusal::Stopped) => {}
            // One that is to go needs no node.
            Err(Refusal::For(_)) if self.is_going(&namespace, &pod.name, &uid).await => {}
            Err(Refusal::For(reason)) => {
                self.sender.send(Message::NotPlaced { lease, uid, reason }).await;
            }
        }
    }

    async fn is_going(&self, namespace: &str, name: &str, uid: &str) -> bool {
        match self.get(namespace, name).await {
            Ok(row) => row.uid != uid || row.is_deleting,
            Err(error) => is_gone(&error),
        }
    }
}

/// Who wrote in between does not refuse it.
pub(super) fn is_refused(error: &Error) -> bool {
    is_final(error) && !matches!(error, Error::Api(status) if status.code == CONFLICT)
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == NOT_FOUND)
}
