//! The vocabulary of Heterosis and the one function that changes cluster state.
//!
//! Knows: ids, units, devices and their topology, jobs, events, plans, reasons, and how an event
//! changes [`State`].
//! Must never know: a clock, randomness, files, sockets, threads, async, serde, any policy, any
//! engine. Time is an argument; everything here is a pure value or a pure function.

mod drivers;
mod finding;
mod free;
mod host_resources;
mod ids;
mod index;
mod interconnect;
mod job;
mod joining;
mod placement;
mod plan;
mod planned;
mod quota;
mod reason;
mod request;
mod role;
mod start;
mod state;
mod topology;
mod units;

pub use drivers::Drivers;
pub use finding::Finding;
pub use free::Free;
pub use host_resources::HostResources;
pub use ids::{DeviceId, Generation, JobId, LeaseId, Name, NodeId, StageIndex, StageKey};
pub use index::{ByNode, DeviceGroup, Index, Membership};
pub use interconnect::{ACROSS_SOCKETS, Distance, Interconnect, NearCard, Path, bits};
pub use job::{
    Access, Alternative, BatchRange, CheckpointSpec, Companions, Container, ContainerRuntime,
    Elastic, Isolation, JobSpec, KeptVariables, Launch, LogFiles, LogRule, Match, Mount,
    OutputRule, Preemptible, Priority, RankRule, Selector, StageKind, StageSpec, StallRule, Volume,
    WriteMode,
};
pub use joining::Joined;
pub use placement::{Grant, Placement, Rank};
pub use plan::{Action, Checkpoint, Plan, StopCause, StopCost};
pub use planned::{Locality, Planned, PlannedSpeeds, Speeds, TrainingFiles};
pub use quota::{ClassQuota, Quota, Quotas, lineage};
pub use reason::Reason;
pub use request::{REQUESTS_KEPT, Request, Requested, Requester};
pub use role::Role;
pub use start::{
    ArrayMember, Dependencies, Dependency, DependencyCondition, DependencyRule, NotEligible,
    StartConditions,
};
pub use state::{
    AdoptedJobs, Attempt, CHECKPOINTS_KEPT, Claim, Degradation, DegradationCause, Degraded, Event,
    Failure, FailureCause, Faults, Job, JobChange, JobEnd, JobState, Lease, Loss, Measured,
    MeasuredNeeds, Occupant, OtherCheckpoints, Outcome, PartsError, Phase, PolicyMemory,
    Preparation, PreparationEnd, PreparationOutcome, Progress, Recoveries, Recovery, RecoveryPhase,
    STOPS_KEPT, Slowness, Stage, StageState, State, StateParts, StepRate, Stop, Suspicion, Ticket,
};
pub use topology::{
    Device, DeviceClass, Domain, Link, Node, Topology, TopologyError, VNPU, Vertex,
};
pub use units::{Bytes, Micro, Millis, Share, ShareMillis, Time};
