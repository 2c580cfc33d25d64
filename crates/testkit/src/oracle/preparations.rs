//! What is begun for stages before they have devices.

use het_core::{LeaseId, PreparationEnd, StageKey};

use super::Oracle;

impl Oracle {
    /// A lease that nobody has had.
    pub(super) fn draw(&mut self, lease: LeaseId) {
        if lease.0 <= self.leases_seen {
            self.blame(5, format!("lease {lease} is not new"));
        }
        self.leases_seen = self.leases_seen.max(lease.0);
    }

    /// Laws 4 and 5: only who may start is prepared, and once.
    pub(super) fn prepare(&mut self, lease: LeaseId, key: StageKey) {
        self.draw(lease);
        if !self.jobs.get(&key.job).is_some_and(|job| job.may_start(key)) {
            self.blame(4, format!("stage {key} was prepared but may not start"));
        }
        if self.prepared.insert(key, lease).is_some() {
            self.blame(5, format!("{key} was prepared twice"));
        }
    }

    /// One that its engine lost may be begun again.
    pub(super) fn preparation_ended(&mut self, lease: LeaseId, end: &PreparationEnd) {
        if *end == PreparationEnd::Lost {
            self.prepared.retain(|_, of| *of != lease);
        }
    }

    /// Law 5: what is given up was there.
    pub(super) fn unprepare(&mut self, lease: LeaseId, key: StageKey) {
        if self.prepared.remove(&key) != Some(lease) {
            self.blame(5, format!("{key} had no preparation {lease}"));
        }
    }
}
