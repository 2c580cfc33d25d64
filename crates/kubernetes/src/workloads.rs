//! Workloads of others: objects whose controllers make pods, and that `suspend` starts and stops.
//! No I/O.
//!
//! One is handed over by its owner: it is suspended, and its pods name this scheduler. Once all of
//! its pods have a place it is unsuspended; to stop it, it is suspended, which its controller does
//! not take for a failure.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::Domain;
use kube::api::DynamicObject;
use kube::core::ObjectMeta;
use serde_json::Value;

use crate::names::{self, ObjectKey, Scheduler};
use crate::needs::PodNeeds;
use crate::objects::PodTemplate;
use crate::requests::Unsuitable;
use crate::resources::CPU;
use crate::workload_kinds::{Templates, WorkloadKind, WorkloadName, controller_of};

/// Most pods of a workload.
const RANKS_MAX: u64 = 4_096;

/// What is kept of a workload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WorkloadRow {
    pub name: WorkloadName,
    pub uid: String,
    /// Of its object; 0 where that is no number. Versions of a cluster grow with each write.
    pub version: u64,
    /// Whose `suspend` it goes by: its own or that of the workload that made it.
    pub suspended_by: SuspendedBy,
    pub is_suspended: bool,
    /// It asks no more: it is being deleted, or its job was ended here.
    pub is_over: bool,
    pub end: Option<WorkloadEnd>,
    /// What its pods ask for; nothing where they do not name this scheduler.
    pub gang: Option<Arc<WorkloadGang>>,
}

/// An object that is suspended, and has others suspended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SuspendedBy {
    pub name: WorkloadName,
    pub uid: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkloadEnd {
    Succeeded,
    /// For people.
    Failed(String),
}

/// The pods of a workload that start together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkloadGang {
    pub ranks: u32,
    pub needs: PodNeeds,
    /// Of each, by resource, in thousandths.
    pub requests: BTreeMap<String, u64>,
    /// The class whose value says how urgent it is, where no word does.
    pub priority_class: Option<String>,
    pub within: Domain,
    /// It has no other pods that name this scheduler.
    pub is_all: bool,
    /// Why it cannot be started.
    pub refused: Option<Unsuitable>,
}

/// Pods of one description.
#[derive(Clone)]
struct PodSet {
    count: u64,
    template: PodTemplate,
}

impl PodSet {
    /// Of all of them, in thousandths.
    fn cores(&self) -> u64 {
        let of_one = self.template.requests().get(CPU).copied().unwrap_or_default();
        self.count.saturating_mul(of_one)
    }
}

impl WorkloadRow {
    /// `None` of an object without a name, and of one that another workload makes and starts.
    pub fn of(kind: WorkloadKind, object: DynamicObject, scheduler: &Scheduler) -> Option<Self> {
        let DynamicObject { metadata, data, .. } = object;
        let key = ObjectKey {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone()?,
        };
        let name = WorkloadName { kind, key };
        let uid = metadata.uid.clone().unwrap_or_default();
        let version = version_of(&metadata);
        let suspended_by = suspended_by(&metadata, &name, &uid)?;
        let (spec, status) = (&data["spec"], &data["status"]);
        let annotations = metadata.annotations.unwrap_or_default();
        Some(Self {
            uid,
            version,
            suspended_by,
            is_suspended: kind.is_suspended(spec),
            is_over: metadata.deletion_timestamp.is_some()
                || annotations.contains_key(names::ENDED),
            end: end(status),
            gang: gang(&name, (spec, status), &annotations, scheduler).map(Arc::new),
            name,
        })
    }

    /// It waits until somebody finds a place for its pods.
    pub fn asks(&self) -> bool {
        self.is_suspended && !self.is_over && self.end.is_none() && self.gang.is_some()
    }
}

