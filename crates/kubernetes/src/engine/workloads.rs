//! Workloads of others: who is told of them, and how they are started and stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use het_core::{
    Event, JobId, LeaseId, Name, Outcome, Phase, Placement, Rank, State, StopCause, Time, Topology,
};

use super::listing::Listing;
use super::requests::{PodJob, foreign_of_pod, refused_without_node};
use super::{Adoption, Kubernetes, Whose};
use crate::conditions::Waits;
use crate::names::{Binding, HOSTNAME, ObjectKey};
use crate::needs::{self, NodeRule};
use crate::objects::PodRow;
use crate::owners::{Foreign, ForeignKind, JobOwner};
use crate::pods::resource_of;
use crate::requests::Request;
use crate::resources::Devices;
use crate::workload_kinds::{WorkloadKind, WorkloadName};
use crate::workload_lease::{Fact, Given, Part, WorkloadLease};
use crate::workloads::{SuspendedBy, WorkloadGang, WorkloadRow};
use crate::writer::Wanted;

/// Why one is not begun whose object was changed since its place was found.
const OTHER: &str = "it asks for something else by now";

/// What is known of workloads, and those that have leases.
#[derive(Debug, Default)]
pub(super) struct Workloads {
    rows: BTreeMap<WorkloadName, WorkloadRow>,
    /// By kind, how far the list is.
    listings: BTreeMap<WorkloadKind, Listing<WorkloadName>>,
    /// Values of priority classes; `None` until they are known.
    classes: Option<BTreeMap<String, i64>>,
    leases: BTreeMap<LeaseId, Leased>,
    /// Leases of the state that is adopted, of kinds whose lists are not complete.
    unlisted: BTreeMap<LeaseId, Adopted>,
    lease_of: BTreeMap<WorkloadName, LeaseId>,
    /// Kinds whose lists are complete, and whose jobs were not compared with them yet.
    unchecked: BTreeSet<WorkloadKind>,
}

/// A lease of a workload that an earlier leader began.
#[derive(Debug)]
struct Adopted {
    job: JobId,
    name: WorkloadName,
    uid: String,
    given: Given,
    phase: Phase,
}

/// A workload with a lease.
#[derive(Debug)]
struct Leased {
    job: JobId,
    name: WorkloadName,
    uid: String,
    by: SuspendedBy,
    wanted: Wanted,
    course: WorkloadLease,
    /// When it got its lease, and since when a pod of it is in trouble.
    began_at: Time,
    in_trouble: Option<Time>,
}

impl Workloads {
    pub fn forget_leases(&mut self) {
        self.leases.clear();
        self.unlisted.clear();
        self.lease_of.clear();
    }

    /// It is known which there are of a kind.
    fn are_listed(&self, kind: WorkloadKind) -> bool {
        matches!(self.listings.get(&kind), Some(Listing::Done))
    }

    fn lease_of_pod(&self, row: &PodRow) -> Option<LeaseId> {
        self.lease_of.get(row.workload.as_deref()?).copied()
    }

    /// Whether a pod goes by the suspension of its workload, so that it asks for nothing itself.
    pub fn suspends(&self, pod: &PodRow) -> bool {
        let row = pod.workload.as_deref().and_then(|name| self.rows.get(name));
        row.is_some_and(|row| row.is_suspended && row.gang.is_some())
    }

    /// The row of an object, where it is still the one that is meant.
    fn row(&self, name: &WorkloadName, uid: &str) -> Option<&WorkloadRow> {
        self.rows.get(name).filter(|row| row.uid == uid)
    }
}

impl Kubernetes {
    pub(super) fn see_priority_classes(&mut self, values: BTreeMap<String, i64>) {
        if self.workloads.classes.as_ref() != Some(&values) {
            self.workloads.classes = Some(values);
            self.tell_workloads();
        }
    }

    pub(super) fn workloads_begin(&mut self, kind: WorkloadKind) {
        self.workloads.listings.insert(kind, Listing::UnderWay(BTreeSet::new()));
    }

