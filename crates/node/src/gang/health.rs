//! Ranks whose health check failed, and their devices.

use std::fs;

use het_core::{Event, Outcome};

use crate::context::Context;
use crate::launch::GangSpec;

/// Whether this rank, the first to fail, failed in its health check.
pub(super) fn is_unhealthy(spec: &GangSpec, culprit: Option<u32>) -> bool {
    // Where nothing is checked, only a program that means harm makes such a file.
    let is_checked = spec.health_check.is_some();
    culprit.is_some_and(|rank| is_checked && spec.unhealthy_file(rank).exists())
}

/// Takes the devices of every rank whose health check failed out of service. The gang is restarted
/// elsewhere, which does not count as a failure of its program.
pub(super) fn fail_devices(spec: &GangSpec, context: &mut Context) -> Outcome {
    for rank in (0..spec.world()).filter(|rank| spec.unhealthy_file(*rank).exists()) {
        for device in spec.devices_of(rank) {
            context.emit(Event::DeviceFailed { device });
        }
        // If it cannot be removed, the next lease with this number does it.
        let _ = fs::remove_file(spec.unhealthy_file(rank));
    }
    Outcome::Lost
}
