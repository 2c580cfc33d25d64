//! Jobs that another scheduler left behind, taken over with what they run.
//!
//! A log that begins with them needs nothing of the log before it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Booked, Job, Lease, Stage, StageState, State};
use crate::{HostResources, JobId, LeaseId, Placement, Share, StageKey, StopCause, Time};

/// Jobs as they were left, with the leases of their active stages and no others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AdoptedJobs {
    pub jobs: BTreeMap<JobId, Arc<Job>>,
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Those that come next have at least these numbers.
    pub next_job: JobId,
    pub next_lease: LeaseId,
}

impl AdoptedJobs {
    /// What can be taken over at `at` in a state without jobs: leases that name what is not there,
    /// that are not of their stage, or that hold what is promised already are left out, and their
    /// stages wait again.
    #[must_use]
    pub fn held_by(mut self, state: &State, at: Time) -> Self {
        let mut room = Room::of(state);
        let jobs = &self.jobs;
        let is_held = |id: LeaseId, lease: &Lease| {
            jobs.get(&lease.stage.job).is_some_and(|job| job.holds(id, lease))
        };
        self.leases.retain(|id, lease| is_held(*id, lease) && room.take(&lease.placement));
        for (id, job) in &mut self.jobs {
            lose_stages((*id, job), &self.leases, at);
        }
        self
    }
}

/// Stages whose lease is not among these do not run any more.
fn lose_stages((id, job): (JobId, &mut Arc<Job>), leases: &BTreeMap<LeaseId, Lease>, at: Time) {
    let is_lost = |stage: &Stage| match stage.state {
        StageState::Active { lease } => leases.get(&lease).is_none_or(|it| it.stage.job != id),
        _ => false,
    };
    if !job.stages.iter().any(is_lost) {
        return;
    }
    let job = Arc::make_mut(job);
    for stage in job.stages.iter_mut().filter(|stage| is_lost(stage)) {
        stage.ended = Some(at);
        match job.ending {
            Some(_) => stage.state = StageState::Cancelled,
            None => {
                stage.state = StageState::Stopped { cause: StopCause::Fault, since: at };
                stage.recoveries.failed(at, stage.progress.step);
            }
        }
    }
    if let Some(end) = job.ending.filter(|_| job.stages.iter().all(|it| it.state.is_terminal())) {
        job.end = Some((at, end));
    }
}

/// What is left of devices and nodes while placements are taken, one after the other.
struct Room<'a> {
    state: &'a State,
    devices: Vec<Share>,
    nodes: Vec<HostResources>,
}

impl<'a> Room<'a> {
    fn of(state: &'a State) -> Self {
        Self { state, devices: state.held.clone(), nodes: state.host_held().to_vec() }
    }

    /// Whether a placement is there and fits; then it is taken.
    fn take(&mut self, placement: &Placement) -> bool {
        let topology = self.state.topology();
        let is_there = placement.grants().all(|it| it.device.index() < topology.devices.len())
            && placement.ranks.iter().all(|rank| rank.node.index() < topology.nodes.len());
        if !is_there {
            return false;
        }
        let (mut devices, mut nodes) = (self.devices.clone(), self.nodes.clone());
        for grant in placement.grants() {
            let held = &mut devices[grant.device.index()];
            *held = Share(held.0.saturating_add(grant.share.0));
        }
        for rank in &placement.ranks {
            let held = &mut nodes[rank.node.index()];
            *held = held.plus(rank.host);
        }
        let fits = placement
            .grants()
            .all(|it| devices[it.device.index()] <= topology.device(it.device).capacity)
            && placement
                .ranks
                .iter()
                .all(|rank| nodes[rank.node.index()].fits(topology.node(rank.node).host));
        if fits {
            (self.devices, self.nodes) = (devices, nodes);
        }
        fits
    }
}

impl State {
    /// Takes jobs over; nothing may have been submitted before.
    pub(super) fn adopt(&mut self, adopted: &AdoptedJobs) {
        assert!(self.jobs.is_empty(), "jobs are adopted before others are submitted");
        let AdoptedJobs { jobs, leases, next_job, next_lease } = adopted;
        self.jobs = jobs.clone();
        let stages = jobs.values().flat_map(|job| &job.stages);
        self.last_checkpoint = stages.filter_map(|stage| stage.checkpoint_at).max();
        let last = (jobs.keys().next_back(), leases.keys().next_back());
        let after = last.0.map_or(JobId(1), |last| JobId(last.0 + 1));
        self.next_job = self.next_job.max(*next_job).max(after);
        let after = last.1.map_or(LeaseId(1), |last| LeaseId(last.0 + 1));
        self.next_lease = self.next_lease.max(*next_lease).max(after);
        for (&id, lease) in leases {
            let job = self.jobs.get(&lease.stage.job);
            assert!(job.is_some_and(|job| job.holds(id, lease)), "lease {id} is of no stage");
            self.book_use(lease.stage.job, &lease.placement, Booked::Taken);
        }
        self.leases.clone_from(leases);
        self.derive_from_jobs();
        // They have waited since then, and go on waiting.
        let waiting = self.jobs.iter().flat_map(|(&id, job)| {
            let ready = job.spec.stage_indices().filter(|index| job.is_ready(*index));
            ready.map(move |stage| (job.waits_since(stage), StageKey { job: id, stage }))
        });
        let waiting: BTreeSet<(Time, StageKey)> = waiting.collect();
        waiting.into_iter().for_each(|(_, key)| self.draw_ticket(key));
    }
}

impl Job {
    /// Whether the lease is that of one of its active stages.
    fn holds(&self, id: LeaseId, lease: &Lease) -> bool {
        let index = lease.stage.stage.index();
        let is_active = self.stages.get(index).map(|stage| &stage.state)
            == Some(&StageState::Active { lease: id });
        let alternatives = self.spec.stages.get(index).map_or(0, |spec| spec.alternatives.len());
        is_active && lease.placement.alternative < alternatives
    }

    fn waits_since(&self, index: crate::StageIndex) -> Time {
        match self.stages[index.index()].state {
            StageState::Queued { since } | StageState::Stopped { since, .. } => since,
            _ => self.submitted,
        }
    }
}
