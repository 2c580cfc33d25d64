//! Cores and ports that an engine assigns to gangs.

mod cores;
mod ports;

use serde::{Deserialize, Serialize};

pub(crate) use cores::{AssignedCores, Cores, CoresRecord, count_cores, is_cpu};
pub(crate) use ports::Ports;

/// What one engine of a machine chose for a gang, so that others choose something else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangResources {
    /// On which its first rank listens.
    pub(crate) port: u16,
    /// By rank.
    pub(crate) cores: Vec<CoresRecord>,
}

impl GangResources {
    pub(crate) fn of(port: u16, cores: &[AssignedCores]) -> Self {
        Self { port, cores: cores.iter().map(AssignedCores::record).collect() }
    }

    /// By rank.
    pub(crate) fn assigned(&self) -> Vec<AssignedCores> {
        self.cores.iter().map(CoresRecord::assigned).collect()
    }
}
