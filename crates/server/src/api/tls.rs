//! TLS for callers from other machines: certificate and key from files, handshakes beside the
//! accepting, so that one caller who says nothing keeps nobody else waiting.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

use super::origins::Origins;

/// How long a caller may take for its part of the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// One address leaves most of the handshakes to others.
const PLACES: Places = Places { all: 256, of_an_origin: 32 };
/// After an accept failed, for want of descriptors most likely.
const PAUSE: Duration = Duration::from_millis(100);

/// Files in PEM form: the certificate with those that it rests on, and its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub chain: PathBuf,
    pub key: PathBuf,
}

/// Why a certificate is of no use.
#[derive(Debug, Error)]
pub enum CertificateError {
    #[error(
        "`{}` holds no certificate that can be read: {why}, hint: it has to be a PEM file",
        path.display()
    )]
    Chain { path: PathBuf, why: String },
    #[error(
        "`{}` holds no private key that can be read: {why}, \
         hint: it has to be a PEM file without a passphrase",
        path.display()
    )]
    Key { path: PathBuf, why: String },
    #[error("certificate and key do not go together: {why}")]
    Pair { why: String },
}

impl Certificate {
    /// # Errors
    /// When a file cannot be read, or the two do not go together.
    pub(super) fn acceptor(&self) -> Result<TlsAcceptor, CertificateError> {
        let chain = certificates(&self.chain)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| {
            CertificateError::Key { path: self.key.clone(), why: error.to_string() }
        })?;
        let pair = |why: &dyn std::fmt::Display| CertificateError::Pair { why: why.to_string() };
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| pair(&error))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| pair(&error))?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Every certificate in a PEM file, one at least.
///
/// # Errors
/// When there is none, or one that cannot be read.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let trouble = |why: String| CertificateError::Chain { path: path.to_owned(), why };
    let found = CertificateDer::pem_file_iter(path).map_err(|error| trouble(error.to_string()))?;
    let found: Result<Vec<_>, _> = found.collect();
    match found {
        Ok(found) if found.is_empty() => Err(trouble("it has no `CERTIFICATE` part".to_owned())),
        found => found.map_err(|error| trouble(error.to_string())),
    }
}

/// Gives connections whose handshake is done.
pub(super) struct TlsListener {
    done: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    /// # Errors
    /// When the listener has no address.
    pub(super) fn new(listener: TcpListener, acceptor: TlsAcceptor) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (give, done) = mpsc::channel(1);
        let shake = move |stream| {
            let shaken = timeout(HANDSHAKE_LIMIT, acceptor.accept(stream));
            async { shaken.await.ok()?.ok() }
        };
        tokio::spawn(accept(listener, shake, PLACES, give));
        Ok(Self { done, address })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.done.recv().await {
            Some(connection) => connection,
            // Whoever gives goes on for as long as somebody takes.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Connections at a time that nobody serves yet.
#[derive(Debug, Clone, Copy)]
struct Places {
    all: usize,
    of_an_origin: usize,
}

/// Accepts for as long as somebody takes. A connection keeps its place until it is taken: no more
/// are open than there are places, however long nobody takes any.
async fn accept<T, F>(
    listener: TcpListener,
    shake: impl Fn(TcpStream) -> F,
    Places { all, of_an_origin }: Places,
    give: mpsc::Sender<(T, SocketAddr)>,
) where
    T: Send + 'static,
    F: Future<Output = Option<T>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(all));
    let origins = Origins::new(of_an_origin);
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = give.closed() => return,
        };
        let Ok((stream, address)) = accepted else {
            sleep(PAUSE).await;
            continue;
        };
        let Some(of_origin) = origins.place(address.ip().into()) else { continue };
        let (shaken, give) = (shake(stream), give.clone());
        tokio::spawn(async move {
            if let Some(stream) = shaken.await {
                // Nobody takes it once the interface goes down.
                let _ = give.send((stream, address)).await;
            }
            drop((place, of_origin));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::runtime::Builder;
    use tokio::task::yield_now;

    use super::*;

    #[test]
    fn who_is_not_taken_keeps_a_place() {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
            let address = listener.local_addr().expect("it has an address");
            let shaken = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&shaken);
            let shake = move |stream| {
                counted.fetch_add(1, Ordering::Relaxed);
                async { Some(stream) }
            };
            let (give, _done) = mpsc::channel(1);
            tokio::spawn(accept(listener, shake, Places { all: 1, of_an_origin: 1 }, give));
            let mut callers = Vec::new();
            for _ in 0..4 {
                callers.push(TcpStream::connect(address).await.expect("the queue has room"));
            }
            let more_than = |count: usize| {
                let shaken = Arc::clone(&shaken);
                async move {
                    while shaken.load(Ordering::Relaxed) <= count {
                        yield_now().await;
                    }
                }
            };
            // One lies in the channel, one waits with the only place.
            more_than(1).await;
            let third = timeout(Duration::from_millis(20), more_than(2)).await;
            assert!(third.is_err(), "nobody takes them");
        });
    }
}
