//! Who uses devices beside all jobs, and which devices their drivers call broken: facts for the
//! loop, from a thread that looks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use het_core::{DeviceId, Event, Occupant, State};
use het_devices::{Discovery, Lookout, Sight, System};
use het_node::{Inlet, LiveLeases, Owner};
use nix::unistd::{Uid, User};

/// How often it is looked, unless a driver tells of a fault before.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long after the first look the second one comes that makes sure, before anything starts.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The beginning of what the processes of NVIDIA's Multi-Process Service are called: they stand on
/// a shared device for everybody.
const SHARING_SERVICE: &str = "nvidia-cuda-mps";

/// What the loop was told.
#[derive(Debug, Default)]
struct Told {
    occupied: BTreeSet<DeviceId>,
    broken: BTreeSet<DeviceId>,
    /// Who was seen at the look before, at which device.
    seen: BTreeSet<(DeviceId, u32)>,
}

/// What there is to be known before the first decision, and who is to hear of repairs.
pub(crate) struct Watch {
    pub(crate) first: Vec<Event>,
    pub(crate) repairs: Repairs,
}

/// Tells the one who looks which devices somebody says are whole again: what befalls them from then
/// on is news.
#[derive(Debug)]
pub(crate) struct Repairs(Sender<DeviceId>);

impl Repairs {
    pub(crate) fn tell(&self, event: &Event) {
        if let Event::DeviceRepaired { device } = event {
            // Where nobody looks, nobody needs to know.
            let _ = self.0.send(*device);
        }
    }
}

/// Looks now, and then for as long as this process lives. Gives what is to be known before the
/// first decision; the rest goes through the inlet.
pub(crate) fn watch(
    system: &System,
    discovery: &Discovery,
    state: &State,
    run_dir: PathBuf,
    inlet: Inlet,
) -> Watch {
    let devices = || state.topology().device_ids();
    let mut told = Told {
        occupied: devices().filter(|&id| state.occupant(id).is_some()).collect(),
        broken: devices().filter(|&id| state.has_failed(id)).collect(),
        seen: BTreeSet::new(),
    };
    let (tell, repaired) = channel();
    let repairs = Repairs(tell);
    let Some(mut lookout) = Lookout::open(system, discovery) else {
        // Who used a device that is gone does so no longer.
        return Watch { first: told.news(&Sight::default(), &Strangers::new()), repairs };
    };
    let mut first = look_now(&mut lookout, &mut told, &run_dir);
    if !told.seen.is_empty() {
        thread::sleep(LOOK_AGAIN);
        first.extend(look_now(&mut lookout, &mut told, &run_dir));
    }
    let look = move || go_on_looking(lookout, told, &run_dir, &repaired, &inlet);
    // Without the thread devices are only looked at when a server starts.
    let _ = thread::Builder::new().name("lookout".to_owned()).spawn(look);
    Watch { first, repairs }
}

fn look_now(lookout: &mut Lookout, told: &mut Told, run_dir: &Path) -> Vec<Event> {
    let sight = lookout.look();
    told.news(&sight, &strangers(&sight, run_dir))
}

fn go_on_looking(
    mut lookout: Lookout,
    mut told: Told,
    run_dir: &Path,
    repaired: &Receiver<DeviceId>,
    inlet: &Inlet,
) {
    loop {
        let sight = lookout.look_after(LOOK_EVERY);
        for device in repaired.try_iter() {
            told.broken.remove(&device);
        }
        for event in told.news(&sight, &strangers(&sight, run_dir)) {
            inlet.send(event);
        }
    }
}

impl Told {
    /// What changed since the last look.
    fn news(&mut self, sight: &Sight, strangers: &Strangers) -> Vec<Event> {
        let mut news = Vec::new();
        for (&device, found) in strangers.iter().filter(|(id, _)| !self.occupied.contains(id)) {
            // Once may be a moment in the life of a job's process: one that is seen twice stays.
            let by = found.iter().find(|by| self.seen.contains(&(device, by.process)));
            news.extend(by.map(|by| Event::DeviceOccupied { device, by: by.clone() }));
        }
        let left = self.occupied.iter().filter(|id| !strangers.contains_key(id));
        news.extend(left.map(|&device| Event::DeviceVacated { device }));
        for event in &news {
            match event {
                Event::DeviceOccupied { device, .. } => self.occupied.insert(*device),
                Event::DeviceVacated { device } => self.occupied.remove(device),
                _ => false,
            };
        }
        // One that is broken stays so until somebody says otherwise: `het devices undrain`.
        let broke = sight.broken.keys().filter(|id| self.broken.insert(**id));
        news.extend(broke.map(|&device| Event::DeviceFailed { device }));
        let at = |(id, found): (&DeviceId, &Vec<Occupant>)| {
            found.iter().map(|by| (*id, by.process)).collect::<Vec<_>>()
        };
        self.seen = strangers.iter().flat_map(at).collect();
        news
    }
}

/// Who uses which device and is of no job.
type Strangers = BTreeMap<DeviceId, Vec<Occupant>>;

fn strangers(sight: &Sight, run_dir: &Path) -> Strangers {
    if sight.users.is_empty() {
        return Strangers::new();
    }
    let leases = LiveLeases::read(run_dir);
    let at = |users: &BTreeSet<u32>| {
        let found = users.iter().filter(|&&pid| leases.owner_of(pid) == Owner::Stranger);
        let found = found.map(|&pid| occupant(pid));
        found.filter(|by| !by.command.as_str().starts_with(SHARING_SERVICE)).collect::<Vec<_>>()
    };
    let found = sight.users.iter().map(|(&id, users)| (id, at(users)));
    found.filter(|(_, found)| !found.is_empty()).collect()
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

    fn stranger(device: u32, process: u32) -> (Strangers, Event) {
        let by = Occupant { process, user: "ada".into(), command: "python".into() };
        let device = DeviceId(device);
        let found = Strangers::from([(device, vec![by.clone()])]);
        (found, Event::DeviceOccupied { device, by })
    }

    #[test]
    fn a_stranger_is_news_when_he_is_seen_twice() {
        let mut told = Told::default();
        let (ada, came) = stranger(1, 7);
        let (other, _) = stranger(1, 8);
        let nobody = Strangers::new();
        let mut look = |strangers| told.news(&sight(&[]), strangers);
        assert_eq!([look(&ada), look(&nobody), look(&ada), look(&other)], [const { vec![] }; 4]);
        assert_eq!([look(&ada), look(&ada), look(&ada)], [vec![], vec![came], vec![]]);
        let left = Event::DeviceVacated { device: DeviceId(1) };
        assert_eq!([look(&other), look(&nobody), look(&nobody)], [vec![], vec![left], vec![]]);
    }

    #[test]
    fn a_fault_is_news_once_and_again_after_a_repair() {
        let mut told = Told::default();
        let failed = Event::DeviceFailed { device: DeviceId(0) };
        let nobody = Strangers::new();
        assert_eq!(told.news(&sight(&[0]), &nobody), std::slice::from_ref(&failed));
        assert_eq!(told.news(&sight(&[]), &nobody), []);
        assert_eq!(told.news(&sight(&[0]), &nobody), []);
        told.broken.remove(&DeviceId(0));
        assert_eq!(told.news(&sight(&[]), &nobody), []);
        assert_eq!(told.news(&sight(&[0]), &nobody), [failed]);
    }

    #[test]
    fn a_process_has_an_owner_and_a_name() {
        let own = occupant(std::process::id());
        assert_ne!(own.user, "somebody");
        assert_ne!(own.command, "a process");
    }
}
