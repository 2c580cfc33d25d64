//! The API of groups of pods (`PodGroup` of `scheduling.k8s.io`), whose version differs from
//! cluster to cluster. No I/O.

use kube::api::ApiResource;
use kube::core::GroupVersionKind;

pub(crate) const API_GROUP: &str = "scheduling.k8s.io";
pub(crate) const PLURAL: &str = "podgroups";
pub(crate) const KIND: &str = "PodGroup";
/// Newest first.
pub(crate) const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha2"];
/// Says that the pods that start together have nodes; once it is true it stays so.
pub(crate) const SCHEDULED: &str = "PodGroupInitiallyScheduled";

/// Where it is served in this version.
pub(crate) fn resource(version: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(API_GROUP, version, KIND), PLURAL)
}
