//! Devices on which programs hang. A hang alone says little: programs hang of themselves, too. The
//! second one on the same accelerator makes it suspected, until it has worked for as long as it
//! took to hang, or somebody puts it back into service.

use super::{Lease, State};
use crate::{DeviceId, FailureCause, JobId, Millis, Outcome, Placement, Share, Time};

/// Hangs on a device that make it suspected.
const STALLS_SUSPECTED: usize = 2;

/// The newest hangs that are remembered.
const STALLS_KEPT: usize = 4;

/// A device that hung at once owes at least so much work.
const OWED_MIN: Millis = Millis::seconds(60);

/// What speaks against an accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Suspicion {
    /// Jobs whose programs hung on it, and when; the newest last.
    pub stalls: Vec<(JobId, Time)>,
    /// For so long it has to be held by programs that do not hang before all is forgotten: as long
    /// as those held it that hung.
    pub owed: Millis,
}

impl Suspicion {
    /// When it became suspected; `None` before its second hang.
    pub fn since(&self) -> Option<Time> {
        self.stalls.get(STALLS_SUSPECTED - 1).map(|(_, at)| *at)
    }
}

impl State {
    /// Since when programs hang on the device, where that has happened more than once.
    pub fn suspected_since(&self, device: DeviceId) -> Option<Time> {
        self.suspicions.get(&device)?.since()
    }

    /// Suspected devices, each with what would be in service of it otherwise.
    pub fn suspected_devices(&self) -> impl Iterator<Item = (DeviceId, Share)> + '_ {
        let suspected = self.suspicions.iter().filter(|(_, it)| it.since().is_some());
        suspected.map(|(&device, _)| (device, self.sound_share(device)))
    }

    /// Whether nothing but that keeps a device out of service.
    pub fn is_only_suspected(&self, device: DeviceId) -> bool {
        self.suspected_since(device).is_some() && self.sound_share(device) > Share::ZERO
    }

    /// Whether a lease has a suspected device and has saved since it became so.
    pub fn has_saved_on_suspected(&self, lease: &Lease) -> bool {
        let saved = self.stage_record(lease.stage).checkpoint_at;
        let saved = saved.filter(|at| *at >= lease.since);
        let mut since = lease.placement.devices().filter_map(|g| self.suspected_since(g.device));
        since.any(|since| saved.is_some_and(|at| at >= since))
    }

    /// What the end of a lease says about its devices.
    pub(super) fn judge_devices(&mut self, lease: &Lease, outcome: &Outcome) {
        let span = self.now.since(lease.since);
        match outcome {
            Outcome::Failed(failure) if failure.cause == FailureCause::Stalled => {
                self.hung(lease.stage.job, &lease.placement, span);
            }
            Outcome::Finished | Outcome::Stopped => self.worked(&lease.placement, span),
            // Others say nothing: a program may fail before it has used its device.
            _ => {}
        }
    }

    /// A job whose program hangs elsewhere too says nothing about the devices where it did before.
    fn hung(&mut self, job: JobId, placement: &Placement, span: Millis) {
        let on: Vec<DeviceId> = placement.devices().map(|grant| grant.device).collect();
        let elsewhere: Vec<DeviceId> =
            self.suspicions.keys().filter(|device| !on.contains(device)).copied().collect();
        for device in elsewhere {
            self.change_suspicion(device, |it| it.stalls.retain(|(of, _)| *of != job));
        }
        let now = self.now;
        let accelerators: Vec<DeviceId> =
            on.into_iter().filter(|device| !self.is_socket(*device)).collect();
        for device in accelerators {
            self.change_suspicion(device, |it| {
                it.owed = it.owed.max(span).max(OWED_MIN);
                it.stalls.push((job, now));
                let surplus = it.stalls.len().saturating_sub(STALLS_KEPT);
                it.stalls.drain(..surplus);
            });
        }
    }

    fn worked(&mut self, placement: &Placement, span: Millis) {
        for grant in placement.devices() {
            if self.suspicions.contains_key(&grant.device) {
                self.change_suspicion(grant.device, |it| {
                    it.owed = Millis(it.owed.0.saturating_sub(span.0));
                });
            }
        }
    }

    fn change_suspicion(&mut self, device: DeviceId, change: impl FnOnce(&mut Suspicion)) {
        let mut suspicion = self.suspicions.remove(&device).unwrap_or_default();
        change(&mut suspicion);
        self.set_device(device, |state| {
            if !suspicion.stalls.is_empty() && suspicion.owed > Millis::ZERO {
                state.suspicions.insert(device, suspicion);
            }
        });
    }

    /// Cores of a processor: of one that hangs its whole machine would tell.
    fn is_socket(&self, device: DeviceId) -> bool {
        let node = self.topology.device(device).node;
        self.index.sockets[node.index()].contains(&device)
    }
}
