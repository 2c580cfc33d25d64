//! The pod that this program runs in, as far as it may write there: how far its program is.

use std::time::Duration;

use kube::Error;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use thiserror::Error as ThisError;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::client::{Access, ConnectError, Connection};
use crate::names::PROGRESS;
use crate::objects::{self, PodObject};

/// A connection that says nothing for longer is given up.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// Which pod, as its own environment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

/// Why nothing can be said of a pod.
#[derive(Debug, ThisError)]
pub enum ReportError {
    #[error("no thread can wait for the API server")]
    Thread(#[source] std::io::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the API server does not answer")]
    Silent,
    #[error("the API server does not take it")]
    Refused(#[source] Box<Error>),
}

/// A way to one pod.
pub struct OwnPod {
    runtime: Runtime,
    api: Api<PodObject>,
    name: String,
}

impl std::fmt::Debug for OwnPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OwnPod({})", self.name)
    }
}

impl OwnPod {
    /// # Errors
    /// When the API server cannot be reached.
    pub fn connect(access: Access, pod: &PodName) -> Result<Self, ReportError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ReportError::Thread)?;
        let connection = runtime.block_on(Connection::open(access))?;
        let api = Api::namespaced_with(connection.client, &pod.namespace, &objects::pods());
        Ok(Self { runtime, api, name: pod.name.clone() })
    }

    /// Has the pod say a line of progress.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub fn report(&self, line: &str) -> Result<(), ReportError> {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { PROGRESS: line } } }));
        let parameters = PatchParams::default();
        let patched =
            async { timeout(REQUEST_MAX, self.api.patch(&self.name, &parameters, &patch)).await };
        match self.runtime.block_on(patched) {
            Err(_) => Err(ReportError::Silent),
            Ok(Err(error)) => Err(ReportError::Refused(Box::new(error))),
            Ok(Ok(_)) => Ok(()),
        }
    }
}
