//! Groups of pods of others: who is told of them, and how their pods get nodes and lose them.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Domain, Event, JobId, LeaseId, Name, Outcome, Phase, State, StopCause};

use super::listing::Listing;
use super::requests::foreign_of_pod;
use super::workloads::{On, given};
use super::{Adoption, Kubernetes, Whose};
use crate::group_lease::{Fact, GroupLease, Part};
use crate::groups::{self, Asks, GroupRow};
use crate::names::{Binding, HOSTNAME, ObjectKey};
use crate::objects::PodRow;
use crate::owners::{Foreign, ForeignKind, JobOwner};
use crate::requests::{Request, Unsuitable};

/// What is known of groups, and those whose pods have leases.
#[derive(Debug, Default)]
pub(super) struct Groups {
    rows: BTreeMap<ObjectKey, GroupRow>,
    list: Listing<ObjectKey>,
    /// The version in which they are served.
    version: Option<&'static str>,
    /// Why it is not known which there are: one sentence.
    unknown: Option<String>,
    /// By group: names of pods that say that they are of it, whether it is there or not.
    members: BTreeMap<ObjectKey, BTreeSet<String>>,
    leases: BTreeMap<LeaseId, Leased>,
    lease_of: BTreeMap<ObjectKey, LeaseId>,
    /// Of which there may be something new to tell.
    changed: BTreeSet<ObjectKey>,
    /// Jobs were compared with what asks.
    is_checked: bool,
}

/// Pods of a group with a lease.
#[derive(Debug)]
struct Leased {
    job: JobId,
    group: JobOwner,
    course: GroupLease,
    /// Who has it stopped.
    cause: Option<StopCause>,
}

impl Groups {
    pub fn forget_leases(&mut self) {
        self.leases.clear();
        self.lease_of.clear();
        self.is_checked = false;
    }

    /// The version in which gangs of jobs are groups: where this scheduler binds it needs none.
    pub fn of_gangs(&self, binding: Binding) -> Option<&'static str> {
        self.version.filter(|_| binding == Binding::KubeScheduler)
    }

    /// It is known which there are, or that nobody will know.
    fn are_known(&self) -> bool {
        self.unknown.is_some() || matches!(self.list, Listing::Done)
    }

    /// A pod has a place that its group was given.
    pub fn places(&self, pod: &PodRow) -> bool {
        let lease = group_of(pod).and_then(|group| self.lease_of.get(&group));
        let leased = lease.and_then(|lease| self.leases.get(lease));
        leased.is_some_and(|leased| leased.course.has(&pod.uid))
    }

    /// Something about a pod may be news of its group; whether it has one.
    pub fn touch(&mut self, pod: &PodRow) -> bool {
        group_of(pod).map(|group| self.changed.insert(group)).is_some()
    }

    pub fn touch_all(&mut self) {
        self.changed.extend(self.members.keys().chain(self.rows.keys()).cloned());
    }

    fn course(&mut self, lease: LeaseId) -> Option<&mut GroupLease> {
        self.leases.get_mut(&lease).map(|leased| &mut leased.course)
    }
}

impl Kubernetes {
    pub(super) fn groups_served(&mut self, version: &'static str) {
        self.groups.version = Some(version);
        self.conditions.tell_groups_by(version);
    }

    /// Nobody knows which groups there are, and why.
    pub(super) fn groups_unknown(&mut self, why: String) {
        if self.groups.unknown.as_ref() != Some(&why) {
            self.groups.unknown = Some(why);
            self.groups.touch_all();
        }
    }

    pub(super) fn groups_begin(&mut self) {
        self.groups.list = Listing::UnderWay(BTreeSet::new());
    }

    pub(super) fn groups_listed(&mut self) {
        self.groups.unknown = None;
        let named = self.groups.list.end().unwrap_or_default();
        self.groups.rows.retain(|key, _| named.contains(key));
        self.groups.touch_all();
    }

    pub(super) fn see_group(&mut self, row: GroupRow) {
        self.groups.list.name(row.key.clone());
        self.groups.changed.insert(row.key.clone());
        let before = self.groups.rows.insert(row.key.clone(), row.clone());
        if let Some(before) = before.filter(|before| before.uid != row.uid) {
            self.requests.over(&before.uid);
        }
    }

    pub(super) fn see_group_gone(&mut self, key: &ObjectKey, uid: &str) {
        if self.groups.rows.get(key).is_some_and(|row| row.uid == uid) {
            self.groups.rows.remove(key);
            self.groups.changed.insert(key.clone());
            self.requests.over(uid);
        }
    }

