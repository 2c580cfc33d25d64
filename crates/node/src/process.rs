//! Processes of one machine: starting, finding and killing them, and how they ended.

pub(crate) mod containers;
mod exit;
mod identity;
mod kill;
mod launcher;
pub mod messages;
mod of_user;
mod orphans;
mod pinning;
pub(crate) mod procfs;
mod slots;
mod sys;
mod variables;

pub(crate) use exit::{EXIT_NOT_FOUND, EXIT_SAVED, Exit};
pub(crate) use identity::Identity;
pub(crate) use kill::{ProcessSelector, kill_all, kill_and_wait, signal_groups};
pub use launcher::launcher_main;
pub(crate) use launcher::{
    GangFiles, Launcher, Others, RankDescriptors, RankProgram, Report, ShimConnection, Told, hold,
    read_report, settle, start_rank,
};
pub use of_user::kill_processes_of;
pub(crate) use orphans::Orphans;
pub(crate) use pinning::pin_tree;
pub use procfs::boot_id;
pub(crate) use slots::{EndNote, Slots, StartupNote, slots_bytes};
pub(crate) use sys::{InheritedFds, become_subreaper, exit_status, pidfd_open};
pub use sys::{forbid_core_dumps, name_process, raise_descriptor_limit};
pub(crate) use variables::{Environment, Environments, Inherited, Variables};
