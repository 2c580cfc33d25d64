//! Who else is using the devices, and which of them a driver says are broken. To be looked at again
//! and again: NVML waits for its next event meanwhile.
//!
//! Only work that computes counts as use: a desktop's compositor has every GPU of the machine open.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use het_core::DeviceId;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::{Device, EventSet, Nvml};

use crate::drivers::nvml;
use crate::pci::PciAddress;
use crate::shares::whole_id;
use crate::tree::Tree;
use crate::{Discovery, System, vnpu};

/// How many processes are looked at for open device nodes.
const PROCESSES_MAX: usize = 65_536;

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sight {
    /// Process ids by device; devices that nobody uses are absent.
    pub users: BTreeMap<DeviceId, BTreeSet<u32>>,
    /// Devices that will not work again by themselves, and why: what is wrong with them now, or
    /// what their drivers told since the look before.
    pub broken: BTreeMap<DeviceId, String>,
}

/// How one device is asked.
enum Source {
    /// Found once: asking for it again fails for every device once one is lost.
    Nvml(Device<'static>),
    /// By the number that the compute driver of AMD has for it.
    Kfd(u32),
    /// Who has its node open, by all paths that it has: for those that do nothing but compute.
    Node(Vec<String>),
}

/// Open sources: keep it and look often.
pub struct Lookout {
    tree: Tree,
    events: Option<EventSet<'static>>,
    sources: BTreeMap<DeviceId, Source>,
    /// Of those on the bus; the instances of a card have its address.
    addresses: BTreeMap<DeviceId, PciAddress>,
    /// Memory errors that could not be corrected, as they were counted at the look before.
    uncorrected: BTreeMap<DeviceId, u64>,
}

impl std::fmt::Debug for Lookout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookout").field("devices", &self.sources.len()).finish()
    }
}

impl Lookout {
    /// `None` for a machine without anything to look after.
    pub fn open(system: &System, discovery: &Discovery) -> Option<Self> {
        let tree = Tree::new(&system.root);
        let kfd = kfd_numbers(&tree);
        let nvml = open_nvml(discovery);
        let mut sources = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for id in discovery.topology.device_ids() {
            let device = discovery.topology.device(id);
            let has = |driver: &str| device.drivers.iter().any(|name| name == driver);
            let place = discovery.places.get(&id);
            let address = place.and_then(|place| place.address);
            addresses.extend(address.map(|address| (id, address)));
            let is_npu = discovery.topology.class_of(id).kind == "npu";
            let node = place.and_then(|place| place.nodes.first()).filter(|_| is_npu);
            let number = address.and_then(|address| kfd.get(&address));
            if has("cuda") {
                let card = nvml.and_then(|nvml| {
                    nvml.device_by_uuid(whole_id(device.visible_id.as_str())).ok()
                });
                sources.extend(card.map(|card| (id, Source::Nvml(card))));
            } else if let Some(number) = number {
                sources.insert(id, Source::Kfd(*number));
            } else if let Some(node) = node {
                sources.insert(id, Source::Node(vnpu::paths(node)));
            }
        }
        if sources.is_empty() && addresses.is_empty() {
            return None;
        }
        let events = nvml.and_then(listen);
        Some(Self { tree, events, sources, addresses, uncorrected: BTreeMap::new() })
    }

    /// Waits for so long, or less where a driver tells of a fault, and looks.
    pub fn look_after(&mut self, pause: Duration) -> Sight {
        let told = match &self.events {
            Some(events) => heard(events.wait(pause.as_millis() as u32), || thread::sleep(pause)),
            None => {
                thread::sleep(pause);
                None
            }
        };
        let told = told.map(|event| self.told_by(&event)).unwrap_or_default();
        let mut sight = self.look();
        sight.broken.extend(told);
        sight
    }

    /// The devices that an event is the end of.
    fn told_by(&self, event: &EventData<'_>) -> BTreeMap<DeviceId, String> {
        let Some(XidError::Value(xid)) = event.event_data else { return BTreeMap::new() };
        let Some(what) = fatal_xid(xid) else { return BTreeMap::new() };
        // A card that does not even say where it is, is found to be lost by the look that follows.
        let Ok(at) = event.device.pci_info() else { return BTreeMap::new() };
        let at = nvml::address(at.domain, at.bus, at.device);
        let why = format!("Xid {xid}: {what}");
        at_address(&self.addresses, at).map(|id| (id, why.clone())).collect()
    }