    /// The list of all of a kind is complete: those that it did not name are gone.
    pub(super) fn workloads_listed(&mut self, kind: WorkloadKind) {
        let listing = self.workloads.listings.insert(kind, Listing::Done);
        let named = listing.and_then(|mut listing| listing.end()).unwrap_or_default();
        let rows = self.workloads.rows.values();
        let absent = rows.filter(|row| row.name.kind == kind && !named.contains(&row.name));
        let absent: Vec<_> = absent.map(|row| (row.name.clone(), row.uid.clone())).collect();
        absent.iter().for_each(|(name, uid)| self.see_workload_gone(name, uid));
        let leased = self.workloads.leases.values_mut();
        for leased in leased.filter(|it| it.name.kind == kind && !named.contains(&it.name)) {
            leased.course.see_gone();
        }
        let leases: Vec<LeaseId> = self.workloads.leases.keys().copied().collect();
        leases.into_iter().for_each(|lease| self.tell_lease(lease));
        let unlisted = self.workloads.unlisted.extract_if(.., |_, it| it.name.kind == kind);
        let unlisted: Vec<(LeaseId, Adopted)> = unlisted.collect();
        unlisted.into_iter().for_each(|(lease, adopted)| self.go_on_with(lease, adopted));
        self.workloads.unchecked.insert(kind);
    }

    /// Tells of jobs whose workload went, or was started by somebody else, while nobody watched.
    pub(super) fn tell_absent_workloads(&mut self) {
        if !self.requests.is_told() || !matches!(self.adoption, Adoption::Done) {
            return;
        }
        let kinds = std::mem::take(&mut self.workloads.unchecked);
        if kinds.is_empty() {
            return;
        }
        for Foreign { kind: of, owner } in self.owners.all_foreign() {
            let ForeignKind::Workload(kind) = of else { continue };
            let name = WorkloadName { kind, key: owner.key() };
            let asks = self.workloads.row(&name, &owner.uid).is_some_and(WorkloadRow::asks);
            if kinds.contains(&kind) && !asks && !self.workloads.lease_of.contains_key(&name) {
                self.requests.gone(&owner.uid);
            }
        }
    }

    pub(super) fn see_workload(&mut self, row: WorkloadRow) {
        let name = row.name.clone();
        if let Some(listing) = self.workloads.listings.get_mut(&name.kind) {
            listing.name(name.clone());
        }
        // Another of the same name has taken its place.
        if let Some(before) = self.workloads.rows.get(&name).filter(|it| it.uid != row.uid) {
            let uid = before.uid.clone();
            self.see_workload_gone(&name, &uid);
        }
        let before = self.workloads.rows.insert(name.clone(), row.clone());
        let begins = before.is_some_and(|before| before.is_suspended && !row.is_suspended);
        if begins {
            // Those that came before this was known.
            self.see_pods_of(&name);
        }
        let Some(lease) = self.workloads.lease_of.get(&name).copied() else {
            return self.tell_workload(&row);
        };
        if let Some(leased) = self.workloads.leases.get_mut(&lease).filter(|it| it.uid == row.uid) {
            leased.course.see(&row);
            self.tell_lease(lease);
        }
    }

    pub(super) fn see_workload_gone(&mut self, name: &WorkloadName, uid: &str) {
        if self.workloads.row(name, uid).is_none() {
            return;
        }
        self.workloads.rows.remove(name);
        if let Some(lease) = self.workloads.lease_of.get(name).copied()
            && let Some(leased) = self.workloads.leases.get_mut(&lease)
        {
            leased.course.see_gone();
            self.tell_lease(lease);
        }
        self.requests.over(uid);
    }

    /// Tells of all that wait.
    pub(super) fn tell_workloads(&mut self) {
        let free = |row: &&WorkloadRow| !self.workloads.lease_of.contains_key(&row.name);
        let rows: Vec<_> = self.workloads.rows.values().filter(free).cloned().collect();
        rows.iter().for_each(|row| self.tell_workload(row));
    }

