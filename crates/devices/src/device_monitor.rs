//! Which processes use the devices of this machine, and which devices have a fault. Meant to be
//! polled: between two observations NVML waits for its next event.
//!
//! Only processes that compute count: a desktop's compositor has every GPU of the machine open.

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
use crate::kernel::files::SystemFiles;
use crate::mps::whole_id;
use crate::pci_address::PciAddress;
use crate::{Discovery, System, vnpu};

/// How many processes are searched for open device nodes.
const PROCESSES_MAX: usize = 65_536;

/// Processes and faults at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceObservation {
    /// Process ids by device; devices without a process are absent.
    pub processes: BTreeMap<DeviceId, BTreeSet<u32>>,
    /// Why a device will not work again by itself: its state now, or an event of its driver since
    /// the last observation.
    pub faults: BTreeMap<DeviceId, String>,
}

/// Where the processes of one device are read.
enum Source {
    /// Opened once: opening it again fails for every device once one is lost.
    Nvml(Device<'static>),
    /// By the number that the compute driver of AMD has for it.
    Kfd(u32),
    /// Processes that have its node open, by all paths that it has: for devices that only compute.
    DeviceNode(Vec<String>),
}

/// Holds its sources open between observations.
pub struct DeviceMonitor {
    files: SystemFiles,
    events: Option<EventSet<'static>>,
    sources: BTreeMap<DeviceId, Source>,
    /// Of the devices on the bus; the instances of a GPU have its address.
    addresses: BTreeMap<DeviceId, PciAddress>,
    /// Uncorrectable memory errors counted at the last observation.
    uncorrectable: BTreeMap<DeviceId, u64>,
}

impl std::fmt::Debug for DeviceMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMonitor").field("devices", &self.sources.len()).finish()
    }
}

