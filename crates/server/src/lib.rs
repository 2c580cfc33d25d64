//! The composition root: this machine's devices, the node engine, the event store and the control
//! loop, tied together: for one job (`het run`) or as a service for many (`het server`).
//!
//! Knows: which parts make a running system, where they keep their files, and how they are asked.
//! Must never know: the inside of a policy.

pub mod api;
pub mod bench;
mod calibrations;
mod embedded;
mod home;
mod inventory;
mod lookout;
mod machine;
mod orphans;
mod planned;
mod report;
mod scheduling;
pub mod service;
mod store;
mod turnstile;

pub use het_node::{
    ControlGroupFinding, control_groups, keep, pass_on, raise_descriptor_limit, share_one_heap,
};

pub use calibrations::{CalibrationFault, Calibrations};
pub use embedded::{Embedded, Impossible, Remedy, RunError, impossible};
pub use home::{Home, HomeError, JobDir};
pub use machine::{Machine, machine, machine_with_shares, this_machine};
pub use orphans::{Orphans, orphans};
pub use planned::{models, plan};
pub use report::{Detail, explanation, explanation_of_record, report};
pub use scheduling::Scheduling;
pub use store::{
    Draft, EventStore, Keeping, Mark, Recovered, SnapshotFault, StoreError, StoreReader,
};
pub use turnstile::{Busy, Turnstile};
