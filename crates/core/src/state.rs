//! Cluster state, and `State::apply`, the only function that changes it.

mod adoption;
mod apply;
mod degradation;
mod eligibility;
mod event;
mod faults;
mod parts;
mod preparation;
mod recovery;
mod service;
mod slowness;
mod stops;
mod suspicion;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::{
    Checkpoint, DeviceId, Free, Generation, HostResources, Index, JobId, JobSpec, LeaseId,
    Locality, Name, NodeId, Placement, Priority, Quotas, Reason, Request, Share, ShareMillis,
    StageIndex, StageKey, StageSpec, StopCause, Time, Topology,
};

pub use adoption::AdoptedJobs;
pub use degradation::Degraded;
use eligibility::Eligibility;
pub use event::{
    Degradation, DegradationCause, Event, Failure, FailureCause, JobChange, Measured,
    MeasuredNeeds, Occupant, Outcome, PolicyMemory, PreparationEnd, Progress,
};
use faults::Recovering;
pub use faults::{Attempt, CHECKPOINTS_KEPT, Faults, OtherCheckpoints};
pub use parts::{PartsError, StateParts};
pub use preparation::{Preparation, PreparationOutcome};
pub use recovery::{Recoveries, Recovery, RecoveryPhase};
pub use slowness::{Slowness, StepRate};
pub use stops::{Loss, STOPS_KEPT, Stop};
pub use suspicion::Suspicion;

/// Drawn by every stage that begins to wait; later ones are higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(pub u64);

/// Everything that is true now. Two states built from the same events are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    topology: Arc<Topology>,
    index: Arc<Index>,
    now: Time,
    generation: Generation,
    next_job: JobId,
    next_lease: LeaseId,
    /// Shared with copies of the state until one of them changes the job.
    jobs: BTreeMap<JobId, Arc<Job>>,
    leases: BTreeMap<LeaseId, Lease>,
    /// Those of jobs of each priority.
    leases_by_priority: BTreeMap<Priority, BTreeSet<LeaseId>>,
    claims: BTreeMap<StageKey, Claim>,
    preparations: BTreeMap<StageKey, Preparation>,
    /// Stages that could start as far as their job is concerned, and the ticket that each drew when
    /// it began to wait; kept so that a round does not walk over every job ever submitted.
    waiting: BTreeMap<StageKey, Ticket>,
    /// The same by ticket.
    tickets: BTreeMap<Ticket, StageKey>,
    next_ticket: Ticket,
    /// Those who wait of whom something can be done before they have devices.
    preparable: BTreeSet<StageKey>,
    /// How often a stage stopped waiting.
    departures: u64,
    /// What is in service and no lease holds.
    free: Free,
    /// Jobs whose running stages are to be stopped: ended by somebody, or held. Jobs that run
    /// nothing are not among them, however many are held.
    unwanted: BTreeSet<JobId>,
    /// Jobs with a time limit that have not ended.
    limited: BTreeSet<JobId>,
    eligibility: Eligibility,
    recovering: Recovering,
    /// When any stage last completed a checkpoint.
    last_checkpoint: Option<Time>,
    /// Running stages that somebody wants to make room, and for whom.
    yielding: BTreeMap<LeaseId, StageKey>,
    quotas: Arc<Quotas>,
    policy_memory: Option<Arc<PolicyMemory>>,
    /// By tenant, and by device class: what it and those below it hold.
    used: BTreeMap<Name, Vec<Share>>,
    /// By node.
    lost: Vec<bool>,
    suspected: Vec<bool>,
    /// By device.
    failed: Vec<bool>,
    /// Taken out of service by somebody.
    drained: BTreeSet<DeviceId>,
    /// Accelerators on which a program hung.
    suspicions: BTreeMap<DeviceId, Suspicion>,
    /// Some of them may be so old that nothing is said any more.
    slow_devices: BTreeMap<DeviceId, Slowness>,
    degraded: BTreeMap<DeviceId, Degraded>,
    /// Used by processes that are of no job.
    occupied: BTreeMap<DeviceId, Occupant>,
    /// No part of the cluster any more.
    removed: BTreeSet<NodeId>,
    /// Not in their node any more.
    absent: BTreeSet<DeviceId>,
    /// What others use of a class of a node's devices, and of which devices it is counted off.
    taken: BTreeMap<(NodeId, usize), Share>,
    taken_of: BTreeMap<DeviceId, Share>,
    host_taken: BTreeMap<NodeId, HostResources>,
    /// By device: capacity of what is up and not taken by others, zero for what is down.
    service: Vec<Share>,
    held: Vec<Share>,
    charged: Vec<ShareMillis>,
    busy: Vec<ShareMillis>,
    useful: Vec<ShareMillis>,
}

