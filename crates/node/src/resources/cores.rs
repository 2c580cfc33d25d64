//! Which core ids of each socket are free. No I/O.

use std::collections::BTreeMap;

use het_core::{DeviceId, Grant, Topology};
use serde::{Deserialize, Serialize};

/// Core ids of each socket, in the order they are assigned.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    all: BTreeMap<DeviceId, Vec<u32>>,
    free: BTreeMap<DeviceId, Vec<u32>>,
}

/// The cores of one rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AssignedCores {
    /// Where the rank may run; empty where it is not pinned.
    pub(crate) cores: Vec<u32>,
    owned: Vec<(DeviceId, u32)>,
}

/// [`AssignedCores`] as a record stores them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CoresRecord {
    pub(crate) cores: Vec<u32>,
    pub(crate) owned: Vec<(u32, u32)>,
}

impl Cores {
    #[cfg(test)]
    fn new(all: BTreeMap<DeviceId, Vec<u32>>) -> Self {
        Self { free: all.clone(), all }
    }

    /// The cores of a socket, unless it has some already.
    pub(crate) fn add(&mut self, socket: DeviceId, cores: &[u32]) {
        self.all.entry(socket).or_insert_with(|| cores.to_vec());
        self.free.entry(socket).or_insert_with(|| cores.to_vec());
    }

    /// Takes cores for every CPU grant. A socket that does not have the granted number of whole
    /// cores (fractions of cores, or fewer ids than in the topology) is shared: the rank may use
    /// all of it.
    pub(crate) fn take(&mut self, grants: impl Iterator<Item = Grant>) -> AssignedCores {
        let mut assigned = AssignedCores::default();
        for grant in grants {
            let Some(free) = self.free.get_mut(&grant.device) else { continue };
            let count = grant.share.whole_units() as usize;
            if count == 0 || count > free.len() {
                assigned.cores.extend(&self.all[&grant.device]);
                continue;
            }
            for core in free.drain(..count) {
                assigned.cores.push(core);
                assigned.owned.push((grant.device, core));
            }
        }
        assigned.cores.sort_unstable();
        assigned.cores.dedup();
        assigned
    }

    /// Takes the recorded cores of a rank again, where they are free.
    pub(crate) fn take_again(&mut self, cores: &CoresRecord) -> AssignedCores {
        let mut assigned = AssignedCores { cores: cores.cores.clone(), owned: Vec::new() };
        for &(device, core) in &cores.owned {
            let device = DeviceId(device);
            let Some(free) = self.free.get_mut(&device) else { continue };
            if let Some(at) = free.iter().position(|&other| other == core) {
                free.remove(at);
                assigned.owned.push((device, core));
            }
        }
        assigned
    }

    pub(crate) fn put_back(&mut self, assigned: &AssignedCores) {
        for &(device, core) in &assigned.owned {
            let (Some(free), Some(all)) = (self.free.get_mut(&device), self.all.get(&device))
            else {
                continue;
            };
            free.push(core);
            free.sort_by_key(|core| all.iter().position(|other| other == core));
        }
    }
}

impl AssignedCores {
    pub(crate) fn record(&self) -> CoresRecord {
        let owned = self.owned.iter().map(|&(device, core)| (device.0, core)).collect();
        CoresRecord { cores: self.cores.clone(), owned }
    }
}

impl CoresRecord {
    pub(crate) fn assigned(&self) -> AssignedCores {
        let owned = self.owned.iter().map(|&(device, core)| (DeviceId(device), core)).collect();
        AssignedCores { cores: self.cores.clone(), owned }
    }
}

/// Whole cores among the grants.
pub(crate) fn count_cores(topology: &Topology, grants: impl Iterator<Item = Grant>) -> u32 {
    grants.filter(|grant| is_cpu(topology, grant.device)).map(|g| g.share.whole_units()).sum()
}

pub(crate) fn is_cpu(topology: &Topology, device: DeviceId) -> bool {
    topology.class_of(device).kind == "cpu"
}

#[cfg(test)]
mod tests {
    use het_core::Share;

    use super::*;

    const SOCKET: DeviceId = DeviceId(0);

    fn cpu(units: u32) -> impl Iterator<Item = Grant> {
        std::iter::once(Grant { device: SOCKET, share: Share::units(units) })
    }

    fn ledger() -> Cores {
        Cores::new(BTreeMap::from([(SOCKET, vec![4, 6, 5, 7])]))
    }

    #[test]
    fn two_ranks_get_different_cores_in_the_given_order() {
        let mut ledger = ledger();
        assert_eq!(ledger.take(cpu(2)).cores, [4, 6]);
        assert_eq!(ledger.take(cpu(2)).cores, [5, 7]);
    }

    #[test]
    fn cores_come_back_in_the_given_order() {
        let mut ledger = ledger();
        let first = ledger.take(cpu(3));
        ledger.put_back(&first);
        assert_eq!(ledger.take(cpu(2)).cores, [4, 6]);
    }

    #[test]
    fn a_rank_that_asks_for_more_than_is_free_shares_the_socket() {
        let mut ledger = ledger();
        let first = ledger.take(cpu(3));
        let second = ledger.take(cpu(2));
        assert_eq!(second.cores, [4, 5, 6, 7]);
        ledger.put_back(&second);
        ledger.put_back(&first);
        assert_eq!(ledger.take(cpu(4)).cores, [4, 5, 6, 7]);
    }

    #[test]
    fn a_device_without_core_ids_is_not_pinned() {
        let accelerator = Grant { device: DeviceId(9), share: Share::WHOLE };
        assert_eq!(ledger().take(std::iter::once(accelerator)), AssignedCores::default());
    }
}
