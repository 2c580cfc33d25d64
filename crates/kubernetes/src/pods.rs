//! The objects that a gang is made of: a pod for each rank, and a headless service by which ranks
//! find the first. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{
    Access, BatchRange, Checkpoint, CheckpointSpec, Device, Elastic, Generation, Grant, Launch,
    LeaseId, Name, Placement, StageKey, StallRule, Topology, Volume,
};
use het_engine::{Placeholders, fill};
use serde_json::{Map, Value, json};

use crate::device_table::dra_taints;
use crate::dra::{ClaimAsk, ClaimRow, Dra, Place, Wish, claimed, option_name};
use crate::group_api;
use crate::names::{Attempt, Binding, ObjectKey, RANK_ACCOUNT, Scheduler};
use crate::owners::JobOwner;
use crate::resources::CPU;

/// Where ranks meet: each gang has addresses of its own, so all may use the same.
const PORT: u16 = 29_500;
const CONTAINER: &str = "stage";
/// Volumes that every pod has: its own directory, and memory that its processes share.
const WORK: &str = "work";
const SHARED_MEMORY: &str = "shared-memory";
/// What a pod calls its claim on devices, and the last word of that claim's name.
const DEVICES: &str = "devices";
/// A volume and a container that bring `het` to where a rank's program runs.
const SUPERVISOR: &str = "het";
const SUPERVISOR_DIR: &str = "/het";

/// What a start is to become.
#[derive(Debug)]
pub(crate) struct Gang<'a> {
    pub scheduler: &'a Scheduler,
    pub namespace: &'a str,
    /// What its objects go with.
    pub owner: Option<&'a JobOwner>,
    pub topology: &'a Topology,
    pub dra: &'a Dra,
    pub generation: Generation,
    /// Of the leader.
    pub epoch: u64,
    pub lease: LeaseId,
    pub stage: StageKey,
    pub attempt: u32,
    pub placement: &'a Placement,
    pub launch: &'a Launch,
    pub resume: Option<&'a Checkpoint>,
    /// The image with `het` that supervises ranks; nobody does where it is `None`.
    pub supervisor: Option<&'a str>,
    /// The version of the API in which kube-scheduler is told that its pods start together; nobody
    /// is where it is `None`.
    pub groups: Option<&'static str>,
}

/// The objects of a gang, ready to be made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Objects {
    /// Of a gang of several that kube-scheduler binds.
    pub group: Option<Value>,
    /// Of a gang of several.
    pub service: Option<Value>,
    pub pods: Vec<Pod>,
}

/// A rank's pod and the node that it is for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pod {
    pub name: String,
    pub node: String,
    pub object: PodObject,
    /// On devices, which are allocated before it gets its node.
    pub claim: Option<Claim>,
}

/// A claim of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Claim {
    pub name: String,
    /// To be made first, where nobody else has; its owner is the pod.
    pub object: Option<Value>,
    pub requests: Vec<ClaimRequest>,
    /// What drivers are told, as an allocation has it.
    pub config: Vec<Value>,
}

/// What one of the requests of a claim gets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClaimRequest {
    /// As an allocation names it.
    pub name: String,
    pub wish: Wish,
    /// Whatever taint its devices may get while it has them.
    pub tolerations: Vec<Value>,
}

impl Claim {
    /// Of a pod of somebody else whose claim is to get such devices of a node; `None` where they do
    /// not do for it.
    pub fn of(row: &ClaimRow, ask: &ClaimAsk, (dra, wish): (&Dra, &Wish)) -> Option<Self> {
        let Wish { place, count, .. } = wish;
        let option = dra.option_for(ask, (&place.node, place.resource.as_str(), *count))?;
        let requests: Vec<ClaimRequest> = match ask.requests.as_slice() {
            // Of alternatives each says how many.
            [(request, _)] => vec![(request, *count)],
            several => several.iter().map(|(request, count)| (request, *count)).collect(),
        }
        .into_iter()
        .map(|(request, count)| {
            let name = option_name(request, option.name.as_deref());
            let tolerations = row.tolerations.get(&name).cloned().unwrap_or_default();
            ClaimRequest { name, wish: Wish { count, ..wish.clone() }, tolerations }
        })
        .collect();
        let of_class = dra.class(&option.class).map(|class| class.config.as_slice());
        let is_named = |name: &Value| {
            let is_it = |request: &ClaimRequest| {
                let bare = request.name.split('/').next().unwrap_or_default();
                *name == request.name || *name == bare
            };
            requests.iter().any(is_it)
        };
        let of_claim = row.config.iter().filter(|config| {
            let named = config["requests"].as_array().map(Vec::as_slice).unwrap_or_default();
            named.is_empty() || named.iter().any(is_named)
        });
        let config = allocated_config(of_class.unwrap_or_default(), &requests);
        let of_claim = of_claim.map(|config| from("FromClaim", config));
        let config = config.into_iter().chain(of_claim).collect();
        Some(Self { name: row.key.name.clone(), object: None, requests, config })
    }
}

