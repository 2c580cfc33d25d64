//! The engine for a cluster: plans become pods, API objects become events.
//!
//! Knows: the Kubernetes API, which objects a gang is made of, and what becomes of them.
//! Must never know: who decides and why, or this machine.
//!
//! ```text
//! plan ──▶ engine ──▶ writer ──▶ API server ──▶ watch ──▶ engine ──▶ events
//!            │  objects to make (pods)             rows (objects)  │
//!            └────────────── gangs: what was seen of their pods ◀──┘
//! ```

mod channel;
mod client;
mod cluster;
mod conditions;
mod device_table;
mod dra;
mod engine;
mod events;
mod gang;
mod group_api;
mod group_lease;
mod groups;
mod informers;
mod inventory;
mod jobs;
mod leader;
mod logs;
mod manifests;
mod names;
mod needs;
mod network;
mod objects;
mod own_pod;
mod owners;
mod pods;
mod quantity;
mod quotas;
mod reports;
mod requests;
mod resources;
mod slots;
mod statuses;
mod watch;
mod workload_kinds;
mod workload_lease;
mod workloads;
mod writer;

pub use client::{Access, ConnectError, Connection};
pub use cluster::{Cluster, ClusterError};
pub use conditions::{ForeignConditions, Waits};
pub use engine::{EventSender, Kubernetes, KubernetesConfig, Nodes, Patience};
pub use jobs::{JobNews, JobObject, Jobs};
/// What the API server answers when it does not do what it is asked.
pub use kube::Error as ApiError;
pub use leader::{EPOCH_MAX, Election, ElectionError, Leadership, Standby};
pub use manifests::{ChartFile, ManifestOptions, chart, manifests};
pub use names::{Binding, NAMESPACE, SCHEDULER};
pub use own_pod::{OwnPod, PodName, ReportError};
pub use owners::{Foreign, ForeignKind, JobOwner, JobOwners};
pub use quotas::{QuotasApi, QuotasNews, QuotasObject};
pub use requests::{DeviceOption, News, PodDevices, Request, RequestNews, Unsuitable};
pub use statuses::Statuses;
pub use watch::Watches;
pub use workload_kinds::WorkloadKind;
