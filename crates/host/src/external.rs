//! External processes, which use devices and are of no job, and devices that their drivers report
//! as failed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use het_core::{DeviceId, Event, Occupant, State};
use het_devices::DeviceObservation;
use het_node::{LiveLeases, ProcessOwner};
use nix::unistd::{Uid, User};

/// How the names of processes of NVIDIA's Multi-Process Service begin: they use a shared device on
/// behalf of everybody.
const SHARING_SERVICE: &str = "nvidia-cuda-mps";

/// What was reported to the control loop.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    occupied: BTreeSet<DeviceId>,
    broken: BTreeSet<DeviceId>,
    /// Processes of the sample before, by device.
    seen: BTreeSet<(DeviceId, u32)>,
    /// Devices that this control loop was not given.
    reserved: BTreeMap<DeviceId, Occupant>,
}

impl Reported {
    /// What a state says, and devices that are kept from its control loop.
    pub fn new(state: &State, reserved: BTreeMap<DeviceId, Occupant>) -> Self {
        let device_ids = || state.topology().device_ids();
        Self {
            occupied: device_ids().filter(|&id| state.occupant(id).is_some()).collect(),
            broken: device_ids().filter(|&id| state.has_failed(id)).collect(),
            seen: reserved.iter().map(|(&device, by)| (device, by.process)).collect(),
            reserved,
        }
    }

    /// Whether the next sample says more about processes that the last one found.
    pub fn awaits_confirmation(&self) -> bool {
        self.seen.len() > self.reserved.len()
    }

    /// What fails from now on is reported anew.
    pub fn repaired(&mut self, device: DeviceId) {
        self.broken.remove(&device);
    }

    /// What changed since the sample before.
    pub fn news(
        &mut self,
        observation: &DeviceObservation,
        leases: impl FnOnce() -> LiveLeases,
    ) -> Vec<Event> {
        self.changes(observation, &external(observation, leases))
    }

    fn changes(&mut self, observation: &DeviceObservation, external: &External) -> Vec<Event> {
        let mut news = Vec::new();
        let mut all = external.clone();
        all.extend(self.reserved.iter().map(|(&device, by)| (device, vec![by.clone()])));
        let external = &all;
        for (&device, found) in external.iter().filter(|(id, _)| !self.occupied.contains(id)) {
            // A job's own process may look external for a moment at its start: two samples count.
            let by = found.iter().find(|by| self.seen.contains(&(device, by.process)));
            news.extend(by.map(|by| Event::DeviceOccupied { device, by: by.clone() }));
        }
        let left = self.occupied.iter().filter(|id| !external.contains_key(id));
        news.extend(left.map(|&device| Event::DeviceVacated { device }));
        for event in &news {
            match event {
                Event::DeviceOccupied { device, .. } => self.occupied.insert(*device),
                Event::DeviceVacated { device } => self.occupied.remove(device),
                _ => false,
            };
        }
        // A failed device stays failed until an operator says otherwise: `het devices undrain`.
        let broke = observation.faults.keys().filter(|id| self.broken.insert(**id));
        news.extend(broke.map(|&device| Event::DeviceFailed { device }));
        let at = |(id, found): (&DeviceId, &Vec<Occupant>)| {
            found.iter().map(|by| (*id, by.process)).collect::<Vec<_>>()
        };
        self.seen = external.iter().flat_map(at).collect();
        news
    }
}

/// External processes by device.
type External = BTreeMap<DeviceId, Vec<Occupant>>;

fn external(observation: &DeviceObservation, leases: impl FnOnce() -> LiveLeases) -> External {
    if observation.processes.is_empty() {
        return External::new();
    }
    let leases = leases();
    let at = |users: &BTreeSet<u32>| {
        let found = users.iter().filter(|&&pid| leases.owner_of(pid) == ProcessOwner::External);
        let found = found.map(|&pid| occupant(pid));
        found.filter(|by| !by.command.as_str().starts_with(SHARING_SERVICE)).collect::<Vec<_>>()
    };
    let found = observation.processes.iter().map(|(&id, users)| (id, at(users)));
    found.filter(|(_, found)| !found.is_empty()).collect()
}

/// Whose a process is, and what it runs.
pub(crate) fn occupant(process: u32) -> Occupant {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let uid = uid.and_then(|ids| ids.split_whitespace().next()?.parse().ok());
    let name = |uid| User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
    let user = uid.map(|uid: u32| name(uid).unwrap_or_else(|| uid.to_string()));
    let command = fs::read_to_string(format!("/proc/{process}/comm"));
    let command = command.map(|text| text.trim().to_owned());
    Occupant {
        process,
        user: user.unwrap_or_else(|| "somebody".to_owned()).into(),
        command: command.unwrap_or_else(|_| "a process".to_owned()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(broken: &[u32]) -> DeviceObservation {
        let faults = broken.iter().map(|&id| (DeviceId(id), "Xid 79".to_owned())).collect();
        DeviceObservation { faults, ..DeviceObservation::default() }
    }

    fn external_process(device: u32, process: u32) -> (External, Event) {
        let by = Occupant { process, user: "ada".into(), command: "python".into() };
        let device = DeviceId(device);
        let found = External::from([(device, vec![by.clone()])]);
        (found, Event::DeviceOccupied { device, by })
    }

    #[test]
    fn an_external_process_is_reported_when_it_is_seen_twice() {
        let mut reported = Reported::default();
        let (ada, came) = external_process(1, 7);
        let (other, _) = external_process(1, 8);
        let nobody = External::new();
        let mut look = |external| reported.changes(&observed(&[]), external);
        assert_eq!([look(&ada), look(&nobody), look(&ada), look(&other)], [const { vec![] }; 4]);
        assert_eq!([look(&ada), look(&ada), look(&ada)], [vec![], vec![came], vec![]]);
        let left = Event::DeviceVacated { device: DeviceId(1) };
        assert_eq!([look(&other), look(&nobody), look(&nobody)], [vec![], vec![left], vec![]]);
    }

    #[test]
    fn a_fault_is_reported_once_and_again_after_a_repair() {
        let mut reported = Reported::default();
        let failed = Event::DeviceFailed { device: DeviceId(0) };
        let nobody = External::new();
        assert_eq!(reported.changes(&observed(&[0]), &nobody), std::slice::from_ref(&failed));
        assert_eq!(reported.changes(&observed(&[]), &nobody), []);
        assert_eq!(reported.changes(&observed(&[0]), &nobody), []);
        reported.broken.remove(&DeviceId(0));
        assert_eq!(reported.changes(&observed(&[]), &nobody), []);
        assert_eq!(reported.changes(&observed(&[0]), &nobody), [failed]);
    }

    #[test]
    fn a_process_has_an_owner_and_a_name() {
        let own = occupant(std::process::id());
        assert_ne!(own.user, "somebody");
        assert_ne!(own.command, "a process");
    }
}
