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
use nvml_wrapper::{EventSet, Nvml};

use crate::drivers::nvml;
use crate::pci::PciAddress;
use crate::tree::Tree;
use crate::{Discovery, System};

/// How many processes are looked at for open device nodes.
const PROCESSES_MAX: usize = 65_536;

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sight {
    /// Process ids by device; devices that nobody uses are absent.
    pub users: BTreeMap<DeviceId, BTreeSet<u32>>,
    /// Devices that will not work again by themselves, and why.
    pub broken: BTreeMap<DeviceId, String>,
}

/// How one device is asked.
enum Source {
    /// By UUID.
    Nvml(String),
    /// By the number that the compute driver of AMD has for it.
    Kfd(u32),
    /// Who has its node open: for those that do nothing but compute.
    Node(String),
}

/// Open sources: keep it and look often.
pub struct Lookout {
    tree: Tree,
    nvml: Option<(&'static Nvml, Option<EventSet<'static>>)>,
    sources: BTreeMap<DeviceId, Source>,
    /// Of those on the bus.
    addresses: BTreeMap<DeviceId, PciAddress>,
    broken: BTreeMap<DeviceId, String>,
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
                sources.insert(id, Source::Nvml(device.visible_id.to_string()));
            } else if let Some(number) = number {
                sources.insert(id, Source::Kfd(*number));
            } else if let Some(node) = node {
                sources.insert(id, Source::Node(node.to_string_lossy().into_owned()));
            }
        }
        if sources.is_empty() {
            return None;
        }
        let asks_nvml = sources.values().any(|source| matches!(source, Source::Nvml(_)));
        let nvml = asks_nvml.then(nvml::open).and_then(Result::ok).map(|nvml| {
            // One for the life of the process: events are of a library that stays open.
            let nvml: &'static Nvml = Box::leak(Box::new(nvml));
            (nvml, listen(nvml))
        });
        Some(Self { tree, nvml, sources, addresses, broken: BTreeMap::new() })
    }

    /// Waits for so long, or less where a driver tells of a fault, and looks.
    pub fn look_after(&mut self, pause: Duration) -> Sight {
        let told = match &self.nvml {
            Some((_, Some(events))) => events.wait(pause.as_millis() as u32),
            _ => {
                thread::sleep(pause);
                Err(NvmlError::Timeout)
            }
        };
        if let Ok(event) = told
            && let Ok(uuid) = event.device.uuid()
            && let Some(XidError::Value(xid)) = event.event_data
            && let Some(what) = fatal_xid(xid)
        {
            let ids = self.of_uuid(&uuid);
            self.broken.extend(ids.map(|id| (id, format!("Xid {xid}: {what}"))));
        }
        self.look()
    }

    /// What there is to see now.
    pub fn look(&mut self) -> Sight {
        self.look_for_faults();
        let open = self.open_nodes();
        let mut users = BTreeMap::new();
        for (&id, source) in &self.sources {
            let found: BTreeSet<u32> = match source {
                Source::Nvml(uuid) => self.computing(uuid),
                Source::Kfd(number) => self.kfd_users(*number),
                Source::Node(path) => open.get(path).cloned().unwrap_or_default(),
            };
            if !found.is_empty() {
                users.insert(id, found);
            }
        }
        Sight { users, broken: self.broken.clone() }
    }

    fn of_uuid(&self, uuid: &str) -> impl Iterator<Item = DeviceId> + use<> {
        let has = |source: &Source| matches!(source, Source::Nvml(known) if known == uuid);
        let ids: Vec<_> =
            self.sources.iter().filter(|(_, source)| has(source)).map(|(&id, _)| id).collect();
        ids.into_iter()
    }

    fn computing(&self, uuid: &str) -> BTreeSet<u32> {
        let device = self.nvml.as_ref().and_then(|(nvml, _)| nvml.device_by_uuid(uuid).ok());
        let processes = device.and_then(|device| device.running_compute_processes().ok());
        processes.unwrap_or_default().into_iter().map(|process| process.pid).collect()
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

    /// Who has which of the device nodes open that are looked after.
    fn open_nodes(&self) -> BTreeMap<String, BTreeSet<u32>> {
        let nodes = self.sources.values().filter_map(|source| match source {
            Source::Node(path) => Some(path.as_str()),
            _ => None,
        });
        let nodes: BTreeSet<&str> = nodes.collect();
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

    /// A device that left the bus, or whose memory has errors that cannot be corrected.
    fn look_for_faults(&mut self) {
        for (&id, address) in &self.addresses {
            let directory = format!("sys/bus/pci/devices/{address}");
            if !self.tree.exists(&directory) {
                self.broken.entry(id).or_insert_with(|| "it is gone from the PCI bus".to_owned());
                continue;
            }
            let counts = self.tree.text(&format!("{directory}/ras/umc_err_count"));
            if let Some(count) = counts.as_deref().and_then(uncorrected).filter(|&count| count > 0)
            {
                let why = format!("{count} memory errors could not be corrected");
                self.broken.entry(id).or_insert(why);
            }
        }
    }
}

fn listen(nvml: &'static Nvml) -> Option<EventSet<'static>> {
    let mut set = nvml.create_event_set().ok()?;
    for index in 0..nvml.device_count().ok()? {
        let device = nvml.device_by_index(index).ok()?;
        set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()?;
    }
    Some(set)
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
    fn errors_that_were_corrected_are_none() {
        assert_eq!(uncorrected("ue: 2\nce: 17"), Some(2));
        assert_eq!(uncorrected("ce: 17"), None);
    }
}