    /// What a workload without a lease asks for now.
    fn tell_workload(&mut self, row: &WorkloadRow) {
        let Some(inventory) = self.inventory.as_ref() else { return };
        let (true, Some(classes)) = (self.requests.is_told(), &self.workloads.classes) else {
            return;
        };
        let Some(gang) = row.gang.as_ref().filter(|_| row.asks()) else {
            return self.requests.over(&row.uid);
        };
        let devices = match &gang.refused {
            Some(why) => Err(why.clone()),
            None => self.requests.offers().devices(inventory, &gang.needs, &gang.requests),
        };
        let value = gang.priority_class.as_ref().and_then(|name| classes.get(name));
        self.requests.asks(Request {
            of: foreign_of(row),
            profile: gang.needs.profile.clone(),
            priority: value.map_or(gang.needs.priority, |value| needs::priority(*value)),
            preemptible: gang.needs.preemptible,
            ranks: gang.ranks,
            within: gang.within,
            devices,
        });
    }

    /// Starts a job that is an object of somebody else.
    pub(super) fn start_foreign(
        &mut self,
        lease: LeaseId,
        (job, object): (JobId, &Foreign),
        placement: &Placement,
    ) {
        let topology = Arc::clone(&self.topology);
        let on = (&*topology, placement);
        match named(job, object) {
            _ if placement.ranks.is_empty() => {
                self.ready.push_back(refused_without_node(lease));
            }
            Some(named) => self.start_workload(lease, named, on),
            None if object.kind == ForeignKind::Group => {
                self.start_group(lease, (job, object.owner.clone()), on);
            }
            None => {
                let of_pod = PodJob { job, pod: object.owner.clone() };
                self.give_node(lease, of_pod, on);
            }
        }
    }

    /// Starts the workload of a lease.
    pub(super) fn start_workload(
        &mut self,
        lease: LeaseId,
        (job, name, uid): Named<'_>,
        on: On<'_>,
    ) {
        if !self.workloads.are_listed(name.kind) {
            let reason =
                format!("it is not known yet which objects `{}` there are", name.kind.name());
            let outcome = Outcome::Refused { reason };
            return self.ready.push_back(Event::StageEnded { lease, outcome });
        }
        let is_another = self.workloads.lease_of.contains_key(&name);
        let row = self.workloads.row(&name, uid).filter(|row| row.asks() && !is_another).cloned();
        let Some((row, gang)) = row.and_then(|row| Some((row.clone(), row.gang?))) else {
            self.ready.push_back(Event::JobCancelled { job });
            return self.ready.push_back(Event::StageEnded { lease, outcome: Outcome::Lost });
        };
        let given = given(on.0, on.1);
        if let Err(reason) = self.will_do(&given, &gang) {
            let outcome = Outcome::Refused { reason };
            self.ready.push_back(Event::StageEnded { lease, outcome });
            // What it asks for now is another job.
            return self.tell_workload_again(&name);
        }
        let mut course = WorkloadLease::new(given, gang.is_all);
        course.see(&row);
        self.begin_workload(lease, (job, &row), course);
    }

    /// # Errors
    /// Why its pods cannot be on these nodes.
    fn will_do(&self, given: &Given, gang: &WorkloadGang) -> Result<(), String> {
        if !given.is_for(gang) {
            return Err(OTHER.to_owned());
        }
        given.nodes.iter().try_for_each(|name| self.node_will_do(name, &gang.needs.nodes))
    }

    /// # Errors
    /// Why pods cannot be on a node that are to be where the rule says.
    pub(super) fn node_will_do(&self, name: &Name, rule: &NodeRule) -> Result<(), String> {
        let known = self.inventory.as_ref().and_then(|inventory| inventory.node(name));
        let Some(node) = known.filter(|_| !self.removed.contains(name)) else {
            return Err(format!("node `{name}` is not there any more"));
        };
        if !rule.accepts(&node.labels, &node.taints) {
            return Err(format!("node `{name}` has other labels than its pods ask for"));
        }
        if self.scheduler.binding == Binding::KubeScheduler && !node.labels.contains_key(HOSTNAME) {
            return Err(format!("node `{name}` has no label `{HOSTNAME}`"));
        }
        Ok(())
    }

