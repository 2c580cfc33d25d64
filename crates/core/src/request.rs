//! Who asked for what: kept beside the facts that people bring.

use std::sync::Arc;

use crate::{Event, JobId, Name, Time};

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

    /// What a fact was asked for as; `None` for facts that nobody asks for.
    pub fn of(event: &Event) -> Option<Self> {
        match event {
            Event::JobSubmitted { .. } => Some(Self::Submit),
            Event::JobHeld { .. } => Some(Self::Hold),
            Event::JobReleased { .. } => Some(Self::Release),
            Event::JobCancelled { .. } => Some(Self::Cancel),
            Event::JobChanged { .. } => Some(Self::Change),
            Event::StageYields { .. } => Some(Self::Preempt),
            Event::QuotasSet { .. } => Some(Self::SetQuotas),
            Event::DeviceDrained { .. } => Some(Self::Drain),
            Event::DeviceUndrained { .. } => Some(Self::Undrain),
            _ => None,
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

/// The job that a request is about; `None` where it is about none, or about a lease.
pub fn job_of_request(event: &Event) -> Option<JobId> {
    match event {
        Event::JobSubmitted { job, .. }
        | Event::JobHeld { job }
        | Event::JobReleased { job }
        | Event::JobCancelled { job }
        | Event::JobChanged { job, .. } => Some(*job),
        _ => None,
    }
}
