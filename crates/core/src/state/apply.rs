//! How each event changes the state.
//!
//! Facts about stale leases change nothing (law 5). Broken laws are asserted: a state that promises
//! a device twice is worse than a stopped server.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    Attempt, Booked, Claim, Faults, Job, JobEnd, Lease, OtherCheckpoints, Phase, Recoveries, Stage,
    StageState, State, Ticket,
};
use crate::{
    Action, Checkpoint, Event, Failure, JobChange, JobId, JobSpec, LeaseId, Millis, Outcome,
    Placement, Plan, Priority, Progress, REQUESTS_KEPT, Request, Requested, Requester, Share,
    ShareMillis, StageIndex, StageKey, StepRate, StopCause, Time, lineage,
};

impl State {
    /// Changes the state by one fact that happened at `at`.
    ///
    /// # Panics
    /// When a plan breaks a law: devices promised twice, a lease number used twice, a job id
    /// submitted twice; or when an event names a node, device or class that is not there.
    pub fn apply(&mut self, at: Time, event: &Event) {
        self.now = self.now.max(at);
        match event {
            Event::JobSubmitted { job, spec, succeeded, checkpoints } => {
                self.submit(*job, spec, succeeded, checkpoints);
            }
            Event::JobsAdopted { adopted } => self.adopt(adopted),
            Event::JobHeld { job } => self.set_held(*job, Held::Yes),
            Event::JobReleased { job } => {
                self.forgive(*job);
                self.set_held(*job, Held::No);
            }
            Event::JobEligible { job } => self.became_eligible(*job),
            Event::DependencyFailed { job } | Event::JobCancelled { job } => {
                self.begin_ending(*job, JobEnd::Cancelled);
            }
            Event::JobChanged { job, change } => self.change(*job, *change),
            Event::StageYields { lease, preemptor } => self.yields(*lease, *preemptor),
            Event::ChangeRequested { job, what, by } => self.requested(*job, *what, by),
            Event::JobRetired { job } => self.retire(*job),
            Event::QuotasSet { quotas } => self.quotas = Arc::clone(quotas),
            Event::PlanCommitted { plan } => self.commit(plan),
            Event::PolicyRemembered { memory } => self.policy_memory = Some(Arc::clone(memory)),
            Event::StageStarted { lease } => self.started(*lease),
            Event::Progressed { lease, progress } => self.progressed(*lease, progress),
            Event::Checkpointed { lease, checkpoint } => self.checkpointed(*lease, checkpoint),
            Event::CheckpointRejected { stage, checkpoint } => self.reject(*stage, checkpoint),
            Event::RetryDue { stage } => self.retry(*stage),
            Event::StagePublished { lease } => self.published(*lease),
            Event::PreparationEnded { lease, end } => self.preparation_ended(*lease, end),
            Event::StageEnded { lease, outcome } => self.ended(*lease, outcome),
            Event::NodesJoined { nodes } => self.join(nodes),
            Event::NodeRemoved { name } => self.remove_node(name),
            Event::CapacityTaken { node, class, amount } => self.take(*node, *class, *amount),
            Event::HostTaken { node, amount } => self.take_host(*node, *amount),
            Event::NodeLost { node } => self.set_node(*node, |state, at| state.lost[at] = true),
            Event::NodeReturned { node } => {
                self.set_node(*node, |state, at| state.lost[at] = false)
            }
            Event::NodeSuspected { node } => {
                self.set_node(*node, |state, at| state.suspected[at] = true);
            }
            Event::NodeCleared { node } => {
                self.set_node(*node, |state, at| state.suspected[at] = false);
            }
            Event::DeviceFailed { device } => {
                self.set_device(*device, |state| state.failed[device.index()] = true);
            }
            Event::DeviceRepaired { device } => {
                self.set_device(*device, |state| {
                    state.failed[device.index()] = false;
                    state.trust(*device);
                });
            }
            Event::DeviceDrained { device } => self.set_device(*device, |state| {
                state.drained.insert(*device);
            }),
            Event::DeviceUndrained { device } => self.set_device(*device, |state| {
                state.drained.remove(device);
                state.trust(*device);
            }),
            Event::DeviceOccupied { device, by } => self.set_device(*device, |state| {
                state.occupied.insert(*device, by.clone());
            }),
            Event::DeviceVacated { device } => self.set_device(*device, |state| {
                state.occupied.remove(device);
            }),
            Event::DeviceDegraded { device, degradation } => self.degrade(*device, degradation),
            Event::DeviceRestored { device } => self.restore(*device),
        }
    }

