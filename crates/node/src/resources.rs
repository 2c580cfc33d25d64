//! Cores and ports that an engine assigns to gangs.

mod cores;
mod ports;

pub(crate) use cores::{AssignedCores, Cores, CoresRecord, count_cores, is_cpu};
pub(crate) use ports::Ports;
