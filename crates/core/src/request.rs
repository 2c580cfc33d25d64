//! Who asked for what: kept beside the facts that people bring.

use std::sync::Arc;

use crate::{Name, Time};

/// Newest requests of a job that stay with it.
pub const REQUESTS_KEPT: usize = 16;

/// Somebody who asked for a change, as far as the server knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Requester {
    /// What people call the token that came with the request.
    pub token: Option<Name>,
    /// The user of the machine who opened the server's own socket.
    pub user: Option<Name>,
    /// Where the request came from, across the network.
    pub address: Option<Name>,
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    Submit,
    Hold,
    Release,
    Cancel,
    Change,
    Preempt,
    SetQuotas,
    Drain,
    Undrain,
}

impl Requested {
    pub const ALL: [Self; 9] = [
        Self::Submit,
        Self::Hold,
        Self::Release,
        Self::Cancel,
        Self::Change,
        Self::Preempt,
        Self::SetQuotas,
        Self::Drain,
        Self::Undrain,
    ];

    /// As logs and reports have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Cancel => "cancel",
            Self::Change => "change",
            Self::Preempt => "preempt",
            Self::SetQuotas => "set_quotas",
            Self::Drain => "drain",
            Self::Undrain => "undrain",
        }
    }
}

/// A request for a change of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub at: Time,
    pub what: Requested,
    pub by: Arc<Requester>,
}
