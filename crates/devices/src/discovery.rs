//! From what the probes and the files say to one node's topology.

use std::collections::BTreeMap;
use std::path::PathBuf;

use het_core::{
    Bytes, Device, DeviceClass, DeviceId, Link, Name, Node as Machine, Share, Topology, VNPU,
    Vertex,
};

use crate::catalogue::{self, Family, Node, Recognised};
use crate::cpu::{self, NumaNode, Processors};
use crate::links::{self, NODE, OnBus};
use crate::parse;
use crate::pci::{self, Function, PciAddress};
use crate::tree::{Access, Tree};
use crate::vnpu::{self, Part, Vnpus};
use crate::{
    Finding, Mig, MigInstance, NpuSmiProbe, NvLink, NvidiaDevice, NvidiaProbe, VulkanDevice,
    VulkanKind, VulkanProbe,
};

/// What discovery looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// `/` on a real machine; `sys`, `proc` and `dev` lie below it.
    pub root: PathBuf,
    /// Cores to assume where neither sysfs nor procfs names any.
    pub fallback_cores: Vec<u32>,
    pub nvidia: NvidiaProbe,
    pub npu_smi: NpuSmiProbe,
    pub vulkan: VulkanProbe,
}

impl System {
    /// A recorded tree, without NVML, `npu-smi` and Vulkan.
    pub fn recorded(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            fallback_cores: vec![0],
            nvidia: NvidiaProbe::NotAsked,
            npu_smi: NpuSmiProbe::NotAsked,
            vulkan: VulkanProbe::NotAsked,
        }
    }

    /// The machine this runs on. Loads NVML and, in a child of this program, Vulkan: the program
    /// must offer [`crate::VULKAN_PROBE_COMMAND`]. Where there are nodes of virtual NPUs, it asks
    /// `npu-smi` for them.
    pub fn this_machine() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let root = PathBuf::from("/");
        Self {
            npu_smi: NpuSmiProbe::load(&Tree::new(&root)),
            root,
            fallback_cores: affinity().unwrap_or_else(|| (0..cores as u32).collect()),
            nvidia: NvidiaProbe::load(),
            vulkan: VulkanProbe::this_program(),
        }
    }
}

fn affinity() -> Option<Vec<u32>> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).ok()?;
    let count = nix::sched::CpuSet::count();
    let cores = (0..count).filter(|&core| set.is_set(core).unwrap_or(false));
    Some(cores.map(|core| core as u32).collect())
}

/// Where a device sits and what reaches it; the parts that the topology has no room for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DevicePlace {
    pub address: Option<PciAddress>,
    pub numa: Option<u32>,
    /// Device nodes, such as `/dev/davinci0`.
    pub nodes: Vec<PathBuf>,
    pub kernel_driver: Option<String>,
}

/// What this machine has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discovery {
    /// One node. Classes carry no peaks: the catalogue has them, by class id.
    pub topology: Topology,
    /// The usable cores (hardware threads) of each CPU socket, ascending: what to pin to. Their
    /// number is the socket's capacity.
    pub cores: BTreeMap<DeviceId, Vec<u32>>,
    pub numa: Vec<NumaNode>,
    /// Every device but the CPU sockets.
    pub places: BTreeMap<DeviceId, DevicePlace>,
    pub findings: Vec<Finding>,
}

impl Discovery {
    /// The same where the device that was found as row `n` stands in row `rows[n]` of `topology`.
    #[must_use]
    pub fn in_rows(&self, topology: &Topology, rows: &[DeviceId]) -> Self {
        fn moved<T: Clone>(of: &BTreeMap<DeviceId, T>, rows: &[DeviceId]) -> BTreeMap<DeviceId, T> {
            of.iter().map(|(id, value)| (rows[id.index()], value.clone())).collect()
        }
        Self {
            topology: topology.clone(),
            cores: moved(&self.cores, rows),
            places: moved(&self.places, rows),
            numa: self.numa.clone(),
            findings: self.findings.clone(),
        }
    }
}