/// A submitted job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub spec: Arc<JobSpec>,
    pub submitted: Time,
    pub held: bool,
    /// When its start conditions were met.
    pub eligible: Option<Time>,
    pub stages: Vec<Stage>,
    pub end: Option<(Time, JobEnd)>,
    /// The user cancelled it, or a stage failed for good: running stages are to be stopped.
    pub ending: Option<JobEnd>,
    /// The newest changes that somebody asked for, the newest last.
    pub requests: Vec<Request>,
}

/// The terminal states of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobEnd {
    Succeeded,
    Failed,
    Cancelled,
}

/// The state of a job, derived from its stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    Queued,
    /// Devices are assigned and its processes are starting, or it stands between two stages.
    Admitted,
    Running,
    /// Saving before a stop.
    Checkpointing,
    Suspended,
    Preempted,
    Migrating,
    Restarting,
    Held,
    Ended(JobEnd),
}

impl JobState {
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Admitted => "admitted",
            Self::Running => "running",
            Self::Checkpointing => "checkpointing",
            Self::Suspended => "suspended",
            Self::Preempted => "preempted",
            Self::Migrating => "migrating",
            Self::Restarting => "restarting",
            Self::Held => "held",
            Self::Ended(JobEnd::Succeeded) => "succeeded",
            Self::Ended(JobEnd::Failed) => "failed",
            Self::Ended(JobEnd::Cancelled) => "cancelled",
        }
    }
}

/// A stage of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub state: StageState,
    /// Leases it has had.
    pub attempts: u32,
    pub attempt: Attempt,
    pub step_rate: StepRate,
    pub preemptions: u32,
    /// Leases in a row that were stopped before they completed a checkpoint.
    pub fruitless: u32,
    /// Failures of its own program, counted against `retries`.
    pub failures: u32,
    /// Starts in a row that the engine refused.
    pub refusals: u32,
    pub faults: Faults,
    pub recoveries: Recoveries,
    /// The newest [`STOPS_KEPT`], the newest last.
    pub stops: Vec<Stop>,
    /// The newest complete checkpoint that was not rejected.
    pub checkpoint: Option<Checkpoint>,
    pub other_checkpoints: OtherCheckpoints,
    /// When that checkpoint was completed.
    pub checkpoint_at: Option<Time>,
    pub checkpoints: u32,
    /// Some of its output is complete.
    pub published: bool,
    pub progress: Progress,
    /// When the program last said which step it is at.
    pub progressed_at: Option<Time>,
    /// Device time charged for ended leases.
    pub charged: ShareMillis,
    /// Device time of ended leases in which a processor worked, as far as engines measured it.
    pub busy: ShareMillis,
    /// Device time of ended leases spent in steps that count, as the programs reported it.
    pub useful: ShareMillis,
    pub first_started: Option<Time>,
    pub ended: Option<Time>,
    /// Where it ran last, and why there.
    pub placement: Option<Arc<Placement>>,
    pub start_reasons: Vec<Reason>,
    /// Why it waits, as of the last change.
    pub wait_reasons: Vec<Reason>,
}

/// The state of a stage; variants carry what only they have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StageState {
    Queued { since: Time },
    Active { lease: LeaseId },
    Stopped { cause: StopCause, since: Time },
    Succeeded,
    Failed(Failure),
    Cancelled,
}

impl StageState {
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed(_) | Self::Cancelled)
    }
}

/// What a lease holds is booked in this direction.
#[derive(Debug, Clone, Copy)]
enum Booked {
    Taken,
    Freed,
}

/// A live right to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub stage: StageKey,
    pub attempt: u32,
    pub placement: Arc<Placement>,
    pub since: Time,
    pub phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Starting,
    Running { since: Time },
    Stopping { cause: StopCause },
}

impl Phase {
    pub fn is_stopping(self) -> bool {
        matches!(self, Self::Stopping { .. })
    }
}

/// Devices reserved for a stage while they are being freed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub placement: Arc<Placement>,
    pub since: Time,
}

