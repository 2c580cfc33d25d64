//! A lease of a workload of somebody else: how far it is, by what was seen of it and of its pods.
//! No I/O.
//!
//! Pods get slots as they come. The devices are held until the workload has ended or is suspended,
//! and none of its pods is left on them.

use std::collections::BTreeMap;

use het_core::{Failure, FailureCause, Name, Outcome, Phase};

use crate::names::ObjectKey;
use crate::objects::PodRow;
use crate::resources::{CPU, Devices, counted};
use crate::slots::Slots;
use crate::workloads::{WorkloadEnd, WorkloadGang, WorkloadRow};

/// What a lease gives a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    /// Of each rank.
    pub nodes: Vec<Name>,
    /// Of each rank; the same.
    pub devices: Devices,
}

impl Given {
    /// Whether the pods of a workload are as many, and ask for as much, as was placed.
    pub fn is_for(&self, gang: &WorkloadGang) -> bool {
        let asked = counted(&gang.requests).map(|(devices, _)| devices);
        gang.ranks as usize == self.nodes.len() && asked.as_ref() == Ok(&self.devices)
    }
}

/// How far a workload with a lease is.
#[derive(Debug)]
pub(crate) struct WorkloadLease {
    slots: Slots,
    /// By name: pods that came while all slots were taken.
    waiting: BTreeMap<ObjectKey, String>,
    /// What each of its pods is known by.
    devices: Devices,
    /// It has no pods but those of its ranks.
    is_all: bool,
    course: Course,
    is_started: bool,
    /// It was seen while it was not suspended.
    is_seen_free: bool,
    is_suspended: bool,
    /// The version of the object that was seen last.
    version: u64,
    end: Option<WorkloadEnd>,
    is_gone: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Course {
    /// It is unsuspended, or to be.
    On,
    /// It is to be suspended, for this outcome.
    Stopping { outcome: Outcome, suspension: Suspension },
}

/// How far the suspension of a workload is that is to stop. It is written even where it is
/// suspended already: what was sent before and not answered can undo nothing after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suspension {
    Due,
    UnderWay,
    /// Its object has had this version since.
    Written(u64),
}

