//! Turns the specification of a gang into running programs: arguments, environment, containers.

mod command_line;
mod container;
mod device_numbers;
mod environment;
mod failure;
mod files;
mod health_check;
mod launcher;
mod lookup;
mod output_directory;
mod spawn;
mod spec;

pub(crate) use environment::{Given, RANK, grant_text, variables};
pub(crate) use failure::{cannot_write, explain_exec_error, outcome_of_start};
pub(crate) use launcher::counts_devices;
pub(crate) use spawn::{create_directories, spawn};
pub use spec::{ContainerAccess, VisibleEnv};
pub(crate) use spec::{Devices, GangSpec, all_grants};