    fn submit(
        &mut self,
        id: JobId,
        spec: &Arc<JobSpec>,
        succeeded: &[StageIndex],
        checkpoints: &[(StageIndex, Checkpoint)],
    ) {
        let now = self.now;
        let mut stages: Vec<Stage> = spec.stages.iter().map(|_| Stage::new(now)).collect();
        for index in succeeded {
            stages[index.index()].state = StageState::Succeeded;
        }
        for (index, checkpoint) in checkpoints {
            stages[index.index()].checkpoint = Some(checkpoint.clone());
        }
        let job = Job {
            spec: Arc::clone(spec),
            submitted: now,
            held: false,
            eligible: spec.start.is_empty().then_some(now),
            stages,
            end: None,
            ending: None,
            requests: Vec::new(),
        };
        assert!(self.jobs.insert(id, Arc::new(job)).is_none(), "job {id} was submitted twice");
        self.next_job = self.next_job.max(JobId(id.0 + 1));
        if !spec.start.is_empty() {
            self.began_waiting_to_start(id);
        }
        self.refresh(id);
    }

    fn requested(&mut self, job: Option<JobId>, what: Requested, by: &Arc<Requester>) {
        let at = self.now;
        let job = job.and_then(|id| self.jobs.get_mut(&id)).map(Arc::make_mut);
        if let Some(Job { requests, .. }) = job {
            if requests.len() == REQUESTS_KEPT {
                requests.remove(0);
            }
            requests.push(Request { at, what, by: Arc::clone(by) });
        }
    }

    fn yields(&mut self, lease: LeaseId, preemptor: StageKey) {
        let runs = |lease: &Lease| !lease.phase.is_stopping();
        if self.leases.get(&lease).is_some_and(runs) && self.is_waiting(preemptor) {
            self.yielding.insert(lease, preemptor);
        }
    }

    fn set_held(&mut self, id: JobId, held: Held) {
        if let Some(job) = self.jobs.get_mut(&id).map(Arc::make_mut) {
            job.held = matches!(held, Held::Yes);
            self.settle_eligibility(id);
            self.refresh(id);
        }
    }

