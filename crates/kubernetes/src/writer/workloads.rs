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
use crate::workloads::SuspendedBy;

impl Writer {
    /// Has a workload begin, or go on.
    pub async fn unsuspend(self, lease: LeaseId, wanted: Wanted, by: SuspendedBy) {
        let request = || self.set_suspended(&by, false);
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

    /// Stops a workload. Goes on until the server has taken it, or it is gone.
    pub async fn suspend(self, by: SuspendedBy) {
        let request = || self.set_suspended(&by, true);
        let _ = self.tried_until(&Wanted::default(), is_gone, request).await;
    }

    /// Whether the object is still the one that is meant. Compares and swaps: what a leader that
    /// stood still began to write does not undo what was written since.
    async fn set_suspended(&self, by: &SuspendedBy, is_suspended: bool) -> Result<bool, Error> {
        let (kind, key) = (by.name.kind, &by.name.key);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &kind.resource());
        let object = api.get(&key.name).await?;
        if object.metadata.uid.as_ref() != Some(&by.uid) {
            return Ok(false);
        }
        if kind.is_suspended(&object.data["spec"]) == is_suspended {
            return Ok(true);
        }
        let change = json!({
            "metadata": {
                "resourceVersion": object.metadata.resource_version,
                "annotations": {
                    names::SCHEDULER_LABEL: &*self.scheduler.name,
                    names::EPOCH: self.leadership.epoch().to_string(),
                },
            },
            "spec": kind.suspension(is_suspended),
        });
        let parameters = PatchParams::default();
        api.patch(&key.name, &parameters, &Patch::Merge(change)).await?;
        Ok(true)
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
        let pod = Pod { name, node: node.to_string(), object };
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
fn is_refused(error: &Error) -> bool {
    is_final(error) && !matches!(error, Error::Api(status) if status.code == CONFLICT)
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == NOT_FOUND)
}
