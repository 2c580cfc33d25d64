//! What can be asked of a service, and what can be changed, whoever carries the call.

mod devices;
mod jobs;
mod measured_needs;
mod preemption;
mod quotas;
mod requeue;
mod start;
mod submission;

pub use devices::{Availability, device_named, device_rows, set_availability};
pub use jobs::{Operation, array_of, change_job, explain, find, live_report, operate, select};
pub use measured_needs::with_measured_needs;
pub use preemption::{preempt, preview_preemption};
pub use quotas::{check_priority, quota_rows, scratch_max, set_quotas};
pub use requeue::{requeue, requeue_source};
pub use start::{Waiting, Waits, waits};
pub use submission::{LIVE_JOBS_MAX, LIVE_JOBS_OF_A_TENANT, room, submit};
