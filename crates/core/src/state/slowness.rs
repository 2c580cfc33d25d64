//! Devices on which programs work slower than they did: somebody else uses them, they are hot,
//! their power is capped. Told by the steps of the programs themselves.
//!
//! The rate of each attempt is taken in windows of [`WINDOW`]. What is usual follows it slowly.
//! [`WINDOWS_SLOW`] of them in a row below [`SLOW`] of that make the devices of the attempt slow,
//! and the first that is not clears them. A stage that left slow devices and is as slow elsewhere
//! was slow of itself: then nothing is said of the devices that it left. What nobody has worked on
//! for [`REMEMBERED`] may be tried again.

use std::sync::Arc;

use super::State;
use crate::{DeviceId, JobId, LeaseId, Micro, Millis, Placement, StageKey, Time};

/// Long enough for many steps, and so short that [`WINDOWS_SLOW`] and the one in which a device
/// becomes slow are over within half a minute.
const WINDOW: Millis = Millis::seconds(6);

/// Fewer steps say too little: one more or less is ten percent.
const STEPS_MIN: u64 = 10;

/// Part of the usual rate below which a window is slow.
const SLOW: f64 = 0.75;

/// Slow windows in a row before anything is said: a save or an evaluation is one, and on a machine
/// that others share two come up by chance.
const WINDOWS_SLOW: u8 = 3;

/// How much of the usual rate a window that is not slow makes.
const WEIGHT: f64 = 0.25;

const REMEMBERED: Millis = Millis::seconds(600);

/// A device that works slower than it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slowness {
    /// What is left of the usual rate.
    pub part: Micro,
    /// When that was seen last.
    pub seen: Time,
    /// The job whose steps say so.
    pub job: JobId,
}

/// How fast the attempts of a stage make steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepRate {
    /// Where the window began.
    pub window: Option<(Time, u64)>,
    /// Steps per second.
    pub usual: Option<Micro>,
    /// Slow windows, the newest in a row.
    pub slow: u8,
    /// `usual` is of an attempt on other devices, which were slow.
    pub is_inherited: bool,
}

/// What a window says.
enum Verdict {
    /// As usual, or nothing yet.
    Usual,
    Slow(Micro),
    /// Slow elsewhere too.
    SlowOfItself,
}

impl State {
    pub fn slowness(&self, device: DeviceId) -> Option<Slowness> {
        let slowness = *self.slow_devices.get(&device)?;
        (self.now < slowness.seen + REMEMBERED).then_some(slowness)
    }

    /// What is known of the rate of the next attempt of a stage: what was usual, where it has as
    /// many devices of the same class.
    pub(super) fn step_rate_on(&self, key: StageKey, placement: &Placement) -> StepRate {
        let stage = self.stage_record(key);
        let shape = |placement: &Placement| {
            let first = placement.devices().next();
            (placement.units(), first.map(|grant| self.topology.device(grant.device).class))
        };
        let is_alike = |before: &&Arc<Placement>| shape(before) == shape(placement);
        let Some(before) = stage.placement.as_ref().filter(is_alike) else {
            return StepRate::default();
        };
        let was_slow = before.devices().any(|grant| self.slowness(grant.device).is_some());
        let usual = stage.step_rate.usual;
        StepRate { usual, is_inherited: usual.is_some() && was_slow, ..StepRate::default() }
    }

    /// Somebody says that a device is sound.
    pub(super) fn trust(&mut self, device: DeviceId) {
        self.suspicions.remove(&device);
        self.slow_devices.remove(&device);
    }

    /// Takes in a step that a lease reported.
    pub(super) fn judge_pace(&mut self, id: LeaseId, step: u64) {
        let (now, lease) = (self.now, &self.leases[&id]);
        let (key, placement) = (lease.stage, Arc::clone(&lease.placement));
        if lease.phase.is_stopping() {
            return;
        }
        let Some(verdict) = self.stage_mut(key).step_rate.take_in(now, step) else { return };
        let devices = placement.devices().map(|grant| grant.device);
        match verdict {
            Verdict::Slow(part) => {
                let slowness = Slowness { part, seen: now, job: key.job };
                self.slow_devices.extend(devices.map(|device| (device, slowness)));
            }
            Verdict::Usual => devices.for_each(|device| {
                self.slow_devices.remove(&device);
            }),
            Verdict::SlowOfItself => {
                self.slow_devices.retain(|_, slowness| slowness.job != key.job);
            }
        }
    }
}

impl StepRate {
    /// Closes the window if it is long enough.
    fn take_in(&mut self, now: Time, step: u64) -> Option<Verdict> {
        let Some((begun, first)) = self.window.filter(|(_, first)| step >= *first) else {
            self.window = Some((now, step));
            return None;
        };
        let (span, steps) = (now.since(begun), step - first);
        if span < WINDOW || steps < STEPS_MIN {
            return None;
        }
        self.window = Some((now, step));
        let rate = steps as f64 / span.as_seconds();
        let usual = self.usual.map_or(rate, Micro::as_f64);
        let part = rate / usual;
        if part >= SLOW {
            let next = if part < 1.0 / SLOW { usual + WEIGHT * (rate - usual) } else { rate };
            self.usual = Micro::from_f64(next);
            (self.slow, self.is_inherited) = (0, false);
            return Some(Verdict::Usual);
        }
        self.slow = (self.slow + 1).min(WINDOWS_SLOW);
        if self.slow < WINDOWS_SLOW {
            return None;
        }
        if self.is_inherited {
            (self.usual, self.slow, self.is_inherited) = (Micro::from_f64(rate), 0, false);
            return Some(Verdict::SlowOfItself);
        }
        Micro::from_f64(part).map(|part| Verdict::Slow(part.max(Micro(1))))
    }
}