/// What a pod is to a workload that has a lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// None of those that have slots.
    None,
    /// It came while all slots were taken, or while it is being suspended.
    Waits { is_new: bool },
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
    pub fn new(given: Given, is_all: bool) -> Self {
        Self {
            slots: Slots::new(given.nodes),
            waiting: BTreeMap::new(),
            devices: given.devices,
            is_all,
            course: Course::On,
            is_started: false,
            is_seen_free: false,
            is_suspended: false,
            version: 0,
            end: None,
            is_gone: false,
        }
    }

    /// One that an earlier leader began. Where it ran, whoever has suspended it since was somebody
    /// else.
    pub fn adopted(given: Given, is_all: bool, phase: Phase) -> Self {
        let mut lease = Self::new(given, is_all);
        lease.is_started = phase != Phase::Starting;
        lease.is_seen_free = lease.is_started;
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

    /// It waits for its unsuspension.
    pub fn is_to_begin(&self) -> bool {
        !self.is_stopping() && self.is_suspended && !self.is_seen_free
    }

    /// Some of its pods are there, and each of them has run: its controller makes no others.
    pub fn has_begun(&self) -> bool {
        self.slots.are_taken_up()
    }

    /// It runs, although it has fewer pods than ranks.
    pub fn start(&mut self) {
        self.slots.set_up();
    }

    /// Why a pod does not begin.
    pub fn trouble(&self) -> Option<&str> {
        self.slots.trouble()
    }

    /// Pods that have slots, and slots.
    pub fn placed(&self) -> (usize, usize) {
        (self.slots.pods().count(), self.slots.len())
    }

    /// Somebody asked for its end.
    pub fn stop(&mut self) {
        self.give_up(Outcome::Stopped);
    }

    /// It will not begin, or cannot go on.
    pub fn give_up(&mut self, outcome: Outcome) {
        match &mut self.course {
            Course::On => self.course = Course::Stopping { outcome, suspension: Suspension::Due },
            // Who gave it up first and is asked to stop it then has stopped it.
            Course::Stopping { outcome: before, .. } => *before = outcome,
        }
    }

    /// It was looked at, or has changed.
    pub fn see(&mut self, row: &WorkloadRow) {
        // Who was not allowed to look for a while knows it again.
        self.is_gone = false;
        self.version = row.version;
        self.is_suspended = row.is_suspended;
        self.is_seen_free |= !row.is_suspended;
        self.end = self.end.take().or_else(|| row.end.clone());
    }

    /// Its suspension was written, and its object has had this version since.
    pub fn suspended(&mut self, version: u64) {
        if let Course::Stopping { suspension, .. } = &mut self.course {
            *suspension = Suspension::Written(version);
        }
    }

    /// It is not there any more.
    pub fn see_gone(&mut self) {
        self.is_gone = true;
    }

    /// What a pod is to it, whose labels say that it is one of its pods.
    pub fn see_pod(&mut self, row: &PodRow) -> Part {
        if self.slots.renew(row) {
            return Part::Has;
        }
        let was_waiting = self.waiting.remove(&row.key).is_some();
        if row.phase.has_ended() || !self.is_one(&row.requests) {
            return Part::None;
        }
        match &row.node {
            None if row.needs.is_none() => Part::None,
            None => self.place(row, was_waiting),
            Some(node) if self.slots.keep(row, node) => Part::Has,
            Some(_) => Part::None,
        }
    }

    /// Whether a pod that requests so much is one of its ranks. Where it has no other pods, those
    /// without devices may ask for more cores than its template: whoever looks at pods before they
    /// are made adds containers.
    fn is_one(&self, requests: &BTreeMap<String, u64>) -> bool {
        let Ok((devices, _)) = counted(requests) else { return false };
        let has_more_cores = self.is_all
            && self.devices.resource == *CPU
            && devices.resource == *CPU
            && devices.count >= self.devices.count;
        devices == self.devices || has_more_cores
    }

    fn place(&mut self, row: &PodRow, was_waiting: bool) -> Part {
        let is_stopping = self.is_stopping();
        let given = if is_stopping { None } else { self.slots.give(&row.uid) };
        given.map_or_else(
            || {
                self.waiting.insert(row.key.clone(), row.uid.clone());
                Part::Waits { is_new: !was_waiting && !is_stopping }
            },
            Part::Placed,
        )
    }

    /// The next pod to look at again, now that a slot is free.
    pub fn next_waiting(&self) -> Option<ObjectKey> {
        let is_free = self.slots.has_free() && !self.is_stopping();
        self.waiting.keys().next().filter(|_| is_free).cloned()
    }

    /// A pod that waited is not there any more.
    pub fn forget_waiting(&mut self, key: &ObjectKey) {
        self.waiting.remove(key);
    }

    /// A pod is not there any more; whether it was one of its.
    pub fn see_pod_gone(&mut self, key: &ObjectKey, uid: &str) -> bool {
        let was_waiting = self.waiting.remove(key).is_some();
        self.slots.release(uid) || was_waiting
    }

    /// A pod did not get its node.
    pub fn refused(&mut self, uid: &str, reason: String) {
        if self.slots.release(uid) {
            self.give_up(Outcome::Refused { reason });
        }
    }

    /// The next fact, each once; called until there is none.
    pub fn next(&mut self) -> Option<Fact> {
        let is_empty = self.slots.is_empty();
        let is_up = self.slots.were_all_up();
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
                let (outcome, suspension) = (Outcome::Lost, Suspension::Due);
                self.course = Course::Stopping { outcome, suspension };
                Some(Fact::Held)
            }
            Course::On => None,
            Course::Stopping { outcome, suspension } => match *suspension {
                Suspension::Due => {
                    *suspension = Suspension::UnderWay;
                    Some(Fact::Suspend)
                }
                // Somebody has it go on since.
                Suspension::Written(version) if !self.is_suspended && self.version > version => {
                    *suspension = Suspension::UnderWay;
                    Some(Fact::Suspend)
                }
                Suspension::Written(version) if self.is_suspended && self.version >= version => {
                    is_empty.then(|| Fact::Ended(outcome.clone()))
                }
                Suspension::UnderWay | Suspension::Written(_) => None,
            },
        }
    }
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