/// Reads the machine. Never fails: what cannot be read or used is a finding, and there is always
/// at least one CPU device.
pub fn discover(system: &System) -> Discovery {
    let tree = Tree::new(&system.root);
    let processors = cpu::processors(&tree, &system.fallback_cores);
    let mut findings = processors.findings.clone();
    let functions = pci::scan(&tree);
    if functions.is_none() {
        findings.push(Finding::PciUnknown);
    }
    let functions = functions.unwrap_or_default();
    let mut candidates = nvidia(&system.nvidia, &functions, &mut findings);
    let vnpus = Vnpus::seen(&tree, &system.npu_smi);
    findings.extend(vnpus.silence().map(|why| Finding::VnpusUnlisted { why: why.to_owned() }));
    candidates.extend(accelerators(&tree, &functions, &vnpus, &mut findings));
    vulkan(&system.vulkan, &functions, &mut candidates, &mut findings);
    assemble(&tree, processors, &functions, candidates, findings)
}

/// A device that may be usable: it is if any driver runs it.
#[derive(Debug, Clone, Default)]
struct Candidate {
    /// `cuda`, `gpu`, `npu`, …: the first part of its name.
    prefix: &'static str,
    class: String,
    title: String,
    vendor: String,
    kind: &'static str,
    software: bool,
    drivers: Vec<&'static str>,
    memory: Bytes,
    visible_id: String,
    place: DevicePlace,
    nvlinks: Vec<NvLink>,
}

fn nvidia(
    probe: &NvidiaProbe,
    functions: &[Function],
    findings: &mut Vec<Finding>,
) -> Vec<Candidate> {
    let on_bus =
        functions.iter().filter(|it| matches!(catalogue::recognise(it), Recognised::Nvidia));
    let on_bus: Vec<&Function> = on_bus.filter(|function| !function.is_virtual).collect();
    match probe {
        NvidiaProbe::NotAsked | NvidiaProbe::Found(_) => {}
        NvidiaProbe::Missing => findings.extend(
            on_bus.iter().map(|function| Finding::NvmlMissing { address: function.address }),
        ),
        NvidiaProbe::Failed { why } => findings.push(Finding::NvmlFailed { why: why.clone() }),
    }
    let mut candidates = Vec::new();
    for answer in if let NvidiaProbe::Found(found) = probe { found.as_slice() } else { &[] } {
        match answer {
            Ok(device) => candidates.extend(nvidia_candidates(device, &on_bus, findings)),
            Err((index, why)) => {
                findings.push(Finding::NvidiaUnreadable { index: *index, why: why.clone() });
            }
        }
    }
    candidates.sort_by_key(|candidate| candidate.place.address);
    // What NVML does not list may still be reached through Vulkan.
    for function in on_bus {
        if !candidates.iter().any(|it| it.place.address == Some(function.address)) {
            candidates.push(Candidate {
                prefix: "gpu",
                kind: "gpu",
                vendor: "NVIDIA".to_owned(),
                place: place(function, Vec::new()),
                ..Candidate::default()
            });
        }
    }
    candidates
}

/// The device, or its instances where it is cut into some.
fn nvidia_candidates(
    device: &NvidiaDevice,
    on_bus: &[&Function],
    findings: &mut Vec<Finding>,
) -> Vec<Candidate> {
    let whole = nvidia_candidate(device, on_bus);
    let Mig::On(instances) = &device.mig else { return vec![whole] };
    if instances.is_empty() {
        let (title, address) = (device.name.clone(), device.address);
        findings.push(Finding::NoMigInstance { title, address });
    }
    let instance = |instance: &MigInstance| Candidate {
        class: format!("{}-mig-{}", whole.class, instance.profile),
        title: format!("{} MIG {}", whole.title, instance.profile),
        memory: instance.memory.unwrap_or(Bytes::ZERO),
        visible_id: instance.uuid.clone(),
        // Instances reach each other through memory of the host only.
        nvlinks: Vec::new(),
        ..whole.clone()
    };
    instances.iter().map(instance).collect()
}

