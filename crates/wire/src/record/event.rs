//! One event as it is stored.

use std::sync::Arc;

use het_core::{
    Checkpoint, Degradation, DeviceId, Event, Failure, HostResources, JobChange, JobId, LeaseId,
    Millis, NodeId, Outcome, PreparationEnd, Priority, Share, StageIndex, StageKey, Time,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::adoption::{AdoptedJobsRecord, read_adopted, write_adopted};
use super::degradation::{DegradationRecord, read_degradation, write_degradation};
use super::error::RecordError;
use super::failure::{read_failure_cause, write_failure_cause};
use super::host::HostRecord;
use super::memory::{PolicyMemoryRecord, read_memory, write_memory};
use super::occupant::{OccupantRecord, read_occupant, write_occupant};
use super::plan::{
    CheckpointRecord, PlanRecord, read_checkpoint, read_plan, write_checkpoint, write_plan,
};
use super::progress::{ProgressRecord, read_progress, write_progress};
use super::quotas::{QuotasRecord, read_quotas, write_quotas};
use super::request::{ChangeRequestRecord, read_change_request, write_change_request};
use super::spec::{JobRecord, read_job, write_job};
use super::topology::{TopologyRecord, read_topology, write_topology};
use super::words::by_word;

/// An event with its time, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    at_ms: u64,
    #[serde(flatten)]
    event: EventRecord,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum EventRecord {
    JobSubmitted {
        job: u64,
        spec: JobRecord,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        succeeded: Vec<u16>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        checkpoints: Vec<(u16, CheckpointRecord)>,
    },
    JobsAdopted(AdoptedJobsRecord),
    JobHeld {
        job: u64,
    },
    JobReleased {
        job: u64,
    },
    JobEligible {
        job: u64,
    },
    DependencyFailed {
        job: u64,
    },
    JobCancelled {
        job: u64,
    },
    ChangeRequested(ChangeRequestRecord),
    JobRetired {
        job: u64,
    },
    JobChanged {
        job: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        time_limit_ms: Option<u64>,
    },
    StageYields {
        lease: u64,
        beneficiary: (u64, u16),
    },
    QuotasSet(QuotasRecord),
    PlanCommitted {
        plan: PlanRecord,
    },
    PolicyRemembered {
        policy: String,
        memory: Value,
    },
    StageStarted {
        lease: u64,
    },
    Progressed {
        lease: u64,
        progress: ProgressRecord,
    },
    Checkpointed {
        lease: u64,
        checkpoint: CheckpointRecord,
    },
    CheckpointRejected {
        stage: (u64, u16),
        checkpoint: CheckpointRecord,
    },
    RetryDue {
        stage: (u64, u16),
    },
    StagePublished {
        lease: u64,
    },
    PreparationEnded {
        lease: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    StageEnded {
        lease: u64,
        outcome: OutcomeRecord,
    },
    NodesJoined {
        nodes: TopologyRecord,
    },
    NodeRemoved {
        name: String,
    },
    CapacityTaken {
        node: u32,
        class: usize,
        amount: u32,
    },
    HostTaken {
        node: u32,
        amount: HostRecord,
    },
    NodeLost {
        node: u32,
    },
    NodeReturned {
        node: u32,
    },
    NodeSuspected {
        node: u32,
    },
    NodeCleared {
        node: u32,
    },
    DeviceFailed {
        device: u32,
    },
    DeviceRepaired {
        device: u32,
    },
    DeviceDrained {
        device: u32,
    },
    DeviceUndrained {
        device: u32,
    },
    DeviceOccupied {
        device: u32,
        #[serde(flatten)]
        by: OccupantRecord,
    },
    DeviceVacated {
        device: u32,
    },
    DeviceDegraded {
        device: u32,
        #[serde(flatten)]
        degradation: DegradationRecord,
    },
    DeviceRestored {
        device: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutcomeRecord {
    Finished,
    Stopped,
    Failed {
        rank: u32,
        exit_code: i32,
        message: String,
        /// Absent in logs of versions that kept no causes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
    },
    Lost,
    Refused {
        reason: String,
    },
}

impl Record {
    pub fn new(at: Time, event: &Event) -> Self {
        Self { at_ms: at.0, event: write(event) }
    }

    /// The event and its time.
    ///
    /// # Errors
    /// When the record uses words of a later version.
    pub fn read(&self) -> Result<(Time, Event), RecordError> {
        Ok((Time(self.at_ms), read(&self.event)?))
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("records hold nothing that JSON cannot")
    }

    /// # Errors
    /// When the line is not a record.
    pub fn from_json(line: &str) -> Result<Self, RecordError> {
        Ok(serde_json::from_str(line)?)
    }
}

fn write(event: &Event) -> EventRecord {
    match event {
        Event::JobSubmitted { job, spec, succeeded, checkpoints } => EventRecord::JobSubmitted {
            job: job.0,
            spec: write_job(spec),
            succeeded: succeeded.iter().map(|index| index.0).collect(),
            checkpoints: checkpoints.iter().map(|(i, c)| (i.0, write_checkpoint(c))).collect(),
        },
        Event::JobsAdopted { adopted } => EventRecord::JobsAdopted(write_adopted(adopted)),
        Event::JobHeld { job } => EventRecord::JobHeld { job: job.0 },
        Event::JobReleased { job } => EventRecord::JobReleased { job: job.0 },
        Event::JobEligible { job } => EventRecord::JobEligible { job: job.0 },
        Event::DependencyFailed { job } => EventRecord::DependencyFailed { job: job.0 },
        Event::JobCancelled { job } => EventRecord::JobCancelled { job: job.0 },
        Event::ChangeRequested { job, what, by } => {
            EventRecord::ChangeRequested(write_change_request(*job, *what, by))
        }
        Event::JobRetired { job } => EventRecord::JobRetired { job: job.0 },
        Event::JobChanged { job, change } => EventRecord::JobChanged {
            job: job.0,
            priority: change.priority.map(|priority| priority.to_string()),
            time_limit_ms: change.time_limit.map(|limit| limit.0),
        },
        Event::StageYields { lease, preemptor } => EventRecord::StageYields {
            lease: lease.0,
            beneficiary: (preemptor.job.0, preemptor.stage.0),
        },
        Event::QuotasSet { quotas } => EventRecord::QuotasSet(write_quotas(quotas)),
        Event::PlanCommitted { plan } => EventRecord::PlanCommitted { plan: write_plan(plan) },
        Event::PolicyRemembered { memory } => {
            let PolicyMemoryRecord { policy, memory } = write_memory(memory);
            EventRecord::PolicyRemembered { policy, memory }
        }
        Event::StageStarted { lease } => EventRecord::StageStarted { lease: lease.0 },
        Event::Progressed { lease, progress } => {
            EventRecord::Progressed { lease: lease.0, progress: write_progress(progress) }
        }
        Event::Checkpointed { lease, checkpoint } => {
            EventRecord::Checkpointed { lease: lease.0, checkpoint: write_checkpoint(checkpoint) }
        }
        Event::CheckpointRejected { stage, checkpoint } => EventRecord::CheckpointRejected {
            stage: (stage.job.0, stage.stage.0),
            checkpoint: write_checkpoint(checkpoint),
        },
        Event::RetryDue { stage } => EventRecord::RetryDue { stage: (stage.job.0, stage.stage.0) },
        Event::StagePublished { lease } => EventRecord::StagePublished { lease: lease.0 },
        Event::PreparationEnded { lease, end } => write_preparation_ended(*lease, end),
        Event::StageEnded { lease, outcome } => {
            EventRecord::StageEnded { lease: lease.0, outcome: write_outcome(outcome) }
        }
        Event::NodesJoined { nodes } => EventRecord::NodesJoined { nodes: write_topology(nodes) },
        Event::NodeRemoved { name } => EventRecord::NodeRemoved { name: name.to_string() },
        Event::CapacityTaken { node, class, amount } => {
            EventRecord::CapacityTaken { node: node.0, class: *class, amount: amount.0 }
        }
        Event::HostTaken { node, amount } => write_host_taken(*node, *amount),
        Event::NodeLost { node } => EventRecord::NodeLost { node: node.0 },
        Event::NodeReturned { node } => EventRecord::NodeReturned { node: node.0 },
        Event::NodeSuspected { node } => EventRecord::NodeSuspected { node: node.0 },
        Event::NodeCleared { node } => EventRecord::NodeCleared { node: node.0 },
        Event::DeviceFailed { device } => EventRecord::DeviceFailed { device: device.0 },
        Event::DeviceRepaired { device } => EventRecord::DeviceRepaired { device: device.0 },
        Event::DeviceDrained { device } => EventRecord::DeviceDrained { device: device.0 },
        Event::DeviceUndrained { device } => EventRecord::DeviceUndrained { device: device.0 },
        Event::DeviceOccupied { device, by } => {
            EventRecord::DeviceOccupied { device: device.0, by: write_occupant(by) }
        }
        Event::DeviceVacated { device } => EventRecord::DeviceVacated { device: device.0 },
        Event::DeviceDegraded { device, degradation } => write_degraded(*device, degradation),
        Event::DeviceRestored { device } => EventRecord::DeviceRestored { device: device.0 },
    }
}

fn write_degraded(device: DeviceId, degradation: &Degradation) -> EventRecord {
    let degradation = write_degradation(degradation);
    EventRecord::DeviceDegraded { device: device.0, degradation }
}

fn read_degraded(device: u32, record: &DegradationRecord) -> Event {
    let degradation = read_degradation(record);
    Event::DeviceDegraded { device: DeviceId(device), degradation }
}

fn write_host_taken(node: NodeId, amount: HostResources) -> EventRecord {
    EventRecord::HostTaken { node: node.0, amount: amount.into() }
}

fn read_host_taken(node: u32, amount: HostRecord) -> Event {
    Event::HostTaken { node: NodeId(node), amount: amount.into() }
}

fn write_preparation_ended(lease: LeaseId, end: &PreparationEnd) -> EventRecord {
    let failed = match end {
        PreparationEnd::Lost => None,
        PreparationEnd::Failed { reason } => Some(reason.clone()),
    };
    EventRecord::PreparationEnded { lease: lease.0, failed }
}

fn read(record: &EventRecord) -> Result<Event, RecordError> {
    use EventRecord as Stored;
    let lease_id = |lease: &u64| LeaseId(*lease);
    let device_id = |device: &u32| DeviceId(*device);
    Ok(match record {
        Stored::JobSubmitted { job, spec, succeeded, checkpoints } => Event::JobSubmitted {
            job: JobId(*job),
            spec: Arc::new(read_job(spec)?),
            succeeded: succeeded.iter().copied().map(StageIndex).collect(),
            checkpoints: checkpoints.iter().map(read_stage_checkpoint).collect(),
        },
        Stored::JobsAdopted(record) => adoption_of(record)?,
        Stored::JobHeld { job } => Event::JobHeld { job: JobId(*job) },
        Stored::JobReleased { job } => Event::JobReleased { job: JobId(*job) },
        Stored::JobEligible { job } => Event::JobEligible { job: JobId(*job) },
        Stored::DependencyFailed { job } => Event::DependencyFailed { job: JobId(*job) },
        Stored::JobCancelled { job } => Event::JobCancelled { job: JobId(*job) },
        Stored::ChangeRequested(record) => read_change_request(record)?,
        Stored::JobRetired { job } => Event::JobRetired { job: JobId(*job) },
        Stored::JobChanged { job, priority, time_limit_ms } => {
            read_change(*job, priority.as_deref(), *time_limit_ms)?
        }
        Stored::StageYields { lease, beneficiary } => {
            Event::StageYields { lease: lease_id(lease), preemptor: read_stage(*beneficiary) }
        }
        Stored::QuotasSet(record) => Event::QuotasSet { quotas: Arc::new(read_quotas(record)?) },
        Stored::PlanCommitted { plan } => Event::PlanCommitted { plan: Arc::new(read_plan(plan)) },
        Stored::PolicyRemembered { policy, memory } => {
            Event::PolicyRemembered { memory: Arc::new(read_memory(policy, memory)) }
        }
        Stored::StageStarted { lease } => Event::StageStarted { lease: lease_id(lease) },
        Stored::Progressed { lease, progress } => {
            Event::Progressed { lease: lease_id(lease), progress: read_progress(progress) }
        }
        Stored::Checkpointed { lease, checkpoint } => {
            Event::Checkpointed { lease: lease_id(lease), checkpoint: read_checkpoint(checkpoint) }
        }
        Stored::CheckpointRejected { stage, checkpoint } => {
            let (stage, checkpoint) = (read_stage(*stage), read_checkpoint(checkpoint));
            Event::CheckpointRejected { stage, checkpoint }
        }
        Stored::RetryDue { stage } => Event::RetryDue { stage: read_stage(*stage) },
        Stored::StagePublished { lease } => Event::StagePublished { lease: lease_id(lease) },
        Stored::PreparationEnded { lease, failed } => {
            Event::PreparationEnded { lease: lease_id(lease), end: read_end(failed.as_deref()) }
        }
        Stored::StageEnded { lease, outcome } => {
            Event::StageEnded { lease: lease_id(lease), outcome: read_outcome(outcome)? }
        }
        Stored::NodesJoined { nodes } => joined(nodes)?,
        Stored::NodeRemoved { name } => Event::NodeRemoved { name: name.as_str().into() },
        Stored::CapacityTaken { node, class, amount } => {
            Event::CapacityTaken { node: NodeId(*node), class: *class, amount: Share(*amount) }
        }
        Stored::HostTaken { node, amount } => read_host_taken(*node, *amount),
        Stored::NodeLost { node } => Event::NodeLost { node: NodeId(*node) },
        Stored::NodeReturned { node } => Event::NodeReturned { node: NodeId(*node) },
        Stored::NodeSuspected { node } => Event::NodeSuspected { node: NodeId(*node) },
        Stored::NodeCleared { node } => Event::NodeCleared { node: NodeId(*node) },
        Stored::DeviceFailed { device } => Event::DeviceFailed { device: device_id(device) },
        Stored::DeviceRepaired { device } => Event::DeviceRepaired { device: device_id(device) },
        Stored::DeviceDrained { device } => Event::DeviceDrained { device: device_id(device) },
        Stored::DeviceUndrained { device } => Event::DeviceUndrained { device: device_id(device) },
        Stored::DeviceOccupied { device, by } => {
            Event::DeviceOccupied { device: device_id(device), by: read_occupant(by) }
        }
        Stored::DeviceVacated { device } => Event::DeviceVacated { device: device_id(device) },
        Stored::DeviceDegraded { device, degradation } => read_degraded(*device, degradation),
        Stored::DeviceRestored { device } => Event::DeviceRestored { device: device_id(device) },
    })
}

fn adoption_of(record: &AdoptedJobsRecord) -> Result<Event, RecordError> {
    Ok(Event::JobsAdopted { adopted: Arc::new(read_adopted(record)?) })
}

fn joined(nodes: &TopologyRecord) -> Result<Event, RecordError> {
    Ok(Event::NodesJoined { nodes: Arc::new(read_topology(nodes)?) })
}

fn read_end(failed: Option<&str>) -> PreparationEnd {
    match failed {
        Some(reason) => PreparationEnd::Failed { reason: reason.to_owned() },
        None => PreparationEnd::Lost,
    }
}

fn read_change(
    job: u64,
    priority: Option<&str>,
    time_limit_ms: Option<u64>,
) -> Result<Event, RecordError> {
    let priority = priority.map(read_priority).transpose()?;
    let change = JobChange { priority, time_limit: time_limit_ms.map(Millis) };
    Ok(Event::JobChanged { job: JobId(job), change })
}

fn read_stage((job, stage): (u64, u16)) -> StageKey {
    StageKey { job: JobId(job), stage: StageIndex(stage) }
}

fn read_stage_checkpoint((stage, record): &(u16, CheckpointRecord)) -> (StageIndex, Checkpoint) {
    (StageIndex(*stage), read_checkpoint(record))
}

fn read_priority(word: &str) -> Result<Priority, RecordError> {
    by_word(&Priority::ALL, |priority| priority.word(), word)
}

fn write_outcome(outcome: &Outcome) -> OutcomeRecord {
    match outcome {
        Outcome::Finished => OutcomeRecord::Finished,
        Outcome::Stopped => OutcomeRecord::Stopped,
        Outcome::Lost => OutcomeRecord::Lost,
        Outcome::Refused { reason } => OutcomeRecord::Refused { reason: reason.clone() },
        Outcome::Failed(failure) => OutcomeRecord::Failed {
            rank: failure.rank,
            exit_code: failure.exit_code,
            message: failure.message.clone(),
            cause: write_failure_cause(failure.cause),
        },
    }
}

fn read_outcome(record: &OutcomeRecord) -> Result<Outcome, RecordError> {
    Ok(match record {
        OutcomeRecord::Finished => Outcome::Finished,
        OutcomeRecord::Stopped => Outcome::Stopped,
        OutcomeRecord::Lost => Outcome::Lost,
        OutcomeRecord::Refused { reason } => Outcome::Refused { reason: reason.clone() },
        OutcomeRecord::Failed { rank, exit_code, message, cause } => Outcome::Failed(Failure {
            rank: *rank,
            exit_code: *exit_code,
            message: message.clone(),
            cause: read_failure_cause(cause.as_deref())?,
        }),
    })
}
