//! A lease of pods of a group that start together: how far they are, by what was seen of them.
//! No I/O.
//!
//! Nobody can suspend a group: it is stopped by the eviction of its pods. Its devices are held
//! until none of its slots has a pod.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Failure, FailureCause, Name, Outcome, Phase};

use crate::objects::PodRow;
use crate::resources::{Devices, counted};
use crate::slots::{PodEnd, Slots};
use crate::workload_lease::Given;

/// How far the pods of a group are that have a lease.
#[derive(Debug)]
pub(crate) struct GroupLease {
    slots: Slots,
    /// What each of its pods is known by.
    devices: Devices,
    /// Why it is to end.
    stops: Option<Outcome>,
    is_started: bool,
    is_scheduled: bool,
    /// Uids of pods that are to go.
    evicted: BTreeSet<String>,
}

/// What a pod of a group is to its lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It has no slot.
    None,
    /// It has a slot, and is to get the node of that.
    Placed(Name),
    /// It has a slot and a node, or is on the way to it.
    Has,
}

/// What follows from what was seen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// All of its pods have nodes.
    Scheduled,
    Started,
    /// A pod of this uid is to go.
    Evict(String),
    Ended(Outcome),
}

impl GroupLease {
    pub fn new(given: Given, phase: Phase) -> Self {
        Self {
            slots: Slots::new(given.nodes),
            devices: given.devices,
            stops: phase.is_stopping().then_some(Outcome::Stopped),
            is_started: phase != Phase::Starting,
            is_scheduled: phase != Phase::Starting,
            evicted: BTreeSet::new(),
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stops.is_some()
    }

    pub fn has(&self, uid: &str) -> bool {
        self.slots.has(uid)
    }

    /// What a pod of its group is to it.
    pub fn see_pod(&mut self, row: &PodRow) -> Part {
        if self.slots.renew(row) {
            return Part::Has;
        }
        if row.phase.has_ended() || row.is_deleting || !self.is_one(&row.requests) {
            return Part::None;
        }
        match &row.node {
            None if row.needs.is_none() || self.is_stopping() => Part::None,
            None => self.slots.give(&row.uid).map_or(Part::None, Part::Placed),
            Some(node) if self.slots.keep(row, node) => Part::Has,
            Some(_) => Part::None,
        }
    }

    /// Whether a pod that requests so much is one of those that were placed.
    pub fn is_one(&self, requests: &BTreeMap<String, u64>) -> bool {
        counted(requests).is_ok_and(|(devices, _)| devices == self.devices)
    }

    /// A pod is not there any more; whether it had a slot.
    pub fn see_pod_gone(&mut self, uid: &str) -> bool {
        self.slots.release(uid)
    }

    /// A slot has no pod, and may get one.
    pub fn has_room(&self) -> bool {
        !self.is_stopping() && self.slots.has_free()
    }

    /// It is to end. Who gave it up first and is asked to stop it then has stopped it.
    pub fn stop(&mut self, outcome: Outcome) {
        self.stops = Some(outcome);
    }

    /// A pod did not get its node: what a part of the pods holds is of no use.
    pub fn refused(&mut self, uid: &str, reason: String) {
        if self.slots.release(uid) && !self.is_stopping() {
            self.stop(Outcome::Refused { reason });
        }
    }

    /// The next fact, each once; called until there is none.
    pub fn next(&mut self) -> Option<Fact> {
        if self.slots.is_empty() {
            return Some(Fact::Ended(self.outcome()));
        }
        if self.is_stopping() {
            let evicted = &self.evicted;
            let is_due = |uid: &String| !evicted.contains(uid);
            // One whose binding is under way is seen on its node, or does not get there.
            let bound = self.slots.pods().filter(|pod| pod.is_bound && !pod.is_deleting);
            let uid = bound.map(|pod| pod.uid.clone()).find(is_due)?;
            self.evicted.insert(uid.clone());
            return Some(Fact::Evict(uid));
        }
        let are_bound = !self.slots.has_free() && self.slots.pods().all(|pod| pod.is_bound);
        if !self.is_scheduled && are_bound {
            self.is_scheduled = true;
            return Some(Fact::Scheduled);
        }
        if !self.is_started && self.slots.were_all_up() {
            self.is_started = true;
            return Some(Fact::Started);
        }
        None
    }

    /// By how the last pod of each slot ended.
    fn outcome(&self) -> Outcome {
        let failed = self.slots.ends().find_map(|end| match end {
            Some(PodEnd::Failed(message)) => Some(message.clone()),
            _ => None,
        });
        let have_succeeded = self.slots.ends().all(|end| end == Some(&PodEnd::Succeeded));
        match (&self.stops, failed) {
            _ if have_succeeded => Outcome::Finished,
            (Some(outcome), _) => outcome.clone(),
            (None, Some(message)) => Outcome::Failed(Failure {
                rank: 0,
                exit_code: Failure::unseen().exit_code,
                message,
                cause: FailureCause::Program,
            }),
            (None, None) => Outcome::Lost,
        }
    }
}

#[cfg(test)]
mod tests;