impl State {
    pub fn new(topology: Arc<Topology>) -> Self {
        let index = Arc::new(Index::of(&topology));
        Self {
            now: Time::ZERO,
            generation: Generation(0),
            next_job: JobId(1),
            next_lease: LeaseId(1),
            jobs: BTreeMap::new(),
            leases: BTreeMap::new(),
            leases_by_priority: BTreeMap::new(),
            claims: BTreeMap::new(),
            preparations: BTreeMap::new(),
            waiting: BTreeMap::new(),
            tickets: BTreeMap::new(),
            next_ticket: Ticket(1),
            preparable: BTreeSet::new(),
            departures: 0,
            free: Free::all_of(&index, &index.capacity),
            unwanted: BTreeSet::new(),
            limited: BTreeSet::new(),
            eligibility: Eligibility::default(),
            recovering: Recovering::default(),
            last_checkpoint: None,
            yielding: BTreeMap::new(),
            quotas: Arc::default(),
            policy_memory: None,
            used: BTreeMap::new(),
            lost: vec![false; topology.nodes.len()],
            suspected: vec![false; topology.nodes.len()],
            failed: vec![false; topology.devices.len()],
            drained: BTreeSet::new(),
            suspicions: BTreeMap::new(),
            slow_devices: BTreeMap::new(),
            degraded: BTreeMap::new(),
            occupied: BTreeMap::new(),
            removed: BTreeSet::new(),
            absent: BTreeSet::new(),
            taken: BTreeMap::new(),
            taken_of: BTreeMap::new(),
            host_taken: BTreeMap::new(),
            service: index.capacity.clone(),
            held: vec![Share::ZERO; topology.devices.len()],
            charged: vec![ShareMillis::ZERO; topology.devices.len()],
            busy: vec![ShareMillis::ZERO; topology.devices.len()],
            useful: vec![ShareMillis::ZERO; topology.devices.len()],
            index,
            topology,
        }
    }

    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// What follows from the topology.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// How close the devices of a placement are, as far as that matters to the stage.
    pub fn locality(&self, spec: &StageSpec, placement: &Placement) -> Locality {
        match spec.planned.is_empty() {
            true => Locality::BEST,
            false => self.index.locality(&self.topology, placement),
        }
    }

    /// The time of the last event.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The number of the last committed plan.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The id that the next submitted job gets.
    pub fn next_job(&self) -> JobId {
        self.next_job
    }

    /// The number that the next lease gets.
    pub fn next_lease(&self) -> LeaseId {
        self.next_lease
    }

