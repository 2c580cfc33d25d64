//! Others that ask for nodes: who is told of them, and how a pod gets one.

use std::collections::BTreeMap;

use het_core::{
    CheckpointSpec, Domain, Event, Failure, FailureCause, JobId, LeaseId, Name, Outcome, Placement,
    State, Topology,
};
use tokio::sync::mpsc::UnboundedSender;

use super::{Kubernetes, Live, Stop, Whose};
use crate::gang::Gang;
use crate::names::{Binding, HOSTNAME, ObjectKey};
use crate::objects::{PodPhase, PodRow};
use crate::owners::{Foreign, ForeignKind, JobOwner};
use crate::pods;
use crate::requests::{Offers, Request, RequestNews};
use crate::writer::Right;

/// A job that is a pod of somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodJob {
    pub job: JobId,
    pub pod: JobOwner,
}

/// Who asks, and who was answered.
#[derive(Debug, Default)]
pub(super) struct Requests {
    offers: Offers,
    /// Whoever takes them in; nobody where it is `None`.
    news: Option<UnboundedSender<RequestNews>>,
    /// Those that wait were told, so that from now on only changes are.
    is_told: bool,
    /// By uid: who was told of, and what they asked for last.
    told: BTreeMap<String, Request>,
    /// By uid: pods that got a node, or are to get one.
    leases: BTreeMap<String, LeaseId>,
}

impl Requests {
    pub fn follow(&mut self, news: UnboundedSender<RequestNews>) {
        self.news = Some(news);
        self.is_told = false;
    }

    pub fn lease(&self, uid: &str) -> Option<LeaseId> {
        self.leases.get(uid).copied()
    }

    pub fn forget_leases(&mut self) {
        self.leases.clear();
    }

    fn ended(&mut self, uid: &str) {
        self.leases.remove(uid);
        self.forget(uid);
    }

    /// Somebody was told what it asks for.
    pub fn are_told(&self, uid: &str) -> bool {
        self.told.contains_key(uid)
    }

    /// What it asked for is told again.
    pub fn forget(&mut self, uid: &str) {
        self.told.remove(uid);
    }

    /// Those that wait were told of.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    pub fn offers(&mut self) -> &mut Offers {
        &mut self.offers
    }

    fn send(&self, news: RequestNews) {
        // Whoever takes them in is gone at the end only.
        self.news.iter().for_each(|to| drop(to.send(news.clone())));
    }

    /// Tells what somebody asks for now, where that is news.
    pub fn asks(&mut self, request: Request) {
        let uid = &request.of.owner.uid;
        if self.told.get(uid) != Some(&request) {
            self.told.insert(uid.clone(), request.clone());
            self.send(RequestNews::Asks(Box::new(request)));
        }
    }

    /// One asks no more, or is gone.
    pub fn over(&mut self, uid: &str) {
        if self.told.contains_key(uid) {
            self.gone(uid);
        }
    }

    /// The same of one that an earlier leader may have been told of.
    pub fn gone(&mut self, uid: &str) {
        self.told.remove(uid);
        self.send(RequestNews::Gone { uid: uid.to_owned() });
    }
}

impl Kubernetes {
    /// Tells of pods that ask for a node: all once it is known which nodes there are, and again
    /// whenever other devices would do for one.
    pub(super) fn tell_requests(&mut self) {
        let is_known = self.are_listed();
        let Some(inventory) = self.inventory.as_ref().filter(|_| is_known) else { return };
        if self.requests.news.is_none() {
            return;
        }
        let is_other = self.requests.offers.renew(inventory);
        let is_all = is_other || !self.requests.is_told;
        if is_all {
            let waiting = self.pods.values().filter(|(row, _)| row.needs.is_some());
            let waiting: Vec<PodRow> = waiting.map(|(row, _)| row.clone()).collect();
            self.requests.is_told = true;
            waiting.iter().for_each(|row| self.see_request(row));
            self.tell_absent();
            self.tell_workloads();
            self.groups.touch_all();
        }
    }