    /// Sees to a pod of a group; whether it is one.
    pub(super) fn see_group_pod(&mut self, row: &PodRow) -> bool {
        let Some(group) = group_of(row) else { return false };
        if row.needs.is_none() {
            self.requests.over(&row.uid);
        }
        let lease = self.groups.lease_of.get(&group).copied();
        let names = self.groups.members.entry(group.clone()).or_default();
        names.insert(row.key.name.clone());
        self.groups.changed.insert(group);
        let course = lease.and_then(|lease| self.groups.course(lease));
        let part = course.map_or(Part::None, |course| course.see_pod(row));
        self.take_part(lease, row, part);
        lease.into_iter().for_each(|lease| {
            self.fill_group(lease);
            self.tell_group_lease(lease);
        });
        true
    }

    fn take_part(&mut self, lease: Option<LeaseId>, row: &PodRow, part: Part) {
        let whose = match (part, lease) {
            (Part::Placed(node), Some(lease)) => {
                self.place_group_pod(lease, row, &node);
                Whose::Ours
            }
            (Part::Has, _) => Whose::Ours,
            (Part::Placed(_) | Part::None, _) => Whose::Others,
        };
        self.keep(row.clone(), whose);
    }

    fn place_group_pod(&mut self, lease: LeaseId, row: &PodRow, node: &Name) {
        // It may have asked by itself before.
        self.requests.over(&row.uid);
        let known = self.inventory.as_ref().and_then(|inventory| inventory.node(node));
        let ready = known.filter(|it| it.is_ready && !self.removed.contains(node));
        let Some(hostname) = ready.map(|node| node.labels.get(HOSTNAME).cloned()) else {
            let reason = format!("node `{node}` is not there or not ready");
            let course = self.groups.course(lease);
            return course.into_iter().for_each(|it| it.refused(&row.uid, reason.clone()));
        };
        let place = (node.clone(), hostname.unwrap_or_default());
        let pod = (row.key.clone(), row.uid.clone());
        self.cluster.spawn(self.writer.clone().place(lease, pod, place));
    }

    /// Gives slots that were left to pods of the group that wait.
    fn fill_group(&mut self, lease: LeaseId) {
        while let Some(leased) = self.groups.leases.get(&lease)
            && leased.course.has_room()
        {
            let key = leased.group.key();
            let mut waiting = self.waiting_pods(&key).into_iter();
            let fitting = waiting.find(|row| leased.course.is_one(&row.requests));
            let Some(row) = fitting.cloned() else { return };
            let course = self.groups.course(lease);
            let part = course.map_or(Part::None, |course| course.see_pod(&row));
            if part == Part::None {
                return;
            }
            self.take_part(Some(lease), &row, part);
        }
    }

    /// Pods of a group that ask for a node and were given none.
    fn waiting_pods<'a>(&'a self, group: &'a ObjectKey) -> Vec<&'a PodRow> {
        let has_place = |row: &PodRow| {
            let lease = self.groups.lease_of.get(group);
            let leased = lease.and_then(|lease| self.groups.leases.get(lease));
            leased.is_some_and(|leased| leased.course.has(&row.uid))
        };
        let waits = |row: &&PodRow| {
            row.needs.is_some()
                && self.requests.lease(&row.uid).is_none()
                && !self.workloads.suspends(row)
                && !has_place(row)
        };
        self.pods_of_group(group).filter(waits).collect()
    }

    fn pods_of_group<'a>(&'a self, group: &'a ObjectKey) -> impl Iterator<Item = &'a PodRow> {
        let names = self.groups.members.get(group).into_iter().flatten();
        names.filter_map(|name| {
            let key = ObjectKey { namespace: group.namespace.clone(), name: name.clone() };
            self.pods.get(&key).map(|(row, _)| row)
        })
    }

    /// Pods of a group that have nodes, or have succeeded.
    fn placed_pods(&self, group: &ObjectKey) -> usize {
        use crate::objects::PodPhase::{Failed, Pending, Running, Succeeded};
        let counts = |row: &&PodRow| match row.phase {
            Succeeded => true,
            Failed(_) => false,
            Pending | Running => {
                let is_given = row.node.is_some() || self.requests.lease(&row.uid).is_some();
                is_given && !row.is_deleting
            }
        };
        self.pods_of_group(group).filter(counts).count()
    }

    /// A pod is not there any more that may be one of a group.
    pub(super) fn see_group_pod_gone(&mut self, row: &PodRow) {
        let Some(group) = group_of(row) else { return };
        if let Some(names) = self.groups.members.get_mut(&group) {
            names.remove(&row.key.name);
            if names.is_empty() {
                self.groups.members.remove(&group);
            }
        }
        let lease = self.groups.lease_of.get(&group).copied();
        self.groups.changed.insert(group);
        let Some(lease) = lease else { return };
        if self.groups.course(lease).is_some_and(|course| course.see_pod_gone(&row.uid)) {
            self.fill_group(lease);
            self.tell_group_lease(lease);
        }
    }

