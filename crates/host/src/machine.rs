//! This machine as the scheduler sees it: what was discovered, with the catalogue's figures.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_agent::{Members, SpawnAgents};
use het_core::{Bytes, DeviceId, Occupant, Topology};
use het_devices::{Discovery, ShareError, System, discover};
use het_node::HoldDevices;
use het_wire::catalogue;
use het_wire::declared::DeclaredDevices;

use crate::declared;

/// This machine's devices.
#[derive(Debug)]
pub struct Machine {
    pub topology: Arc<Topology>,
    pub discovery: Discovery,
    pub system: System,
    /// Devices that are another control loop's, or nobody's, and whose.
    pub reserved: BTreeMap<DeviceId, Occupant>,
    /// How its jobs hold devices, once they were taken.
    pub device_holds: Option<Arc<dyn HoldDevices>>,
    /// As whom its jobs run; none where they run as the server.
    pub users: Option<MachineUsers>,
}

/// The users of a machine as whom jobs run, each by an agent.
#[derive(Debug, Clone)]
pub struct MachineUsers {
    pub members: Members,
    pub spawner: Arc<dyn SpawnAgents>,
}

/// Looks at this machine.
pub fn this_machine() -> Machine {
    machine(System::this_machine())
}

/// Looks at a machine, which may be a recorded one.
pub fn machine(system: System) -> Machine {
    let discovery = discover(&system);
    known(system, discovery)
}

/// What a machine has beside what it is found to have.
#[derive(Debug, Clone, Default)]
pub struct MachineChanges<'a> {
    /// Devices to cut into equal shares: name, and how many.
    pub shares: &'a [(String, u32)],
    pub declared: &'a [DeclaredDevices],
    /// Disk space that jobs may take up, where that is limited.
    pub scratch: Option<Bytes>,
    /// What its disk reads a second, where that is limited.
    pub read: Option<Bytes>,
}

/// Looks at a machine and changes what was found.
///
/// # Errors
/// When there is no device to share by a name, or its driver shares none.
pub fn machine_with(system: System, changes: &MachineChanges<'_>) -> Result<Machine, ShareError> {
    let mut discovery = discover(&system);
    changes.shares.iter().try_for_each(|(device, ways)| discovery.share(device, *ways))?;
    declared::add(&mut discovery, changes.declared);
    for node in &mut discovery.topology.nodes {
        node.host.scratch = changes.scratch.unwrap_or(node.host.scratch);
        node.host.read = changes.read.unwrap_or(node.host.read);
    }
    Ok(known(system, discovery))
}

/// With the catalogue's figures.
fn known(system: System, discovery: Discovery) -> Machine {
    let mut topology = discovery.topology.clone();
    for class in &mut topology.classes {
        class.peak_gflops = class.peak_gflops.or_else(|| catalogue::peak_gflops(class.id.as_str()));
    }
    for device in &mut topology.devices {
        let class = &topology.classes[device.class];
        if device.memory == Bytes::ZERO && class.kind != "cpu" {
            device.memory = catalogue::memory(class.id.as_str()).unwrap_or(Bytes::ZERO);
        }
    }
    Machine {
        topology: Arc::new(topology),
        discovery,
        system,
        reserved: BTreeMap::new(),
        device_holds: None,
        users: None,
    }
}