    pub fn jobs(&self) -> &BTreeMap<JobId, Arc<Job>> {
        &self.jobs
    }

    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id).map(Arc::as_ref)
    }

    pub fn leases(&self) -> &BTreeMap<LeaseId, Lease> {
        &self.leases
    }

    /// The lowest priority among jobs that hold devices.
    pub fn lowest_running(&self) -> Option<Priority> {
        self.leases_by_priority.keys().next().copied()
    }

    /// The highest priority among jobs that hold devices.
    pub fn highest_running(&self) -> Option<Priority> {
        self.leases_by_priority.keys().next_back().copied()
    }

    /// Leases of jobs of one priority.
    pub fn leases_of(&self, priority: Priority) -> impl Iterator<Item = LeaseId> + '_ {
        self.leases_by_priority.get(&priority).into_iter().flatten().copied()
    }

    pub fn claims(&self) -> &BTreeMap<StageKey, Claim> {
        &self.claims
    }

    /// Stages that are ready to start, by key.
    pub fn waiting(&self) -> impl Iterator<Item = StageKey> + '_ {
        self.waiting.keys().copied()
    }

    /// How many they are.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_waiting(&self, key: StageKey) -> bool {
        self.waiting.contains_key(&key)
    }

    /// Whether a stage is stopping only to go on elsewhere.
    pub fn is_moving(&self, key: StageKey) -> bool {
        let StageState::Active { lease } = self.stage(key).2.state else { return false };
        matches!(self.leases[&lease].phase, Phase::Stopping { cause } if cause.moves())
    }

    /// Those who began to wait after `ticket` was drawn and still do.
    pub fn waiting_since(&self, ticket: Ticket) -> impl Iterator<Item = (Ticket, StageKey)> + '_ {
        let later = (Bound::Excluded(ticket), Bound::Unbounded);
        self.tickets.range(later).map(|(ticket, key)| (*ticket, *key))
    }

    /// How often a stage stopped waiting so far.
    pub fn departures(&self) -> u64 {
        self.departures
    }

    /// How the stage of a key that came from this state stands.
    pub fn stage_record(&self, key: StageKey) -> &Stage {
        &self.jobs[&key.job].stages[key.stage.index()]
    }

    /// The job and stage of a key that came from this state.
    pub fn stage(&self, key: StageKey) -> (&Job, &StageSpec, &Stage) {
        let job = &self.jobs[&key.job];
        (job, job.spec.stage(key.stage), &job.stages[key.stage.index()])
    }

    /// Whether nobody hears of the node.
    pub fn is_lost(&self, node: NodeId) -> bool {
        self.lost[node.index()]
    }

    /// Whether the node is likely to fail soon.
    pub fn is_suspected(&self, node: NodeId) -> bool {
        self.suspected[node.index()]
    }

    /// When any stage last completed a checkpoint: who looks for those that have just done so need
    /// not look at all where that is long ago.
    pub fn last_checkpoint(&self) -> Option<Time> {
        self.last_checkpoint
    }

    /// Whether somebody took the device out of service.
    pub fn is_drained(&self, device: DeviceId) -> bool {
        self.drained.contains(&device)
    }

    /// Who uses the device beside all jobs.
    pub fn occupant(&self, device: DeviceId) -> Option<&Occupant> {
        self.occupied.get(&device)
    }

    pub fn has_failed(&self, device: DeviceId) -> bool {
        self.failed[device.index()]
    }

    /// Whether the node was removed from the cluster.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.removed.contains(&node)
    }

    /// Whether the device, or its node, is not there any more.
    pub fn is_gone(&self, device: DeviceId) -> bool {
        self.absent.contains(&device) || self.is_removed(self.topology.device(device).node)
    }

    /// What is counted off a device because others use so much of its node's devices.
    pub fn taken_of(&self, device: DeviceId) -> Share {
        self.taken_of.get(&device).copied().unwrap_or_default()
    }

    /// What others use of a node's devices of a class; a row of [`Topology::classes`].
    pub fn taken(&self, node: NodeId, class: usize) -> Share {
        self.taken.get(&(node, class)).copied().unwrap_or_default()
    }

    /// Whether a lease has a part of a device that somebody took out of service.
    pub fn is_on_drained(&self, lease: &Lease) -> bool {
        lease.placement.grants().any(|grant| self.is_drained(grant.device))
    }

    /// Whether a lease cannot stay where it stands.
    pub fn is_endangered(&self, lease: &Lease) -> bool {
        let leaves = |node| self.is_suspected(node) || self.is_removed(node);
        self.is_on_drained(lease) || lease.placement.ranks.iter().any(|rank| leaves(rank.node))
    }

    /// Whether any device is to be emptied.
    pub fn drains_any(&self) -> bool {
        !self.drained.is_empty()
    }

    /// Whether anything may have to go elsewhere.
    pub fn empties_any(&self) -> bool {
        self.suspected.contains(&true)
            || self.drains_any()
            || self.is_held_on_removed()
            || self.suspected_devices().next().is_some()
            || self.slow_devices().next().is_some()
    }

    /// Running stages that somebody wants to make room, and for whom.
    pub fn yielding(&self) -> impl Iterator<Item = (LeaseId, StageKey)> + '_ {
        self.yielding.iter().map(|(lease, preemptor)| (*lease, *preemptor))
    }

    /// Neither the device nor its node is down or likely to be soon: something may start there.
    pub fn is_up(&self, device: DeviceId) -> bool {
        self.service[device.index()] > Share::ZERO
    }

    pub fn held(&self, device: DeviceId) -> Share {
        self.held[device.index()]
    }

    /// What is held of each device.
    pub fn held_shares(&self) -> &[Share] {
        &self.held
    }

    /// What is held of each node beside its devices.
    pub fn host_held(&self) -> &[HostResources] {
        self.free.host_held()
    }

    /// What is in service and no lease holds, whether or not it is claimed.
    pub fn free(&self) -> &Free {
        &self.free
    }

    /// The capacity of each device that is up, less what others use of it; zero for those that are
    /// down.
    pub fn service(&self) -> &[Share] {
        &self.service
    }

    /// What no rank holds and nobody else uses of a node beside its devices.
    pub fn host_free(&self, node: NodeId) -> HostResources {
        self.free.host(&self.topology, node)
    }

    /// What others use of a node beside its devices.
    pub fn host_taken(&self, node: NodeId) -> HostResources {
        self.host_taken.get(&node).copied().unwrap_or_default()
    }

    /// The nodes of which others use something beside devices.
    pub fn hosts_taken(&self) -> impl Iterator<Item = (NodeId, HostResources)> + '_ {
        self.host_taken.iter().map(|(node, amount)| (*node, *amount))
    }

    /// What a policy carried from its last decision.
    pub fn policy_memory(&self) -> Option<&Arc<PolicyMemory>> {
        self.policy_memory.as_ref()
    }

    pub fn quotas(&self) -> &Arc<Quotas> {
        &self.quotas
    }

    /// What a tenant and those below it hold, by device class; `None` where it never held anything.
    pub fn used(&self, tenant: &str) -> Option<&[Share]> {
        self.used.get(tenant).map(Vec::as_slice)
    }

    /// Device time charged to ended leases on this device.
    pub fn device_charged(&self, device: DeviceId) -> ShareMillis {
        self.charged[device.index()]
    }

    /// The part of it in which the device worked, as engines measured it, and in which it worked
    /// for something that counts, as programs reported it.
    pub fn device_worked(&self, device: DeviceId) -> (ShareMillis, ShareMillis) {
        (self.busy[device.index()], self.useful[device.index()])
    }

    /// Leases of jobs that ended or were held by their user, which somebody has to stop.
    pub fn leases_to_end(&self) -> impl Iterator<Item = (LeaseId, StopCause)> + '_ {
        self.unwanted.iter().flat_map(|id| {
            let job = &self.jobs[id];
            let cause = match job.ending {
                Some(JobEnd::Failed) => StopCause::JobFailed,
                _ => StopCause::User,
            };
            let active = job.stages.iter().filter_map(|stage| match stage.state {
                StageState::Active { lease } => Some(lease),
                _ => None,
            });
            let runs = |id: &LeaseId| !self.leases[id].phase.is_stopping();
            active.filter(runs).map(move |lease| (lease, cause))
        })
    }

    /// Jobs with a time limit that have not ended.
    pub fn limited_jobs(&self) -> impl Iterator<Item = &Job> + '_ {
        self.limited.iter().map(|id| &*self.jobs[id])
    }
}