    /// The job is to end: what does not run ends now, what runs is stopped by the next plan.
    fn begin_ending(&mut self, id: JobId, end: JobEnd) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.end.is_some() || job.ending.is_some() {
            return;
        }
        let job = Arc::make_mut(job);
        job.ending = Some(end);
        for stage in &mut job.stages {
            if matches!(stage.state, StageState::Queued { .. } | StageState::Stopped { .. }) {
                stage.state = StageState::Cancelled;
                stage.ended = Some(now);
            }
        }
        self.refresh(id);
    }

    /// Stages that wait draw new tickets: lines that know the job by its old words file it anew.
    fn change(&mut self, id: JobId, change: JobChange) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.end.is_none()) else { return };
        let before = job.priority();
        let job = Arc::make_mut(job);
        let spec = Arc::make_mut(&mut job.spec);
        spec.priority = change.priority.unwrap_or(before);
        spec.time_limit = change.time_limit.or(spec.time_limit);
        let after = spec.priority;
        let of_job = self.leases.iter().filter(|(_, lease)| lease.stage.job == id);
        let held: Vec<LeaseId> = of_job.map(|(lease, _)| *lease).collect();
        for lease in held {
            self.list_lease(before, lease, Booked::Freed);
            self.list_lease(after, lease, Booked::Taken);
        }
        let waiting: Vec<StageKey> =
            self.waiting.keys().filter(|key| key.job == id).copied().collect();
        for key in waiting {
            self.stop_waiting(key);
            self.draw_ticket(key);
        }
        self.refresh(id);
    }

    /// Only an ended job can leave of which nothing is left: nothing else names it any more.
    fn retire(&mut self, id: JobId) {
        let prepared = self.preparations.keys().any(|key| key.job == id);
        if self.jobs.get(&id).is_some_and(|job| job.end.is_some()) && !prepared {
            self.keep_what_was_met(id);
            self.jobs.remove(&id);
        }
    }

    fn commit(&mut self, plan: &Plan) {
        assert!(plan.generation > self.generation, "plan {} comes too late", plan.generation);
        self.generation = plan.generation;
        for action in &plan.actions {
            match action {
                Action::Start { lease, stage, attempt, placement, reasons, .. } => {
                    self.grant(*lease, *stage, *attempt, placement);
                    let stage = self.stage_mut(*stage);
                    stage.start_reasons.clone_from(reasons);
                    stage.wait_reasons.clear();
                }
                Action::Stop { lease: id, cause, cost, .. } => {
                    if let Some(lease) = self.leases.get_mut(id) {
                        lease.phase = Phase::Stopping { cause: *cause };
                        let (key, now) = (lease.stage, self.now);
                        self.stage_mut(key).stop_decided(*cause, now, *cost);
                    }
                    self.yielding.remove(id);
                }
                Action::Claim { stage, placement, reasons } => {
                    self.stage_mut(*stage).wait_reasons.clone_from(reasons);
                    let claim = Claim { placement: Arc::clone(placement), since: self.now };
                    self.claims.insert(*stage, claim);
                }
                Action::Unclaim { stage } => {
                    self.claims.remove(stage);
                }
                Action::Prepare { .. } => self.prepare(action),
                Action::Unprepare { stage, .. } => self.unprepare(*stage),
            }
        }
        for (key, reasons) in &plan.waits {
            self.stage_mut(*key).wait_reasons.clone_from(reasons);
        }
    }

    fn grant(&mut self, id: LeaseId, key: StageKey, attempt: u32, placement: &Arc<Placement>) {
        self.draw_lease_of_start(id, key);
        assert!(self.stop_waiting(key), "stage {key} is not waiting to start");
        self.claims.remove(&key);
        self.hold(placement);
        self.book_use(key.job, placement, Booked::Taken);
        let now = self.now;
        let lease = Lease {
            stage: key,
            attempt,
            placement: Arc::clone(placement),
            since: now,
            phase: Phase::Starting,
        };
        self.leases.insert(id, lease);
        self.list_lease(self.jobs[&key.job].priority(), id, Booked::Taken);
        let step_rate = self.step_rate_on(key, placement);
        let stage = self.stage_mut(key);
        stage.state = StageState::Active { lease: id };
        stage.attempts = attempt;
        stage.step_rate = step_rate;
        stage.attempt = Attempt::default();
        stage.recoveries.began(now);
        let is_first = stage.first_started.is_none();
        stage.first_started.get_or_insert(now);
        stage.placement = Some(Arc::clone(placement));
        if stage.published {
            // Who follows it may go on reading.
            self.refresh(key.job);
        }
        if is_first {
            self.settle_dependents(key.job);
        }
    }

    pub(super) fn hold(&mut self, placement: &Placement) {
        self.free.take(&self.index, placement);
        for grant in placement.grants() {
            let capacity = self.topology.device(grant.device).capacity;
            let held = &mut self.held[grant.device.index()];
            *held += grant.share;
            assert!(*held <= capacity, "device {} is promised twice", grant.device);
        }
        for rank in &placement.ranks {
            let (all, held) = (self.topology.node(rank.node).host, self.host_held());
            let fits = held[rank.node.index()].fits(all);
            assert!(fits, "what node {} has is promised twice", rank.node);
        }
    }

    /// Frees what a lease holds and charges for the time it held it; returns the charge.
    fn release(&mut self, placement: &Placement, span: Millis) -> ShareMillis {
        self.free.give_back(&self.index, placement);
        let mut total = ShareMillis::ZERO;
        for grant in placement.grants() {
            let charge = grant.share.over(span);
            self.held[grant.device.index()] -= grant.share;
            self.charged[grant.device.index()] += charge;
            total += charge;
        }
        self.spread_taken_over(placement);
        total
    }

    /// Books what is taken or freed to the tenant of a job and those above it.
    pub(super) fn book_use(&mut self, job: JobId, placement: &Placement, booked: Booked) {
        let classes = self.topology.classes.len();
        for tenant in lineage(self.jobs[&job].spec.tenant.as_str()) {
            let used = match self.used.get_mut(tenant) {
                Some(used) => used,
                None => self.used.entry(tenant.into()).or_insert(vec![Share::ZERO; classes]),
            };
            for grant in placement.grants() {
                let used = &mut used[self.topology.device(grant.device).class];
                match booked {
                    Booked::Taken => *used += grant.share,
                    Booked::Freed => *used -= grant.share,
                }
            }
        }
    }

    pub(super) fn list_lease(&mut self, priority: Priority, id: LeaseId, booked: Booked) {
        let leases = self.leases_by_priority.entry(priority).or_default();
        match booked {
            Booked::Taken => leases.insert(id),
            Booked::Freed => leases.remove(&id),
        };
        if leases.is_empty() {
            self.leases_by_priority.remove(&priority);
        }
    }

    /// Books work to the requested devices of a placement, to each by its share.
    fn book_work(&mut self, placement: &Placement, busy: ShareMillis, useful: ShareMillis) {
        let all: u64 = placement.devices().map(|grant| u64::from(grant.share.0)).sum();
        for grant in placement.devices() {
            let part = |whole: ShareMillis| {
                let product = u128::from(whole.0) * u128::from(grant.share.0);
                ShareMillis((product / u128::from(all.max(1))) as u64)
            };
            self.busy[grant.device.index()] += part(busy);
            self.useful[grant.device.index()] += part(useful);
        }
    }

    fn started(&mut self, id: LeaseId) {
        let now = self.now;
        if let Some(lease) = self.leases.get_mut(&id)
            && lease.phase == Phase::Starting
        {
            lease.phase = Phase::Running { since: now };
            let key = lease.stage;
            self.stage_mut(key).refusals = 0;
        }
    }

    fn progressed(&mut self, id: LeaseId, progress: &Progress) {
        let now = self.now;
        let Some(key) = self.leases.get(&id).map(|lease| lease.stage) else { return };
        let stage = self.stage_mut(key);
        stage.progress.merge(progress);
        if let Some(step) = progress.step {
            stage.progressed_at = Some(now);
            stage.attempt.first_report.get_or_insert((now, step));
            if stage.faults.step.is_none_or(|farthest| step > farthest) {
                stage.got_further();
            }
            stage.recoveries.stepped(now, step);
        }
        if let Some(step) = progress.step {
            self.judge_pace(id, step);
        }
    }

    fn checkpointed(&mut self, id: LeaseId, checkpoint: &Checkpoint) {
        let now = self.now;
        let Some(key) = self.leases.get(&id).map(|lease| lease.stage) else { return };
        self.last_checkpoint = Some(now);
        let stage = self.stage_mut(key);
        if stage.saved(checkpoint, now) {
            stage.checkpoints += 1;
        }
    }

    fn published(&mut self, id: LeaseId) {
        let Some(key) = self.leases.get(&id).map(|lease| lease.stage) else { return };
        self.stage_mut(key).published = true;
        self.refresh(key.job);
    }

    fn ended(&mut self, id: LeaseId, outcome: &Outcome) {
        let Some(lease) = self.leases.remove(&id) else { return };
        let outcome = &self.outcome_by_evidence(&lease.placement, outcome);
        self.judge_devices(&lease, outcome);
        let now = self.now;
        let charge = self.release(&lease.placement, now.since(lease.since));
        let key = lease.stage;
        self.book_use(key.job, &lease.placement, Booked::Freed);
        self.list_lease(self.jobs[&key.job].priority(), id, Booked::Freed);
        self.yielding.remove(&id);
        let job = self.job_mut(key.job);
        let ending = job.ending.is_some();
        let retries = job.spec.stage(key.stage).retries;
        let stage = &mut job.stages[key.stage.index()];
        stage.charged += charge;
        let (busy, useful) = stage.progress.device_time(&lease.placement);
        stage.busy += busy;
        stage.useful += useful;
        stage.progress.busy = None;
        stage.progress.useful = None;
        stage.ended = Some(now);
        let saved = stage.checkpoint_at.is_some_and(|at| at >= lease.since);
        stage.fruitless = match outcome {
            Outcome::Refused { .. } => stage.fruitless,
            _ if saved => 0,
            _ => stage.fruitless + 1,
        };
        stage.state = next_state(stage, lease.phase, outcome, ending, retries, now);
        stage.stop_ended(&lease, outcome, now);
        match stage.state {
            StageState::Stopped { cause: StopCause::Fault, .. } => {
                stage.recoveries.failed(now, stage.progress.step);
            }
            _ => stage.recoveries.left(now),
        }
        if let StageState::Stopped { cause: StopCause::Priority { .. }, .. } = stage.state {
            stage.preemptions += 1;
        }
        if matches!(stage.state, StageState::Failed(_)) {
            self.begin_ending(key.job, JobEnd::Failed);
        } else if stage.is_given_up(job.spec.stage(key.stage)) {
            job.held = true;
        }
        self.book_work(&lease.placement, busy, useful);
        self.refresh(key.job);
    }

    /// Recomputes which stages of a job wait, and whether the job has ended.
    pub(super) fn refresh(&mut self, id: JobId) {
        let now = self.now;
        let job = &self.jobs[&id];
        let (ready, others): (Vec<StageIndex>, Vec<StageIndex>) =
            job.spec.stage_indices().partition(|&index| job.is_ready(index));
        for index in others {
            let key = StageKey { job: id, stage: index };
            self.stop_waiting(key);
            if !self.is_moving(key) {
                self.claims.remove(&key);
            }
        }
        for index in ready {
            self.begin_waiting(StageKey { job: id, stage: index });
        }
        self.settle_recovery(id);
        let job = self.job_mut(id);
        let ends = job.end.is_none() && job.stages.iter().all(|stage| stage.state.is_terminal());
        if ends {
            job.end = Some((now, job.ending.unwrap_or(JobEnd::Succeeded)));
        }
        let alive = job.end.is_none();
        let unwanted = job.is_unwanted();
        let limited = alive && job.spec.time_limit.is_some();
        keep(&mut self.unwanted, id, unwanted);
        keep(&mut self.limited, id, limited);
        if ends {
            self.settle_eligibility(id);
            self.settle_dependents(id);
        }
    }

    fn begin_waiting(&mut self, key: StageKey) {
        if self.waiting.contains_key(&key) {
            return;
        }
        self.draw_ticket(key);
        let now = self.now;
        if let StageState::Queued { since } = &mut self.stage_mut(key).state {
            *since = now;
        }
    }

    pub(super) fn draw_ticket(&mut self, key: StageKey) {
        let ticket = self.next_ticket;
        self.next_ticket = Ticket(ticket.0 + 1);
        self.waiting.insert(key, ticket);
        self.tickets.insert(ticket, key);
        if self.stage(key).1.is_preparable() {
            self.preparable.insert(key);
        }
    }

    /// Whether the stage did wait.
    fn stop_waiting(&mut self, key: StageKey) -> bool {
        let Some(ticket) = self.waiting.remove(&key) else { return false };
        self.preparable.remove(&key);
        self.departures += 1;
        self.yielding.retain(|_, preemptor| *preemptor != key);
        self.tickets.remove(&ticket).is_some()
    }

    pub(super) fn job_mut(&mut self, id: JobId) -> &mut Job {
        let job = self.jobs.get_mut(&id);
        Arc::make_mut(job.expect("keys in plans and leases name jobs of this state"))
    }

    pub(super) fn stage_mut(&mut self, key: StageKey) -> &mut Stage {
        &mut self.job_mut(key.job).stages[key.stage.index()]
    }
}