/// 0 where it is no number.
pub(crate) fn version_of(metadata: &ObjectMeta) -> u64 {
    let version = metadata.resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Whoever suspends an object: `None` where a workload owns it that starts it in its own time.
fn suspended_by(metadata: &ObjectMeta, name: &WorkloadName, uid: &str) -> Option<SuspendedBy> {
    let own = || SuspendedBy { name: name.clone(), uid: uid.to_owned() };
    let owners = metadata.owner_references.as_deref();
    let Some(owner) = controller_of(owners) else { return Some(own()) };
    let Some(kind) = WorkloadKind::of_reference(owner) else { return Some(own()) };
    matches!(kind.templates(), Templates::None).then(|| {
        let key = ObjectKey { namespace: name.key.namespace.clone(), name: owner.name.clone() };
        SuspendedBy { name: WorkloadName { kind, key }, uid: owner.uid.clone() }
    })
}

/// By its conditions, whose words differ from kind to kind.
fn end(status: &Value) -> Option<WorkloadEnd> {
    let conditions = status["conditions"].as_array()?;
    let is_true = |it: &&Value| it["status"] == "True";
    conditions.iter().filter(is_true).find_map(|condition| match condition["type"].as_str()? {
        "Complete" | "Completed" | "Succeeded" => Some(WorkloadEnd::Succeeded),
        "Failed" => {
            let word = |field: &str| condition[field].as_str().unwrap_or_default();
            Some(WorkloadEnd::Failed(match word("message") {
                "" => word("reason").to_owned(),
                message => message.lines().next().unwrap_or_default().to_owned(),
            }))
        }
        _ => None,
    })
}

/// The pods that start together: those with accelerators, or all where none has any. Others, a head
/// or a launcher, are pods like any other.
fn gang(
    name: &WorkloadName,
    (spec, status): (&Value, &Value),
    annotations: &BTreeMap<String, String>,
    scheduler: &Scheduler,
) -> Option<WorkloadGang> {
    let sets = pod_sets(name.kind, spec, status);
    let is_read = !sets.iter().any(|set| set.template.is_bad());
    let ours = sets.into_iter().filter(|set| set.template.is_for(scheduler) && set.count > 0);
    let mut sets: Vec<PodSet> = ours.collect();
    let needs_of = |set: &PodSet| set.template.needs(&name.key.name, annotations, scheduler);
    let is_like = |set: &PodSet, other: &PodSet| {
        set.template.requests() == other.template.requests()
            && needs_of(set).nodes == needs_of(other).nodes
    };
    let all = sets.len();
    match sets.iter().any(|set| set.template.wants_devices()) {
        true => sets.retain(|set| set.template.wants_devices()),
        false => {
            let largest = sets.iter().max_by_key(|set| set.cores())?.clone();
            sets.retain(|set| is_like(set, &largest));
        }
    }
    let first = sets.first()?;
    let mut needs = needs_of(first);
    // Nothing is lost to its controller by a stop.
    needs.preemptible = annotations.get(names::PREEMPTIBLE).is_none_or(|value| value != "false");
    let ranks = sets.iter().fold(0u64, |sum, set| sum.saturating_add(set.count));
    let topology = annotations.get(names::TOPOLOGY).map_or(Ok(Domain::Any), |word| within(word));
    let refused = [
        (!is_read, "a pod template that cannot be read".to_owned()),
        (ranks > RANKS_MAX, format!("a workload of more than {RANKS_MAX} pods")),
        (
            sets.iter().any(|set| !is_like(set, first)),
            "a workload whose pods ask for different devices or nodes".to_owned(),
        ),
        (
            sets.iter().any(|set| set.template.has_claims()),
            "resource claims of the pods of a workload".to_owned(),
        ),
        (
            spec["enableInTreeAutoscaling"] == true,
            "a Ray cluster that scales itself (`enableInTreeAutoscaling`)".to_owned(),
        ),
        (topology.is_err(), topology.clone().err().unwrap_or_default()),
    ];
    let refused = refused.into_iter().find_map(|(is_refused, what)| is_refused.then_some(what));
    let is_said = annotations.contains_key(names::PRIORITY);
    Some(WorkloadGang {
        ranks: ranks.min(RANKS_MAX) as u32,
        priority_class: first.template.priority_class().filter(|_| !is_said),
        within: topology.unwrap_or_default(),
        refused: refused.map(Unsuitable::NotSupported),
        requests: first.template.requests(),
        is_all: sets.len() == all,
        needs,
    })
}

/// # Errors
/// What is not considered where it is another word.
fn within(word: &str) -> Result<Domain, String> {
    let found = Domain::ALL.into_iter().find(|domain| domain.word() == word);
    found.ok_or_else(|| {
        let words = Domain::ALL.map(Domain::word).join(", ");
        format!("`{word}` as `{}`: it is one of {words}", names::TOPOLOGY)
    })
}

/// How many pods of each template are to run at once; those that are done are not made again.
fn pod_sets(kind: WorkloadKind, spec: &Value, status: &Value) -> Vec<PodSet> {
    let count = |value: &Value| value.as_u64().unwrap_or(1);
    let set = |count: u64, template: &Value| PodSet { count, template: PodTemplate::of(template) };
    let items = |value: &'static str| spec[value].as_array().into_iter().flatten();
    match kind.templates() {
        Templates::None => Vec::new(),
        Templates::Job => vec![set(at_once(spec, status), &spec["template"])],
        Templates::JobSet => items("replicatedJobs")
            .map(|one| {
                let job = &one["template"]["spec"];
                let left = count(&one["replicas"]).saturating_sub(succeeded(status, &one["name"]));
                set(left.saturating_mul(at_once(job, &Value::Null)), &job["template"])
            })
            .collect(),
        Templates::Replicas(field) => {
            let roles = spec[field].as_object().into_iter().flatten();
            roles.map(|(_, role)| set(count(&role["replicas"]), &role["template"])).collect()
        }
        Templates::Ray => {
            let head = set(1, &spec["headGroupSpec"]["template"]);
            let groups = items("workerGroupSpecs").filter(|group| group["suspend"] != true);
            let workers = groups.map(|group| {
                let least = group["minReplicas"].as_u64().unwrap_or_default();
                let (replicas, hosts) = (count(&group["replicas"]), count(&group["numOfHosts"]));
                set(replicas.max(least).saturating_mul(hosts), &group["template"])
            });
            [head].into_iter().chain(workers).collect()
        }
    }
}

/// Pods of a job that run at once.
fn at_once(job: &Value, status: &Value) -> u64 {
    let parallelism = job["parallelism"].as_u64().unwrap_or(1);
    let done = status["succeeded"].as_u64().unwrap_or_default();
    let left = job["completions"].as_u64().map(|most| most.saturating_sub(done));
    left.map_or(parallelism, |left| left.min(parallelism))
}

/// Jobs of a set's part that have succeeded.
fn succeeded(status: &Value, part: &Value) -> u64 {
    let parts = status["replicatedJobsStatus"].as_array().into_iter().flatten();
    let found = parts.filter(|one| one["name"] == *part).find_map(|one| one["succeeded"].as_u64());
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests;
