//! How callers of the server make jobs in a cluster.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use het_core::JobId;
use het_kubernetes::{ApiError, Jobs, Watches};
use het_wire::api::{FollowedLogs, LogsQuery, WatchError};
use het_wire::job::TrainingJob;
use het_wire::resource;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::WORKDIR;
use crate::served::{Ended, JobMaker, ReadingLogs, SubmitError, Submitting};

/// How long logs may take to come.
const LOGS_MAX: Duration = Duration::from_secs(30);

/// Who waits for a job to be taken in, by the uid of its object; and those that were taken in while
/// nobody had asked yet.
#[derive(Debug, Default)]
struct Waiting {
    callers: BTreeMap<String, oneshot::Sender<Result<JobId, String>>>,
    /// Makes the object and asks: what was taken in meanwhile is kept for who asks next.
    asking: usize,
    taken_in: BTreeMap<String, Result<JobId, String>>,
}

/// How callers of the server make jobs in the cluster; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ClusterJobs {
    jobs: Jobs,
    /// The object that says what tenants may have, while there is one.
    quotas: Arc<str>,
    keeps_quotas: Arc<AtomicBool>,
    waiting: Arc<Mutex<Waiting>>,
    watches: Watches,
}

impl ClusterJobs {
    /// `quotas` is the name of the object that says what tenants may have, where there is one.
    pub(super) fn new(jobs: Jobs, quotas: &str, watches: Watches) -> Self {
        let keeps_quotas = Arc::default();
        Self { jobs, quotas: quotas.into(), keeps_quotas, waiting: Arc::default(), watches }
    }

    /// Whether the object is there.
    pub(super) fn keep_quotas(&self, is_there: bool) {
        self.keeps_quotas.store(is_there, Ordering::SeqCst);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn make(&self, job: &TrainingJob) -> Result<JobId, SubmitError> {
        let spec = resource::spec_of(job)?;
        let metadata = &job.file.metadata;
        let namespace = metadata.tenant.as_deref().unwrap_or("default");
        self.waiting().asking += 1;
        let made = self.jobs.create(namespace, &metadata.name, &spec).await;
        let answer = {
            let mut waiting = self.waiting();
            waiting.asking -= 1;
            let answer = made.map(|object| waiting.answer_of(object.owner.uid));
            if waiting.asking == 0 {
                waiting.taken_in.clear();
            }
            answer.map_err(|error| SubmitError::Refused(told(&error)))?
        };
        let taken_in = answer.await.map_err(|_| SubmitError::Refused(GONE.to_owned()))?;
        taken_in.map_err(SubmitError::Refused)
    }

    pub(super) fn taken_in(&self, uid: &str, taken_in: Result<JobId, String>) {
        let mut waiting = self.waiting();
        match waiting.callers.remove(uid) {
            // The caller may have gone.
            Some(caller) => drop(caller.send(taken_in)),
            None if waiting.asking > 0 => drop(waiting.taken_in.insert(uid.to_owned(), taken_in)),
            None => {}
        }
    }
}

impl JobMaker for ClusterJobs {
    fn submit<'a>(&'a self, job: &'a TrainingJob) -> Submitting<'a> {
        Box::pin(self.make(job))
    }

    fn workdir(&self) -> &str {
        WORKDIR
    }

    fn logs<'a>(&'a self, job: JobId, tenant: &'a str, query: LogsQuery) -> ReadingLogs<'a> {
        Box::pin(async move {
            let logs = timeout(LOGS_MAX, self.jobs.logs(job, tenant, &query)).await;
            let logs = logs.map_err(|_| "the API server does not answer".to_owned())?;
            logs.map_err(|error| told(&error))
        })
    }

    fn follow_logs(
        &self,
        job: JobId,
        tenant: &str,
        query: LogsQuery,
        ended: Ended,
    ) -> Receiver<FollowedLogs> {
        self.jobs.follow_logs(job, tenant, query, ended)
    }

    fn quotas(&self) -> Option<&str> {
        self.keeps_quotas.load(Ordering::SeqCst).then_some(&self.quotas)
    }

    fn watch_errors(&self) -> Vec<WatchError> {
        self.watches.errors()
    }
}

const GONE: &str = "the server ends: the job is there and the next server takes it in";

impl Waiting {
    fn answer_of(&mut self, uid: String) -> oneshot::Receiver<Result<JobId, String>> {
        let (sender, receiver) = oneshot::channel();
        match self.taken_in.remove(&uid) {
            Some(taken_in) => drop(sender.send(taken_in)),
            None => drop(self.callers.insert(uid, sender)),
        }
        receiver
    }
}

fn told(error: &ApiError) -> String {
    match error {
        ApiError::Api(status) => status.message.clone(),
        error => format!("the API server does not answer: {error}"),
    }
}