    /// Tells what groups ask for, of which there may be news. A group is looked at as a whole, so
    /// this waits until nothing is left to read: the pods of one come in one burst.
    pub(super) fn tell_groups(&mut self) {
        let is_read = self.receiver.is_empty() && self.requests.is_told();
        if !is_read || !self.groups.are_known() || !matches!(self.adoption, Adoption::Done) {
            return;
        }
        if !self.groups.is_checked {
            self.groups.touch_all();
        }
        let changed = std::mem::take(&mut self.groups.changed);
        changed.iter().for_each(|key| self.tell_group(key));
        if !std::mem::replace(&mut self.groups.is_checked, true) {
            self.tell_absent_groups();
        }
    }

    /// Jobs of groups, and of pods of groups, that ask no more or in another way.
    fn tell_absent_groups(&mut self) {
        for Foreign { kind, owner } in self.owners.all_foreign() {
            let has_lease = match kind {
                ForeignKind::Workload(_) => continue,
                ForeignKind::Group => self.groups.lease_of.contains_key(&owner.key()),
                ForeignKind::Pod => {
                    let row = self.pods.get(&owner.key()).map(|(row, _)| row);
                    let is_of_group = row.is_some_and(|row| row.group.is_some());
                    !is_of_group || self.requests.lease(&owner.uid).is_some()
                }
            };
            if !has_lease && !self.requests.are_told(&owner.uid) {
                self.requests.gone(&owner.uid);
            }
        }
    }

    fn tell_group(&mut self, key: &ObjectKey) {
        let waiting: Vec<PodRow> = self.waiting_pods(key).into_iter().cloned().collect();
        let rows: Vec<&PodRow> = waiting.iter().collect();
        let missing = || {
            let why = format!("there is no PodGroup `{}` in its namespace", key.name);
            Unsuitable::Incomplete(self.groups.unknown.clone().unwrap_or(why))
        };
        let Some(group) = self.groups.rows.get(key).cloned() else {
            let why = missing();
            return rows.iter().for_each(|row| self.pod_asks(row, None, Err(why.clone())));
        };
        let asks = match self.groups.lease_of.get(key) {
            Some(lease) if self.groups.leases[lease].course.is_stopping() => {
                Asks::Not(Unsuitable::Incomplete("its group is being stopped".to_owned()))
            }
            lease => group.asks(&rows, self.placed_pods(key), lease.is_some()),
        };
        let has_lease = self.groups.lease_of.contains_key(key);
        let is_together = matches!(asks, Asks::Together(_)) && !rows.is_empty();
        match asks {
            // Its pods may be another scheduler's.
            _ if rows.is_empty() => {}
            Asks::Together(gang) => {
                rows.iter().for_each(|row| self.requests.over(&row.uid));
                let pods = rows.iter().map(|row| foreign_of_pod(row).owner).collect();
                self.conditions.wait_with(&foreign_of(&group), group.is_scheduled, pods);
                self.group_asks(&group, gang);
            }
            Asks::Alone => {
                rows.iter().for_each(|row| self.pod_asks(row, Some(&group), Ok(())));
            }
            Asks::Not(why) => {
                rows.iter().for_each(|row| self.pod_asks(row, Some(&group), Err(why.clone())));
            }
        }
        if !has_lease && !is_together {
            self.requests.over(&group.uid);
        }
    }

    /// As many pods of a group wait as start together.
    fn is_complete(&self, key: &ObjectKey) -> bool {
        let (waiting, placed) = (self.waiting_pods(key), self.placed_pods(key));
        let row = self.groups.rows.get(key);
        row.is_some_and(|row| matches!(row.asks(&waiting, placed, false), Asks::Together(Ok(_))))
    }

    fn pod_asks(&mut self, row: &PodRow, group: Option<&GroupRow>, may: Result<(), Unsuitable>) {
        let (Some(inventory), Some(needs)) = (self.inventory.as_ref(), &row.needs) else { return };
        let offers = self.requests.offers();
        let devices = may.and_then(|()| offers.devices(inventory, needs, &row.requests));
        let preemptible = group.map(|group| group.is_pod_preemptible(needs));
        self.requests.asks(Request {
            of: foreign_of_pod(row),
            profile: needs.profile.clone(),
            priority: group.map_or(needs.priority, |group| group.priority(needs)),
            preemptible: preemptible.unwrap_or(needs.preemptible),
            ranks: 1,
            within: Domain::Node,
            devices,
        });
    }

