//! Events: facts. Applying them in order is the only way state changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{
    AdoptedJobs, Checkpoint, DeviceId, HostResources, JobId, JobSpec, LeaseId, Micro, Millis, Name,
    NodeId, Placement, Plan, Priority, Quotas, Requested, Requester, Share, ShareMillis,
    StageIndex, StageKey, Topology,
};

/// A fact about the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A user's job was accepted. A job that continues an ended one carries over which stages
    /// already succeeded and the newest checkpoints of the others.
    JobSubmitted {
        job: JobId,
        spec: Arc<JobSpec>,
        succeeded: Vec<StageIndex>,
        checkpoints: Vec<(StageIndex, Checkpoint)>,
    },
    /// A log begins with what another left: nothing was submitted before. Leases hold devices that
    /// are there; see [`AdoptedJobs::held_by`].
    JobsAdopted {
        adopted: Arc<AdoptedJobs>,
    },
    /// The user stops the job for now: running stages save and stop.
    JobHeld {
        job: JobId,
    },
    JobReleased {
        job: JobId,
    },
    /// What the job waited for to begin has come: it may ask for devices.
    JobEligible {
        job: JobId,
    },
    /// What the job waits for cannot come any more: it ends without having begun.
    DependencyFailed {
        job: JobId,
    },
    /// The user ends the job for good.
    JobCancelled {
        job: JobId,
    },
    /// Its user thinks otherwise about a job that has not ended.
    JobChanged {
        job: JobId,
        change: JobChange,
    },
    /// A running stage is to save and make room for one that is more urgent, because somebody says
    /// so.
    StageYields {
        lease: LeaseId,
        preemptor: StageKey,
    },
    /// Somebody asked for what the event before it says; of which job, where it is of one.
    ChangeRequested {
        job: Option<JobId>,
        what: Requested,
        by: Arc<Requester>,
    },
    /// An ended job leaves the state; what is to be kept of it is kept elsewhere.
    JobRetired {
        job: JobId,
    },
    /// From now on these hold, and none that were set before. What is held already stays.
    QuotasSet {
        quotas: Arc<Quotas>,
    },
    PlanCommitted {
        plan: Arc<Plan>,
    },
    /// What a policy carries from its last decision to the next.
    PolicyRemembered {
        memory: Arc<PolicyMemory>,
    },
    /// All ranks of the gang run.
    StageStarted {
        lease: LeaseId,
    },
    Progressed {
        lease: LeaseId,
        progress: Progress,
    },
    /// A checkpoint is complete.
    Checkpointed {
        lease: LeaseId,
        checkpoint: Checkpoint,
    },
    /// The stage does not go on from this checkpoint any more: an attempt that resumed from it
    /// failed before its first progress.
    CheckpointRejected {
        stage: StageKey,
        checkpoint: Checkpoint,
    },
    /// The stage has waited long enough after a failure: it may start again.
    RetryDue {
        stage: StageKey,
    },
    /// The first of its output is complete: who follows it may begin.
    StagePublished {
        lease: LeaseId,
    },
    /// Nothing is left of the preparation that has this lease, before the stage had devices.
    PreparationEnded {
        lease: LeaseId,
        end: PreparationEnd,
    },
    /// The gang is gone and its devices are free.
    StageEnded {
        lease: LeaseId,
        outcome: Outcome,
    },
    /// These nodes are there, with these devices and links: new ones, and known ones, by name, as
    /// they are now. Their known devices that are not named are gone. Ids in the topology are its
    /// own rows; see [`Topology::joined_by`].
    NodesJoined {
        nodes: Arc<Topology>,
    },
    /// The node is no part of the cluster any more; nothing starts there until it joins again.
    NodeRemoved {
        name: Name,
    },
    /// So much of a class of a node's devices is used by others than our jobs, on devices that
    /// nobody can name. It holds until the next such event for them.
    CapacityTaken {
        node: NodeId,
        /// Row of [`Topology::classes`].
        class: usize,
        amount: Share,
    },
    /// So much of what a node has beside its devices is used by others than our jobs. It holds
    /// until the next such event.
    HostTaken {
        node: NodeId,
        amount: HostResources,
    },
    NodeLost {
        node: NodeId,
    },
    NodeReturned {
        node: NodeId,
    },
    /// The node is likely to fail soon: what runs there should go elsewhere, nothing should start.
    NodeSuspected {
        node: NodeId,
    },
    NodeCleared {
        node: NodeId,
    },
    DeviceFailed {
        device: DeviceId,
    },
    DeviceRepaired {
        device: DeviceId,
    },
    /// Somebody takes the device out of service: what can save goes elsewhere, the rest ends there.
    DeviceDrained {
        device: DeviceId,
    },
    DeviceUndrained {
        device: DeviceId,
    },
    /// A process that is of no job uses the device: nothing starts there while it does.
    DeviceOccupied {
        device: DeviceId,
        by: Occupant,
    },
    DeviceVacated {
        device: DeviceId,
    },
    /// Something beside our jobs takes so much of the device's speed. It holds until the next such
    /// event for it.
    DeviceDegraded {
        device: DeviceId,
        degradation: Degradation,
    },
    /// It has all its speed again.
    DeviceRestored {
        device: DeviceId,
    },
}

