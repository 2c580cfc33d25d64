//! The truth that a simulation knows and a policy has to guess.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{DeviceId, Domain, Event, Locality, Micro, Millis, Name, NodeId, PlannedSpeeds};

use crate::Application;

/// How a stage really behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct StageModel {
    pub steps: u64,
    /// Nanoseconds of one step, by class and number of devices; zero devices stand for any number.
    /// Of a gang that stands as well as it can.
    pub step_ns: BTreeMap<Name, BTreeMap<u32, u64>>,
    /// On a shape that is not listed.
    pub step_ns_default: u64,
    /// How much slower gangs really are that stand apart; those that are not listed are not.
    pub apart: PlannedSpeeds,
    /// Instead of step times, for a job that chooses its own batch; its steps are progress then.
    pub elastic: Option<Arc<Application>>,
    /// What an elastic job says about its steps, by class: so many times the truth. One where
    /// absent.
    pub misread: BTreeMap<Name, f64>,
    /// From the start of the processes to the first step.
    pub load: Millis,
    /// The part of `load` that its program does before it needs its devices.
    pub imports: Millis,
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
    /// The checkpoint of this step cannot be read: the first attempt that resumes from it fails
    /// while it loads.
    pub corrupt_at: Option<u64>,
}

impl Default for StageModel {
    fn default() -> Self {
        Self {
            steps: 0,
            step_ns: BTreeMap::new(),
            step_ns_default: 1_000_000,
            apart: PlannedSpeeds::default(),
            elastic: None,
            misread: BTreeMap::new(),
            load: Millis(0),
            imports: Millis(0),
            save: None,
            checkpoint_every: u64::MAX,
            publishes_after: None,
            deaf: false,
            fails_at: None,
            corrupt_at: None,
        }
    }
}

impl StageModel {
    /// Nanoseconds of one step on so many devices of a class that stand so.
    pub fn step_on(&self, class: &Name, devices: u32, locality: Locality) -> Option<u64> {
        let by_devices = self.step_ns.get(class)?;
        let best = by_devices.get(&devices).or_else(|| by_devices.get(&0)).copied()?;
        Some(match self.apart.speeds(class, devices) {
            Some(speeds) => (best as f64 / speeds.part(locality)).round() as u64,
            None => best,
        })
    }

    /// The longest step that is listed, however far apart its gang stands.
    pub fn longest_step_ns(&self) -> u64 {
        let rows = self.step_ns.iter();
        let listed = rows.flat_map(|(class, by)| by.keys().map(move |units| (class, *units)));
        // No pair inside a node has less than a hundredth of what another has.
        let slow = Locality { links: Micro(10_000), ..Locality::BEST };
        let worst = [slow, Locality::within(Domain::Any)];
        let steps = listed.flat_map(|(class, units)| {
            worst.into_iter().filter_map(move |locality| self.step_on(class, units, locality))
        });
        steps.max().unwrap_or(self.step_ns_default)
    }
}

/// What goes wrong, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Somebody else finds this out: nodes join or are removed, with everything on them, or others
    /// use devices.
    Reported(Event),
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

#[cfg(test)]
mod tests {
    use het_core::{Planned, Speeds};

    use super::*;

    #[test]
    fn a_gang_that_stands_apart_is_slower_by_what_is_listed() {
        let class = Name::from("h100");
        let mut model = StageModel::default();
        model.step_ns.entry(class.clone()).or_default().extend([(8, 1_000), (16, 600)]);
        let speeds = Speeds::new([10, 8, 5, 4].map(Micro)).expect("a speed");
        model.apart.insert(class.clone(), 16, Planned::Runs(speeds));
        let steps = |units| {
            Domain::ALL.map(|domain| model.step_on(&class, units, Locality::within(domain)))
        };
        assert_eq!(steps(16), [600, 750, 1_200, 1_500].map(Some));
        assert_eq!(steps(8), [Some(1_000); 4]);
        assert_eq!(model.longest_step_ns(), 1_500);
    }
}
