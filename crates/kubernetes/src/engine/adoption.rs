//! How the gangs of a state are taken up that an engine before this one began.

use std::collections::BTreeMap;

use het_core::{CheckpointSpec, LeaseId, Phase, State};

use super::workloads::named;
use super::{Adoption, Kubernetes, Listing, Live, Place, Stop};
use crate::gang::Gang;
use crate::names::{Binding, ObjectKey};
use crate::objects::{PodPhase, PodRow};
use crate::owners::ForeignKind;
use crate::pods;

impl Kubernetes {
    /// Takes up the leases of the state to adopt, once it is known which pods and claims there are.
    pub(super) fn adopt_leases(&mut self) {
        let is_awaited = matches!(self.adoption, Adoption::Awaited(_));
        let are_listed = matches!(self.pod_list, Listing::Done) && self.claims.are_listed();
        if !is_awaited || !are_listed {
            return;
        }
        let Adoption::Awaited(state) = std::mem::replace(&mut self.adoption, Adoption::Done) else {
            return;
        };
        let mut rows: BTreeMap<LeaseId, Vec<PodRow>> = BTreeMap::new();
        for (row, _) in self.pods.values() {
            if let Some(lease) = row.lease() {
                rows.entry(lease).or_default().push(row.clone());
            }
        }
        for lease in state.leases().keys() {
            let rows = rows.get(lease).map(Vec::as_slice).unwrap_or_default();
            self.adopt_lease(&state, *lease, rows);
        }
        // Now it is known whose they are.
        rows.into_values().flatten().for_each(|row| self.see(row));
        let postponed = std::mem::take(&mut self.postponed);
        postponed.iter().for_each(|plan| self.carry_out_all(plan));
    }

    /// Goes on with a gang of which some pods may be there already.
    fn go_on_beginning(
        &mut self,
        id: LeaseId,
        (place, objects): (Place, Result<pods::Objects, String>),
        found: Vec<(ObjectKey, Option<String>)>,
    ) {
        match objects {
            // What is there has to go before anybody is told.
            Err(reason) if found.iter().any(|(_, uid)| uid.is_some()) => {
                let made: Vec<bool> = found.iter().map(|(_, uid)| uid.is_some()).collect();
                let mut live = Live::new(found, place.service);
                live.gang.begun(&made, Some(reason));
                self.leases.insert(id, live);
                self.emit(id);
            }
            objects => {
                self.start(id, place, objects);
                self.leases.get_mut(&id).into_iter().for_each(|live| live.pods = found.clone());
            }
        }
    }

    fn adopt_lease(&mut self, state: &State, id: LeaseId, rows: &[PodRow]) {
        let lease = &state.leases()[&id];
        if let Some(object) = self.owners.foreign(lease.stage.job) {
            return match (named(lease.stage.job, &object), object.kind) {
                (Some(named), _) => self.take_up_workload(state, id, named),
                (None, ForeignKind::Group) => self.take_up_group(state, id, object.owner),
                (None, _) => self.take_up_pod(state, id, object.owner),
            };
        }
        let job = &state.jobs()[&lease.stage.job];
        let index = lease.stage.stage.index();
        let launch = &job.spec.stages[index].alternatives[lease.placement.alternative].launch;
        let owner = self.owners.get(lease.stage.job);
        // Where its object is gone, its pods say where they lie.
        let is_orphan = owner.is_none() && self.namespace.is_none();
        let namespace = match rows.first().filter(|_| is_orphan) {
            Some(row) => row.key.namespace.clone(),
            None => self.namespace_of(owner.as_ref()).to_owned(),
        };
        let gang = pods::Gang {
            scheduler: &self.scheduler,
            namespace: &namespace,
            owner: owner.as_ref(),
            dra: self.claims.dra(),
            topology: state.topology(),
            generation: state.generation(),
            epoch: self.leadership.epoch(),
            lease: id,
            stage: lease.stage,
            attempt: lease.attempt,
            placement: &lease.placement,
            launch,
            resume: job.stages[index].checkpoint.as_ref(),
            supervisor: self.supervisor.as_deref(),
            groups: self.groups.of_gangs(self.scheduler.binding),
        };
        let names = gang.pod_names();
        let key = |name: &String| ObjectKey { namespace: namespace.clone(), name: name.clone() };
        let row_of = |name: &String| rows.iter().find(|row| row.key == key(name));
        let pods: Vec<Option<&PodRow>> = names.iter().map(row_of).collect();
        let uid = |row: &PodRow| row.uid.clone();
        let found = names.iter().zip(&pods).map(|(it, row)| (key(it), row.map(uid))).collect();
        if lease.phase == Phase::Starting && is_beginning(&pods, self.scheduler.binding) {
            let objects = match is_orphan {
                true => Err("the job's object is not there any more".to_owned()),
                false => self.prepared(&gang),
            };
            let place = Place::of(&gang);
            return self.go_on_beginning(id, (place, objects), found);
        }
        let grace = launch.checkpoint.as_ref().map_or(CheckpointSpec::GRACE_DEFAULT, |it| it.grace);
        let mut live = Live {
            gang: Gang::adopted(names.len(), lease.phase),
            stop: Stop::of(lease, grace),
            ..Live::new(found, gang.service_key())
        };
        for (rank, row) in (0..).zip(&pods) {
            row.iter().for_each(|row| {
                live.gang.see(rank, row);
                live.reports.read(rank, row);
            });
        }
        let mut there = pods.iter().flatten();
        let is_asked = there.all(|row| row.is_deleting || row.phase.has_ended());
        self.leases.insert(id, live);
        if lease.phase.is_stopping() && !is_asked {
            self.delete(id, grace);
        }
        self.await_beginning(id);
        self.emit(id);
    }
}

/// Whether a gang whose pods were found is still to be begun. Nodes are given once all pods are
/// there: who finds some without one goes on with that, and who finds none begins. kube-scheduler
/// gives them as pods are made.
fn is_beginning(pods: &[Option<&PodRow>], binding: Binding) -> bool {
    if binding == Binding::KubeScheduler {
        let has_ended = pods.iter().flatten().any(|row| row.is_deleting || row.phase.has_ended());
        return !has_ended && pods.iter().any(Option::is_none);
    }
    let mut there = pods.iter().flatten();
    let none_bound = there.clone().all(|row| row.node.is_none());
    let all_bound = there.clone().all(|row| row.node.is_some());
    let none_failed = there.all(|row| !matches!(row.phase, PodPhase::Failed(_)));
    none_failed && (none_bound || (pods.iter().all(Option::is_some) && !all_bound))
}
