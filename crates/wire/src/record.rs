//! Records of the event log: facts and plans as JSON, one shape a version; and snapshots, what a
//! log adds up to.
//!
//! The shapes stand apart from `core` so that a rename there cannot make an old log unreadable.

mod adoption;
mod degradation;
mod error;
mod event;
mod failure;
mod handover;
mod host;
mod kept_job;
mod lease;
mod memory;
mod occupant;
mod plan;
mod progress;
mod quotas;
mod request;
mod snapshot;
mod spec;
mod start;
mod topology;
mod words;

pub use error::RecordError;
pub use event::Record;
pub use handover::{HandedOver, JobHandover, NUMBER_MAX};
pub use host::HostRecord;
pub use snapshot::{
    ElasticClassRecord, LearnedRecord, ObservedElasticRecord, ObservedRecord, ObservedTimeRecord,
    SeenStepRecord, Snapshot, SnapshotError,
};
pub use topology::{TopologyRecord, read_topology, write_topology};
