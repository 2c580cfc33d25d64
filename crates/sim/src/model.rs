//! The truth that a simulation knows and a policy has to guess.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{DeviceId, Millis, Name, NodeId};

use crate::Application;

/// How a stage really behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct StageModel {
    pub steps: u64,
    /// Nanoseconds of one step, by class and number of devices; zero devices stand for any number.
    pub step_ns: BTreeMap<Name, BTreeMap<u32, u64>>,
    /// On a shape that is not listed.
    pub step_ns_default: u64,
    /// Instead of step times, for a job that chooses its own batch; its steps are progress then.
    pub elastic: Option<Arc<Application>>,
    /// What an elastic job says about its steps, by class: so many times the truth. One where
    /// absent.
    pub misread: BTreeMap<Name, f64>,
    /// From the start of the processes to the first step.
    pub load: Millis,
    /// To write a checkpoint; `None` for a program that cannot.
    pub save: Option<Millis>,
    pub checkpoint_every: u64,
    /// From its first step to its first output that others may read; `None` for one that gives all
    /// of it at the end.
    pub publishes_after: Option<Millis>,
    /// Ignores notices: is killed at the end of its grace and saves nothing then.
    pub deaf: bool,
    /// When it reaches this step for the first time, it exits with this code.
    pub fails_at: Option<(u64, i32)>,
}

impl Default for StageModel {
    fn default() -> Self {
        Self {
            steps: 0,
            step_ns: BTreeMap::new(),
            step_ns_default: 1_000_000,
            elastic: None,
            misread: BTreeMap::new(),
            load: Millis(0),
            save: None,
            checkpoint_every: u64::MAX,
            publishes_after: None,
            deaf: false,
            fails_at: None,
        }
    }
}

impl StageModel {
    /// Nanoseconds of one step on so many devices of a class.
    pub fn step_on(&self, class: &Name, devices: u32) -> Option<u64> {
        let by_devices = self.step_ns.get(class)?;
        by_devices.get(&devices).or_else(|| by_devices.get(&0)).copied()
    }
}

/// What goes wrong, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The node disappears with everything on it.
    NodeLost {
        node: NodeId,
    },
    NodeReturned {
        node: NodeId,
    },
    /// One device stops working, and everything that has a part of it ends.
    DeviceFailed {
        device: DeviceId,
    },
    DeviceRepaired {
        device: DeviceId,
    },
    /// Something says that the node is going to fail, or that it is not.
    NodeSuspected {
        node: NodeId,
    },
    NodeCleared {
        node: NodeId,
    },
    /// Somebody takes the device out of service for a while.
    DeviceDrained {
        device: DeviceId,
    },
    DeviceUndrained {
        device: DeviceId,
    },
    /// Every step on the node takes this many percent of its normal time from now on.
    Slowed {
        node: NodeId,
        percent: u64,
    },
    /// The same for gangs that stand on this and other nodes.
    LinkSlowed {
        node: NodeId,
        percent: u64,
    },
    /// What runs on the node makes no step any more, until somebody notices and ends it.
    Hung {
        node: NodeId,
        noticed_after: Millis,
    },
    /// What the node computes is wrong from now on, and its checkpoints are worth nothing, until
    /// somebody notices and ends what runs there.
    Corrupted {
        node: NodeId,
        noticed_after: Millis,
    },
    /// A hang or corruption is noticed.
    Noticed {
        node: NodeId,
    },
}