    /// Jobs whose pod went, or asks no more, while nobody watched.
    fn tell_absent(&self) {
        let foreign = self.owners.all_foreign().into_iter();
        for Foreign { owner: pod, .. } in foreign.filter(|it| it.kind == ForeignKind::Pod) {
            let row = self.pods.get(&pod.key()).map(|(row, _)| row);
            // Of one that has a node its lease tells.
            let is_there = |row: &PodRow| row.needs.is_some() || row.node.is_some();
            if !row.is_some_and(|row| row.uid == pod.uid && is_there(row)) {
                self.requests.send(RequestNews::Gone { uid: pod.uid });
            }
        }
    }

    /// What a pod asks for now.
    pub(super) fn see_request(&mut self, row: &PodRow) {
        if self.groups.touch(row) {
            return;
        }
        let requests = &mut self.requests;
        let Some(inventory) = self.inventory.as_ref().filter(|_| requests.is_told) else { return };
        if requests.leases.contains_key(&row.uid) || self.workloads.suspends(row) {
            return;
        }
        let Some(needs) = &row.needs else { return requests.over(&row.uid) };
        let claimed = self.claims.ask_of(row);
        let devices = match claimed {
            None => requests.offers.devices(inventory, needs, &row.requests),
            Some(Err(why)) => Err(why),
            Some(Ok(ask)) => {
                let known = (inventory, self.claims.dra());
                requests.offers.claimed(known, (needs, ask), &row.requests)
            }
        };
        let is_claimed = !row.claims.is_empty();
        requests.asks(Request {
            of: foreign_of_pod(row),
            profile: needs.profile.clone(),
            priority: needs.priority,
            preemptible: needs.preemptible,
            ranks: 1,
            within: Domain::Node,
            devices,
        });
        if is_claimed {
            self.return_claim_of(row);
        }
    }

    /// Gives a pod the node of a lease.
    pub(super) fn give_node(
        &mut self,
        lease: LeaseId,
        of_pod: PodJob,
        (topology, placement): (&Topology, &Placement),
    ) {
        let Some(node) = &node_of(topology, placement) else {
            return self.ready.push_back(refused_without_node(lease));
        };
        let PodJob { pod, .. } = of_pod.clone();
        let key = pod.key();
        // Another job of the same pod has a lease, or its group has: this one is of nobody.
        let is_placed = self.pods.get(&key).is_some_and(|(row, _)| self.groups.places(row));
        let is_another = is_placed || self.requests.leases.contains_key(&pod.uid);
        let is_waiting = |row: &PodRow| {
            row.uid == pod.uid && row.node.is_none() && !row.is_deleting && !row.phase.has_ended()
        };
        let waiting = self.pods.get_mut(&key).filter(|(row, _)| !is_another && is_waiting(row));
        let Some((row, whose)) = waiting else {
            self.ready.push_back(Event::JobCancelled { job: of_pod.job });
            return self.ready.push_back(Event::StageEnded { lease, outcome: Outcome::Lost });
        };
        let found = self.inventory.as_ref().and_then(|inventory| inventory.node(node));
        let hostname = found.and_then(|found| found.labels.get(HOSTNAME)).cloned();
        let selects_it = hostname.is_some() || self.scheduler.binding == Binding::Own;
        let rule = row.needs.as_ref().map(|needs| &needs.nodes);
        let will_do = match (rule, found) {
            (Some(rule), Some(node)) => rule.accepts(&node.labels, &node.taints),
            _ => true,
        };
        let reason = match (self.removed.contains(node), will_do, selects_it) {
            (true, ..) => Some(format!("node `{node}` is not there any more")),
            (_, false, _) => Some(format!("node `{node}` has other labels than the pod asks for")),
            (_, _, false) => Some(format!("node `{node}` has no label `{HOSTNAME}`")),
            _ => None,
        };
        let claim = self.claims.given(row, topology, placement);
        let reason = reason.or(claim.as_ref().err().cloned());
        if let Some(reason) = reason {
            return self
                .ready
                .push_back(Event::StageEnded { lease, outcome: Outcome::Refused { reason } });
        }
        *whose = Whose::Ours;
        let live =
            Live { of_pod: Some(of_pod), ..Live::new(vec![(key, Some(pod.uid.clone()))], None) };
        let right = Right { lease, wanted: live.wanted.clone(), job: None };
        let given = pods::Pod {
            name: pod.name,
            node: node.to_string(),
            object: pods::PodObject::Of {
                uid: pod.uid.clone(),
                hostname: hostname.unwrap_or_default(),
            },
            claim: claim.unwrap_or_default(),
        };
        let waiting = row.clone();
        self.leases.insert(lease, live);
        self.requests.leases.insert(pod.uid, lease);
        self.count_claims_of(&waiting);
        let objects = pods::Objects { group: None, service: None, pods: vec![given] };
        self.cluster.spawn(self.writer.clone().begin(right, pod.namespace, objects));
    }

