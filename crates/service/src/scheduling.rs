//! Who chooses devices, and when.

use het_policy::{Cadence, Policy};

/// A policy and the cadence at which it is asked.
#[derive(Debug, Clone, Copy)]
pub struct Scheduling {
    pub policy: &'static dyn Policy,
    pub cadence: Cadence,
}

/// On every event.
impl From<&'static dyn Policy> for Scheduling {
    fn from(policy: &'static dyn Policy) -> Self {
        Self { policy, cadence: Cadence::default() }
    }
}
