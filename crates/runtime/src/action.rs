//! What a driver is asked to do and what it reports.

use crate::machine::Interval;
use crate::{Accesses, ClassId, DeviceId, HandleId, KernelId, MemoryId, Nanos, TaskId, TransferId};

/// A task for the compute stream of its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    pub task: TaskId,
    pub device: DeviceId,
    pub class: ClassId,
    pub memory: MemoryId,
    pub kernel: KernelId,
    pub parameter: u64,
    /// Place in the order of submission.
    pub sequence: u64,
    /// Nanoseconds; the greatest number where nothing is known.
    pub expected: Nanos,
    /// Their copies lie in `memory` by the time the stream gets to the task.
    pub accesses: Accesses,
}

/// The data of a handle, from one memory to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOrder {
    pub transfer: TransferId,
    pub handle: HandleId,
    pub from: MemoryId,
    pub to: MemoryId,
    pub bytes: u64,
}

/// What a driver is to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Launch(Launch),
    Copy(CopyOrder),
    /// The memory of a copy is free for others.
    Drop {
        handle: HandleId,
        memory: MemoryId,
    },
}

/// What happened on the machine. Intervals are of the driver's time, those of one device's tasks do
/// not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// A stream ends its tasks in the order in which it was given them.
    Ended {
        task: TaskId,
        ran: Interval,
    },
    /// What it writes has no defined content.
    Failed {
        task: TaskId,
        ran: Interval,
        reason: String,
    },
    Copied {
        transfer: TransferId,
        ran: Interval,
    },
    /// The source is as it was; where it was to go nothing is.
    CopyFailed {
        transfer: TransferId,
        reason: String,
    },
    DeviceLost {
        device: DeviceId,
        reason: String,
    },
    /// With every device that computes in it.
    MemoryLost {
        memory: MemoryId,
        reason: String,
    },
}