    /// What there is to see now.
    pub fn look(&mut self) -> Sight {
        let mut broken = self.faults();
        let open = self.open_nodes();
        let mut users = BTreeMap::new();
        for (&id, source) in &self.sources {
            let found: BTreeSet<u32> = match source {
                Source::Nvml(card) => match card.running_compute_processes() {
                    Ok(processes) => processes.into_iter().map(|process| process.pid).collect(),
                    Err(NvmlError::GpuLost) => {
                        broken.entry(id).or_insert_with(|| "its driver lost it".to_owned());
                        BTreeSet::new()
                    }
                    Err(_) => BTreeSet::new(),
                },
                Source::Kfd(number) => self.kfd_users(*number),
                Source::Node(paths) => {
                    paths.iter().filter_map(|path| open.get(path)).flatten().copied().collect()
                }
            };
            if !found.is_empty() {
                users.insert(id, found);
            }
        }
        Sight { users, broken }
    }

    /// A process that holds memory of the device through the compute driver.
    fn kfd_users(&self, number: u32) -> BTreeSet<u32> {
        let processes = self.tree.names("sys/class/kfd/kfd/proc").into_iter();
        let uses = |pid: &String| {
            let held = self.tree.number(&format!("sys/class/kfd/kfd/proc/{pid}/vram_{number}"));
            held.is_some_and(|held: u64| held > 0)
        };
        processes.filter(uses).filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Those whose node is gone: somebody destroyed the virtual NPU, or unloaded the driver.
    fn without_node(&self) -> BTreeMap<DeviceId, String> {
        let node = |source: &Source| match source {
            Source::Node(paths) => paths.first().cloned(),
            _ => None,
        };
        let nodes = self.sources.iter().filter_map(|(&id, source)| Some((id, node(source)?)));
        let gone = nodes.filter(|(_, path)| !self.tree.exists(path.trim_start_matches('/')));
        gone.map(|(id, path)| (id, format!("its device node `{path}` is gone"))).collect()
    }

    /// Who has which of the device nodes open that are looked after.
    fn open_nodes(&self) -> BTreeMap<String, BTreeSet<u32>> {
        let nodes = self.sources.values().filter_map(|source| match source {
            Source::Node(paths) => Some(paths),
            _ => None,
        });
        let nodes: BTreeSet<&str> = nodes.flatten().map(String::as_str).collect();
        let mut open: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        if nodes.is_empty() {
            return open;
        }
        let processes = self.tree.names("proc").into_iter();
        let processes = processes.filter_map(|name| name.parse::<u32>().ok()).take(PROCESSES_MAX);
        for pid in processes {
            for descriptor in self.tree.names(&format!("proc/{pid}/fd")) {
                let target = self.tree.link(&format!("proc/{pid}/fd/{descriptor}"));
                if let Some(path) = target.filter(|path| nodes.contains(path.as_str())) {
                    open.entry(path).or_default().insert(pid);
                }
            }
        }
        open
    }

    /// Devices that left the bus or lost their node, and those in whose memory there are more
    /// errors than at the look before that cannot be corrected: those of before it was first looked
    /// at are old.
    fn faults(&mut self) -> BTreeMap<DeviceId, String> {
        let mut faults = self.without_node();
        for (&id, address) in &self.addresses {
            let directory = format!("sys/bus/pci/devices/{address}");
            if !self.tree.exists(&directory) {
                faults.insert(id, "it is gone from the PCI bus".to_owned());
                continue;
            }
            let counts = self.tree.text(&format!("{directory}/ras/umc_err_count"));
            let Some(count) = counts.as_deref().and_then(uncorrected) else { continue };
            let before = self.uncorrected.insert(id, count);
            if before.is_some_and(|before| count > before) {
                faults.insert(id, format!("{count} memory errors could not be corrected"));
            }
        }
        faults
    }
}

/// What was heard. After an error that comes at once, as one of a lost device does, it rests: it
/// would come at once again.
fn heard<T>(waited: Result<T, NvmlError>, rest: impl FnOnce()) -> Option<T> {
    match waited {
        Ok(event) => return Some(event),
        Err(NvmlError::Timeout) => {}
        Err(_) => rest(),
    }
    None
}

/// Everything that is at this address: a card, or the instances that it is cut into. Events name
/// the card.
fn at_address(
    addresses: &BTreeMap<DeviceId, PciAddress>,
    at: PciAddress,
) -> impl Iterator<Item = DeviceId> + '_ {
    addresses.iter().filter(move |(_, address)| **address == at).map(|(&id, _)| id)
}