/// What a class says to drivers, as an allocation has it.
fn allocated_config(class: &[Value], requests: &[ClaimRequest]) -> Vec<Value> {
    let names: Vec<&str> = requests.iter().map(|request| request.name.as_str()).collect();
    let of_class = class.iter().map(|config| {
        let mut config = from("FromClass", config);
        config["requests"] = json!(names);
        config
    });
    of_class.collect()
}

fn from(source: &str, config: &Value) -> Value {
    let mut config = config.clone();
    config["source"] = json!(source);
    config
}

/// Where the object of a pod comes from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PodObject {
    /// It is to be made.
    New(Value),
    /// Somebody else made the one of this uid.
    Of {
        uid: String,
        /// Of its node, as labels have it.
        hostname: String,
    },
}

impl Gang<'_> {
    fn names(&self) -> Attempt<'_> {
        Attempt {
            scheduler: &self.scheduler.name,
            job: self.launch.job.as_str(),
            stage_name: self.launch.stage.as_str(),
            stage: self.stage,
            attempt: self.attempt,
            lease: self.lease,
            generation: self.generation,
            epoch: self.epoch,
        }
    }

    fn world(&self) -> u32 {
        self.placement.ranks.len() as u32
    }

    /// # Errors
    /// Why it cannot be started: one sentence for people.
    pub fn objects(&self) -> Result<Objects, String> {
        let stage = &self.launch.stage;
        let Some(container) = &self.launch.container else {
            return Err(format!("stage `{stage}` names no image: pods need `container: IMAGE`"));
        };
        if !container.mounts.is_empty() {
            return Err(format!(
                "stage `{stage}` mounts directories of a machine, which pods may not"
            ));
        }
        let ranks = 0..self.world();
        let pods = ranks.map(|rank| self.pod(rank, &container.image));
        let pods = pods.collect::<Result<_, _>>()?;
        let service = (self.world() > 1).then(|| self.service());
        Ok(Objects { group: self.group(), service, pods })
    }

    /// Has kube-scheduler bind all of a gang or nothing.
    fn group(&self) -> Option<Value> {
        let version = self.groups.filter(|_| self.world() > 1)?;
        Some(json!({
            "apiVersion": format!("{}/{version}", group_api::API_GROUP), "kind": group_api::KIND,
            "metadata": {
                "name": self.names().gang_name(), "labels": self.names().gang_labels(),
                "ownerReferences": self.owner_references(),
            },
            "spec": { "schedulingPolicy": { "gang": { "minCount": self.world() } } },
        }))
    }

    /// The service of a gang of several.
    pub fn service_key(&self) -> Option<ObjectKey> {
        let namespace = self.namespace.to_owned();
        (self.world() > 1).then(|| ObjectKey { namespace, name: self.names().gang_name() })
    }

    /// Names of its pods, whatever became of them.
    pub fn pod_names(&self) -> Vec<String> {
        (0..self.world()).map(|rank| self.names().pod_name(rank)).collect()
    }

    /// Gives each rank's pod a name that the others can look up, also before it is ready.
    fn service(&self) -> Value {
        let labels = self.names().gang_labels();
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": self.names().gang_name(), "labels": labels,
                "ownerReferences": self.owner_references(),
            },
            "spec": {
                "clusterIP": "None", "selector": labels, "publishNotReadyAddresses": true,
                "ports": [{ "name": "rendezvous", "port": PORT }],
            },
        })
    }

    fn owner_references(&self) -> Vec<Value> {
        self.owner.map(JobOwner::reference).into_iter().collect()
    }

    fn pod(&self, rank: u32, image: &str) -> Result<Pod, String> {
        let names = self.names();
        let name = names.pod_name(rank);
        let claim = self.claim(rank)?;
        let resources = self.resources(rank);
        let is_supervised = self.supervisor.is_some();
        let mut spec = json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace_seconds(),
            "automountServiceAccountToken": is_supervised,
            "enableServiceLinks": false,
            "tolerations": self.tolerations(rank, &resources),
            "containers": [{
                "name": CONTAINER, "image": image, "command": self.argv(rank),
                "env": self.environment(rank),
                "resources": { "requests": resources, "limits": resources },
                "volumeMounts": self.volume_mounts(),
            }],
            "volumes": self.volumes(),
        });
        if let Some(image) = self.supervisor {
            spec["serviceAccountName"] = json!(RANK_ACCOUNT);
            // As much as the rank has, one after the other: a pod whose requests are its limits
            // keeps its cores for itself.
            let plain = resources.iter().filter(|(name, _)| !name.contains('/'));
            let plain: Map<String, Value> =
                plain.map(|(name, amount)| (name.clone(), amount.clone())).collect();
            spec["initContainers"] = json!([{
                "name": SUPERVISOR, "image": image,
                "resources": { "requests": plain, "limits": plain },
                "command": ["het", "rank", "--copy", SUPERVISOR_DIR],
                "volumeMounts": [{ "name": SUPERVISOR, "mountPath": SUPERVISOR_DIR }],
            }]);
        }
        let node = self.topology.node(self.placement.ranks[rank as usize].node).name.to_string();
        match self.scheduler.binding {
            Binding::Own => spec["schedulerName"] = json!(&*self.scheduler.name),
            Binding::KubeScheduler => spec["affinity"] = on_node(&node),
        }
        if let Some(claim) = &claim {
            spec["resourceClaims"] = json!([{ "name": DEVICES, "resourceClaimName": claim.name }]);
            spec["containers"][0]["resources"]["claims"] = json!([{ "name": DEVICES }]);
        }
        if self.groups.is_some() && self.world() > 1 {
            spec["schedulingGroup"] = json!({ "podGroupName": names.gang_name() });
        }
        if self.world() > 1 {
            spec["hostname"] = json!(name);
            spec["subdomain"] = json!(names.gang_name());
        }
        let metadata = json!({
            "name": name, "labels": names.rank_labels(rank), "annotations": names.annotations(),
            "ownerReferences": self.owner_references(),
        });
        let object =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        Ok(Pod { name, node, object: PodObject::New(object), claim })
    }

    /// The claim on what a rank was given of devices that are not requested.
    ///
    /// # Errors
    /// When no class is for them: one sentence for people.
    fn claim(&self, rank: u32) -> Result<Option<Claim>, String> {
        let placed = &self.placement.ranks[rank as usize];
        let node = &self.topology.node(placed.node).name;
        let mut slots: BTreeMap<&str, Vec<Name>> = BTreeMap::new();
        for Grant { device, .. } in &placed.grants {
            let device = self.topology.device(*device);
            let resource = resource_of(device);
            if claimed(resource).is_some() {
                slots.entry(resource).or_default().push(slot_of(device));
            }
        }
        if slots.is_empty() {
            return Ok(None);
        }
        let (mut asked, mut requests, mut config) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (resource, slots)) in slots.into_iter().enumerate() {
            let class = self.dra.class_for(node, resource).ok_or_else(|| {
                format!("no DeviceClass is for the devices `{resource}` of node `{node}`")
            })?;
            let name = format!("{DEVICES}-{at}");
            let exactly = json!({
                "deviceClassName": class, "allocationMode": "ExactCount", "count": slots.len(),
            });
            asked.push(json!({ "name": name, "exactly": exactly }));
            let place = Place { node: node.clone(), resource: resource.into() };
            let wish = self.dra.wish(place, &slots);
            let request = ClaimRequest { name, wish, tolerations: Vec::new() };
            let of_class = self.dra.class(class).map(|class| class.config.as_slice());
            config.extend(allocated_config(
                of_class.unwrap_or_default(),
                std::slice::from_ref(&request),
            ));
            requests.push(request);
        }
        let names = self.names();
        let name = format!("{}-{DEVICES}", names.pod_name(rank));
        let object = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": name, "labels": names.rank_labels(rank) },
            "spec": { "devices": { "requests": asked } },
        });
        Ok(Some(Claim { name, object: Some(object), requests, config }))
    }

    /// Nodes keep others away from their devices by a taint that is named after the resource. Who
    /// wants none of them may stand beside those who do, which kube-scheduler does not know.
    fn tolerations(&self, rank: u32, resources: &Map<String, Value>) -> Vec<Value> {
        let mut keys: BTreeSet<&str> = resources.keys().map(String::as_str).collect();
        let grants = self.placement.ranks[rank as usize].grants.iter();
        let granted = grants.map(|grant| resource_of(self.topology.device(grant.device)));
        let drivers = granted.filter_map(|resource| Some(claimed(resource)?.0));
        let of_drivers: BTreeSet<&str> = drivers.flat_map(dra_taints).collect();
        if self.scheduler.binding == Binding::KubeScheduler {
            let node = self.placement.ranks[rank as usize].node;
            let of_node = self.topology.devices.iter().filter(|device| device.node == node);
            keys.extend(of_node.map(resource_of));
        }
        let devices = keys.into_iter().filter(|name| name.contains('/'));
        devices.chain(of_drivers).map(|name| json!({ "key": name, "operator": "Exists" })).collect()
    }

    fn claims(&self) -> &[Volume] {
        self.launch.container.as_ref().map(|container| &*container.volumes).unwrap_or_default()
    }

    /// Of each claim one, whatever is mounted of it.
    fn volumes(&self) -> Vec<Value> {
        let claims: BTreeSet<&Name> = self.claims().iter().map(|volume| &volume.claim).collect();
        let claims = claims.into_iter().enumerate().map(|(at, claim)| {
            let claim = json!({ "claimName": claim.as_str() });
            json!({ "name": volume_name(at), "persistentVolumeClaim": claim })
        });
        let own = json!({ "name": WORK, "emptyDir": {} });
        // Without it there are 64 MiB, too few for the workers of a data loader.
        let shared = json!({ "name": SHARED_MEMORY, "emptyDir": { "medium": "Memory" } });
        let supervisor = self.supervisor.map(|_| json!({ "name": SUPERVISOR, "emptyDir": {} }));
        [own, shared].into_iter().chain(supervisor).chain(claims).collect()
    }

    fn volume_mounts(&self) -> Vec<Value> {
        let claims: BTreeSet<&Name> = self.claims().iter().map(|volume| &volume.claim).collect();
        let mounts = self.claims().iter().map(|volume| {
            let at = claims.iter().position(|claim| **claim == volume.claim).unwrap_or_default();
            let mut mount = json!({
                "name": volume_name(at), "mountPath": volume.target,
                "readOnly": volume.access == Access::ReadOnly,
            });
            if volume.target == self.launch.workdir {
                // Each job has a directory of its own.
                mount["subPath"] = json!(self.names().job_name());
            }
            mount
        });
        let is_taken = |path: &str| self.claims().iter().any(|volume| volume.target == path);
        let own = [(WORK, self.launch.workdir.as_str()), (SHARED_MEMORY, "/dev/shm")];
        let supervisor = self.supervisor.map(|_| (SUPERVISOR, SUPERVISOR_DIR));
        let own = own.into_iter().chain(supervisor).filter(|(_, path)| !is_taken(path));
        own.map(|(name, path)| json!({ "name": name, "mountPath": path })).chain(mounts).collect()
    }

    fn grace_seconds(&self) -> u64 {
        let grace = self.launch.checkpoint.as_ref().map(|checkpoint| checkpoint.grace);
        grace.unwrap_or(CheckpointSpec::GRACE_DEFAULT).0.div_ceil(1_000)
    }

    /// What a rank holds of its node, by the kubelet's names. Requests are limits: what a rank was
    /// not given belongs to others.
    fn resources(&self, rank: u32) -> Map<String, Value> {
        let rank = &self.placement.ranks[rank as usize];
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for Grant { device, share } in rank.grants.iter().chain(&rank.companions) {
            let resource = resource_of(self.topology.device(*device));
            if claimed(resource).is_none() {
                *counts.entry(resource).or_default() += share.whole_units();
            }
        }
        let mut resources: Map<String, Value> = counts
            .iter()
            .map(|(name, count)| ((*name).to_owned(), json!(count.to_string())))
            .collect();
        let host = rank.host;
        for (name, amount) in [("memory", host.memory), ("ephemeral-storage", host.scratch)] {
            if amount.0 > 0 {
                resources.insert(name.to_owned(), json!(amount.0.to_string()));
            }
        }
        resources
    }

    fn placeholders(&self, rank: u32) -> Placeholders<'_> {
        let node = self.placement.ranks[rank as usize].node;
        Placeholders {
            rank,
            world: self.world(),
            port: PORT,
            checkpoint: self.resume.map_or("", |checkpoint| &checkpoint.path),
            node: self.topology.node(node).name.as_str(),
            user: None,
            restarts: self.attempt.saturating_sub(1),
        }
    }

    fn argv(&self, rank: u32) -> Vec<String> {
        let resume: &[String] = if self.resume.is_some() { &self.launch.resume } else { &[] };
        let values = self.placeholders(rank);
        let words = self.launch.argv.iter().chain(resume);
        let program = words.map(|text| literal(&fill(text, values)));
        self.supervisor_argv(values).into_iter().chain(program).collect()
    }

    /// What comes before the program where somebody supervises it.
    fn supervisor_argv(&self, values: Placeholders<'_>) -> Vec<String> {
        if self.supervisor.is_none() {
            return Vec::new();
        }
        let output = self.output_dir();
        let checkpoints = self.launch.checkpoint.as_ref().map(|it| fill(&it.dir, values));
        let dirs = [Some(output), checkpoints].into_iter().flatten();
        let made = dirs.flat_map(|dir| ["--make-dir".to_owned(), literal(&dir)]);
        let words = ["/het/het", "rank", "--dir", "/het/rank"].map(str::to_owned);
        words.into_iter().chain(made).chain(["--".to_owned()]).collect()
    }

    /// What later stages know as the output of this one.
    fn output_dir(&self) -> String {
        format!("{}/{}", self.launch.workdir, self.launch.stage)
    }

    /// What the user may set otherwise: a log is read while it is written, and libraries count the
    /// cores of the node, whatever the pod has of them.
    fn defaults(&self, rank: u32) -> Vec<(&'static str, String)> {
        let rank = &self.placement.ranks[rank as usize];
        let (mut cores, mut accelerators) = (0, 0);
        for Grant { device, share } in rank.grants.iter().chain(&rank.companions) {
            match resource_of(self.topology.device(*device)) {
                CPU => cores += share.whole_units(),
                _ => accelerators += share.whole_units(),
            }
        }
        let unbuffered = ("PYTHONUNBUFFERED", "1".to_owned());
        // Of several accelerators each has a process.
        let threads = (cores > 0).then(|| (cores / accelerators.max(1)).max(1).to_string());
        let threads = threads.into_iter().flat_map(|threads| {
            [("OMP_NUM_THREADS", threads.clone()), ("RAYON_NUM_THREADS", threads)]
        });
        [unbuffered].into_iter().chain(threads).collect()
    }

    /// The contract between a program and its scheduler, as far as a pod can keep it.
    fn environment(&self, rank: u32) -> Vec<Value> {
        let values = self.placeholders(rank);
        let own = self.launch.env.iter().map(|(name, value)| (name.clone(), fill(value, values)));
        let defaults =
            self.defaults(rank).into_iter().map(|(name, value)| (name.to_owned(), value));
        let mut variables: BTreeMap<String, String> = defaults.chain(own).collect();
        let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
        set("HET_JOB", self.launch.job.to_string());
        set("HET_STAGE", self.launch.stage.to_string());
        set("HET_ATTEMPT", self.attempt.to_string());
        set("HET_OUTPUT", self.output_dir());
        if let Some(checkpoint) = self.resume {
            set("HET_RESUME_FROM", checkpoint.path.clone());
        }
        if let Some(checkpoint) = &self.launch.checkpoint {
            set("HET_CHECKPOINT_DIR", fill(&checkpoint.dir, values));
            if let Some(every) = checkpoint.every {
                set("HET_CHECKPOINT_EVERY", every.as_seconds().to_string());
            }
        }
        if let Some(Elastic { reference, batch }) = self.launch.elastic {
            set("HET_DEVICE_COUNT", self.placement.units().to_string());
            set("HET_BATCH_DEVICES", reference.to_string());
            if let Some(BatchRange { min, max }) = batch {
                set("HET_BATCH_MIN", min.to_string());
                set("HET_BATCH_MAX", max.to_string());
            }
        }
        if let Some(precision) = &self.launch.precision {
            set("HET_PRECISION", precision.to_string());
        }
        if self.launch.ranks_max > 1 || self.world() > 1 {
            for (name, value) in self.rendezvous(rank) {
                set(name, value);
            }
        }
        let variables = variables.iter();
        let variables =
            variables.map(|(name, value)| json!({ "name": name, "value": literal(value) }));
        variables.chain(self.supervision()).collect()
    }

    /// What a supervisor has to know.
    fn supervision(&self) -> Vec<Value> {
        if self.supervisor.is_none() {
            return Vec::new();
        }
        let field = |name: &str, path: &str| {
            let of_pod = json!({ "fieldRef": { "fieldPath": path } });
            json!({ "name": name, "valueFrom": of_pod })
        };
        let checkpoint = self.launch.checkpoint.as_ref();
        let signal = checkpoint.map_or("SIGTERM", |checkpoint| checkpoint.notice.as_str());
        let stall = match self.launch.stall {
            StallRule::Measured => None,
            StallRule::After(span) => Some(span.0.to_string()),
            StallRule::Never => Some("never".to_owned()),
        };
        [
            field("HET_NAMESPACE", "metadata.namespace"),
            field("HET_POD", "metadata.name"),
            json!({ "name": "HET_GRACE", "value": self.grace_seconds().to_string() }),
            json!({ "name": "HET_NOTICE_SIGNAL", "value": signal }),
        ]
        .into_iter()
        .chain(stall.map(|stall| json!({ "name": "HET_STALL", "value": stall })))
        .collect()
    }

    /// How its ranks meet, as `torch.distributed` and `torchrun` have it.
    fn rendezvous(&self, rank: u32) -> [(&'static str, String); 11] {
        let devices = self.placement.ranks[rank as usize].grants.len().max(1);
        let (port, world) = (PORT.to_string(), self.world().to_string());
        let master = match self.world() {
            1 => "127.0.0.1".to_owned(),
            _ => format!("{}.{}", self.names().pod_name(0), self.names().gang_name()),
        };
        [
            ("MASTER_ADDR", master.clone()),
            ("PET_MASTER_ADDR", master),
            ("MASTER_PORT", port.clone()),
            ("PET_MASTER_PORT", port),
            ("WORLD_SIZE", world.clone()),
            ("RANK", rank.to_string()),
            ("NODE_RANK", rank.to_string()),
            ("NNODES", world.clone()),
            ("PET_NNODES", world),
            ("PET_NODE_RANK", rank.to_string()),
            ("PET_NPROC_PER_NODE", devices.to_string()),
        ]
    }
}

/// Claims may have names that volumes may not.
fn volume_name(at: usize) -> String {
    format!("claim-{at}")
}

/// For which kube-scheduler finds one node.
fn on_node(name: &str) -> Value {
    let field = json!({ "key": "metadata.name", "operator": "In", "values": [name] });
    let required = json!({ "nodeSelectorTerms": [{ "matchFields": [field] }] });
    json!({
        "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required },
    })
}

/// A text that the kubelet hands on as it is: it takes `$(NAME)` for a variable and `$$` for `$`.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// The resource by which the kubelet counts a device: slots of a node are named after it
/// (`nvidia.com/gpu/3`), and the cores of a node are `cpu`.
pub(crate) fn resource_of(device: &Device) -> &str {
    device.name.as_str().rsplit_once('/').map_or(CPU, |(resource, _)| resource)
}

/// The slot of its resource that a device is.
pub(crate) fn slot_of(device: &Device) -> Name {
    device.name.as_str().rsplit_once('/').map_or("", |(_, slot)| slot).into()
}
