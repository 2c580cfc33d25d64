//! What outlives a supervisor: records of leases, how they are found again, and the process that
//! restarts a supervisor.

mod abandoned;
mod owner;
mod processor_time;
mod reap;
mod record;
mod record_file;
mod restarter;

pub(crate) use abandoned::{AbandonedLease, readable, refuse_later_records, remove_blank_files};
pub use owner::{LiveLeases, ProcessOwner};
pub use processor_time::{ProcessorTime, SessionTime};
pub use reap::Reaped;
pub(crate) use reap::reap;
pub(crate) use record::{RECORD_VERSION, Record, boot_ticks};
pub(crate) use record_file::{RecordFile, RecordFiles};
pub use restarter::{forward_signal, run_restarter};
