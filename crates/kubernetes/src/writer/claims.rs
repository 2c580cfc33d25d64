//! How claims on devices are made, allocated and given back, each write by comparing and swapping.

use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::pin_mut;
use kube::Error;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::workloads::is_refused;
use super::{CONFLICT, Made, Refusal, Tried, Wanted, Writer};
use crate::dra::{self, Choice, DeviceId, UnderWay, Wish};
use crate::names::{self, EPOCH, ObjectKey, SCHEDULER_LABEL};
use crate::pods::{Claim, Pod};
use crate::workloads::version_of;

/// An allocated claim stays until whoever gives devices back has done so.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// For devices that the state has as free, while those who had them give them back.
const RELEASE_MAX: Duration = Duration::from_secs(120);

impl Writer {
    /// Has the claim of a pod allocated for it, where it has one. Who has a node keeps its devices.
    pub(super) async fn allocate(
        &self,
        namespace: &str,
        (pod, made): (&Pod, &Made),
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        let Some(claim) = pod.claim.as_ref().filter(|_| made.node.is_none()) else {
            return Ok(());
        };
        let api = self.claims(namespace);
        let what = format!("resource claim `{}`", claim.name);
        let of = Allocation { writer: self, api, claim, pod, made, wanted, what };
        of.make().await?;
        while !of.advance().await? {}
        Ok(())
    }

    /// Gives back what was allocated for a pod of somebody else that has no node.
    pub async fn return_claim(self, (pod, uid): (ObjectKey, String), claim: String) {
        let api = self.claims(&pod.namespace);
        let give_back = || async {
            let row = self.get(&pod.namespace, &pod.name).await?;
            let there = api.get(&claim).await?;
            let is_its = matches!(reserved(&there), [one] if one["uid"] == uid.as_str());
            if row.uid != uid || row.node.is_some() || !is_its {
                return Ok(());
            }
            // Whoever led before and writes late writes on what is not there any more.
            let there = api.patch(&claim, &PatchParams::default(), &self.touch(&there)).await?;
            let change = Patch::Merge(nothing(&there));
            api.patch_status(&claim, &PatchParams::default(), &change).await.map(drop)
        };
        let _ = self.tried_until(&Wanted::default(), is_refused, give_back).await;
    }

    fn claims(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &dra::claims())
    }

    /// A change that says who leads; it makes writes on an earlier version fail.
    fn touch(&self, there: &DynamicObject) -> Patch<Value> {
        let epoch = self.leadership.epoch();
        let mut finalizers = there.metadata.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(|name| name == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
        }
        Patch::Merge(json!({
            "metadata": {
                "resourceVersion": there.metadata.resource_version, "finalizers": finalizers,
                "labels": { SCHEDULER_LABEL: &*self.scheduler.name },
                "annotations": {
                    EPOCH: epoch.to_string(), names::WRITE: names::write_of(epoch),
                },
            },
        }))
    }

    /// Finds out whether a write came about of which nobody knows, before devices are anybody
    /// else's.
    async fn settle(self, api: Api<DynamicObject>, claim: String, choice: Choice) {
        let touch = || async {
            let there = api.get(&claim).await?;
            api.patch(&claim, &PatchParams::default(), &self.touch(&there)).await
        };
        if let Ok(there) = self.tried_until(&Wanted::default(), is_refused, touch).await {
            self.note(&there);
        }
        drop(choice);
    }

    /// Notes what a claim has.
    fn note(&self, there: &DynamicObject) {
        let uid = there.metadata.uid.as_deref().unwrap_or_default();
        self.book.allocated(uid, version_of(&there.metadata), &allocated(there).concat());
    }
}

/// The allocation of a claim under way.
struct Allocation<'a> {
    writer: &'a Writer,
    api: Api<DynamicObject>,
    claim: &'a Claim,
    pod: &'a Pod,
    made: &'a Made,
    wanted: &'a Wanted,
    /// What it is, for people.
    what: String,
}

