//! The engine's clock: milliseconds since the Unix epoch that never go backwards.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use het_core::{Millis, Time};

/// Reads the wall clock once and a monotonic clock from then on, so that adjusting the wall clock
/// moves no deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    base: Time,
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { base: Time(epoch.as_millis() as u64), started: Instant::now() }
    }

    pub(crate) fn now(&self) -> Time {
        self.base + Millis(self.started.elapsed().as_millis() as u64)
    }
}
