//! The other end of a connection, and the token that it sends.

use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Of the server's own socket: a user of this machine, where the kernel says which.
    Local(Option<u32>),
    Remote(IpAddr),
}

impl Peer {
    /// `None` on this machine's own sockets.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Local(_) => None,
            Self::Remote(ip) => Some(ip),
        }
    }
}

/// What came as `Authorization: Bearer TOKEN`.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}