impl DeviceMonitor {
    /// `None` for a machine without devices to monitor.
    pub fn open(system: &System, discovery: &Discovery) -> Option<Self> {
        let files = SystemFiles::new(&system.root);
        let kfd = kfd_numbers(&files);
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
                sources.insert(id, Source::DeviceNode(vnpu::node_paths(node)));
            }
        }
        if sources.is_empty() && addresses.is_empty() {
            return None;
        }
        let events = nvml.and_then(register_events);
        Some(Self { files, events, sources, addresses, uncorrectable: BTreeMap::new() })
    }

    /// Observes after `pause`, or earlier if a driver reports a fault.
    pub fn observe_after(&mut self, pause: Duration) -> DeviceObservation {
        let event = match &self.events {
            Some(events) => {
                event_of(events.wait(pause.as_millis() as u32), || thread::sleep(pause))
            }
            None => {
                thread::sleep(pause);
                None
            }
        };
        let reported = event.map(|event| self.faults_of(&event)).unwrap_or_default();
        let mut observation = self.observe();
        observation.faults.extend(reported);
        observation
    }

    /// The devices that an event makes unusable.
    fn faults_of(&self, event: &EventData<'_>) -> BTreeMap<DeviceId, String> {
        let Some(XidError::Value(xid)) = event.event_data else { return BTreeMap::new() };
        let Some(what) = fatal_xid(xid) else { return BTreeMap::new() };
        // A GPU without a readable address is found to be lost by the observation that follows.
        let Ok(at) = event.device.pci_info() else { return BTreeMap::new() };
        let at = nvml::address(at.domain, at.bus, at.device);
        let why = format!("Xid {xid}: {what}");
        at_address(&self.addresses, at).map(|id| (id, why.clone())).collect()
    }

    /// The present processes and faults.
    pub fn observe(&mut self) -> DeviceObservation {
        let mut faults = self.faults();
        let open = self.open_nodes();
        let mut processes = BTreeMap::new();
        for (&id, source) in &self.sources {
            let found: BTreeSet<u32> = match source {
                Source::Nvml(card) => match card.running_compute_processes() {
                    Ok(running) => running.into_iter().map(|process| process.pid).collect(),
                    Err(NvmlError::GpuLost) => {
                        faults.entry(id).or_insert_with(|| "its driver lost it".to_owned());
                        BTreeSet::new()
                    }
                    Err(_) => BTreeSet::new(),
                },
                Source::Kfd(number) => self.kfd_processes(*number),
                Source::DeviceNode(paths) => {
                    paths.iter().filter_map(|path| open.get(path)).flatten().copied().collect()
                }
            };
            if !found.is_empty() {
                processes.insert(id, found);
            }
        }
        DeviceObservation { processes, faults }
    }

    /// Processes that hold memory of the device through AMD's compute driver.
    fn kfd_processes(&self, number: u32) -> BTreeSet<u32> {
        let processes = self.files.names("sys/class/kfd/kfd/proc").into_iter();
        let uses = |pid: &String| {
            let held = self.files.number(&format!("sys/class/kfd/kfd/proc/{pid}/vram_{number}"));
            held.is_some_and(|held: u64| held > 0)
        };
        processes.filter(uses).filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Devices whose node is gone: the virtual NPU was destroyed, or the driver unloaded.
    fn devices_without_node(&self) -> BTreeMap<DeviceId, String> {
        let node = |source: &Source| match source {
            Source::DeviceNode(paths) => paths.first().cloned(),
            _ => None,
        };
        let nodes = self.sources.iter().filter_map(|(&id, source)| Some((id, node(source)?)));
        let gone = nodes.filter(|(_, path)| !self.files.exists(path.trim_start_matches('/')));
        gone.map(|(id, path)| (id, format!("its device node `{path}` is gone"))).collect()
    }

    /// Processes that have one of the monitored device nodes open, by path.
    fn open_nodes(&self) -> BTreeMap<String, BTreeSet<u32>> {
        let nodes = self.sources.values().filter_map(|source| match source {
            Source::DeviceNode(paths) => Some(paths),
            _ => None,
        });
        let nodes: BTreeSet<&str> = nodes.flatten().map(String::as_str).collect();
        let mut open: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        if nodes.is_empty() {
            return open;
        }
        let processes = self.files.names("proc").into_iter();
        let processes = processes.filter_map(|name| name.parse::<u32>().ok()).take(PROCESSES_MAX);
        for pid in processes {
            for descriptor in self.files.names(&format!("proc/{pid}/fd")) {
                let target = self.files.link(&format!("proc/{pid}/fd/{descriptor}"));
                if let Some(path) = target.filter(|path| nodes.contains(path.as_str())) {
                    open.entry(path).or_default().insert(pid);
                }
            }
        }
        open
    }

    /// Devices that left the bus or lost their node, and those with more uncorrectable memory
    /// errors than at the last observation: the first one only sets the count.
    fn faults(&mut self) -> BTreeMap<DeviceId, String> {
        let mut faults = self.devices_without_node();
        for (&id, address) in &self.addresses {
            let directory = format!("sys/bus/pci/devices/{address}");
            if !self.files.exists(&directory) {
                faults.insert(id, "it is gone from the PCI bus".to_owned());
                continue;
            }
            let counts = self.files.text(&format!("{directory}/ras/umc_err_count"));
            let Some(count) = counts.as_deref().and_then(uncorrectable_errors) else { continue };
            let before = self.uncorrectable.insert(id, count);
            if before.is_some_and(|before| count > before) {
                faults.insert(id, format!("{count} memory errors could not be corrected"));
            }
        }
        faults
    }
}

/// The event, if one came in time. Rests after an error that returns at once, such as a lost
/// device's: the next wait would return at once again.
fn event_of<T>(waited: Result<T, NvmlError>, rest: impl FnOnce()) -> Option<T> {
    match waited {
        Ok(event) => return Some(event),
        Err(NvmlError::Timeout) => {}
        Err(_) => rest(),
    }
    None
}