/// The library, where a discovered device is asked by it.
fn open_nvml(discovery: &Discovery) -> Option<&'static Nvml> {
    let topology = &discovery.topology;
    let mut drivers = topology.device_ids().flat_map(|id| &topology.device(id).drivers);
    if !drivers.any(|driver| driver == "cuda") {
        return None;
    }
    // One for the life of the process: devices and events are of a library that stays open.
    nvml::open().ok().map(|nvml| &*Box::leak(Box::new(nvml)))
}

/// Cards that tell of no events are left out: each is tried with a set of its own before, because
/// the wrapper (0.13.0) frees a set that one refuses.
fn listen(nvml: &'static Nvml) -> Option<EventSet<'static>> {
    let register = |card: &Device<'static>, set| {
        card.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()
    };
    let cards = (0..nvml.device_count().ok()?).filter_map(|index| nvml.device_by_index(index).ok());
    let tells = |card: &Device<'static>| register(card, nvml.create_event_set().ok()?);
    let telling: Vec<_> = cards.filter(|card| tells(card).is_some()).collect();
    if telling.is_empty() {
        return None;
    }
    let set = nvml.create_event_set().ok()?;
    telling.iter().try_fold(set, |set, card| register(card, set))
}

/// What an Xid means after which the device is of no use before somebody resets or replaces it.
/// Most Xids are a program's own fault (13, 31, 43, 45). Source: NVIDIA, "XID Errors" r555.
fn fatal_xid(xid: u64) -> Option<&'static str> {
    match xid {
        48 => Some("double bit error in its memory"),
        62 => Some("its internal microcontroller halted"),
        64 => Some("bad memory could not be retired"),
        74 => Some("NVLink error"),
        79 => Some("it has fallen off the bus"),
        95 => Some("memory error that was not contained"),
        119 | 120 => Some("its system processor does not answer"),
        _ => None,
    }
}

/// The count after `ue:` of amdgpu's `umc_err_count`.
fn uncorrected(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.trim().strip_prefix("ue:")?.trim().parse().ok())
}

/// The numbers by which AMD's compute driver knows the devices on the bus.
fn kfd_numbers(tree: &Tree) -> BTreeMap<PciAddress, u32> {
    let root = "sys/class/kfd/kfd/topology/nodes";
    let numbers = tree.names(root).into_iter().filter_map(|node| {
        let number: u32 = tree.number(&format!("{root}/{node}/gpu_id"))?;
        let properties = tree.text(&format!("{root}/{node}/properties"))?;
        let value = |name: &str| -> Option<u32> {
            let mut words = properties.lines().map(str::split_whitespace);
            words.find_map(|mut line| (line.next()? == name).then(|| line.next()?.parse().ok())?)
        };
        // `location_id` is bus << 8 | device << 3 | function.
        let location = value("location_id")?;
        let address = PciAddress {
            domain: value("domain").unwrap_or(0),
            bus: (location >> 8) as u8,
            device: (location >> 3 & 0x1f) as u8,
            function: (location & 7) as u8,
        };
        (number != 0).then_some((address, number))
    });
    numbers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_may_fail_without_their_device() {
        let fatal: Vec<u64> = (1..150).filter(|&xid| fatal_xid(xid).is_some()).collect();
        assert_eq!(fatal, [48, 62, 64, 74, 79, 95, 119, 120]);
    }

    #[test]
    fn a_lost_device_is_not_asked_again_and_again() {
        let rests = |error| {
            let mut rested = false;
            let told: Option<()> = heard(Err(error), || rested = true);
            assert_eq!(told, None);
            rested
        };
        assert!(rests(NvmlError::GpuLost));
        assert!(rests(NvmlError::Unknown));
        // It has waited already.
        assert!(!rests(NvmlError::Timeout));
    }

    #[test]
    fn what_befalls_a_card_befalls_its_instances() {
        let at = |text: &str| text.parse::<PciAddress>().expect("an address");
        let (cut, whole) = (at("0000:0a:00.0"), at("0000:1a:00.0"));
        let addresses = [(1, cut), (2, cut), (3, whole)];
        let addresses = addresses.map(|(id, address)| (DeviceId(id), address)).into();
        let found = |at| at_address(&addresses, at).map(|id| id.0).collect::<Vec<_>>();
        assert_eq!((found(cut), found(whole)), (vec![1, 2], vec![3]));
    }

    #[test]
    fn errors_that_were_corrected_are_none() {
        assert_eq!(uncorrected("ue: 2\nce: 17"), Some(2));
        assert_eq!(uncorrected("ce: 17"), None);
    }
}
