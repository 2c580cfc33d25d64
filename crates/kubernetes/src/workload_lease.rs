//! A lease of a workload of somebody else: how far it is, by what was seen of it and of its pods.
//! No I/O.
//!
//! Each rank holds devices of a node: a slot. Pods get slots as they come, and a pod that replaces
//! one that ended gets the slot that this leaves. The devices are held until the workload has ended
//! or is suspended, and none of its pods is left on them.

use std::collections::BTreeMap;

use het_core::{Failure, FailureCause, Name, Outcome, Phase};

use crate::names::ObjectKey;
use crate::objects::{PodPhase, PodRow};
use crate::resources::{CPU, is_device};
use crate::workloads::{WorkloadEnd, WorkloadRow};

/// How far a workload with a lease is.
#[derive(Debug)]
pub(crate) struct WorkloadLease {
    slots: Vec<Slot>,
    /// By name: pods that came while all slots were taken.
    waiting: BTreeMap<ObjectKey, String>,
    /// By resource, in thousandths: what each of its pods is known by.
    devices: BTreeMap<String, u64>,
    course: Course,
    is_started: bool,
    /// It was seen while it was not suspended.
    is_seen_free: bool,
    is_suspended: bool,
    end: Option<WorkloadEnd>,
    is_gone: bool,
}

#[derive(Debug)]
struct Slot {
    node: Name,
    pod: Option<SlotPod>,
    /// A pod has run on it.
    was_up: bool,
}

#[derive(Debug)]
struct SlotPod {
    uid: String,
    /// Why it does not begin.
    trouble: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Course {
    /// It is unsuspended, or to be.
    On,
    /// It is to be suspended, for this outcome.
    Stopping { outcome: Outcome, is_told: bool },
}

/// What a pod is to a workload that has a lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// None of those that have slots.
    None,
    /// It came while all slots were taken, or while it is being suspended.
    Waits,
    /// It has a slot, and is to get the node of that.
    Placed(Name),
    /// It has a slot and a node.
    Has,
}

/// What follows from what was seen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    Started,
    /// It is to be suspended.
    Suspend,
    /// Somebody else suspended it.
    Held,
    Ended(Outcome),
    /// It is not there any more.
    Gone,
}

impl WorkloadLease {
    /// On these nodes, one a rank.
    pub fn new(nodes: Vec<Name>, requests: &BTreeMap<String, u64>) -> Self {
        let slots = nodes.into_iter().map(|node| Slot { node, pod: None, was_up: false });
        Self {
            slots: slots.collect(),
            waiting: BTreeMap::new(),
            devices: devices(requests),
            course: Course::On,
            is_started: false,
            is_seen_free: false,
            is_suspended: false,
            end: None,
            is_gone: false,
        }
    }

    /// One that an earlier leader began.
    pub fn adopted(nodes: Vec<Name>, requests: &BTreeMap<String, u64>, phase: Phase) -> Self {
        let mut lease = Self::new(nodes, requests);
        lease.is_started = phase != Phase::Starting;
        if phase.is_stopping() {
            lease.stop();
        }
        lease
    }

    pub fn has_started(&self) -> bool {
        self.is_started
    }

    pub fn is_stopping(&self) -> bool {
        self.course != Course::On
    }

    /// Why a pod does not begin.
    pub fn trouble(&self) -> Option<&str> {
        let pods = self.slots.iter().filter_map(|slot| slot.pod.as_ref());
        pods.filter_map(|pod| pod.trouble.as_deref()).next()
    }

    /// Pods that have slots, and slots.
    pub fn placed(&self) -> (usize, usize) {
        (self.slots.iter().filter(|slot| slot.pod.is_some()).count(), self.slots.len())
    }

    /// Somebody asked for its end.
    pub fn stop(&mut self) {
        self.give_up(Outcome::Stopped);
    }

    /// It will not begin, or cannot go on.
    pub fn give_up(&mut self, outcome: Outcome) {
        match &mut self.course {
            Course::On => self.course = Course::Stopping { outcome, is_told: false },
            // Who gave it up first and is asked to stop it then has stopped it.
            Course::Stopping { outcome: before, .. } => *before = outcome,
        }
    }

    /// It was looked at, or has changed.
    pub fn see(&mut self, row: &WorkloadRow) {
        self.is_suspended = row.is_suspended;
        self.is_seen_free |= !row.is_suspended;
        self.end = self.end.take().or_else(|| row.end.clone());
    }

    /// It is not there any more.
    pub fn see_gone(&mut self) {
        self.is_gone = true;
    }

