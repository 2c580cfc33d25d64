//! What outlives a supervisor: records of leases and of the ends of their processes, how they are
//! found again, and the process that restarts a supervisor.

mod abandoned;
mod exit_log;
mod owner;
mod reap;
mod record;
mod record_file;
mod restarter;

pub(crate) use abandoned::{AbandonedLease, readable, remove_blank_files};
pub(crate) use exit_log::ExitLog;
pub use owner::{LiveLeases, ProcessOwner};
pub use reap::Reaped;
pub(crate) use reap::reap;
pub(crate) use record::{Identity, Record, boot_ticks};
pub(crate) use record_file::{RecordFile, RecordFiles};
pub use restarter::{forward_signal, run_restarter};
