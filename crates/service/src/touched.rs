//! Which jobs events are about.

use std::collections::BTreeMap;

use het_core::{Action, Event, JobId, LeaseId, Plan, State, Time};

/// Finds the jobs of events, of which many name a lease alone.
#[derive(Debug, Clone)]
pub struct Touched {
    /// The jobs of live leases.
    leases: BTreeMap<LeaseId, JobId>,
}

impl Touched {
    /// For the events that follow a state.
    pub fn of(state: &State) -> Self {
        let leases = state.leases().iter();
        Self { leases: leases.map(|(&id, lease)| (id, lease.stage.job)).collect() }
    }

    /// The jobs that the next events are about, each once.
    pub fn by(&mut self, events: &[(Time, Event)]) -> Vec<JobId> {
        let mut jobs = Vec::new();
        for (_, event) in events {
            match event {
                Event::JobsAdopted { adopted } => {
                    jobs.extend(adopted.jobs.keys());
                    let leases = adopted.leases.iter();
                    self.leases.extend(leases.map(|(&id, lease)| (id, lease.stage.job)));
                }
                Event::JobSubmitted { job, .. }
                | Event::JobHeld { job }
                | Event::JobReleased { job }
                | Event::JobChanged { job, .. }
                | Event::JobEligible { job }
                | Event::DependencyFailed { job }
                | Event::JobCancelled { job } => jobs.push(*job),
                Event::CheckpointRejected { stage, .. } | Event::RetryDue { stage } => {
                    jobs.push(stage.job);
                }
                Event::PlanCommitted { plan } => {
                    jobs.extend(of_plan(plan).map(|(job, _)| job));
                    self.leases
                        .extend(of_plan(plan).filter_map(|(job, lease)| Some((lease?, job))));
                    jobs.extend(plan.actions.iter().filter_map(|action| match action {
                        Action::Stop { lease, .. } => self.leases.get(lease).copied(),
                        _ => None,
                    }));
                }
                Event::StageStarted { lease }
                | Event::Progressed { lease, .. }
                | Event::Checkpointed { lease, .. }
                | Event::StagePublished { lease } => jobs.extend(self.leases.get(lease)),
                Event::StageEnded { lease, .. } => jobs.extend(self.leases.remove(lease)),
                _ => {}
            }
        }
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }
}

/// Jobs that a plan names itself, and the leases it gives them.
fn of_plan(plan: &Plan) -> impl Iterator<Item = (JobId, Option<LeaseId>)> + '_ {
    let acted = plan.actions.iter().filter_map(|action| match action {
        Action::Start { stage, lease, .. } => Some((stage.job, Some(*lease))),
        Action::Claim { stage, .. }
        | Action::Unclaim { stage }
        | Action::Prepare { stage, .. }
        | Action::Unprepare { stage, .. } => Some((stage.job, None)),
        Action::Stop { .. } => None,
    });
    acted.chain(plan.waits.iter().map(|(key, _)| (key.job, None)))
}