    fn group_asks(&mut self, group: &GroupRow, gang: Result<Vec<&PodRow>, Unsuitable>) {
        let Some(inventory) = self.inventory.as_ref() else { return };
        let pods = gang.as_ref().map(Vec::as_slice).unwrap_or_default();
        let needs = pods.first().and_then(|row| row.needs.clone());
        let (preemptible, ranks) = (group.is_preemptible(pods), pods.len() as u32);
        let priority = needs.as_ref().map(|needs| group.priority(needs)).unwrap_or_default();
        let devices = gang.and_then(|pods| {
            let (Some(first), Some(needs)) = (pods.first(), &needs) else {
                return Err(Unsuitable::Incomplete("none of its pods is there".to_owned()));
            };
            self.requests.offers().devices(inventory, needs, &first.requests)
        });
        let within = devices.as_ref().map(|devices| {
            let resource = devices.options.first().map_or("", |option| option.resource.as_str());
            let level = |key: &str| inventory.level(key, resource);
            groups::within(&group.levels, level).map_err(str::to_owned)
        });
        let (within, devices) = match within {
            Ok(Err(key)) => {
                let what = format!(
                    "the topology key `{key}`: no part of the network is known in which all nodes \
                     have one value of that label"
                );
                (Domain::Any, Err(Unsuitable::NotSupported(what)))
            }
            Ok(Ok(within)) => (within, devices),
            Err(_) => (Domain::Any, devices),
        };
        let profile = needs.map_or_else(|| group.key.name.as_str().into(), |it| it.profile.clone());
        let of = foreign_of(group);
        let request = Request { of, profile, priority, preemptible, ranks, within, devices };
        self.requests.asks(request);
    }

    /// Gives pods of a group the nodes of a lease.
    pub(super) fn start_group(&mut self, lease: LeaseId, (job, group): (JobId, JobOwner), on: On) {
        let key = group.key();
        let is_another = self.groups.lease_of.contains_key(&key);
        let row = self.groups.rows.get(&key).filter(|row| row.uid == group.uid && !is_another);
        if row.is_none() {
            self.ready.push_back(Event::JobCancelled { job });
            return self.ready.push_back(Event::StageEnded { lease, outcome: Outcome::Lost });
        }
        let given = given(on.0, on.1);
        let nodes = given.nodes.clone();
        let mut course = GroupLease::new(given, Phase::Starting);
        let waiting = self.waiting_pods(&key).into_iter();
        let fitting = waiting.filter(|row| course.is_one(&row.requests)).take(nodes.len());
        let pods: Vec<PodRow> = fitting.cloned().collect();
        let refused = match pods.len() < nodes.len() {
            true => Some("pods of it that were to start are not there any more".to_owned()),
            false => pods.iter().find_map(|pod| self.nodes_will_do(&nodes, pod).err()),
        };
        if let Some(reason) = refused {
            let outcome = Outcome::Refused { reason };
            self.ready.push_back(Event::StageEnded { lease, outcome });
            self.requests.forget(&group.uid);
            self.groups.changed.insert(key);
            return;
        }
        let parts: Vec<Part> = pods.iter().map(|row| course.see_pod(row)).collect();
        self.groups.lease_of.insert(key.clone(), lease);
        self.groups.leases.insert(lease, Leased { job, group, course, cause: None });
        for (row, part) in pods.iter().zip(parts) {
            self.take_part(Some(lease), row, part);
        }
        self.groups.changed.insert(key);
        self.tell_group_lease(lease);
    }

    /// # Errors
    /// Why a pod cannot be on these nodes.
    fn nodes_will_do(&self, nodes: &[Name], pod: &PodRow) -> Result<(), String> {
        let Some(needs) = &pod.needs else { return Ok(()) };
        nodes.iter().try_for_each(|name| self.node_will_do(name, &needs.nodes))
    }

    /// Goes on with the pods of a lease of the state that is adopted.
    pub(super) fn take_up_group(&mut self, state: &State, id: LeaseId, group: JobOwner) {
        let lease = &state.leases()[&id];
        let (job, key) = (lease.stage.job, group.key());
        let course = GroupLease::new(given(state.topology(), &lease.placement), lease.phase);
        let cause = match lease.phase {
            Phase::Stopping { cause } => Some(cause),
            Phase::Starting | Phase::Running { .. } => None,
        };
        self.groups.lease_of.insert(key.clone(), id);
        self.groups.leases.insert(id, Leased { job, group, course, cause });
        let mut pods: Vec<PodRow> = self.pods_of_group(&key).cloned().collect();
        // Those that have nodes keep their slots, and others get those that are left.
        pods.sort_by_key(|pod| pod.node.is_none());
        for row in pods {
            let part = self.groups.course(id).map_or(Part::None, |course| course.see_pod(&row));
            self.take_part(Some(id), &row, part);
        }
        self.tell_group_lease(id);
    }