    /// What a pod is to it, whose labels say that it is one of its pods.
    pub fn see_pod(&mut self, row: &PodRow) -> Part {
        let is_over = row.phase.has_ended();
        let is_up = is_over || row.phase == PodPhase::Running;
        if let Some(slot) = self.slot_of(&row.uid) {
            slot.was_up |= is_up;
            match &mut slot.pod {
                Some(pod) if !is_over => pod.trouble.clone_from(&row.trouble),
                pod => *pod = None,
            }
            return Part::Has;
        }
        if is_over || devices(&row.requests) != self.devices {
            self.waiting.remove(&row.key);
            return Part::None;
        }
        match &row.node {
            None if row.needs.is_none() => Part::None,
            None => self.place(row),
            Some(node) => {
                let free = self.slots.iter_mut().find(|it| it.pod.is_none() && it.node == *node);
                let Some(slot) = free else { return Part::None };
                slot.was_up |= is_up;
                let (uid, trouble) = (row.uid.clone(), row.trouble.clone());
                slot.pod = Some(SlotPod { uid, trouble });
                Part::Has
            }
        }
    }

    fn place(&mut self, row: &PodRow) -> Part {
        let is_stopping = self.is_stopping();
        let free = self.slots.iter_mut().find(|slot| slot.pod.is_none() && !is_stopping);
        let Some(slot) = free else {
            self.waiting.insert(row.key.clone(), row.uid.clone());
            return Part::Waits;
        };
        slot.pod = Some(SlotPod { uid: row.uid.clone(), trouble: None });
        self.waiting.remove(&row.key);
        Part::Placed(slot.node.clone())
    }

    /// The pods to look at again, now that a slot may be free.
    pub fn waiting(&self) -> Vec<ObjectKey> {
        let is_free = self.slots.iter().any(|slot| slot.pod.is_none()) && !self.is_stopping();
        if is_free { self.waiting.keys().cloned().collect() } else { Vec::new() }
    }

    /// A pod is not there any more; whether it was one of its.
    pub fn see_pod_gone(&mut self, key: &ObjectKey, uid: &str) -> bool {
        let was_waiting = self.waiting.remove(key).is_some();
        let Some(slot) = self.slot_of(uid) else { return was_waiting };
        slot.pod = None;
        true
    }

    fn slot_of(&mut self, uid: &str) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.pod.as_ref().is_some_and(|pod| pod.uid == uid))
    }

    /// A pod did not get its node.
    pub fn refused(&mut self, uid: &str, reason: String) {
        if let Some(slot) = self.slot_of(uid) {
            slot.pod = None;
            self.give_up(Outcome::Refused { reason });
        }
    }

    /// The next fact, each once; called until there is none.
    pub fn next(&mut self) -> Option<Fact> {
        let is_empty = self.slots.iter().all(|slot| slot.pod.is_none());
        let is_up = self.slots.iter().all(|slot| slot.was_up);
        if !self.is_started && !self.is_stopping() && is_up {
            self.is_started = true;
            return Some(Fact::Started);
        }
        if self.is_gone {
            return is_empty.then_some(Fact::Gone);
        }
        if let Some(end) = &self.end {
            return is_empty.then(|| Fact::Ended(outcome_of(end)));
        }
        match &mut self.course {
            Course::On if self.is_seen_free && self.is_suspended => {
                self.course = Course::Stopping { outcome: Outcome::Lost, is_told: true };
                Some(Fact::Held)
            }
            Course::On => None,
            Course::Stopping { is_told, .. } if !*is_told => {
                *is_told = true;
                Some(Fact::Suspend)
            }
            Course::Stopping { outcome, .. } if self.is_suspended && is_empty => {
                Some(Fact::Ended(outcome.clone()))
            }
            Course::Stopping { .. } => None,
        }
    }
}

/// The devices that are requested, or the cores where none are. Controllers, and those who look at
/// pods before they are made, add containers that request a little of the rest.
fn devices(requests: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let devices = requests.iter().filter(|(name, amount)| **amount > 0 && is_device(name));
    let devices: BTreeMap<String, u64> =
        devices.map(|(name, amount)| (name.clone(), *amount)).collect();
    if devices.is_empty() {
        let cores = requests.get(CPU).map_or(1, |amount| amount.div_ceil(1_000).max(1));
        return BTreeMap::from([(CPU.to_owned(), cores)]);
    }
    devices
}

/// What has ended never runs again, whoever asked for its stop.
fn outcome_of(end: &WorkloadEnd) -> Outcome {
    match end {
        WorkloadEnd::Succeeded => Outcome::Finished,
        WorkloadEnd::Failed(message) => Outcome::Failed(Failure {
            rank: 0,
            exit_code: Failure::unseen().exit_code,
            message: message.clone(),
            cause: FailureCause::Program,
        }),
    }
}

#[cfg(test)]
mod tests;
