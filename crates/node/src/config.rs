//! What an engine needs to know about its machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use het_core::{DeviceId, LeaseId, Name, NodeId, Time, Topology};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cgroup::{ControlGroups, RunMode};
use crate::device_holds::HoldDevices;
use crate::error::NodeError;
use crate::heartbeat::Heartbeat;
use crate::inputs::InputCopies;
use crate::launch::{ContainerAccess, VisibleEnv};

/// What an engine needs to know about its machine.
#[derive(Debug, Clone)]
pub struct Config {
    /// This machine as it was found: one node.
    pub found: Arc<Topology>,
    /// Core ids of each CPU socket of it, in the order they are assigned. Processes on a socket
    /// without an entry are not pinned.
    pub cores: BTreeMap<DeviceId, Vec<u32>>,
    pub visible_env: VisibleEnv,
    pub container_access: ContainerAccess,
    /// The nodes below `/dev` that open an accelerator of it, by device name. Where control groups
    /// can say so, ranks open only those of devices that they were granted.
    pub device_nodes: BTreeMap<Name, Vec<PathBuf>>,
    /// Directory for files of live leases, which are void after a reboot. It is created if needed.
    /// No other engine may use it at the same time.
    pub run_dir: PathBuf,
    /// What its clock shows when it begins. From then on it goes on with the time since boot,
    /// however the machine's clock is set.
    pub begins_at: Time,
    /// Whether ranks get control groups.
    pub control_groups: ControlGroups,
    pub settings: NodeSettings,
    pub mode: RunMode,
    /// None where nobody else uses the machine.
    pub device_holds: Option<Arc<dyn HoldDevices>>,
    /// Says what the caller's thread is doing here.
    pub heartbeat: Heartbeat,
    /// Of an earlier engine: their programs are killed rather than adopted, and their files are not
    /// looked at.
    pub quarantined: BTreeSet<LeaseId>,
}

/// What the operator of a machine asks for all programs on it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeSettings {
    /// A program that every rank runs before its own, with the same devices. If it fails, or takes
    /// longer than a minute, the devices have failed.
    pub health_check: Option<PathBuf>,
    pub input_copies: InputCopies,
}

impl Config {
    /// # Errors
    /// When it does not fit this machine or this process.
    pub(crate) fn check(&self) -> Result<(), NodeError> {
        if self.found.nodes.len() != 1 {
            return Err(NodeError::NotOneNode { count: self.found.nodes.len() });
        }
        let allowed = sched_getaffinity(Pid::from_raw(0)).map_err(NodeError::Affinity)?;
        let sockets: BTreeSet<DeviceId> = self.found.sockets(NodeId(0)).collect();
        let mut seen = BTreeSet::new();
        for (&device, cores) in &self.cores {
            if !sockets.contains(&device) {
                return Err(NodeError::NotASocket { device });
            }
            for &core in cores {
                if !allowed.is_set(core as usize).unwrap_or(false) {
                    return Err(NodeError::ForbiddenCore { device, core });
                }
                if !seen.insert(core) {
                    return Err(NodeError::DuplicateCore { core });
                }
            }
        }
        Ok(())
    }
}
