//! What an engine needs to know about its machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use het_core::{DeviceId, NodeId, Topology};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use crate::cgroup::ControlGroups;
use crate::error::NodeError;
use crate::launch::{ContainerAccess, VisibleEnv};

/// What an engine needs to know about its machine.
#[derive(Debug, Clone)]
pub struct Config {
    pub topology: Arc<Topology>,
    /// Which node of the topology this machine is.
    pub node: NodeId,
    /// Core ids of each CPU socket, in the order they are assigned. Processes on a socket without
    /// an entry are not pinned.
    pub cores: BTreeMap<DeviceId, Vec<u32>>,
    pub visible_env: VisibleEnv,
    pub container_access: ContainerAccess,
    /// Directory for files of live leases, which are void after a reboot. It is created if needed.
    /// No other engine may use it at the same time.
    pub run_dir: PathBuf,
    /// Whether ranks get control groups.
    pub control_groups: ControlGroups,
    /// A program that every rank runs before its own, with the same devices. If it fails, or takes
    /// longer than a minute, the devices have failed.
    pub health_check: Option<PathBuf>,
    /// Where a restarter records how processes ended whose supervisor had died; see
    /// [`crate::run_restarter`].
    pub exits: Option<PathBuf>,
}

impl Config {
    /// # Errors
    /// When it does not fit the topology or this process.
    pub(crate) fn check(&self) -> Result<(), NodeError> {
        let (topology, node) = (&self.topology, self.node);
        if node.index() >= topology.nodes.len() {
            return Err(NodeError::NoSuchNode { node });
        }
        let allowed = sched_getaffinity(Pid::from_raw(0)).map_err(NodeError::Affinity)?;
        let sockets: BTreeSet<DeviceId> = topology.sockets(node).collect();
        let mut seen = BTreeSet::new();
        for (&device, cores) in &self.cores {
            if !sockets.contains(&device) {
                return Err(NodeError::NotASocket { device, node });
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
