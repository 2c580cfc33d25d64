//! The places that a lease gives pods of somebody else: who has which, by what was seen of them.
//! No I/O.
//!
//! Each rank holds devices of a node: a slot. Pods get slots as they come, and a pod that replaces
//! one that ended gets the slot that this leaves.

use het_core::Name;

use crate::objects::{PodPhase, PodRow};

#[derive(Debug)]
pub(crate) struct Slots(Vec<Slot>);

#[derive(Debug)]
struct Slot {
    node: Name,
    pod: Option<SlotPod>,
    /// A pod has run on it.
    was_up: bool,
    /// How the pod ended that it had last.
    end: Option<PodEnd>,
}

/// A pod that has a slot.
#[derive(Debug)]
pub(crate) struct SlotPod {
    pub uid: String,
    /// It was seen on the slot's node.
    pub is_bound: bool,
    pub is_deleting: bool,
    /// Why it does not begin.
    trouble: Option<String>,
}

/// How a pod left its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodEnd {
    Succeeded,
    /// For people.
    Failed(String),
    /// It was deleted.
    Gone,
}

impl PodEnd {
    /// `None` of a pod that goes on.
    fn of(row: &PodRow) -> Option<Self> {
        match &row.phase {
            PodPhase::Pending | PodPhase::Running => None,
            _ if row.is_deleting => Some(Self::Gone),
            PodPhase::Succeeded => Some(Self::Succeeded),
            PodPhase::Failed(failure) => {
                let words = [&failure.message, &failure.reason, &failure.container_reason];
                let word = words.into_iter().find(|word| !word.is_empty());
                let first = word.and_then(|word| word.lines().next()).unwrap_or_default();
                Some(Self::Failed(first.to_owned()))
            }
        }
    }
}

impl Slots {
    pub fn new(nodes: Vec<Name>) -> Self {
        let slot = |node| Slot { node, pod: None, was_up: false, end: None };
        Self(nodes.into_iter().map(slot).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Pods that have slots.
    pub fn pods(&self) -> impl Iterator<Item = &SlotPod> {
        self.0.iter().filter_map(|slot| slot.pod.as_ref())
    }

    pub fn is_empty(&self) -> bool {
        self.pods().next().is_none()
    }

    pub fn has_free(&self) -> bool {
        self.0.iter().any(|slot| slot.pod.is_none())
    }

    /// A pod has run on each of them.
    pub fn were_all_up(&self) -> bool {
        self.0.iter().all(|slot| slot.was_up)
    }

    /// Some have pods, and each of those has run.
    pub fn are_taken_up(&self) -> bool {
        let mut there = self.0.iter().filter(|slot| slot.pod.is_some()).peekable();
        there.peek().is_some() && there.all(|slot| slot.was_up)
    }

    /// They are as if a pod had run on each.
    pub fn set_up(&mut self) {
        self.0.iter_mut().for_each(|slot| slot.was_up = true);
    }

    /// Why a pod does not begin.
    pub fn trouble(&self) -> Option<&str> {
        self.pods().find_map(|pod| pod.trouble.as_deref())
    }

    /// How the pods ended that they had last.
    pub fn ends(&self) -> impl Iterator<Item = Option<&PodEnd>> {
        self.0.iter().map(|slot| slot.end.as_ref())
    }

    fn of(&mut self, uid: &str) -> Option<&mut Slot> {
        self.0.iter_mut().find(|slot| slot.pod.as_ref().is_some_and(|pod| pod.uid == uid))
    }

    pub fn has(&self, uid: &str) -> bool {
        self.pods().any(|pod| pod.uid == uid)
    }

    /// Takes over what is new about a pod that has a slot; whether it has one.
    pub fn renew(&mut self, row: &PodRow) -> bool {
        let end = PodEnd::of(row);
        let Some(slot) = self.of(&row.uid) else { return false };
        slot.was_up |= end.is_some() || row.phase == PodPhase::Running;
        match (&mut slot.pod, end) {
            (Some(pod), None) => {
                pod.trouble.clone_from(&row.trouble);
                pod.is_bound |= row.node.is_some();
                pod.is_deleting = row.is_deleting;
            }
            (pod, end) => (*pod, slot.end) = (None, end),
        }
        true
    }

    /// Gives a pod that is on a node already a free slot there; whether there is one.
    pub fn keep(&mut self, row: &PodRow, node: &Name) -> bool {
        let free = self.0.iter_mut().find(|slot| slot.pod.is_none() && slot.node == *node);
        let Some(slot) = free else { return false };
        slot.was_up |= row.phase.has_ended() || row.phase == PodPhase::Running;
        let (uid, trouble) = (row.uid.clone(), row.trouble.clone());
        let is_deleting = row.is_deleting;
        slot.pod = Some(SlotPod { uid, is_bound: true, is_deleting, trouble });
        true
    }

    /// Gives a pod that waits a free slot, and says on which node that is.
    pub fn give(&mut self, uid: &str) -> Option<Name> {
        let slot = self.0.iter_mut().find(|slot| slot.pod.is_none())?;
        let uid = uid.to_owned();
        slot.pod = Some(SlotPod { uid, is_bound: false, is_deleting: false, trouble: None });
        Some(slot.node.clone())
    }

    /// Its pod is not there any more, or did not get the slot's node; whether it had one.
    pub fn release(&mut self, uid: &str) -> bool {
        let Some(slot) = self.of(uid) else { return false };
        (slot.pod, slot.end) = (None, Some(PodEnd::Gone));
        true
    }
}