fn keep(set: &mut BTreeSet<JobId>, id: JobId, member: bool) {
    if member {
        set.insert(id);
    } else {
        set.remove(&id);
    }
}

enum Held {
    Yes,
    No,
}

/// What becomes of a stage whose gang is gone. An exit after a notice is a stop, whatever its code:
/// only `Finished` says that the work is done.
fn next_state(
    stage: &mut Stage,
    phase: Phase,
    outcome: &Outcome,
    ending: bool,
    retries: u32,
    now: Time,
) -> StageState {
    let asked = match phase {
        Phase::Stopping { cause } => Some(cause),
        Phase::Starting | Phase::Running { .. } => None,
    };
    match (outcome, asked) {
        (Outcome::Finished, _) => StageState::Succeeded,
        (_, Some(StopCause::TimeLimit)) => StageState::Failed(Failure {
            exit_code: 124,
            message: "the job ran for longer than its `time_limit`".to_owned(),
            ..Failure::default()
        }),
        _ if ending => StageState::Cancelled,
        (Outcome::Lost, _) => StageState::Stopped { cause: StopCause::Fault, since: now },
        (Outcome::Stopped | Outcome::Failed(_) | Outcome::Refused { .. }, Some(cause)) => {
            StageState::Stopped { cause, since: now }
        }
        (Outcome::Refused { reason }, None) => {
            stage.refused(reason, now);
            StageState::Stopped { cause: StopCause::Fault, since: now }
        }
        (Outcome::Stopped, None) => StageState::Stopped { cause: StopCause::User, since: now },
        (Outcome::Failed(failure), None) => stage.failed(failure, retries, now),
    }
}

