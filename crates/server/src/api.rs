//! The HTTP interface: `/api/v1`, what it is made of ([`routes`]), who is asking ([`auth`]).
//!
//! Handlers read a request, make a call of the service, and write the answer; they decide nothing
//! about jobs themselves.

mod addresses;
pub mod auth;
mod bounded;
mod devices;
mod events;
mod jobs;
mod listen;
mod metrics;
mod openapi;
mod own_socket;
mod preempt;
mod quotas;
mod refuse;
mod requester;
mod route;
pub mod routes;
mod seen;
mod serve;
mod site;
mod submission;
mod submit;
mod submitted_texts;
mod tls;
mod tokens;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use het_core::Time;
use het_host::Home;
use het_service::{Handle, Selection, Unavailable, Which};
use tokio::sync::Semaphore;

use crate::{MachineService, StoreReader};
pub use het_service::{Caller, Code, Role};
pub use listen::{Listen, ListenError, Network, serve};
pub use refuse::ApiError;
pub use requester::Peer;
pub use tls::{Certificate, CertificateError};
pub use tokens::{TokenError, TokenRow, Tokens};

/// Longest body of a request: a job file with room to spare.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Longest job file.
pub const FILE_BYTES_MAX: usize = 256 << 10;
/// Job files that are read at a time.
const READERS_MAX: usize = 2;
/// How long a submission waits for its job file to be read before it is told to come again.
const READER_WAIT: Duration = Duration::from_secs(10);
/// Rows of one page of a list.
pub const PAGE_MAX: usize = 1_000;
/// Longest idempotency key.
pub const KEY_CHARS_MAX: usize = 128;

/// What every handler knows.
#[derive(Debug, Clone)]
pub struct Api(pub(crate) Arc<Parts>);

#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) service: Handle,
    pub(crate) home: Home,
    pub(crate) started: Time,
    pub(crate) tokens: Tokens,
    pub(crate) keys: submit::Keys,
    /// Places of those who read job files.
    pub(crate) readers: Arc<Semaphore>,
    pub(crate) log: StoreReader,
}

impl Api {
    /// The interface of a running service.
    ///
    /// # Errors
    /// When its loop is gone already.
    pub async fn new(
        machine: &MachineService,
        home: Home,
        tokens: Tokens,
    ) -> Result<Self, Unavailable> {
        let service = machine.handle().clone();
        let log = machine.log.clone();
        let started = service.query(|replica| replica.now()).await?;
        let everything = Selection { after: 0, limit: usize::MAX, which: Which::All };
        let keys = submit::Keys::of(&service.jobs().list(&everything, |_| true), &home);
        let readers = Arc::new(Semaphore::new(READERS_MAX));
        Ok(Self(Arc::new(Parts { service, home, started, tokens, keys, readers, log })))
    }
}
