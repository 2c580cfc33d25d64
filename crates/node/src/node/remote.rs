//! What an engine is asked by another process that decides for it: starts with resources that were
//! chosen there, and ends that are durable one by one.

use std::collections::BTreeSet;
use std::io;

use het_core::{LeaseId, Name, Placement};
use het_engine::Waker;

use super::Node;
use crate::cgroup::DeviceAccess;
use crate::launch::all_grants;
use crate::resources::GangResources;

impl Node {
    /// Chooses the port and the cores of a gang that another engine of this machine is to start.
    ///
    /// # Errors
    /// When no port is free.
    pub fn choose(&mut self, placement: &Placement) -> io::Result<GangResources> {
        let (port, cores) = self.choose_resources(placement)?;
        Ok(GangResources::of(port, &cores))
    }

    /// Takes what was chosen for a gang that another engine has adopted, as far as it is free.
    pub fn choose_again(&mut self, resources: &GangResources) {
        self.ports.take_again(resources.port);
        resources.cores.iter().for_each(|cores| {
            self.cores.take_again(cores);
        });
    }

    /// Takes back what was chosen for a gang of another engine.
    pub fn put_back(&mut self, resources: &GangResources) {
        self.free(&resources.assigned(), resources.port);
    }

    /// Which device nodes what runs at these placements may open.
    pub fn access_of<'a>(&self, placements: impl Iterator<Item = &'a Placement>) -> DeviceAccess {
        let ranks = placements.flat_map(|placement| &placement.ranks);
        let granted: Vec<&Name> = ranks
            .flat_map(all_grants)
            .map(|grant| &self.topology.device(grant.device).name)
            .collect();
        self.context.cgroups.device_nodes().access_of(&granted)
    }

    /// As [`het_engine::Engine::waker`], but not a reason for the engine to wait.
    pub fn silent_waker(&self) -> Waker {
        self.receiver.silent_waker()
    }

    /// What a gang of this engine has.
    pub fn resources_of(&self, lease: LeaseId) -> Option<GangResources> {
        let gang = self.gangs.get(&lease)?;
        Some(GangResources::of(gang.port(), gang.cores()))
    }

    /// The ends of these leases, which [`het_engine::Engine::next_event`] gave, are durable.
    pub fn committed_of(&mut self, leases: &BTreeSet<LeaseId>) {
        let durable = self.uncommitted.extract_if(.., |(lease, _)| leases.contains(lease));
        self.context.cleanups.extend(durable.map(|(_, cleanup)| cleanup));
    }
}
