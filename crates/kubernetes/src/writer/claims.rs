//! How claims on devices are made and allocated, before their pods get nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::pin_mut;
use kube::Error;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::workloads::is_refused;
use super::{CONFLICT, Made, Refusal, Tried, Wanted, Writer};
use crate::dra::{self, DeviceId, Place};
use crate::names::{EPOCH, SCHEDULER_LABEL};
use crate::pods::{Claim, Pod};

/// An allocated claim stays until whoever gives devices back has done so.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// For devices that the state has as free, while those who had them give them back.
const RELEASE_MAX: Duration = Duration::from_secs(120);

/// What came of a look at a claim.
enum Step {
    Allocated,
    /// It was brought on its way: look again.
    Again,
    /// One sentence for people.
    Refused(String),
}

impl Writer {
    /// Has the claim of a pod allocated for it, where it has one.
    pub(super) async fn allocate(
        &self,
        namespace: &str,
        (pod, made): (&Pod, &Made),
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        let Some(claim) = &pod.claim else { return Ok(()) };
        let what = format!("resource claim `{}`", claim.name);
        if let Some(object) = &claim.object {
            self.make_claim(namespace, (pod, made), object, wanted)
                .await
                .map_err(|tried| tried.refusal(&what))?;
        }
        let api = self.claims(namespace);
        let read = || api.get(&claim.name);
        let there = self.tried(wanted, read).await.map_err(|tried| tried.refusal(&what))?;
        let uid = there.metadata.uid.unwrap_or_default();
        let devices = self.chosen(&uid, claim, wanted).await?;
        let result = self.write_allocation(namespace, (pod, made), (claim, &devices), wanted).await;
        if result.is_err() {
            self.book.forget(&uid);
        }
        result
    }

    /// Devices for each request of a claim, once those who had them have given them back.
    async fn chosen(
        &self,
        uid: &str,
        claim: &Claim,
        wanted: &Wanted,
    ) -> Result<Vec<Vec<DeviceId>>, Refusal> {
        let places: Vec<(Place, u32)> =
            claim.requests.iter().map(|it| (it.place.clone(), it.count)).collect();
        let chosen = timeout(RELEASE_MAX, self.book.choose(uid, &places));
        let over = wanted.over();
        pin_mut!(chosen, over);
        match select(chosen, over).await {
            Either::Left((Ok(devices), _)) => Ok(devices),
            Either::Left((Err(_), _)) => Err(Refusal::For(format!(
                "devices of resource claim `{}` are not given back by those who had them",
                claim.name
            ))),
            Either::Right(_) => Err(Refusal::Stopped),
        }
    }

    async fn write_allocation(
        &self,
        namespace: &str,
        (pod, made): (&Pod, &Made),
        (claim, devices): (&Claim, &[Vec<DeviceId>]),
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        let what = format!("resource claim `{}`", claim.name);
        loop {
            let step = || self.step(namespace, (pod, made), (claim, devices));
            match self.tried_until(wanted, is_refused, step).await {
                Ok(Step::Allocated) => return Ok(()),
                Ok(Step::Again) => {}
                Ok(Step::Refused(why)) => return Err(Refusal::For(format!("{what} {why}"))),
                Err(tried) => return Err(tried.refusal(&what)),
            }
        }
    }