/// All devices at this address: a GPU, or the instances that it is partitioned into. Events name
/// the GPU.
fn at_address(
    addresses: &BTreeMap<DeviceId, PciAddress>,
    at: PciAddress,
) -> impl Iterator<Item = DeviceId> + '_ {
    addresses.iter().filter(move |(_, address)| **address == at).map(|(&id, _)| id)
}

/// NVML, where it is the source of a discovered device.
fn open_nvml(discovery: &Discovery) -> Option<&'static Nvml> {
    let topology = &discovery.topology;
    let mut drivers = topology.device_ids().flat_map(|id| &topology.device(id).drivers);
    if !drivers.any(|driver| driver == "cuda") {
        return None;
    }
    // One for the life of the process: devices and event sets borrow the library.
    nvml::open().ok().map(|nvml| &*Box::leak(Box::new(nvml)))
}

/// An event set with every GPU that supports it. Each is tried with a set of its own first, because
/// the wrapper (0.13.0) frees a set that a GPU refuses.
fn register_events(nvml: &'static Nvml) -> Option<EventSet<'static>> {
    let register = |card: &Device<'static>, set| {
        card.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()
    };
    let cards = (0..nvml.device_count().ok()?).filter_map(|index| nvml.device_by_index(index).ok());
    let supports = |card: &Device<'static>| register(card, nvml.create_event_set().ok()?);
    let supported: Vec<_> = cards.filter(|card| supports(card).is_some()).collect();
    if supported.is_empty() {
        return None;
    }
    let set = nvml.create_event_set().ok()?;
    supported.iter().try_fold(set, |set, card| register(card, set))
}

/// What an Xid means that leaves the device unusable until it is reset or replaced. Most Xids are
/// a program's own fault (13, 31, 43, 45). Source: NVIDIA, "XID Errors" r555.
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
fn uncorrectable_errors(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.trim().strip_prefix("ue:")?.trim().parse().ok())
}

/// The numbers that AMD's compute driver gives the devices on the bus.
fn kfd_numbers(files: &SystemFiles) -> BTreeMap<PciAddress, u32> {
    let root = "sys/class/kfd/kfd/topology/nodes";
    let numbers = files.names(root).into_iter().filter_map(|node| {
        let number: u32 = files.number(&format!("{root}/{node}/gpu_id"))?;
        let properties = files.text(&format!("{root}/{node}/properties"))?;
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
    fn most_xids_are_faults_of_programs() {
        let fatal: Vec<u64> = (1..150).filter(|&xid| fatal_xid(xid).is_some()).collect();
        assert_eq!(fatal, [48, 62, 64, 74, 79, 95, 119, 120]);
    }

    #[test]
    fn a_lost_device_is_not_polled_without_rest() {
        let rests = |error| {
            let mut rested = false;
            let event: Option<()> = event_of(Err(error), || rested = true);
            assert_eq!(event, None);
            rested
        };
        assert!(rests(NvmlError::GpuLost));
        assert!(rests(NvmlError::Unknown));
        // It has waited already.
        assert!(!rests(NvmlError::Timeout));
    }

    #[test]
    fn a_fault_of_a_gpu_is_one_of_its_instances() {
        let at = |text: &str| text.parse::<PciAddress>().expect("an address");
        let (partitioned, whole) = (at("0000:0a:00.0"), at("0000:1a:00.0"));
        let addresses = [(1, partitioned), (2, partitioned), (3, whole)];
        let addresses = addresses.map(|(id, address)| (DeviceId(id), address)).into();
        let found = |at| at_address(&addresses, at).map(|id| id.0).collect::<Vec<_>>();
        assert_eq!((found(partitioned), found(whole)), (vec![1, 2], vec![3]));
    }

    #[test]
    fn corrected_errors_do_not_count() {
        assert_eq!(uncorrectable_errors("ue: 2\nce: 17"), Some(2));
        assert_eq!(uncorrectable_errors("ce: 17"), None);
    }
}