impl Event {
    /// What the fact is where somebody asked for it; `None` for facts that nobody asks for.
    pub fn requested(&self) -> Option<Requested> {
        match self {
            Self::JobSubmitted { .. } => Some(Requested::Submit),
            Self::JobHeld { .. } => Some(Requested::Hold),
            Self::JobReleased { .. } => Some(Requested::Release),
            Self::JobCancelled { .. } => Some(Requested::Cancel),
            Self::JobChanged { .. } => Some(Requested::Change),
            Self::StageYields { .. } => Some(Requested::Preempt),
            Self::QuotasSet { .. } => Some(Requested::SetQuotas),
            Self::DeviceDrained { .. } => Some(Requested::Drain),
            Self::DeviceUndrained { .. } => Some(Requested::Undrain),
            _ => None,
        }
    }

    /// The job that somebody asked about; `None` where it is about none, or about a lease.
    pub fn requested_of(&self) -> Option<JobId> {
        match self {
            Self::JobSubmitted { job, .. }
            | Self::JobHeld { job }
            | Self::JobReleased { job }
            | Self::JobCancelled { job }
            | Self::JobChanged { job, .. } => Some(*job),
            _ => None,
        }
    }
}

/// What a policy carries from one decision to the next and could not work out again from the rest
/// of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyMemory {
    /// Name of the policy; to any other it means nothing.
    pub policy: Name,
    /// JSON of a shape that the policy alone knows.
    pub json: String,
}

/// Whoever uses a device beside all jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    pub process: u32,
    pub user: Name,
    pub command: Name,
}

/// What is left of a device's speed, and why it is not all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degradation {
    /// Part of its usual speed that a job gets which takes all of it: above zero, below one.
    pub left: Micro,
    pub cause: DegradationCause,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DegradationCause {
    /// Processes of no job work there; the busiest of them that lives.
    Contention { by: Option<Occupant> },
    /// Heat or a lack of power holds its clock down.
    Throttling,
    /// Programs of its node wait for memory.
    MemoryPressure,
}

/// What may change about a job after its submission; what is absent stays as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobChange {
    pub priority: Option<Priority>,
    /// From its first start, as always.
    pub time_limit: Option<Millis>,
}

/// Why nothing is left of a preparation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreparationEnd {
    /// Its engine went away: another may be made.
    Lost,
    /// It could not be begun, or its program ended: one sentence for people.
    Failed { reason: String },
}

/// How a gang ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every rank finished its work.
    Finished,
    /// It stopped on notice and wants to go on later.
    Stopped,
    /// A rank failed on its own.
    Failed(Failure),
    /// Its node or device went away.
    Lost,
    /// The engine could not begin it, for a reason that is not its program's: one sentence for
    /// people.
    Refused { reason: String },
}

/// What the first failing rank did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    pub rank: u32,
    /// Exit code, or 128 + signal.
    pub exit_code: i32,
    /// One sentence for people.
    pub message: String,
    pub cause: FailureCause,
}

/// What the evidence says why a gang failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum FailureCause {
    /// Nothing is known: earlier versions kept no causes.
    #[default]
    Untold,
    /// Its program's own exit code or error, or a signal of its own, such as SIGSEGV.
    Program,
    /// Its program could not be run: it is not there, or not what was expected.
    CannotRun,
    /// The machine could not begin it: no room on its disk, no descriptors, or a device was gone.
    Refused,
    /// It used up the memory that it had asked for.
    MemoryLimit,
    /// Its files took up more disk space than it may have.
    ScratchLimit,
    /// The machine ran out of memory.
    MachineMemory,
    /// Somebody outside killed a process of it by a signal.
    Killed,
    /// A device or a node of it failed.
    Device,
    /// Nobody saw how it ended.
    Unseen,
    /// It had reported progress and reported none for too long.
    Stalled,
    /// The server stood still at its files, more than once.
    Quarantined,
}

