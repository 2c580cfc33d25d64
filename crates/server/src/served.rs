//! What the interface of a service shows, whatever engine it is over.

use het_agent::Members;
use het_host::LatestLoad;
use het_service::Handle;

use crate::cluster_jobs::ClusterJobs;
use crate::store::StoreReader;

/// The way to a service, and what lies beside it.
#[derive(Debug, Clone)]
pub struct Served {
    pub handle: Handle,
    pub log: StoreReader,
    pub load: LatestLoad,
    /// As whom jobs run, where that is not the server.
    pub members: Option<Members>,
    /// Where jobs are made, where that is not the server.
    pub cluster: Option<ClusterJobs>,
}
