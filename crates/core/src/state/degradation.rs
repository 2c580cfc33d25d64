//! Devices of whose speed something beside our jobs takes a part, as whoever watches the machine
//! says. A program that made steps before that came tells better what it costs: there
//! [`super::slowness`] counts alone.

use super::State;
use crate::{Degradation, DegradationCause, DeviceId, Lease, Micro, Placement, Time};

/// A degradation, and when the first of those that followed each other came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    pub degradation: Degradation,
    pub since: Time,
}

impl State {
    pub fn degraded(&self, device: DeviceId) -> Option<&Degraded> {
        self.degraded.get(&device)
    }

    pub(super) fn degrade(&mut self, device: DeviceId, degradation: &Degradation) {
        let since = self.degraded.get(&device).map_or(self.now, |before| before.since);
        let left = degradation.left.clamp(Micro(1), Micro::ONE);
        let degradation = Degradation { left, ..degradation.clone() };
        self.degraded.insert(device, Degraded { degradation, since });
    }

    pub(super) fn restore(&mut self, device: DeviceId) {
        self.degraded.remove(&device);
    }

    /// What is left of the usual speed of a device for whoever comes; all of it where nothing else
    /// is known.
    pub fn pace(&self, device: DeviceId) -> Micro {
        let left = |device| Some(self.degraded(device)?.degradation.left);
        let told = self.slowness(device).map(|slowness| slowness.part);
        told.or_else(|| left(device)).unwrap_or(Micro::ONE)
    }

    /// The pace of the slowest device of a gang.
    pub fn pace_of(&self, placement: &Placement) -> Micro {
        self.slowest(placement, |device| self.pace(device))
    }

    /// The same for a gang that runs.
    pub fn pace_for(&self, lease: &Lease) -> Micro {
        let makes_steps = self.stage_record(lease.stage).step_rate.usual.is_some();
        self.slowest(&lease.placement, |device| {
            // Heat and a lack of memory may be its own doing, and go with it.
            let is_of_others = |degraded: &Degraded| {
                matches!(degraded.degradation.cause, DegradationCause::Contention { .. })
            };
            let is_unfelt = |degraded: &Degraded| {
                lease.since < degraded.since && (makes_steps || !is_of_others(degraded))
            };
            let told = self.slowness(device).map(|slowness| slowness.part);
            let unfelt = self.degraded(device).is_some_and(is_unfelt).then_some(Micro::ONE);
            told.or(unfelt).unwrap_or_else(|| self.pace(device))
        })
    }

    fn slowest(&self, placement: &Placement, pace: impl Fn(DeviceId) -> Micro) -> Micro {
        if self.slow_devices.is_empty() && self.degraded.is_empty() {
            return Micro::ONE;
        }
        let paces = placement.devices().map(|grant| pace(grant.device));
        paces.min().unwrap_or(Micro::ONE)
    }

    /// Devices that have not all of their usual speed.
    pub fn slow_devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        let told = self.slow_devices.keys().copied().filter(|&id| self.slowness(id).is_some());
        let degraded = self.degraded.iter().filter(|(_, it)| it.degradation.left < Micro::ONE);
        told.chain(degraded.map(|(&id, _)| id))
    }
}