fn nvidia_candidate(device: &NvidiaDevice, on_bus: &[&Function]) -> Candidate {
    let function = on_bus.iter().find(|function| function.address == device.address);
    let mut place = function.map(|function| place(function, Vec::new())).unwrap_or_default();
    place.address = Some(device.address);
    place.numa = place.numa.or(device.numa);
    Candidate {
        prefix: "cuda",
        class: catalogue::nvidia_class(&device.name),
        title: device.name.clone(),
        vendor: "NVIDIA".to_owned(),
        kind: "gpu",
        software: false,
        drivers: vec!["cuda"],
        memory: device.memory.unwrap_or(Bytes::ZERO),
        visible_id: device.uuid.clone(),
        place,
        nvlinks: device.nvlinks.clone(),
    }
}

fn place(function: &Function, nodes: Vec<String>) -> DevicePlace {
    DevicePlace {
        address: Some(function.address),
        numa: function.numa,
        nodes: nodes.iter().map(|node| PathBuf::from(format!("/dev/{node}"))).collect(),
        kernel_driver: function.kernel_driver.clone(),
    }
}

/// Every other accelerator on the bus. One that cannot be opened has no drivers, and a finding.
fn accelerators(
    tree: &Tree,
    functions: &[Function],
    vnpus: &Vnpus<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    // Of each maker and kind: how many were seen, and how many of them can be used.
    let mut counts: BTreeMap<(u16, &str), (usize, usize)> = BTreeMap::new();
    for function in functions.iter().filter(|function| !function.is_virtual) {
        let family = match catalogue::recognise(function) {
            Recognised::Member(family) => family,
            Recognised::Unknown => {
                let Function { address, vendor, device, .. } = *function;
                findings.push(Finding::UnknownAccelerator { address, vendor, device });
                continue;
            }
            Recognised::Nvidia | Recognised::Other => continue,
        };
        let (seen, usable) = counts.entry((family.vendor_id, family.kind)).or_default();
        let (class, title) = catalogue::model(family, function.device);
        let rank = *seen;
        let opened = open(tree, family, function, &title, rank);
        *seen += 1;
        let visible_id = visible_id(&class, function, *usable);
        *usable += usize::from(opened.is_ok());
        let (drivers, nodes) = match opened {
            Ok(nodes) => (family.drivers.to_vec(), nodes),
            Err(finding) => {
                findings.push(finding);
                (Vec::new(), Vec::new())
            }
        };
        let whole = Candidate {
            prefix: family.kind,
            class,
            title,
            vendor: family.vendor.to_owned(),
            kind: family.kind,
            drivers,
            memory: function.memory.unwrap_or(Bytes::ZERO),
            visible_id,
            place: place(function, nodes),
            ..Candidate::default()
        };
        let parts = if family.drivers.contains(&"cann") { vnpus.of(rank) } else { Vec::new() };
        if parts.is_empty() || whole.drivers.is_empty() {
            candidates.push(whole);
            continue;
        }
        let parts = parts.into_iter();
        candidates.extend(
            parts.filter_map(|(number, part)| virtual_npu(tree, &whole, number, part, findings)),
        );
    }
    candidates
}

/// A part of the chip `whole`, in its place; a finding where it cannot be used.
fn virtual_npu(
    tree: &Tree,
    whole: &Candidate,
    number: u32,
    part: Part,
    findings: &mut Vec<Finding>,
) -> Option<Candidate> {
    let node = vnpu::node(number);
    let path = format!("/dev/{node}");
    let (title, address) = (whole.title.clone(), whole.place.address.unwrap_or_default());
    let finding = match part {
        Part::Sound { .. } if tree.access(&format!("dev/{node}")) == Access::Denied => {
            Finding::NoPermission { title, address, group: group("davinci"), node: path }
        }
        Part::Sound { template, memory } => {
            // Beside its own node it needs those that the chip needs.
            let shared = whole.place.nodes.iter().skip(1).cloned();
            let nodes = std::iter::once(PathBuf::from(path)).chain(shared).collect();
            return Some(Candidate {
                class: format!("{}-{template}", whole.class),
                title: format!("{title} vNPU {template}"),
                drivers: vec!["cann", VNPU],
                memory,
                visible_id: node,
                place: DevicePlace { nodes, ..whole.place.clone() },
                ..whole.clone()
            });
        }
        Part::OfUnknownTemplate { template } => Finding::VnpuTemplateUnknown { number, template },
        Part::WithoutNode => Finding::VnpuWithoutNode { title, address, number, node: path },
        Part::NotListed => Finding::VnpuNotListed { node: path },
        // There is one word for all of them.
        Part::Untold => return None,
    };
    findings.push(finding);
    None
}

