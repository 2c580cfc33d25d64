//! A broken law, found by checking a plan before it is committed.

use crate::{DeviceId, LeaseId, Name, NodeId, StageKey};

/// Why a plan must not be committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Law 1: more of a device is promised than it has.
    DeviceOverbooked { device: DeviceId, stage: StageKey },
    /// Law 1: more memory, disk space or bandwidth of a node is promised than it has.
    HostOverbooked { node: NodeId, stage: StageKey },
    /// Law 2: the placement is not the whole request.
    GangIncomplete { stage: StageKey },
    /// The device is failed, or its node is lost.
    DeviceDown { device: DeviceId, stage: StageKey },
    /// The device is not one the request accepts.
    WrongDevice { device: DeviceId, stage: StageKey },
    /// The ranks leave the domain that the request names.
    DomainLeft { stage: StageKey },
    /// The stage is not waiting to be started.
    NotReady { stage: StageKey },
    /// Law 5: the lease number is not the next one.
    StaleLease { lease: LeaseId },
    /// The lease is not running.
    NothingToStop { lease: LeaseId },
    /// Law 6: a tenant, or one above it, would hold more than its limit.
    LimitExceeded { tenant: Name, stage: StageKey },
    /// Law 6: taken back from somebody who holds no more than its own, or for somebody who would.
    UnjustReclaim { lease: LeaseId },
    /// Law 7: a preemption that is not for a job of higher priority, or not accounted for.
    UnjustPreemption { lease: LeaseId },
    /// Law 7: the stage is not preemptible, or has not had its devices for long enough.
    NotPreemptible { lease: LeaseId },
    /// Law 8: not the newest complete checkpoint.
    WrongCheckpoint { stage: StageKey },
}