impl Job {
    /// Something of it runs that is to be stopped.
    pub(super) fn is_unwanted(&self) -> bool {
        let is_active = |stage: &Stage| matches!(stage.state, StageState::Active { .. });
        self.end.is_none()
            && (self.held || self.ending.is_some())
            && self.stages.iter().any(is_active)
    }

    /// Waits for nothing but devices.
    pub(super) fn is_ready(&self, index: StageIndex) -> bool {
        let idle = matches!(
            self.stages[index.index()].state,
            StageState::Queued { .. } | StageState::Stopped { .. }
        );
        let spec = self.spec.stage(index);
        let stage = |index: &StageIndex| &self.stages[index.index()];
        idle && !self.held
            && self.stages[index.index()].has_recovered()
            && self.eligible.is_some()
            && self.ending.is_none()
            && spec.after.iter().all(|dep| stage(dep).state == StageState::Succeeded)
            && spec.follows.iter().all(|dep| stage(dep).can_be_followed())
    }
}

impl Stage {
    /// One that published and stands still cannot: who waits for its output would hold devices that
    /// it may need to go on.
    pub fn can_be_followed(&self) -> bool {
        match self.state {
            StageState::Succeeded => true,
            StageState::Active { .. } => self.published,
            _ => false,
        }
    }

    fn new(now: Time) -> Self {
        Self {
            state: StageState::Queued { since: now },
            attempts: 0,
            attempt: Attempt::default(),
            step_rate: StepRate::default(),
            preemptions: 0,
            fruitless: 0,
            failures: 0,
            refusals: 0,
            faults: Faults::default(),
            recoveries: Recoveries::default(),
            stops: Vec::new(),
            checkpoint: None,
            other_checkpoints: OtherCheckpoints::default(),
            checkpoint_at: None,
            checkpoints: 0,
            published: false,
            progress: Progress::default(),
            progressed_at: None,
            charged: ShareMillis::ZERO,
            busy: ShareMillis::ZERO,
            useful: ShareMillis::ZERO,
            first_started: None,
            ended: None,
            placement: None,
            start_reasons: Vec::new(),
            wait_reasons: Vec::new(),
        }
    }
}
