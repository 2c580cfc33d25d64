//! What the interface of a service shows, whatever engine it is over.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use het_agent::Members;
use het_core::JobId;
use het_host::LatestLoad;
use het_service::Handle;
use het_wire::api::{FollowedLogs, LogsQuery, PodLog, WatchError};
use het_wire::job::TrainingJob;
use het_wire::resource::NotAResource;
use thiserror::Error;
use tokio::sync::mpsc::Receiver;

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
    pub cluster: Option<Arc<dyn JobMaker>>,
}

/// Where jobs of callers are made, where that is not the server.
pub trait JobMaker: Debug + Send + Sync {
    /// Makes a job, and waits until the loop has it.
    ///
    /// # Errors
    /// When it cannot be made there, or is refused.
    fn submit<'a>(&'a self, job: &'a TrainingJob) -> Submitting<'a>;

    /// The job's own directory, as its programs see it.
    fn workdir(&self) -> &str;

    /// The name of the object that says what tenants may have, where there is one.
    fn quotas(&self) -> Option<&str>;

    /// What there cannot be followed at present.
    fn watch_errors(&self) -> Vec<WatchError>;

    /// What the programs of a job of this tenant wrote.
    ///
    /// # Errors
    /// Why nobody can say: one sentence for people.
    fn logs<'a>(&'a self, job: JobId, tenant: &'a str, query: LogsQuery) -> ReadingLogs<'a>;

    /// What they write until the job has ended, which `ended` says. Nothing goes on where nobody
    /// takes it; who takes nothing for long is left, without [`FollowedLogs::End`].
    fn follow_logs(
        &self,
        job: JobId,
        tenant: &str,
        query: LogsQuery,
        ended: Ended,
    ) -> Receiver<FollowedLogs>;
}

/// The end of a job.
pub type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The reading of logs under way.
pub type ReadingLogs<'a> = Pin<Box<dyn Future<Output = Result<Vec<PodLog>, String>> + Send + 'a>>;

/// A submission under way.
pub type Submitting<'a> = Pin<Box<dyn Future<Output = Result<JobId, SubmitError>> + Send + 'a>>;

/// Why a job could not be made where jobs are made.
#[derive(Debug, Error)]
pub enum SubmitError {
    #[error(transparent)]
    NotAResource(#[from] NotAResource),
    /// One sentence for people.
    #[error("{0}")]
    Refused(String),
}
