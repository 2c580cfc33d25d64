//! The HTTP interface: `/api/v1`, what it is made of ([`routes`]), who may ask for what ([`auth`]).
//!
//! Handlers look at the board or ask the loop; they decide nothing about jobs themselves.

pub mod auth;
mod bounded;
mod devices;
mod events;
mod jobs;
mod listen;
mod metrics;
mod openapi;
mod preempt;
mod quotas;
mod refuse;
pub mod routes;
mod serve;
mod site;
mod submit;
mod tls;
mod tokens;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;

use het_control::Controller;
use het_core::{DeviceId, Time, Topology};
use het_node::Node;

use crate::service::{Desk, NotHeard, Service, Wanted, Which};
use crate::{EventStore, Home, StoreReader};
pub use auth::{Caller, Role};
pub use listen::{Listen, ListenError, Network, serve};
pub use refuse::{ApiError, Code};
pub use tls::{Certificate, CertificateError};
pub use tokens::{TokenError, TokenRow, Tokens};

/// Longest body of a request: a job file with room to spare.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Longest job file.
pub const FILE_BYTES_MAX: usize = 256 << 10;
/// Jobs that have not ended; further submissions are refused.
pub const LIVE_JOBS_MAX: usize = 200_000;
/// Lines of one page of a list.
pub const PAGE_MAX: usize = 1_000;
/// Longest idempotency key.
pub const KEY_CHARS_MAX: usize = 128;

/// What every handler knows.
#[derive(Debug, Clone)]
pub struct Api(pub(crate) Arc<Parts>);

#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) desk: Desk,
    pub(crate) home: Home,
    pub(crate) topology: Arc<Topology>,
    pub(crate) gone: BTreeSet<DeviceId>,
    pub(crate) started: Time,
    pub(crate) tokens: Tokens,
    pub(crate) keys: submit::Keys,
    pub(crate) log: StoreReader,
}

impl Api {
    /// The interface of a running service.
    ///
    /// # Errors
    /// When its loop is gone already.
    pub async fn new(service: &Service, home: Home, tokens: Tokens) -> Result<Self, NotHeard> {
        let (desk, gone) = (service.desk.clone(), service.gone.clone());
        let topology = Arc::clone(&service.topology);
        let look = |control: &Controller<Node, EventStore>| (control.now(), control.log().reader());
        let (started, log) = desk.look(look).await?;
        let everything = Wanted { after: 0, limit: usize::MAX, which: Which::All };
        let keys = submit::Keys::of(&desk.board().list(&everything, |_| true), &home);
        Ok(Self(Arc::new(Parts { desk, home, topology, gone, started, tokens, keys, log })))
    }
}