    fn begin_workload(
        &mut self,
        lease: LeaseId,
        (job, row): (JobId, &WorkloadRow),
        it: WorkloadLease,
    ) {
        let leased = Leased {
            job,
            name: row.name.clone(),
            uid: row.uid.clone(),
            by: row.suspended_by.clone(),
            wanted: Wanted::default(),
            course: it,
            began_at: self.clock.now(),
            in_trouble: None,
        };
        let (wanted, by) = (leased.wanted.clone(), leased.by.clone());
        self.workloads.lease_of.insert(row.name.clone(), lease);
        if leased.course.is_to_begin() {
            self.cluster.spawn(self.writer.clone().unsuspend(lease, wanted, by));
        }
        self.workloads.leases.insert(lease, leased);
        // Some of its pods may be there, of an earlier leader's time.
        self.see_pods_of(&row.name);
        self.look_at_workload_later(lease);
        self.tell_lease(lease);
    }

    /// Looks at the pods of a workload again. Those that have nodes come first: they keep their
    /// slots, and the others get those that are left.
    fn see_pods_of(&mut self, name: &WorkloadName) {
        let namespace = &name.key.namespace;
        let first = ObjectKey { namespace: namespace.clone(), name: String::new() };
        let there = self.pods.range(first..).take_while(|(key, _)| key.namespace == *namespace);
        let pods = there.map(|(_, (pod, _))| pod);
        let pods = pods.filter(|pod| pod.workload.as_deref() == Some(name));
        let mut pods: Vec<PodRow> = pods.cloned().collect();
        pods.sort_by_key(|pod| pod.node.is_none());
        pods.into_iter().for_each(|pod| self.see(pod));
    }

    /// Goes on with the workload of a lease of the state that is adopted, once it is known which
    /// there are of its kind: a list may take for ever, and nobody else waits for it.
    pub(super) fn take_up_workload(&mut self, state: &State, id: LeaseId, named: Named<'_>) {
        let (job, name, uid) = named;
        let lease = &state.leases()[&id];
        let (given, phase) = (given(state.topology(), &lease.placement), lease.phase);
        let adopted = Adopted { job, name, uid: uid.to_owned(), given, phase };
        match self.workloads.are_listed(adopted.name.kind) {
            true => self.go_on_with(id, adopted),
            false => {
                self.workloads.lease_of.insert(adopted.name.clone(), id);
                self.workloads.unlisted.insert(id, adopted);
            }
        }
    }

    fn go_on_with(&mut self, id: LeaseId, adopted: Adopted) {
        let Adopted { job, name, uid, given, phase } = adopted;
        let Some(row) = self.workloads.row(&name, &uid).cloned() else {
            self.workloads.lease_of.remove(&name);
            self.ready.push_back(Event::JobCancelled { job });
            return self.ready.push_back(Event::StageEnded { lease: id, outcome: Outcome::Lost });
        };
        let gang = row.gang.as_ref();
        let is_other = gang.is_none_or(|gang| !given.is_for(gang));
        let mut course = WorkloadLease::adopted(given, gang.is_some_and(|it| it.is_all), phase);
        course.see(&row);
        if course.is_to_begin() && is_other {
            course.give_up(Outcome::Refused { reason: OTHER.to_owned() });
        }
        self.begin_workload(id, (job, &row), course);
    }

    /// Whether a pod is one of a workload with a lease: then it is seen to.
    pub(super) fn see_workload_pod(&mut self, row: &PodRow) -> bool {
        let Some(lease) = self.workloads.lease_of_pod(row) else { return false };
        if self.workloads.unlisted.contains_key(&lease) {
            // It holds what the lease holds, as far as is known.
            self.keep(row.clone(), Whose::Ours);
            return true;
        }
        let is_one = self.see_pod_of(lease, row);
        self.fill_slots(lease);
        self.tell_lease(lease);
        is_one
    }

    fn see_pod_of(&mut self, lease: LeaseId, row: &PodRow) -> bool {
        let Some(leased) = self.workloads.leases.get_mut(&lease) else { return false };
        let whose = match leased.course.see_pod(row) {
            Part::None => return false,
            Part::Waits { is_new } => {
                if is_new {
                    self.conditions.waits(foreign_of_pod(row), waits_for_slot(leased));
                }
                Whose::Others
            }
            Part::Has => Whose::Ours,
            Part::Placed(node) => {
                self.place(lease, row, &node);
                Whose::Ours
            }
        };
        self.keep(row.clone(), whose);
        self.look_at_workload_later(lease);
        true
    }

