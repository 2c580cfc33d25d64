//! The way to a cluster: a connection, and the threads that speak with it.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use het_core::Millis;
use thiserror::Error;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;

use crate::client::{Access, ConnectError, Connection, NOT_FOUND};
use crate::jobs::{JobObject, Jobs};
use crate::leader::{self, Election, ElectionError, Leadership, Standby};
use crate::quotas::{self, QuotasObject};
use crate::statuses::Statuses;
use crate::watch::Watches;

/// Threads that speak with the API server.
const THREADS: usize = 2;

/// Why there is no way to a cluster, or no use of it.
#[derive(Debug, Error)]
pub enum ClusterError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("threads for the API server cannot be made")]
    Threads(#[source] io::Error),
    #[error("the API server does not know what a `TrainingJob` is")]
    NotDefined,
    #[error("the API server does not list jobs")]
    Jobs(#[source] Box<kube::Error>),
    #[error("the API server does not list `Quotas`: apply `het kubernetes manifests` again")]
    Quotas(#[source] Box<kube::Error>),
}

/// A cluster that has answered; cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    threads: Arc<Threads>,
    connection: Connection,
    since_boot: fn() -> Millis,
    watches: Watches,
}

/// Given up without waiting, with whatever is under way: whoever comes next looks at what there is.
struct Threads(Option<Arc<Runtime>>);

impl Drop for Threads {
    fn drop(&mut self) {
        let runtime = self.0.take().and_then(Arc::into_inner);
        runtime.into_iter().for_each(Runtime::shutdown_background);
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.connection.server)
    }
}

impl Cluster {
    /// `since_boot` is the time since boot, suspended or not: nobody sets that clock.
    ///
    /// # Errors
    /// When the API server cannot be reached.
    pub fn connect(access: Access, since_boot: fn() -> Millis) -> Result<Self, ClusterError> {
        let runtime = runtime()?;
        let connection = runtime.block_on(Connection::open(access))?;
        let threads = Arc::new(Threads(Some(Arc::new(runtime))));
        Ok(Self { threads, connection, since_boot, watches: Watches::default() })
    }

    /// The same for callers that have a client already, and threads or a clock of their own; nobody
    /// asks whether its server answers.
    pub fn over(client: kube::Client, runtime: Arc<Runtime>, since_boot: fn() -> Millis) -> Self {
        let threads = Arc::new(Threads(Some(runtime)));
        let (server, version) = ("loopback".to_owned(), "v1.37.2".to_owned());
        Self {
            threads,
            connection: Connection { plain: client.clone(), client, server, version },
            since_boot,
            watches: Watches::default(),
        }
    }

    /// The server that it speaks with.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Which of its objects cannot be followed at present.
    pub fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Becomes the leader of an election, once no other is. `standby` hears who leads, again and
    /// again, and says whether to go on waiting.
    ///
    /// # Errors
    /// When the API server refuses it, or the wait was given up.
    pub fn lead(
        &self,
        election: Election,
        standby: impl FnMut(&str) -> Standby,
    ) -> Result<Leadership, ElectionError> {
        let client = self.connection.client.clone();
        self.block_on(leader::lead(client, election, self.since_boot, standby))
    }

    /// Leads in an epoch after this one: somebody wrote in it of whom the Lease knows nothing.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub fn raise_above(&self, leadership: &Leadership, epoch: u64) -> Result<(), kube::Error> {
        self.block_on(leadership.raise_above(epoch))
    }

    /// Waits until no status is to be written any more, or for so long.
    pub fn settle(&self, statuses: &Statuses, limit: Duration) {
        let _ = self.block_on(async { timeout(limit, statuses.settled()).await });
    }

    /// Gives the lead back, so that nobody has to wait for its end.
    pub fn release(&self, leadership: &Leadership) {
        self.block_on(leadership.release());
    }

    /// Calls somebody once the lead is lost.
    pub fn on_loss(&self, leadership: &Leadership, call: impl FnOnce() + Send + 'static) {
        let leadership = leadership.clone();
        self.spawn(async move {
            if leadership.ended().await {
                call();
            }
        });
    }

    /// The API of the jobs of a scheduler, for those who have threads of their own to wait.
    pub fn jobs(&self, scheduler: &str) -> Jobs {
        Jobs::new(self.connection.client.clone(), scheduler)
    }

    /// All jobs of a scheduler that there are.
    ///
    /// # Errors
    /// When the server does not answer, or does not know what a `TrainingJob` is.
    pub fn list_jobs(&self, scheduler: &str) -> Result<Vec<JobObject>, ClusterError> {
        self.block_on(self.jobs(scheduler).list()).map_err(|error| match error {
            kube::Error::Api(status) if status.code == NOT_FOUND => ClusterError::NotDefined,
            error => ClusterError::Jobs(Box::new(error)),
        })
    }

    /// The quotas of a scheduler, where there is an object; nothing where the API server does not
    /// know what `Quotas` are.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn quotas(&self, scheduler: &str) -> Result<Option<QuotasObject>, ClusterError> {
        let listed = self.block_on(quotas::list(self.connection.client.clone(), scheduler));
        match listed {
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(None),
            listed => listed.map_err(|error| ClusterError::Quotas(Box::new(error))),
        }
    }

    pub(crate) fn since_boot(&self) -> fn() -> Millis {
        self.since_boot
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.runtime().handle()
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime().spawn(task));
    }

    pub(crate) fn block_on<T>(&self, task: impl Future<Output = T>) -> T {
        self.runtime().block_on(task)
    }

    fn runtime(&self) -> &Runtime {
        self.threads.0.as_ref().expect("it is there until it is dropped")
    }
}

fn runtime() -> Result<Runtime, ClusterError> {
    let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    runtime.map_err(ClusterError::Threads)
}
