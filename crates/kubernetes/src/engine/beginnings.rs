//! Gangs that begin: their pods were made and have nodes, and do not run yet.

use het_core::{LeaseId, Outcome, Time};

use super::{Kubernetes, Live};
use crate::names::ObjectKey;
use crate::objects::PodRow;

impl Kubernetes {
    /// The pods of a gang were made and have nodes, or will not have any for a reason.
    pub(super) fn begun(
        &mut self,
        lease: LeaseId,
        made: Vec<Option<String>>,
        refused: Option<String>,
    ) {
        let Some(live) = self.leases.get_mut(&lease) else { return };
        for ((_, uid), made) in live.pods.iter_mut().zip(made) {
            *uid = made.or(uid.take());
        }
        let is_there = |uid: &String| !live.gone.contains(uid);
        let flags: Vec<bool> =
            live.pods.iter().map(|(_, uid)| uid.as_ref().is_some_and(is_there)).collect();
        if live.of_pod.is_some()
            && let Some(reason) = refused
        {
            // It waits on as it did before.
            return self.end(lease, Outcome::Refused { reason });
        }
        live.gang.begun(&flags, refused);
        let was_listed = live.was_listed;
        let keys: Vec<ObjectKey> = live.pods.iter().map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.pods.get(&key).into_iter().for_each(|(row, _)| self.delete_if_orphaned(row));
        }
        if was_listed {
            self.look_for_unheard(lease);
        }
        let Some(live) = self.leases.get_mut(&lease) else { return };
        if let Some(stop) = live.stop {
            self.delete(lease, stop.grace);
        }
        self.await_beginning(lease);
        self.emit(lease);
    }

    /// Asks for the pods of a gang that were made and of which nobody has heard.
    pub(super) fn look_for_unheard(&self, lease: LeaseId) {
        let Some(live) = self.leases.get(&lease) else { return };
        for rank in live.gang.unheard() {
            let key = live.pods[rank as usize].0.clone();
            self.cluster.spawn(self.writer.clone().look(lease, rank, key));
        }
    }

    /// What was found of a pod of which nobody had heard. Who has heard meanwhile knows better.
    pub(super) fn looked(&mut self, lease: LeaseId, rank: u32, row: Option<Box<PodRow>>) {
        let Some(live) = self.leases.get_mut(&lease).filter(|it| it.gang.is_unheard(rank)) else {
            return;
        };
        match row {
            Some(row) => live.gang.see(rank, &row),
            None => live.gang.see_gone(rank),
        }
        self.emit(lease);
    }

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
