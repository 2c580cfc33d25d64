//! Who uses devices beside all jobs, and which devices their drivers call broken: facts for the
//! loop, from a thread that looks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use het_core::{DeviceId, Event, Occupant, State};
use het_devices::{Lookout, Sight};
use het_node::{Inlet, is_of_lease};
use nix::unistd::{Uid, User};

use crate::Machine;

/// How often it is looked, unless a driver tells of a fault before.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What the loop was told.
#[derive(Debug, Default)]
struct Told {
    occupied: BTreeSet<DeviceId>,
    broken: BTreeSet<DeviceId>,
}

/// Looks once, and then for as long as this process lives. Gives what is to be known before the
/// first decision; the rest goes through the inlet.
pub(crate) fn watch(
    machine: &Machine,
    state: &State,
    run_dir: PathBuf,
    inlet: Inlet,
) -> Vec<Event> {
    let devices = || state.topology().device_ids();
    let mut told = Told {
        occupied: devices().filter(|&id| state.occupant(id).is_some()).collect(),
        broken: devices().filter(|&id| state.has_failed(id)).collect(),
    };
    let Some(mut lookout) = Lookout::open(&machine.system, &machine.discovery) else {
        // Who used a device that is gone does so no longer.
        return told.news(Sight::default(), &BTreeMap::new());
    };
    let sight = lookout.look();
    let foreigners = foreigners(&sight, &run_dir);
    let first = told.news(sight, &foreigners);
    let look = move || loop {
        let sight = lookout.look_after(LOOK_EVERY);
        let foreigners = self::foreigners(&sight, &run_dir);
        for event in told.news(sight, &foreigners) {
            inlet.send(event);
        }
    };
    // Without the thread devices are only looked at when a server starts.
    let _ = thread::Builder::new().name("lookout".to_owned()).spawn(look);
    first
}

impl Told {
    /// What changed since the last look.
    fn news(&mut self, sight: Sight, foreigners: &BTreeMap<DeviceId, Occupant>) -> Vec<Event> {
        let came = foreigners.iter().filter(|(id, _)| !self.occupied.contains(id));
        let came = came.map(|(&device, by)| Event::DeviceOccupied { device, by: by.clone() });
        let left = self.occupied.iter().filter(|id| !foreigners.contains_key(id));
        let left = left.map(|&device| Event::DeviceVacated { device });
        // One that is broken stays so until somebody says otherwise: `het devices undrain`.
        let broke = sight.broken.keys().filter(|id| !self.broken.contains(id));
        let broke = broke.map(|&device| Event::DeviceFailed { device });
        let news = came.chain(left).chain(broke).collect();
        self.occupied = foreigners.keys().copied().collect();
        self.broken.extend(sight.broken.into_keys());
        news
    }
}

/// The first process on each device that is of no job.
fn foreigners(sight: &Sight, run_dir: &Path) -> BTreeMap<DeviceId, Occupant> {
    let first = |users: &BTreeSet<u32>| {
        let foreign = users.iter().find(|&&pid| !is_of_lease(pid, run_dir));
        foreign.map(|&process| occupant(process))
    };
    sight.users.iter().filter_map(|(&id, users)| Some((id, first(users)?))).collect()
}

fn occupant(process: u32) -> Occupant {
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

    fn sight(broken: &[u32]) -> Sight {
        let broken = broken.iter().map(|&id| (DeviceId(id), "Xid 79".to_owned())).collect();
        Sight { broken, ..Sight::default() }
    }

    #[test]
    fn only_changes_are_news() {
        let mut told = Told::default();
        let by = Occupant { process: 7, user: "ada".into(), command: "python".into() };
        let busy = BTreeMap::from([(DeviceId(1), by.clone())]);
        let device = DeviceId(1);
        assert_eq!(told.news(sight(&[]), &busy), [Event::DeviceOccupied { device, by }]);
        assert_eq!(told.news(sight(&[]), &busy), []);
        let free = BTreeMap::new();
        let failed = Event::DeviceFailed { device: DeviceId(0) };
        assert_eq!(told.news(sight(&[0]), &free), [Event::DeviceVacated { device }, failed]);
        assert_eq!(told.news(sight(&[0]), &free), []);
    }

    #[test]
    fn a_process_has_an_owner_and_a_name() {
        let own = occupant(std::process::id());
        assert_ne!(own.user, "somebody");
        assert_ne!(own.command, "a process");
    }
}
