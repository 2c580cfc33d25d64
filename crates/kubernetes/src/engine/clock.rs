//! The time of the engine.

use het_core::{Millis, Time};

/// Goes on with the time since boot, whatever the machine's clock is set to.
#[derive(Debug)]
pub(super) struct Clock {
    begins_at: Time,
    began: Millis,
    since_boot: fn() -> Millis,
}

impl Clock {
    pub fn start(begins_at: Time, since_boot: fn() -> Millis) -> Self {
        Self { begins_at, began: since_boot(), since_boot }
    }

    pub fn now(&self) -> Time {
        self.begins_at + Millis((self.since_boot)().0.saturating_sub(self.began.0))
    }
}