    /// Stops the pods of a lease; whether they are of a group.
    pub(super) fn stop_group(&mut self, lease: LeaseId, cause: StopCause) -> bool {
        let Some(leased) = self.groups.leases.get_mut(&lease) else { return false };
        leased.course.stop(Outcome::Stopped);
        leased.cause = Some(cause);
        let group = leased.group.clone();
        self.groups.changed.insert(group.key());
        if cause != StopCause::User {
            self.conditions.disrupted(foreign(group.clone()));
            self.evict_others_of(&group.key(), lease);
        }
        self.tell_group_lease(lease);
        true
    }

    /// Pods of a group that is stopped as a whole, and that got their nodes by themselves.
    fn evict_others_of(&self, key: &ObjectKey, lease: LeaseId) {
        let is_whole = self.groups.rows.get(key).is_some_and(|row| row.is_stopped_whole);
        let leased = self.groups.leases.get(&lease).filter(|_| is_whole);
        let is_other = |row: &&PodRow| {
            let has_place = leased.is_some_and(|leased| leased.course.has(&row.uid));
            row.node.is_some() && !row.phase.has_ended() && !row.is_deleting && !has_place
        };
        for row in self.pods_of_group(key).filter(|_| is_whole).filter(is_other) {
            self.cluster.spawn(self.writer.clone().evict(foreign_of_pod(row).owner));
        }
    }

    /// A pod did not get the node of its slot.
    pub(super) fn group_pod_not_placed(&mut self, lease: LeaseId, uid: &str, reason: String) {
        if let Some(course) = self.groups.course(lease) {
            course.refused(uid, reason);
            self.tell_group_lease(lease);
        }
    }

    fn tell_group_lease(&mut self, lease: LeaseId) {
        while let Some(leased) = self.groups.leases.get_mut(&lease) {
            match leased.course.next() {
                None => return,
                Some(Fact::Scheduled) => {
                    self.conditions.group_scheduled(foreign(leased.group.clone()))
                }
                Some(Fact::Started) => self.ready.push_back(Event::StageStarted { lease }),
                Some(Fact::Evict(uid)) => self.evict_group_pod(lease, &uid),
                Some(Fact::Ended(outcome)) => self.end_group(lease, outcome),
            }
        }
    }

    fn evict_group_pod(&self, lease: LeaseId, uid: &str) {
        let Some(leased) = self.groups.leases.get(&lease) else { return };
        let key = leased.group.key();
        let Some(row) = self.pods_of_group(&key).find(|row| row.uid == uid) else { return };
        let writer = self.writer.clone();
        match leased.cause {
            // Its owner's wish.
            Some(StopCause::User) => {
                self.cluster.spawn(writer.delete(vec![(row.key.clone(), row.uid.clone())], None));
            }
            _ => self.cluster.spawn(writer.evict(foreign_of_pod(row).owner)),
        }
    }

    /// The end of a lease. Pods that come after that begin as another job.
    fn end_group(&mut self, lease: LeaseId, outcome: Outcome) {
        let Some(Leased { job, group, .. }) = self.groups.leases.remove(&lease) else { return };
        let key = group.key();
        self.groups.lease_of.remove(&key);
        self.groups.changed.insert(key.clone());
        let is_over = matches!(outcome, Outcome::Finished | Outcome::Failed(_));
        let asks_again = !is_over && self.is_complete(&key);
        if !is_over && !asks_again {
            self.ready.push_back(Event::JobCancelled { job });
        }
        self.ready.push_back(Event::StageEnded { lease, outcome });
        match asks_again {
            true => self.requests.forget(&group.uid),
            false => self.requests.gone(&group.uid),
        }
    }
}

/// The group that a pod says it is of.
fn group_of(row: &PodRow) -> Option<ObjectKey> {
    let name = row.group.as_deref()?.to_owned();
    Some(ObjectKey { namespace: row.key.namespace.clone(), name })
}

fn foreign_of(row: &GroupRow) -> Foreign {
    let ObjectKey { namespace, name } = row.key.clone();
    foreign(JobOwner { namespace, name, uid: row.uid.clone() })
}

fn foreign(owner: JobOwner) -> Foreign {
    Foreign { kind: ForeignKind::Group, owner }
}
