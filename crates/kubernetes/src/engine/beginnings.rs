//! Gangs that have nodes and do not run yet: how long they may take.

use het_core::{LeaseId, Time};

use super::{Kubernetes, Live};

impl Kubernetes {
    /// Looks again at a gang that has nodes and does not run yet.
    pub(super) fn await_beginning(&mut self, lease: LeaseId) {
        let (now, patience) = (self.clock.now(), self.patience);
        let may_be_given_up = |live: &&mut Live| live.of_pod.is_none() && live.gang.is_starting();
        let Some(live) = self.leases.get_mut(&lease).filter(may_be_given_up) else { return };
        let bound_at = *live.bound_at.get_or_insert(now);
        live.in_trouble = live.gang.trouble().map(|_| live.in_trouble.unwrap_or(now));
        let limit = bound_at + patience.silent;
        let limit = live.in_trouble.map_or(limit, |since| limit.min(since + patience.in_trouble));
        self.looks.insert((limit, lease));
    }

    /// Gives gangs up that did not begin in time.
    pub(super) fn look_at_beginnings(&mut self) {
        let now = self.clock.now();
        while let Some(&(at, lease)) = self.looks.first().filter(|(at, _)| *at <= now) {
            self.looks.remove(&(at, lease));
            self.report(lease);
            self.look_at_workload(lease);
            let patience = self.patience;
            let Some(live) = self.leases.get_mut(&lease).filter(|it| it.gang.is_starting()) else {
                continue;
            };
            let is_due = |since: Option<Time>, limit| since.is_some_and(|it| it + limit <= now);
            let why = match live.gang.trouble() {
                Some((rank, trouble)) if is_due(live.in_trouble, patience.in_trouble) => {
                    format!("the pod of rank {rank} does not begin: {trouble}")
                }
                _ if is_due(live.bound_at, patience.silent) => {
                    "its pods do not begin, and nobody says why: `kubectl describe pod` may".into()
                }
                _ => continue,
            };
            live.gang.give_up(why);
            self.emit(lease);
        }
    }
}
