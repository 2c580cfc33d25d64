//! What groups of pods are told, by the conditions of their status, and their pods with them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;

use super::{ForeignConditions, Waits};
use crate::group_api;
use crate::names::Binding;
use crate::owners::{Foreign, JobOwner};

/// Says that the pods of a group are to go for others.
const DISRUPTED: &str = "DisruptionTarget";

/// What is known of a group that waits.
#[derive(Debug, Default)]
pub(super) struct GroupEntry {
    /// Its pods had nodes once: its condition says so for good.
    is_scheduled: bool,
    /// Pods that wait with it.
    pods: Vec<JobOwner>,
    /// By uid of a pod: whether it was told last that more nodes would help.
    told: BTreeMap<String, bool>,
    /// What it was told last.
    last: Option<Waits>,
}

impl ForeignConditions {
    /// The version of the API in which groups are told.
    pub(crate) fn tell_groups_by(&self, version: &'static str) {
        let _ = self.0.groups.set(version);
    }

    /// Which pods wait with a group, and whether its condition was true before. Waits for nothing.
    pub(crate) fn wait_with(&self, group: &Foreign, is_scheduled: bool, pods: Vec<JobOwner>) {
        let again = {
            let mut entries = self.entries();
            let entry = entries.entry(group.owner.uid.clone()).or_default();
            // What is to be written next is told to all of them.
            let is_to_be_told = entry.newest.is_some();
            let entry = &mut entry.group;
            let is_new = |pod: &JobOwner| !entry.told.contains_key(&pod.uid);
            let has_new = pods.iter().any(is_new);
            if entry.pods != pods {
                let there: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
                entry.told.retain(|uid, _| there.contains(uid.as_str()));
            }
            (entry.is_scheduled, entry.pods) = (is_scheduled, pods);
            entry.last.clone().filter(|_| has_new && !is_to_be_told)
        };
        if let Some(why) = again {
            self.waits(group.clone(), why);
        }
    }

    /// Pods that were not told yet whether more nodes would help.
    fn untold(&self, uid: &str, why: &Waits) -> (bool, Vec<JobOwner>) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(uid).map(|entry| &mut entry.group) else {
            return (false, Vec::new());
        };
        let is_news = !entry.is_scheduled && entry.last.as_ref() != Some(why);
        entry.last = Some(why.clone());
        let helps = why.is_unschedulable;
        let told = &mut entry.told;
        let untold = entry.pods.iter();
        let untold = untold.filter(|pod| told.insert(pod.uid.clone(), helps) != Some(helps));
        (is_news, untold.cloned().collect())
    }

    /// Tells a group why its pods wait, and each pod when that is another kind of reason.
    pub(super) async fn write_group(&self, group: &JobOwner, reason: &str, why: &Waits) {
        let (is_news, pods) = self.untold(&group.uid, why);
        if is_news {
            self.write_group_condition(
                group,
                (self.scheduled_type(), "False"),
                (reason, &why.message),
            )
            .await;
        }
        let message = format!("its PodGroup `{}` waits: {}", group.name, why.message);
        for pod in pods {
            self.write_condition(&pod, ("False", reason), &message).await;
        }
    }

    /// kube-scheduler has a word of its own where it binds.
    fn scheduled_type(&self) -> &'static str {
        match self.0.binding {
            Binding::Own => group_api::SCHEDULED,
            Binding::KubeScheduler => self.condition(),
        }
    }

    /// Tells a group that its pods have nodes. Waits for nothing.
    pub(crate) fn group_scheduled(&self, group: Foreign) {
        self.forget(&group.owner.uid);
        self.tell_group(group, (self.scheduled_type(), "Scheduled"), "its pods have their nodes");
    }

    /// Tells a group that its pods go for others. Waits for nothing.
    pub(crate) fn disrupted(&self, group: Foreign) {
        let note = "its pods are evicted for others that are more urgent";
        self.tell_group(group, (DISRUPTED, "PreemptionByScheduler"), note);
    }

    fn tell_group(
        &self,
        group: Foreign,
        (r#type, reason): (&'static str, &'static str),
        message: &'static str,
    ) {
        let this = self.clone();
        drop(self.0.threads.spawn(async move {
            let _permit = this.0.permits.acquire().await;
            this.write_group_condition(&group.owner, (r#type, "True"), (reason, message)).await;
        }));
    }

    /// What the server does not take is not tried again.
    async fn write_group_condition(
        &self,
        group: &JobOwner,
        (r#type, status): (&str, &str),
        (reason, message): (&str, &str),
    ) {
        let Some(version) = self.0.groups.get() else { return };
        let patch = Patch::Strategic(json!({
            "metadata": { "uid": group.uid },
            "status": { "conditions": [{
                "type": r#type, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": format!("{:.0}", Timestamp::now()),
            }] },
        }));
        let resource = group_api::resource(version);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.0.jobs.client(), &group.namespace, &resource);
        let parameters = PatchParams::default();
        let _ = self.within_term(api.patch_status(&group.name, &parameters, &patch)).await;
    }
}
