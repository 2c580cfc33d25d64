//! This machine as the scheduler sees it: what was discovered, with the catalogue's figures.

use std::sync::Arc;

use het_core::{Bytes, Topology};
use het_devices::{Discovery, System, discover};
use het_wire::catalogue;

/// This machine's devices.
#[derive(Debug)]
pub struct Machine {
    pub topology: Arc<Topology>,
    pub discovery: Discovery,
}

/// Looks at this machine.
pub fn this_machine() -> Machine {
    machine(&System::this_machine())
}

fn machine(system: &System) -> Machine {
    let discovery = discover(system);
    let mut topology = discovery.topology.clone();
    for class in &mut topology.classes {
        let known = catalogue::class_by_id(class.id.as_str());
        class.peak_gflops = class.peak_gflops.or(known.and_then(|known| known.peak_gflops));
    }
    for device in &mut topology.devices {
        let class = &topology.classes[device.class];
        if device.memory == Bytes::ZERO && class.kind != "cpu" {
            device.memory = catalogue::memory(class.id.as_str()).unwrap_or(Bytes::ZERO);
        }
    }
    Machine { topology: Arc::new(topology), discovery }
}
