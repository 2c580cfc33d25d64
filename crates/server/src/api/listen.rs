//! Where the interface is reached: the owner's socket always, the network where asked for.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::serve::Listener;
use axum::{Extension, Router};
use het_service::Handle;
use nix::unistd::Gid;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use super::Api;
use super::auth;
use super::bounded::{Bounded, Limits};
use super::local_users::LocalUsers;
use super::origins::Remote;
use super::own_socket::OwnSocket;
use super::routes::router;
use super::serve::{REQUEST_LIMIT, serve as answer};
use super::tls::{Certificate, CertificateError, TlsListener};

/// Longest path of a Unix socket on Linux, without the zero at its end (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Of each listener: the socket and the network take no places from each other, and one address or
/// user leaves most of them to others.
const LIMITS: Limits =
    Limits { connections: 1_024, reserved: 0, of_an_origin: 256, unread: Duration::from_secs(30) };
/// Of the socket of several users, which root and the server's own user always reach.
const RESERVED: usize = 64;
/// How long answers under way may take once the loop has ended; streams never end by themselves.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    pub socket: PathBuf,
    pub network: Option<Network>,
}

/// Where callers with a token are heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    pub address: SocketAddr,
    /// Without one only this machine is heard.
    pub certificate: Option<Certificate>,
}

/// Why the interface cannot be reached.
#[derive(Debug, Error)]
pub enum ListenError {
    #[error(
        "the socket's path `{}` is longer than {SOCKET_PATH_BYTES_MAX} bytes, \
         hint: set `HET_HOME` to a shorter one",
        path.display()
    )]
    LongPath { path: PathBuf },
    #[error("the socket `{}` cannot be opened", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("`{address}` cannot be listened on")]
    Address { address: SocketAddr, source: io::Error },
    #[error(
        "`{address}` can be reached from other machines and tokens would travel in the clear, \
         hint: give `--tls-certificate` and `--tls-key`, or a loopback address"
    )]
    Clear { address: SocketAddr },
    #[error("nobody could ask, for there is no token, hint: make one with `het server token`")]
    NoToken,
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("the interface failed")]
    Serve(#[source] io::Error),
}

/// Serves until the loop behind it has ended and whoever asked before has its answer. Nobody
/// listens any more when the last connection is closed.
///
/// # Errors
/// When a listener cannot be opened or fails.
pub async fn serve(api: Api, listen: &Listen) -> Result<(), ListenError> {
    let group = api.0.local_users.as_ref().map(LocalUsers::group);
    let own = own_socket(&listen.socket, group)?;
    let network = match &listen.network {
        Some(network) => Some((bound(&api, network).await?, network.acceptor()?)),
        None => None,
    };
    let service = api.0.service.clone();
    let app = router(api);
    let limits = Limits { reserved: group.map_or(0, |_| RESERVED), ..LIMITS };
    let at_own = app.clone().layer(Extension(auth::Listener::Socket));
    let at_own = serve_at(own, limits, at_own, &service);
    let app = app.layer(Extension(auth::Listener::Network));
    let served = async {
        match network {
            Some((listener, Some(acceptor))) => {
                let listener = TlsListener::new(listener, acceptor)?;
                tokio::join!(at_own, serve_at(listener, LIMITS, app, &service));
            }
            Some((listener, None)) => {
                tokio::join!(at_own, serve_at(listener, LIMITS, app, &service));
            }
            None => at_own.await,
        }
        Ok(())
    };
    let too_long = async {
        service.ended().await;
        sleep(LAST_ANSWERS).await;
    };
    let served = tokio::select! {
        served = served => served.map_err(ListenError::Serve),
        () = too_long => Ok(()),
    };
    // Another server finds a free path; this one's clients find nobody.
    let _ = fs::remove_file(&listen.socket);
    served
}

async fn serve_at(
    listener: impl Listener<Addr: Remote>,
    limits: Limits,
    app: Router,
    service: &Handle,
) {
    answer(Bounded::new(listener, limits), app, REQUEST_LIMIT, service.ended()).await;
}

fn own_socket(path: &Path, group: Option<Gid>) -> Result<OwnSocket, ListenError> {
    if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        return Err(ListenError::LongPath { path: path.to_owned() });
    }
    OwnSocket::open(path, group)
        .map_err(|source| ListenError::Socket { path: path.to_owned(), source })
}

impl Network {
    fn acceptor(&self) -> Result<Option<TlsAcceptor>, ListenError> {
        let acceptor = self.certificate.as_ref().map(Certificate::acceptor);
        acceptor.transpose().map_err(ListenError::Certificate)
    }
}

async fn bound(api: &Api, network: &Network) -> Result<TcpListener, ListenError> {
    let address = network.address;
    if network.certificate.is_none() && !address.ip().is_loopback() {
        return Err(ListenError::Clear { address });
    }
    if api.0.tokens.list().is_ok_and(|rows| rows.is_empty()) {
        return Err(ListenError::NoToken);
    }
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ListenError::Address { address, source })
}