    /// Gives a pod the node of its slot, where that is still one: what a lost node held begins
    /// elsewhere.
    fn place(&mut self, lease: LeaseId, row: &PodRow, node: &Name) {
        let known = self.inventory.as_ref().and_then(|inventory| inventory.node(node));
        let ready = known.filter(|it| it.is_ready && !self.removed.contains(node));
        let Some(hostname) = ready.map(|node| node.labels.get(HOSTNAME).cloned()) else {
            let leased = self.workloads.leases.get_mut(&lease);
            return leased.into_iter().for_each(|it| it.course.give_up(Outcome::Lost));
        };
        let place = (node.clone(), hostname.unwrap_or_default());
        let pod = (row.key.clone(), row.uid.clone());
        self.cluster.spawn(self.writer.clone().place(lease, pod, place));
    }

    /// Gives slots that were left to pods that wait for one.
    fn fill_slots(&mut self, lease: LeaseId) {
        while let Some(leased) = self.workloads.leases.get_mut(&lease)
            && let Some(key) = leased.course.next_waiting()
        {
            leased.course.forget_waiting(&key);
            if let Some((row, _)) = self.pods.get(&key).cloned() {
                self.see_pod_of(lease, &row);
            }
        }
    }

    /// A pod is not there any more that may be one of a workload with a lease.
    pub(super) fn see_workload_pod_gone(&mut self, row: &PodRow) {
        let Some(lease) = self.workloads.lease_of_pod(row) else { return };
        let Some(leased) = self.workloads.leases.get_mut(&lease) else { return };
        leased.course.see_pod_gone(&row.key, &row.uid);
        self.fill_slots(lease);
        self.tell_lease(lease);
    }

    pub(super) fn not_unsuspended(&mut self, lease: LeaseId, reason: String) {
        if let Some(leased) = self.workloads.leases.get_mut(&lease) {
            leased.course.give_up(Outcome::Refused { reason });
            self.tell_lease(lease);
        }
    }

    pub(super) fn not_placed(&mut self, lease: LeaseId, uid: &str, reason: String) {
        if let Some(leased) = self.workloads.leases.get_mut(&lease) {
            leased.course.refused(uid, reason);
            self.tell_lease(lease);
        }
    }

    /// Its suspension was written.
    pub(super) fn suspended(&mut self, lease: LeaseId, version: u64) {
        if let Some(leased) = self.workloads.leases.get_mut(&lease) {
            leased.course.suspended(version);
            self.tell_lease(lease);
        }
    }

    /// Stops the workload of a lease; whether it is one.
    pub(super) fn stop_workload(&mut self, lease: LeaseId, cause: StopCause) -> bool {
        if let Some(adopted) = self.workloads.unlisted.get_mut(&lease) {
            adopted.phase = Phase::Stopping { cause };
            return true;
        }
        let Some(leased) = self.workloads.leases.get_mut(&lease) else { return false };
        leased.course.stop();
        self.tell_lease(lease);
        true
    }

    fn tell_lease(&mut self, lease: LeaseId) {
        while let Some(leased) = self.workloads.leases.get_mut(&lease) {
            let job = leased.job;
            match leased.course.next() {
                None => return,
                Some(Fact::Started) => self.ready.push_back(Event::StageStarted { lease }),
                Some(Fact::Suspend) => {
                    leased.wanted.no_more();
                    let (by, own) = (leased.by.clone(), leased.name.clone());
                    self.cluster.spawn(self.writer.clone().suspend(lease, by, own));
                }
                // Whoever suspended it has it go on by `het release`.
                Some(Fact::Held) => self.ready.push_back(Event::JobHeld { job }),
                Some(Fact::Ended(outcome)) => self.end_workload(lease, outcome),
                Some(Fact::Gone) => {
                    self.ready.push_back(Event::JobCancelled { job });
                    self.end_workload(lease, Outcome::Lost);
                }
            }
        }
    }

