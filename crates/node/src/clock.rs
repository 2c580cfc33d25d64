//! The engine's clock: milliseconds since the Unix epoch as the machine told them when the clock
//! began. From then on it goes on with the time since boot, which nobody adjusts, so that setting
//! the machine's clock moves no deadline and changes no duration.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use het_core::{Millis, Time};
use nix::time::{ClockId, clock_gettime};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    base: Time,
    /// Since boot, when it was `base`.
    started: Millis,
}

impl Clock {
    /// One that shows this time now.
    pub(crate) fn start(base: Time) -> Self {
        Self { base, started: since_boot() }
    }

    pub(crate) fn now(&self) -> Time {
        self.base + Millis(since_boot().0.saturating_sub(self.started.0))
    }
}

/// What the machine's clock shows, which somebody may have set wrong.
pub fn wall_time() -> Time {
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(epoch.as_millis() as u64)
}

/// Time since boot, suspended or not.
pub fn since_boot() -> Millis {
    let since = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    Millis(since.as_millis() as u64)
}
