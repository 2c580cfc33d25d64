//! The HTTP interface: `/api/v1`, what it is made of ([`routes`]), who is asking ([`auth`]).
//!
//! Handlers read a request, make a call of the service, and write the answer; they decide nothing
//! about jobs themselves.

pub mod auth;
mod bounded;
mod devices;
mod disk;
mod events;
mod following;
mod jobs;
mod limits;
mod listen;
mod local_users;
mod metrics;
mod openapi;
mod origins;
mod own_socket;
mod peer;
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
use std::sync::atomic::AtomicU64;

use het_core::Time;
use het_host::{Home, LatestLoad};
use het_service::{Handle, Selection, Unavailable, Which};

use crate::{JobMaker, Served, StoreReader, TrainerDrivers};
pub use het_service::calls::LIVE_JOBS_OF_A_TENANT;
pub use het_service::{Caller, Code, Role};
use local_users::LocalUsers;

pub use listen::{Listen, ListenError, Network, serve};
pub use local_users::tenant_of;
pub use peer::Peer;
pub use refuse::ApiError;
pub use tls::{Certificate, CertificateError};
pub use tokens::{TokenError, TokenRow, Tokens};

/// Longest body of a request: a job file with room to spare.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Longest job file.
pub const FILE_BYTES_MAX: usize = 256 << 10;
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
    limits: limits::Limits,
    /// Bytes that submissions left beside the log since that was last cleaned.
    kept: AtomicU64,
    /// Jobs of a tenant that may wait or run.
    jobs_of_a_tenant: usize,
    pub(crate) log: StoreReader,
    pub(crate) load: LatestLoad,
    /// Of the own socket, where several users may open it.
    pub(crate) local_users: Option<LocalUsers>,
    /// Of the installed trainer.
    drivers: Arc<TrainerDrivers>,
    /// Where jobs are made, where that is not here.
    pub(crate) cluster: Option<Arc<dyn JobMaker>>,
}

impl Api {
    /// The interface of a running service. Of one tenant, so many jobs may wait or run.
    ///
    /// # Errors
    /// When its loop is gone already.
    pub async fn new(
        served: Served,
        home: Home,
        tokens: Tokens,
        jobs_of_a_tenant: usize,
    ) -> Result<Self, Unavailable> {
        let Served { handle: service, log, load, members, cluster } = served;
        let started = service.query(|replica| replica.now()).await?;
        let everything = Selection { after: 0, limit: usize::MAX, which: Which::All };
        let keys = submit::Keys::of(&service.jobs().list(&everything, |_| true), &home);
        let limits = limits::Limits::new();
        let local_users = members.map(LocalUsers::new);
        let parts = Parts {
            service,
            home,
            started,
            tokens,
            keys,
            limits,
            kept: AtomicU64::default(),
            jobs_of_a_tenant,
            log,
            load,
            local_users,
            drivers: Arc::default(),
            cluster,
        };
        Ok(Self(Arc::new(parts)))
    }
}