    /// Goes on with the pod of a lease of the state that is adopted.
    pub(super) fn take_up_pod(&mut self, state: &State, id: LeaseId, pod: JobOwner) {
        let lease = &state.leases()[&id];
        let of_pod = PodJob { job: lease.stage.job, pod: pod.clone() };
        let Some(node) = node_of(state.topology(), &lease.placement) else {
            return self.ready.push_back(refused_without_node(id));
        };
        let key = pod.key();
        let row = self.pods.get(&key).map(|(row, _)| row.clone());
        let row = row.filter(|row| row.uid == pod.uid);
        // One that is to end gets no node any more.
        let is_begun = |row: &PodRow| row.node.as_ref() == Some(&node) || lease.phase.is_stopping();
        let Some(row) = row.filter(is_begun) else {
            return self.give_node(id, of_pod, (state.topology(), &lease.placement));
        };
        let mut live = Live {
            gang: Gang::adopted(1, lease.phase),
            of_pod: Some(of_pod),
            stop: Stop::of(lease, CheckpointSpec::GRACE_DEFAULT),
            ..Live::new(vec![(key, Some(pod.uid.clone()))], None)
        };
        live.gang.see(0, &row);
        self.leases.insert(id, live);
        self.requests.leases.insert(pod.uid, id);
        if lease.phase.is_stopping() && !row.is_deleting && !row.phase.has_ended() {
            self.delete(id, CheckpointSpec::GRACE_DEFAULT);
        }
        self.see(row);
        self.emit(id);
    }

    /// The end of a lease of a pod of somebody else. What has ended, is gone, or has another node
    /// never comes back under its uid, so its job ends, too.
    pub(super) fn end_pod(
        &mut self,
        lease: LeaseId,
        PodJob { job, pod }: &PodJob,
        outcome: Outcome,
    ) {
        let row = self.pods.get(&pod.key()).map(|(row, _)| row);
        let row = row.filter(|row| row.uid == pod.uid && !row.is_deleting);
        let waits = row.filter(|row| row.needs.is_some()).cloned();
        let failure = row.and_then(|row| match &row.phase {
            PodPhase::Failed(failure) => Some(failure.reason.clone()),
            _ => None,
        });
        let held = row.cloned();
        self.requests.ended(&pod.uid);
        held.iter().for_each(|row| self.count_claims_of(row));
        let cause = FailureCause::Program;
        let outcome = match (outcome, failure) {
            (Outcome::Failed(failure), _) => Outcome::Failed(Failure { cause, ..failure }),
            (Outcome::Refused { reason: message }, Some(_)) | (Outcome::Lost, Some(message)) => {
                let exit_code = Failure::unseen().exit_code;
                Outcome::Failed(Failure { rank: 0, exit_code, message, cause })
            }
            (outcome, _) => outcome,
        };
        let is_over = matches!(outcome, Outcome::Finished | Outcome::Failed(_));
        if !is_over && waits.is_none() {
            self.ready.push_back(Event::JobCancelled { job: *job });
        }
        self.ready.push_back(Event::StageEnded { lease, outcome });
        // It may ask for something else than when it was given its node.
        waits.iter().for_each(|row| self.see_request(row));
    }
}

/// A pod that somebody else made.
pub(super) fn foreign_of_pod(row: &PodRow) -> Foreign {
    let ObjectKey { namespace, name } = row.key.clone();
    Foreign { kind: ForeignKind::Pod, owner: JobOwner { namespace, name, uid: row.uid.clone() } }
}

/// The node of a placement that has one.
pub(super) fn node_of(topology: &Topology, placement: &Placement) -> Option<Name> {
    Some(topology.node(placement.ranks.first()?.node).name.clone())
}

pub(super) fn refused_without_node(lease: LeaseId) -> Event {
    let reason = "the plan names no node".to_owned();
    Event::StageEnded { lease, outcome: Outcome::Refused { reason } }
}
