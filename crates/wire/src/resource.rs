//! The job file as a resource of Kubernetes: `TrainingJob` in the group `heterosis.dev`.
//!
//! A resource is a job file in which everything is written in one way (`canonical`), because its
//! schema may not allow a field to be of several types (`structural`). Its tenant is its namespace.
//! `Quotas` are a quota file with a name.

mod canonical;
mod definition;
mod quotas;
mod structural;

pub use canonical::{NotAResource, read, spec_of};
pub use definition::{Condition, PLURAL, StageStatus, TrainingJobStatus, Written, definition};
pub use quotas::{QUOTAS_KIND, QUOTAS_PLURAL, QuotasStatus, quotas_definition, read_quotas};

/// Group of the API.
pub const GROUP: &str = "heterosis.dev";
/// Its version, of which there is one.
pub const VERSION: &str = "v1alpha1";
pub const KIND: &str = "TrainingJob";
