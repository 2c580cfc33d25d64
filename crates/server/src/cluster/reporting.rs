//! What objects are told of their jobs, and objects of others of theirs.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Job, JobId, Reason, StageState, State};
use het_kubernetes::{
    Foreign, ForeignConditions, ForeignKind, JobObject, JobOwners, Statuses, Waits,
};
use het_service::report::{resource_status, row};
use het_service::{Observer, Touched};
use het_wire::resource::TrainingJobStatus;

/// Tells objects what the server before had no time to tell, and those of jobs that live who leads:
/// from then on an earlier leader writes nothing there.
pub(super) fn catch_up(
    state: &State,
    objects: &[JobObject],
    (owners, statuses): (&JobOwners, &Statuses),
    epoch: u64,
) {
    let told: BTreeMap<&str, &TrainingJobStatus> =
        objects.iter().map(|object| (object.owner.uid.as_str(), &object.status)).collect();
    for (id, job) in state.jobs() {
        let Some(owner) = owners.get(*id) else { continue };
        let status = resource_status(state, *id, job);
        let is_told = told.get(owner.uid.as_str()).is_some_and(|told| {
            let is_ours = told.written.is_some_and(|written| written.epoch == epoch);
            told.says_the_same(&status) && (is_ours || job.end.is_some())
        });
        if !is_told {
            statuses.write(owner, status);
        }
    }
}

/// Tells objects how their jobs stand, and those of others, too, whenever that changes.
pub(super) fn write_statuses(
    state: &State,
    owners: JobOwners,
    (statuses, conditions): (Statuses, ForeignConditions),
) -> Observer {
    let mut touched = Touched::of(state);
    let mut told = BTreeMap::new();
    let mut foreign = ForeignReports::default();
    Box::new(move |replica, events| {
        let state = replica.state();
        let mut jobs: BTreeSet<JobId> = touched.by(events).into_iter().collect();
        // What they still wait for is no more than that.
        let dependents: Vec<JobId> = jobs.iter().flat_map(|id| state.dependents(*id)).collect();
        jobs.extend(dependents);
        for id in jobs {
            let Some(job) = state.job(id) else { continue };
            if let Some(object) = owners.told(id) {
                foreign.report(state, (id, job), object, &conditions);
                continue;
            }
            let Some(owner) = owners.get(id) else { continue };
            let status = resource_status(state, id, job);
            if told.get(&id) != Some(&status) {
                statuses.write(owner, status.clone());
                told.insert(id, status);
            }
            if job.end.is_some() {
                told.remove(&id);
            }
        }
    })
}

/// What objects of others were told last.
#[derive(Default)]
struct ForeignReports {
    waits: BTreeMap<JobId, Waits>,
    states: BTreeMap<JobId, String>,
}

impl ForeignReports {
    /// Tells an object why it waits, and a workload in which state it is, where that is news.
    fn report(
        &mut self,
        state: &State,
        (id, job): (JobId, &Job),
        object: Foreign,
        conditions: &ForeignConditions,
    ) {
        let is_over = job.end.is_some();
        if matches!(object.kind, ForeignKind::Workload(_) | ForeignKind::Group) {
            let status = resource_status(state, id, job);
            if self.states.get(&id) != Some(&status.state) {
                self.states.insert(id, status.state.clone());
                conditions.stands(object.clone(), status, is_over);
            }
        }
        match foreign_waits(state, id, job) {
            Some(why) if self.waits.get(&id) != Some(&why) => {
                self.waits.insert(id, why.clone());
                conditions.waits(object, why);
            }
            Some(_) => {}
            None => drop(self.waits.remove(&id)),
        }
        if is_over {
            self.states.remove(&id);
        }
    }
}

/// Why an object of somebody else waits; `None` where it does not, or nobody has looked yet.
fn foreign_waits(state: &State, id: JobId, job: &Job) -> Option<Waits> {
    let stage = job.stages.first()?;
    if job.end.is_some() || matches!(stage.state, StageState::Active { .. }) {
        return None;
    }
    let message = row(state, id, job).reason?;
    let lacks_nodes = |reason: &Reason| {
        matches!(
            reason,
            Reason::NotEnough { .. }
                | Reason::TooSpread { .. }
                | Reason::NoCompanions { .. }
                | Reason::NeverFits { .. }
                | Reason::NoDriver { .. }
        )
    };
    Some(Waits { is_unschedulable: stage.wait_reasons.iter().any(lacks_nodes), message })
}