/// The device's nodes below `/dev`, or why it cannot be used. `rank` counts the family's devices
/// in the order of addresses.
fn open(
    tree: &Tree,
    family: &Family,
    function: &Function,
    title: &str,
    rank: usize,
) -> Result<Vec<String>, Finding> {
    let (title, address, driver) = (title.to_owned(), function.address, family.install);
    if function.kernel_driver.as_deref() == Some("vfio-pci") {
        return Err(Finding::PassedThrough { title, address });
    }
    let named = |prefix: &str| function.nodes.iter().find(|node| node.starts_with(prefix)).cloned();
    let own = match family.node {
        Node::Accel => named("accel/"),
        Node::Render => named("dri/"),
        Node::Numbered(prefix) => Some(format!("{prefix}{rank}")),
    };
    let present = |node: &String| tree.exists(&format!("dev/{node}"));
    let Some(own) = own else {
        return Err(match &function.kernel_driver {
            None => Finding::NoKernelDriver { title, address, driver },
            Some(_) => {
                let node = if family.node == Node::Accel { "accel/accelN" } else { "dri/renderDN" };
                Finding::NoDeviceNode { title, address, node: format!("/dev/{node}"), driver }
            }
        });
    };
    let mut nodes = vec![own];
    nodes.extend(family.manager.map(str::to_owned));
    for node in &nodes {
        let path = format!("/dev/{node}");
        if !present(node) {
            return Err(Finding::NoDeviceNode { title, address, node: path, driver });
        }
        if tree.access(&format!("dev/{node}")) == Access::Denied {
            return Err(Finding::NoPermission { title, address, group: group(node), node: path });
        }
    }
    Ok(nodes)
}

/// The group that owns a device node where the maker's driver or udev has its default rules.
fn group(node: &str) -> Option<&'static str> {
    if node.starts_with("davinci") {
        return Some("HwHiAiUser");
    }
    let of_render = node.starts_with("dri/") || node.starts_with("accel/") || node == "kfd";
    of_render.then_some("render")
}

/// What the runtime calls the device that is the `index`-th it can open: runtimes number what they
/// find, in the order of addresses.
fn visible_id(class: &str, function: &Function, index: usize) -> String {
    // NeuronCores of a device (AWS Neuron documentation): Neuron numbers cores, not devices.
    let neuron_cores = match class {
        "inferentia" => 4,
        "trainium" | "inferentia2" => 2,
        _ => 0,
    };
    if neuron_cores > 0 {
        let first = index * neuron_cores;
        return format!("{first}-{}", first + neuron_cores - 1);
    }
    // Habana's variable takes the module's number on its board.
    function.module.map_or_else(|| index.to_string(), |module| module.to_string())
}

/// Adds the driver `vulkan` to the candidates it reaches, and what only Vulkan knows.
fn vulkan(
    probe: &VulkanProbe,
    functions: &[Function],
    candidates: &mut Vec<Candidate>,
    findings: &mut Vec<Finding>,
) {
    let devices = match probe {
        VulkanProbe::NotAsked => return,
        VulkanProbe::Found(devices) => devices,
        VulkanProbe::Missing => {
            // Only worth a word where there is a GPU that Vulkan could reach.
            if candidates.iter().any(|candidate| candidate.kind == "gpu") {
                findings.push(Finding::VulkanMissing);
            }
            return;
        }
        VulkanProbe::Failed { why } => {
            return findings.push(Finding::VulkanFailed { why: why.clone() });
        }
        VulkanProbe::Crashed { how } => {
            return findings.push(Finding::VulkanCrashed { how: how.clone() });
        }
        VulkanProbe::TimedOut { limit } => {
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            return findings.push(Finding::VulkanTimedOut { limit_ms });
        }
    };
    for device in devices {
        let address = device.address.or_else(|| only_function(device, functions));
        let known = address.and_then(|address| {
            candidates.iter_mut().find(|candidate| candidate.place.address == Some(address))
        });
        match known {
            Some(candidate) => merge(candidate, device),
            None => {
                // Two drivers may imitate a device; one imitation is enough.
                let software = device.kind == VulkanKind::Software;
                if !software || !candidates.iter().any(|candidate| candidate.software) {
                    candidates.push(vulkan_candidate(device, address));
                }
            }
        }
    }
}

