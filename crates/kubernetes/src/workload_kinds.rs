//! Kinds of objects that make pods, and that `suspend` starts and stops. No I/O.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::names::ObjectKey;

/// A kind of object that makes pods, and that can be suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkloadKind {
    JobSet,
    TrainJob,
    PyTorchJob,
    TfJob,
    XgBoostJob,
    PaddleJob,
    JaxJob,
    RayCluster,
    Job,
}

/// Where pods of a workload are described.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Templates {
    /// In its own object nowhere: it makes another workload, which has them.
    None,
    /// `spec.template`, `parallelism` of them.
    Job,
    /// `spec.replicatedJobs`, each with a job.
    JobSet,
    /// A map of roles, each with `replicas` and a `template`.
    Replicas(&'static str),
    /// One head, and groups of workers.
    Ray,
}

/// How a kind is asked for, and what its objects look like.
struct Definition {
    kind: WorkloadKind,
    group: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
    /// Under `spec`.
    suspend: &'static [&'static str],
    templates: Templates,
    /// The label by which pods name it whose controller another object is.
    label: Option<&'static str>,
}

const KUBEFLOW: &str = "kubeflow.org";
const RUN_POLICY: &[&str] = &["runPolicy", "suspend"];

const fn kubeflow(
    kind: WorkloadKind,
    (name, plural): (&'static str, &'static str),
    replicas: &'static str,
) -> Definition {
    Definition {
        kind,
        group: KUBEFLOW,
        version: "v1",
        name,
        plural,
        suspend: RUN_POLICY,
        templates: Templates::Replicas(replicas),
        label: None,
    }
}

const DEFINITIONS: [Definition; 9] = [
    Definition {
        kind: WorkloadKind::JobSet,
        group: "jobset.x-k8s.io",
        version: "v1alpha2",
        name: "JobSet",
        plural: "jobsets",
        suspend: &["suspend"],
        templates: Templates::JobSet,
        label: Some("jobset.sigs.k8s.io/jobset-name"),
    },
    Definition {
        kind: WorkloadKind::TrainJob,
        group: "trainer.kubeflow.org",
        version: "v1alpha1",
        name: "TrainJob",
        plural: "trainjobs",
        suspend: &["suspend"],
        templates: Templates::None,
        label: None,
    },
    kubeflow(WorkloadKind::PyTorchJob, ("PyTorchJob", "pytorchjobs"), "pytorchReplicaSpecs"),
    kubeflow(WorkloadKind::TfJob, ("TFJob", "tfjobs"), "tfReplicaSpecs"),
    kubeflow(WorkloadKind::XgBoostJob, ("XGBoostJob", "xgboostjobs"), "xgbReplicaSpecs"),
    kubeflow(WorkloadKind::PaddleJob, ("PaddleJob", "paddlejobs"), "paddleReplicaSpecs"),
    kubeflow(WorkloadKind::JaxJob, ("JAXJob", "jaxjobs"), "jaxReplicaSpecs"),
    Definition {
        kind: WorkloadKind::RayCluster,
        group: "ray.io",
        version: "v1",
        name: "RayCluster",
        plural: "rayclusters",
        suspend: &["suspend"],
        templates: Templates::Ray,
        label: None,
    },
    Definition {
        kind: WorkloadKind::Job,
        group: "batch",
        version: "v1",
        name: "Job",
        plural: "jobs",
        suspend: &["suspend"],
        templates: Templates::Job,
        label: None,
    },
];

impl WorkloadKind {
    /// Those whose objects describe pods.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let described = |it: &&Definition| !matches!(it.templates, Templates::None);
        DEFINITIONS.iter().filter(described).map(|it| it.kind)
    }

    /// Group and plural of each, for those who give rights.
    pub(crate) fn resources() -> impl Iterator<Item = (&'static str, &'static str)> {
        DEFINITIONS.iter().map(|it| (it.group, it.plural))
    }

    pub fn of_name(name: &str) -> Option<Self> {
        DEFINITIONS.iter().find(|it| it.name == name).map(|it| it.kind)
    }

    /// Of an owner. Others call their kinds the same in groups of their own.
    pub(crate) fn of_reference(owner: &OwnerReference) -> Option<Self> {
        let group = owner.api_version.split_once('/').map(|(group, _)| group)?;
        let is_it = |it: &&Definition| it.name == owner.kind && it.group == group;
        DEFINITIONS.iter().find(is_it).map(|it| it.kind)
    }

    pub fn name(self) -> &'static str {
        self.definition().name
    }

    pub(crate) fn templates(self) -> Templates {
        self.definition().templates
    }

    fn definition(self) -> &'static Definition {
        let found = DEFINITIONS.iter().find(|it| it.kind == self);
        found.expect("each kind has a definition")
    }

    pub(crate) fn resource(self) -> ApiResource {
        let Definition { group, version, name, plural, .. } = self.definition();
        let kind = GroupVersionKind::gvk(group, version, name);
        ApiResource::from_gvk_with_plural(&kind, plural)
    }

    /// As objects are referred to.
    pub(crate) fn api_version(self) -> String {
        let Definition { group, version, .. } = self.definition();
        format!("{group}/{version}")
    }

    /// The change that suspends one, or has it go on.
    pub(crate) fn suspension(self, is_suspended: bool) -> Value {
        let path = self.definition().suspend.iter().rev();
        path.fold(json!(is_suspended), |inner, field| json!({ *field: inner }))
    }

    pub(crate) fn is_suspended(self, spec: &Value) -> bool {
        let path = self.definition().suspend.iter();
        path.fold(spec, |at, field| &at[*field]).as_bool().unwrap_or_default()
    }
}

/// The workload that a pod says it is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkloadName {
    pub kind: WorkloadKind,
    pub key: ObjectKey,
}

impl WorkloadName {
    /// Of a pod: by its label where the workload makes others that make pods, else by its
    /// controller.
    pub fn of_pod(
        namespace: &str,
        labels: &BTreeMap<String, String>,
        controller: Option<&OwnerReference>,
    ) -> Option<Self> {
        let labelled =
            || DEFINITIONS.iter().find_map(|it| Some((it.kind, labels.get(it.label?)?.clone())));
        let owned = || {
            let controller = controller?;
            Some((WorkloadKind::of_reference(controller)?, controller.name.clone()))
        };
        let (kind, name) = labelled().or_else(owned)?;
        Some(Self { kind, key: ObjectKey { namespace: namespace.to_owned(), name } })
    }
}

/// The owner that makes and removes an object.
pub(crate) fn controller_of(owners: Option<&[OwnerReference]>) -> Option<&OwnerReference> {
    owners.unwrap_or_default().iter().find(|owner| owner.controller == Some(true))
}