impl Job {
    pub fn state(&self, leases: &BTreeMap<LeaseId, Lease>) -> JobState {
        if let Some((_, end)) = self.end {
            return JobState::Ended(end);
        }
        let phases = self.stages.iter().filter_map(|stage| match stage.state {
            StageState::Active { lease } => leases.get(&lease).map(|lease| lease.phase),
            _ => None,
        });
        let active = phases.max_by_key(|phase| match phase {
            Phase::Running { .. } => 2,
            Phase::Starting => 1,
            Phase::Stopping { .. } => 0,
        });
        match active {
            Some(Phase::Running { .. }) => JobState::Running,
            Some(Phase::Starting) => JobState::Admitted,
            Some(Phase::Stopping { .. }) => JobState::Checkpointing,
            None if self.held => JobState::Held,
            None => self.idle_state(),
        }
    }

    /// The state while no process of the job lives.
    fn idle_state(&self) -> JobState {
        let stopped = self.stages.iter().find_map(|stage| match stage.state {
            StageState::Stopped { cause, .. } => Some(cause),
            _ => None,
        });
        match stopped {
            Some(StopCause::Priority { .. } | StopCause::Reclaim { .. }) => JobState::Preempted,
            Some(cause) if cause.moves() => JobState::Migrating,
            Some(StopCause::Fault) => JobState::Restarting,
            Some(_) => JobState::Suspended,
            None if self.stages.iter().any(|stage| stage.attempts > 0) => JobState::Admitted,
            None => JobState::Queued,
        }
    }

    /// Since when it competes with others: from its submission, or from when its start conditions
    /// were met.
    pub fn eligible_since(&self) -> Time {
        self.eligible.unwrap_or(self.submitted)
    }

    /// Since when the stage has been waiting: for its stop, or for its dependencies to end.
    pub fn waiting_since(&self, index: StageIndex) -> Time {
        match self.stages[index.index()].state {
            StageState::Stopped { since, .. } | StageState::Queued { since } => since,
            _ => self.submitted,
        }
    }

    pub fn priority(&self) -> Priority {
        self.spec.priority
    }

    /// Device time charged to ended leases of the job.
    pub fn charged(&self) -> ShareMillis {
        self.stages.iter().map(|stage| stage.charged).sum()
    }
}
