//! Processes of one machine: starting, finding and killing them, and how they ended.

pub(crate) mod containers;
mod exit;
mod kill;
pub(crate) mod procfs;
mod ranks;
mod sys;
mod variables;

pub(crate) use exit::{EXIT_NOT_FOUND, EXIT_SAVED, Exit};
pub(crate) use kill::{ProcessSelector, kill_all, kill_and_wait, signal_groups};
pub use procfs::boot_id;
pub(crate) use ranks::RankProcesses;
pub(crate) use sys::{
    ChildFiles, ExecStatus, InheritedFds, NOTE_BYTES, Note, Program, Spawner, Started,
    become_subreaper, cpu_set, exit_status, pidfd_open,
};
pub use sys::{forbid_core_dumps, give_memory_back, raise_descriptor_limit, share_one_heap};
pub(crate) use variables::{Environment, Environments, Inherited, Variables};