/// An older driver does not tell the address; one function with its ids is it.
fn only_function(device: &VulkanDevice, functions: &[Function]) -> Option<PciAddress> {
    let same = |function: &&Function| {
        u32::from(function.vendor) == device.vendor && u32::from(function.device) == device.device
    };
    let mut matching = functions.iter().filter(same);
    let first = matching.next()?;
    matching.next().is_none().then_some(first.address)
}

fn merge(candidate: &mut Candidate, device: &VulkanDevice) {
    if !candidate.drivers.contains(&"vulkan") {
        candidate.drivers.push("vulkan");
    }
    if candidate.class.is_empty() {
        candidate.class = vulkan_class(device);
        candidate.title = device.name.clone();
    }
    if candidate.visible_id.is_empty() {
        candidate.visible_id = device.index.to_string();
    }
    if candidate.memory == Bytes::ZERO && device.kind == VulkanKind::Discrete {
        candidate.memory = Bytes(device.memory_bytes);
    }
}

fn vulkan_candidate(device: &VulkanDevice, address: Option<PciAddress>) -> Candidate {
    let software = device.kind == VulkanKind::Software;
    let family = |family: &&Family| u32::from(family.vendor_id) == device.vendor;
    let vendor = match device.vendor {
        vendor if vendor == u32::from(catalogue::NVIDIA) => "NVIDIA",
        _ if software => "Mesa",
        _ => catalogue::FAMILIES.iter().find(family).map_or("unknown", |family| family.vendor),
    };
    Candidate {
        prefix: "vulkan",
        class: vulkan_class(device),
        title: device.name.clone(),
        vendor: vendor.to_owned(),
        kind: "gpu",
        software,
        drivers: vec!["vulkan"],
        // An imitated or integrated device uses the node's memory.
        memory: match device.kind {
            VulkanKind::Discrete | VulkanKind::Virtual => Bytes(device.memory_bytes),
            _ => Bytes::ZERO,
        },
        visible_id: device.index.to_string(),
        place: DevicePlace { address, ..DevicePlace::default() },
        ..Candidate::default()
    }
}

fn vulkan_class(device: &VulkanDevice) -> String {
    if device.kind == VulkanKind::Software {
        return "lavapipe".to_owned();
    }
    if device.vendor == u32::from(catalogue::NVIDIA) {
        return catalogue::nvidia_class(&device.name);
    }
    // `AMD Radeon Graphics (RADV GFX1103)`: what is in brackets names the driver.
    let name = device.name.replace("(R)", " ").replace("(TM)", " ").replace("(tm)", " ");
    let slug = parse::slug(name.split('(').next().unwrap_or_default().split_whitespace());
    if slug.is_empty() { "vulkan-gpu".to_owned() } else { slug }
}

