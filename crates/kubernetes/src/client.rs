//! How the API server is reached.

use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use thiserror::Error;

pub(crate) const FORBIDDEN: u16 = 403;
pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const CONFLICT: u16 = 409;

/// By which file or account the API server is reached.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// `KUBECONFIG`, the user's own file, or the service account of this pod where it is `None`.
    pub kubeconfig: Option<PathBuf>,
    /// The file's current context where it is `None`.
    pub context: Option<String>,
}

/// Why the API server cannot be used.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("the kubeconfig `{}` cannot be used", path.display())]
    File { path: PathBuf, source: kube::config::KubeconfigError },
    #[error("there is neither a kubeconfig nor a service account of a pod")]
    NoConfig(#[source] kube::config::InferConfigError),
    #[error("the context of the kubeconfig cannot be used")]
    Context(#[source] kube::config::KubeconfigError),
    #[error("no client can be made for `{server}`")]
    Client { server: String, source: kube::Error },
    #[error("`{server}` does not answer as an API server")]
    Unreachable { server: String, source: kube::Error },
}

/// A client that has had an answer, and the address that gave it.
#[derive(Clone)]
pub struct Connection {
    pub(crate) client: Client,
    /// For those who try again themselves, and have to know what was answered.
    pub(crate) plain: Client,
    pub server: String,
    /// `v1.37.2`.
    pub version: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.server)
    }
}

impl Connection {
    /// # Errors
    /// When there is no way to the server, or it does not answer.
    pub(crate) async fn open(access: Access) -> Result<Self, ConnectError> {
        let config = config(access).await?;
        let server = config.cluster_url.to_string();
        let made = |config| {
            let made = Client::try_from(config);
            made.map_err(|source| ConnectError::Client { server: server.clone(), source })
        };
        let mut of_plain = config.clone();
        of_plain.default_retry = false;
        let (client, plain) = (made(config)?, made(of_plain)?);
        match client.apiserver_version().await {
            Ok(version) => Ok(Self { client, plain, server, version: version.git_version }),
            Err(source) => Err(ConnectError::Unreachable { server, source }),
        }
    }
}

async fn config(Access { kubeconfig, context }: Access) -> Result<Config, ConnectError> {
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(&path);
            let file = read.map_err(|source| ConnectError::File { path, source })?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(ConnectError::Context)
        }
        None if options.context.is_some() => {
            Config::from_kubeconfig(&options).await.map_err(ConnectError::Context)
        }
        None => Config::infer().await.map_err(ConnectError::NoConfig),
    }
}