    async fn make_claim(
        &self,
        namespace: &str,
        (pod, made): (&Pod, &Made),
        object: &Value,
        wanted: &Wanted,
    ) -> Result<(), Tried> {
        let mut object = object.clone();
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": made.uid,
        }]);
        let object: DynamicObject =
            serde_json::from_value(object).map_err(|it| Tried::Refused(Error::SerdeError(it)))?;
        let (api, parameters) = (self.claims(namespace), PostParams::default());
        match self.tried(wanted, || api.create(&parameters, &object)).await {
            Ok(_) => Ok(()),
            // Its name is of this pod alone.
            Err(Tried::Refused(Error::Api(status))) if status.code == CONFLICT => Ok(()),
            Err(tried) => Err(tried),
        }
    }

    fn claims(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &dra::claims())
    }

    /// Looks at a claim and brings it on its way, one write at a time. Each compares and swaps.
    async fn step(
        &self,
        namespace: &str,
        (pod, made): (&Pod, &Made),
        (claim, devices): (&Claim, &[Vec<DeviceId>]),
    ) -> Result<Step, Error> {
        let api = self.claims(namespace);
        let there = api.get(&claim.name).await?;
        let status = &there.data["status"];
        let allocation = allocation(pod, claim, devices);
        let reserved = status["reservedFor"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_ours = |consumer: &Value| consumer["uid"] == made.uid.as_str();
        let parameters = PatchParams::default();
        let version = &there.metadata.resource_version;
        if !reserved.iter().all(is_ours) {
            return Ok(Step::Refused("is reserved for another pod".to_owned()));
        }
        if !status["allocation"].is_null() {
            let is_as_chosen = status["allocation"]["devices"]["results"]
                == allocation["devices"]["results"]
                && !reserved.is_empty();
            if is_as_chosen {
                return Ok(Step::Allocated);
            }
            // For another node: an allocation is given back before there is another one.
            let change = json!({
                "metadata": { "resourceVersion": version },
                "status": { "allocation": null, "reservedFor": null },
            });
            api.patch_status(&claim.name, &parameters, &Patch::Merge(change)).await?;
            return Ok(Step::Again);
        }
        let epoch = self.leadership.epoch().to_string();
        let metadata = &there.metadata;
        let says = |of: &Option<BTreeMap<String, String>>, name: &str, value: &str| {
            of.as_ref().and_then(|of| of.get(name)).is_some_and(|it| it == value)
        };
        let finalizers = metadata.finalizers.clone().unwrap_or_default();
        let is_marked = says(&metadata.annotations, EPOCH, &epoch)
            && says(&metadata.labels, SCHEDULER_LABEL, &self.scheduler.name);
        if !is_marked || !finalizers.iter().any(|name| name == FINALIZER) {
            let mut finalizers = finalizers;
            if !finalizers.iter().any(|name| name == FINALIZER) {
                finalizers.push(FINALIZER.to_owned());
            }
            let change = json!({
                "metadata": {
                    "resourceVersion": version, "finalizers": finalizers,
                    "labels": { SCHEDULER_LABEL: &*self.scheduler.name },
                    "annotations": { EPOCH: epoch },
                },
            });
            api.patch(&claim.name, &parameters, &Patch::Merge(change)).await?;
            return Ok(Step::Again);
        }
        let consumer = json!({ "resource": "pods", "name": pod.name, "uid": made.uid });
        let change = json!({
            "metadata": { "resourceVersion": version },
            "status": { "allocation": allocation, "reservedFor": [consumer] },
        });
        api.patch_status(&claim.name, &parameters, &Patch::Merge(change)).await?;
        Ok(Step::Allocated)
    }

    /// Gives back what was allocated for a pod that got no node after all.
    pub(super) async fn deallocate(&self, namespace: &str, (pod, made): (&Pod, &Made)) {
        let Some(claim) = &pod.claim else { return };
        let api = self.claims(namespace);
        let give_back = || async {
            let there = api.get(&claim.name).await?;
            let reserved = there.data["status"]["reservedFor"].as_array();
            let mut reserved = reserved.map(Vec::as_slice).unwrap_or_default().iter();
            if !reserved.any(|consumer| consumer["uid"] == made.uid.as_str()) {
                return Ok(());
            }
            let change = json!({
                "metadata": { "resourceVersion": there.metadata.resource_version },
                "status": { "allocation": null, "reservedFor": null },
            });
            let (parameters, change) = (PatchParams::default(), Patch::Merge(change));
            api.patch_status(&claim.name, &parameters, &change).await.map(drop)
        };
        let _ = self.tried_until(&Wanted::default(), is_refused, give_back).await;
    }
}

fn allocation(pod: &Pod, claim: &Claim, devices: &[Vec<DeviceId>]) -> Value {
    let of_requests = claim.requests.iter().zip(devices);
    let results = of_requests.flat_map(|(request, devices)| {
        devices.iter().map(|DeviceId { driver, pool, device }| {
            json!({
                "request": request.name, "driver": driver.as_str(), "pool": pool.as_str(),
                "device": device.as_str(),
            })
        })
    });
    let field = json!({ "key": "metadata.name", "operator": "In", "values": [pod.node] });
    let mut allocated = json!({ "results": results.collect::<Vec<_>>() });
    if !claim.config.is_empty() {
        allocated["config"] = json!(claim.config);
    }
    json!({
        "devices": allocated,
        "nodeSelector": { "nodeSelectorTerms": [{ "matchFields": [field] }] },
    })
}