/// Rows and links from the processors and from the candidates that some driver runs.
fn assemble(
    tree: &Tree,
    processors: Processors,
    functions: &[Function],
    candidates: Vec<Candidate>,
    findings: Vec<Finding>,
) -> Discovery {
    let name = tree.text("proc/sys/kernel/hostname").filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| "localhost".to_owned());
    let node = Name::from(name.as_str());
    let mut found = Discovery { findings, numa: processors.numa.clone(), ..Discovery::default() };
    let (rack, pod) = (node.clone(), node.clone());
    found.topology.nodes.push(Machine { name: node, memory: processors.memory, rack, pod });
    let sockets = push_sockets(&mut found, &processors, &name);
    found.topology.links = links::socket_links(sockets.iter().cloned());

    let mut on_bus = Vec::new();
    let mut gpus = BTreeMap::new();
    for candidate in candidates.into_iter().filter(|candidate| !candidate.drivers.is_empty()) {
        let address = candidate.place.address;
        let nvlinks = candidate.nvlinks.clone();
        let host = host(candidate.place.numa, &processors.numa, &sockets);
        let device = push(&mut found, candidate);
        let Some(address) = address else { continue };
        gpus.insert(address, (device, nvlinks));
        let at = functions.iter().find(|function| function.address == address);
        on_bus.extend(at.map(|function| OnBus { end: device.into(), function, host }));
    }
    let cards = functions.iter().filter(|function| function.is_network_card()).enumerate();
    let cards: Vec<OnBus<'_>> = cards
        .map(|(number, function)| {
            let end = links::switch(&name, &format!("nic{number}"));
            OnBus { end, function, host: host(function.numa, &processors.numa, &sockets) }
        })
        .collect();
    let ports = links::port_links(tree, &name, &cards);
    on_bus.extend(cards);
    let mut extra: Vec<Link> = links::pcie_links(tree, &name, &on_bus, &mut found.findings);
    extra.extend(links::nvlinks(&name, &gpus));
    extra.extend(ports);
    found.topology.links.extend(extra);
    found
}

/// One device a socket with usable cores. Gives every socket's vertex; one whose cores are all
/// out of reach is a switch, for devices may still hang on it.
fn push_sockets(found: &mut Discovery, processors: &Processors, node: &str) -> Vec<Vertex> {
    let class = class_index(
        &mut found.topology,
        DeviceClass {
            id: processors.class.as_str().into(),
            kind: "cpu".into(),
            vendor: processors.vendor.into(),
            title: processors.title.as_str().into(),
            peak_gflops: None,
            software: false,
        },
    );
    let vertex = |socket: usize| {
        let Some(cores) = processors.sockets.get(&socket) else {
            return links::switch(node, &format!("socket{socket}"));
        };
        let id = DeviceId(found.topology.devices.len() as u32);
        found.topology.devices.push(Device {
            node: NODE,
            name: format!("cpu{socket}").into(),
            class,
            drivers: vec!["cpu".into()],
            capacity: Share::units(cores.len() as u32),
            memory: Bytes::ZERO,
            visible_id: socket.to_string().into(),
        });
        found.cores.insert(id, cores.clone());
        Vertex::Device(id)
    };
    (0..processors.socket_count).map(vertex).collect()
}

/// The socket whose NUMA node a device is on; the only one where the firmware does not say.
fn host(numa: Option<u32>, nodes: &[NumaNode], sockets: &[Vertex]) -> Vertex {
    let socket = numa.and_then(|id| nodes.iter().find(|node| node.id == id)?.socket);
    let socket = socket.or((sockets.len() == 1).then_some(0));
    let vertex = socket.and_then(|socket| sockets.get(socket));
    vertex.cloned().unwrap_or(Vertex::Node(NODE))
}

fn push(found: &mut Discovery, candidate: Candidate) -> DeviceId {
    let topology = &mut found.topology;
    let class = class_index(
        topology,
        DeviceClass {
            id: candidate.class.into(),
            kind: candidate.kind.into(),
            vendor: candidate.vendor.into(),
            title: candidate.title.into(),
            peak_gflops: None,
            software: candidate.software,
        },
    );
    let is_sibling = |device: &&Device| {
        let number = device.name.as_str().strip_prefix(candidate.prefix);
        number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let name =
        format!("{}{}", candidate.prefix, topology.devices.iter().filter(is_sibling).count());
    if candidate.memory == Bytes::ZERO && !candidate.software {
        found.findings.push(Finding::MemoryUnknown { device: name.clone() });
    }
    let id = DeviceId(topology.devices.len() as u32);
    topology.devices.push(Device {
        node: NODE,
        name: name.into(),
        class,
        drivers: candidate.drivers.into_iter().map(Name::from).collect(),
        capacity: Share::WHOLE,
        memory: candidate.memory,
        visible_id: candidate.visible_id.into(),
    });
    found.places.insert(id, candidate.place);
    id
}

fn class_index(topology: &mut Topology, class: DeviceClass) -> usize {
    let known = topology.classes.iter().position(|known| known.id == class.id);
    known.unwrap_or_else(|| {
        topology.classes.push(class);
        topology.classes.len() - 1
    })
}