impl Allocation<'_> {
    /// Makes the claim, where nobody else does.
    async fn make(&self) -> Result<(), Refusal> {
        let Some(object) = &self.claim.object else { return Ok(()) };
        let mut object = object.clone();
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Pod", "name": self.pod.name, "uid": self.made.uid,
        }]);
        let object: DynamicObject = serde_json::from_value(object)
            .map_err(|error| self.refusal(Tried::Refused(Error::SerdeError(error))))?;
        let parameters = PostParams::default();
        let create = || self.api.create(&parameters, &object);
        match self.writer.tried(self.wanted, create).await {
            Ok(_) => Ok(()),
            Err(Tried::Refused(Error::Api(status))) if status.code == CONFLICT => {
                let there = self.read().await?;
                let owners = there.metadata.owner_references.as_deref().unwrap_or_default();
                match owners.iter().any(|owner| owner.uid == self.made.uid) {
                    true => Ok(()),
                    false => Err(Refusal::For(format!("{} is there already", self.what))),
                }
            }
            Err(tried) => Err(self.refusal(tried)),
        }
    }

    async fn read(&self) -> Result<DynamicObject, Refusal> {
        let read = || self.api.get(&self.claim.name);
        self.writer.tried(self.wanted, read).await.map_err(|tried| self.refusal(tried))
    }

    /// Brings it on its way by one write; whether it is allocated.
    async fn advance(&self) -> Result<bool, Refusal> {
        let there = self.read().await?;
        let is_its = |consumer: &Value| consumer["uid"] == self.made.uid.as_str();
        if !reserved(&there).iter().all(is_its) {
            return Err(Refusal::For(format!("{} is reserved for another pod", self.what)));
        }
        let epoch = self.writer.leadership.epoch().to_string();
        let annotations = there.metadata.annotations.as_ref();
        if annotations.and_then(|of| of.get(EPOCH)) != Some(&epoch) {
            let (parameters, touch) = (PatchParams::default(), self.writer.touch(&there));
            let patch = || self.api.patch(&self.claim.name, &parameters, &touch);
            return self.swapped(self.writer.tried(self.wanted, patch).await).map(|_| false);
        }
        if there.data["status"]["allocation"].is_null() {
            return self.allocate(&there).await;
        }
        let fits = !reserved(&there).is_empty() && self.fits(&allocated(&there));
        if !fits {
            // For another place: an allocation is given back before there is another one.
            self.patch_status(&nothing(&there)).await?;
        }
        Ok(fits)
    }

    /// Whether a claim has what is to be allocated for it.
    fn fits(&self, allocated: &[Vec<DeviceId>]) -> bool {
        let of_requests = self.claim.requests.iter().map(|request| &request.wish);
        allocated.len() == self.claim.requests.len()
            && of_requests.zip(allocated).all(|(Wish { place, count, .. }, devices)| {
                self.writer.book.are_of(devices, place, *count)
            })
    }

    async fn allocate(&self, there: &DynamicObject) -> Result<bool, Refusal> {
        let uid = there.metadata.uid.as_deref().unwrap_or_default();
        let choice = self.chosen(uid).await?;
        let consumer = json!({ "resource": "pods", "name": self.pod.name, "uid": self.made.uid });
        let change = json!({
            "metadata": { "resourceVersion": there.metadata.resource_version },
            "status": {
                "allocation": self.allocation(&choice.devices), "reservedFor": [consumer],
            },
        });
        match self.patch_status(&change).await {
            Ok(Some(there)) => {
                self.writer.note(&there);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(Refusal::Stopped) => {
                let (api, claim) = (self.api.clone(), self.claim.name.clone());
                drop(tokio::spawn(self.writer.clone().settle(api, claim, choice)));
                Err(Refusal::Stopped)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Devices for each request, once those who had them have given them back.
    async fn chosen(&self, uid: &str) -> Result<Choice, Refusal> {
        let wishes: Vec<Wish> =
            self.claim.requests.iter().map(|request| request.wish.clone()).collect();
        let chosen = timeout(RELEASE_MAX, self.writer.book.choose(uid, &wishes));
        let over = self.wanted.over();
        pin_mut!(chosen, over);
        match select(chosen, over).await {
            Either::Left((Ok(Ok(choice)), _)) => Ok(choice),
            Either::Left((Ok(Err(UnderWay)), _)) => {
                Err(Refusal::For(format!("{} is being allocated for another pod", self.what)))
            }
            Either::Left((Err(_), _)) => Err(Refusal::For(format!(
                "devices of {} are not given back by those who had them",
                self.what
            ))),
            Either::Right(_) => Err(Refusal::Stopped),
        }
    }

    fn allocation(&self, devices: &[Vec<DeviceId>]) -> Value {
        let of_requests = self.claim.requests.iter().zip(devices);
        let results = of_requests.flat_map(|(request, devices)| {
            devices.iter().map(|DeviceId { driver, pool, device }| {
                let mut result = json!({
                    "request": request.name, "driver": driver.as_str(), "pool": pool.as_str(),
                    "device": device.as_str(),
                });
                if !request.tolerations.is_empty() {
                    result["tolerations"] = json!(request.tolerations);
                }
                result
            })
        });
        let node = &self.pod.node;
        let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
        let mut allocated = json!({ "results": results.collect::<Vec<_>>() });
        if !self.claim.config.is_empty() {
            allocated["config"] = json!(self.claim.config);
        }
        json!({
            "devices": allocated,
            "nodeSelector": { "nodeSelectorTerms": [{ "matchFields": [field] }] },
        })
    }

    async fn patch_status(&self, change: &Value) -> Result<Option<DynamicObject>, Refusal> {
        let (parameters, change) = (PatchParams::default(), Patch::Merge(change));
        let patch = || self.api.patch_status(&self.claim.name, &parameters, &change);
        self.swapped(self.writer.tried(self.wanted, patch).await)
    }

    /// `None` where somebody wrote in between: then it is looked at again.
    fn swapped(
        &self,
        written: Result<DynamicObject, Tried>,
    ) -> Result<Option<DynamicObject>, Refusal> {
        match written {
            Ok(there) => Ok(Some(there)),
            Err(Tried::Refused(Error::Api(status))) if status.code == CONFLICT => Ok(None),
            Err(tried) => Err(self.refusal(tried)),
        }
    }

    fn refusal(&self, tried: Tried) -> Refusal {
        tried.refusal(&self.what)
    }
}

fn reserved(claim: &DynamicObject) -> &[Value] {
    claim.data["status"]["reservedFor"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Devices that a claim has, by request and in their order.
fn allocated(claim: &DynamicObject) -> Vec<Vec<DeviceId>> {
    let results = claim.data["status"]["allocation"]["devices"]["results"].as_array();
    let mut requests: Vec<(&str, Vec<DeviceId>)> = Vec::new();
    for result in results.into_iter().flatten() {
        let word = |field: &str| result[field].as_str().unwrap_or_default();
        let [driver, pool, device] = ["driver", "pool", "device"].map(|field| word(field).into());
        let id = DeviceId { driver, pool, device };
        match requests.iter_mut().find(|(name, _)| *name == word("request")) {
            Some((_, devices)) => devices.push(id),
            None => requests.push((word("request"), vec![id])),
        }
    }
    requests.into_iter().map(|(_, devices)| devices).collect()
}

/// That a claim has nothing, and nobody has it.
fn nothing(claim: &DynamicObject) -> Value {
    json!({
        "metadata": { "resourceVersion": claim.metadata.resource_version },
        "status": { "allocation": null, "reservedFor": null },
    })
}