impl FailureCause {
    pub const ALL: [Self; 12] = [
        Self::Untold,
        Self::Program,
        Self::CannotRun,
        Self::Refused,
        Self::MemoryLimit,
        Self::ScratchLimit,
        Self::MachineMemory,
        Self::Killed,
        Self::Device,
        Self::Unseen,
        Self::Stalled,
        Self::Quarantined,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Self::Untold => "untold",
            Self::Program => "program",
            Self::CannotRun => "cannot_run",
            Self::Refused => "refused",
            Self::MemoryLimit => "memory_limit",
            Self::ScratchLimit => "scratch_limit",
            Self::MachineMemory => "machine_memory",
            Self::Killed => "killed",
            Self::Device => "device",
            Self::Unseen => "unseen",
            Self::Stalled => "stalled",
            Self::Quarantined => "quarantined",
        }
    }

    /// It is the program's doing: another attempt would most likely end alike.
    pub fn is_own(self) -> bool {
        matches!(
            self,
            Self::Untold | Self::Program | Self::CannotRun | Self::MemoryLimit | Self::ScratchLimit
        )
    }
}

impl Failure {
    /// Of a gang whose end nobody saw.
    pub fn unseen() -> Self {
        Self {
            rank: 0,
            exit_code: 255,
            message: "nobody saw how it ended".to_owned(),
            cause: FailureCause::Unseen,
        }
    }

    /// Of a gang at whose files the server stood still.
    pub fn quarantined() -> Self {
        let message = "its files had made the server stand still twice, and it was killed";
        Self { message: message.to_owned(), cause: FailureCause::Quarantined, ..Self::unseen() }
    }

    /// The exit code of a program that cannot be run, as a shell gives it.
    pub const CANNOT_RUN: i32 = 126;
}

/// What a program reports while it runs; absent values stay as they were.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    pub step: Option<u64>,
    pub total: Option<u64>,
    pub loss: Option<Micro>,
    /// Cumulative samples and tokens of this stage.
    pub samples: Option<u64>,
    pub tokens: Option<u64>,
    /// Cumulative time in steps that count: not loading, saving or redone work.
    pub useful: Option<Millis>,
    /// Cumulative processor time of the gang, as the engine measures it.
    pub busy: Option<Millis>,
    /// As the engine measures it, at the end.
    pub needs: Option<Box<MeasuredNeeds>>,
    /// How its steps go, for elastic jobs.
    pub measured: Option<Box<Measured>>,
    /// Named figures for the user, for example `loss_after`.
    pub results: BTreeMap<Name, Micro>,
    /// The driver that really ran, in the program's own words.
    pub ran_on: Option<Name>,
    /// The last thing the program had to say.
    pub message: Option<String>,
}

/// What a program showed that it needs beside devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeasuredNeeds {
    /// What a rank takes of its node; nothing of what nobody has to reserve.
    pub demand: HostResources,
    /// Paths of files that it read while it started, where the job names none: the largest ones.
    pub inputs: Vec<String>,
}

impl MeasuredNeeds {
    /// Of the paths of inputs, those that are kept, and the longest of them in bytes.
    pub const INPUTS_MAX: usize = 16;
    pub const INPUT_BYTES_MAX: usize = 256;
}

/// A step of an elastic job, as the program measured it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Samples that each device takes at once.
    pub batch: u32,
    /// Further such batches before each update of the weights.
    pub accumulation: u32,
    /// Seconds of one batch with its exchange between devices, and of the exchange alone.
    pub step: Micro,
    pub exchange: Micro,
    /// Variance of the gradient over its square, at the batch that the job began with.
    pub gradient_noise: Micro,
}

impl Progress {
    /// Busy and useful device time of the running attempt: processor time counts as cores, useful
    /// time counts for every device of the placement.
    pub fn device_time(&self, placement: &Placement) -> (ShareMillis, ShareMillis) {
        let share: Share = placement.devices().map(|grant| grant.share).sum();
        let busy = Share::WHOLE.over(self.busy.unwrap_or_default());
        (busy, share.over(self.useful.unwrap_or_default()))
    }

    /// Takes over what `newer` says.
    pub fn merge(&mut self, newer: &Progress) {
        fn take<T: Clone>(old: &mut Option<T>, new: &Option<T>) {
            if new.is_some() {
                old.clone_from(new);
            }
        }
        take(&mut self.step, &newer.step);
        take(&mut self.total, &newer.total);
        take(&mut self.loss, &newer.loss);
        take(&mut self.samples, &newer.samples);
        take(&mut self.tokens, &newer.tokens);
        take(&mut self.needs, &newer.needs);
        take(&mut self.measured, &newer.measured);
        take(&mut self.useful, &newer.useful);
        take(&mut self.busy, &newer.busy);
        take(&mut self.ran_on, &newer.ran_on);
        take(&mut self.message, &newer.message);
        self.results.extend(newer.results.clone());
    }
}