    fn end_workload(&mut self, lease: LeaseId, outcome: Outcome) {
        self.ready.push_back(Event::StageEnded { lease, outcome });
        let Some(leased) = self.workloads.leases.remove(&lease) else { return };
        leased.wanted.no_more();
        self.workloads.lease_of.remove(&leased.name);
        self.tell_workload_again(&leased.name);
    }

    /// Tells what a workload asks for that is free again: whoever heard of it while it had devices
    /// kept the job that had them.
    fn tell_workload_again(&mut self, name: &WorkloadName) {
        let Some(row) = self.workloads.rows.get(name).filter(|row| row.asks()).cloned() else {
            return;
        };
        self.requests.forget(&row.uid);
        self.tell_workload(&row);
    }

    fn look_at_workload_later(&mut self, lease: LeaseId) {
        let (now, patience) = (self.clock.now(), self.patience);
        let Some(leased) = self.workloads.leases.get_mut(&lease) else { return };
        if leased.course.has_started() || leased.course.is_stopping() {
            return;
        }
        let in_trouble = leased.course.trouble().map(|_| leased.in_trouble.unwrap_or(now));
        leased.in_trouble = in_trouble;
        let limit = leased.began_at + patience.silent;
        let limit = in_trouble.map_or(limit, |since| limit.min(since + patience.in_trouble));
        self.looks.insert((limit, lease));
    }

    /// Gives a workload up whose pods do not begin in time.
    pub(super) fn look_at_workload(&mut self, lease: LeaseId) {
        let (now, patience) = (self.clock.now(), self.patience);
        let Some(Leased { course, began_at, in_trouble, .. }) =
            self.workloads.leases.get_mut(&lease)
        else {
            return;
        };
        if course.has_started() || course.is_stopping() {
            return;
        }
        let is_silent = *began_at + patience.silent <= now;
        if is_silent && course.trouble().is_none() && course.has_begun() {
            course.start();
            return self.tell_lease(lease);
        }
        let is_troubled = in_trouble.is_some_and(|since| since + patience.in_trouble <= now);
        let (placed, all) = course.placed();
        let reason = match course.trouble() {
            Some(trouble) if is_troubled => format!("a pod of it does not begin: {trouble}"),
            _ if is_silent => format!(
                "{placed} of its {all} pods were made and not all of them run: `kubectl describe` \
                 may say why"
            ),
            _ => return,
        };
        course.give_up(Outcome::Refused { reason });
        self.tell_lease(lease);
    }
}

/// A job, the workload that it is, and the uid of that.
pub(super) type Named<'a> = (JobId, WorkloadName, &'a str);
/// Where it is to be.
pub(super) type On<'a> = (&'a Topology, &'a Placement);

/// The workload of a job, where it is one.
pub(super) fn named(job: JobId, object: &Foreign) -> Option<Named<'_>> {
    match object.kind {
        ForeignKind::Pod | ForeignKind::Group => None,
        ForeignKind::Workload(kind) => {
            let key = object.owner.key();
            Some((job, WorkloadName { kind, key }, &object.owner.uid))
        }
    }
}

fn foreign_of(row: &WorkloadRow) -> Foreign {
    let ObjectKey { namespace, name } = row.name.key.clone();
    let owner = JobOwner { namespace, name, uid: row.uid.clone() };
    Foreign { kind: ForeignKind::Workload(row.name.kind), owner }
}

fn waits_for_slot(leased: &Leased) -> Waits {
    let (kind, name) = (leased.name.kind.name(), &leased.name.key.name);
    let (_, all) = leased.course.placed();
    let message = format!("{kind} `{name}` was given room for {all} pods, and all of it is taken");
    Waits { is_unschedulable: false, message }
}

/// What a placement gives each rank of a workload.
pub(super) fn given(topology: &Topology, placement: &Placement) -> Given {
    let node = |rank: &Rank| topology.node(rank.node).name.clone();
    let first = placement.ranks.first();
    let grants = first.map(|rank| rank.grants.as_slice()).unwrap_or_default();
    let resource = grants.first().map_or("", |grant| resource_of(topology.device(grant.device)));
    let count = grants.iter().map(|grant| grant.share.whole_units()).sum();
    let devices = Devices { resource: resource.into(), count };
    Given { nodes: placement.ranks.iter().map(node).collect(), devices }
}
