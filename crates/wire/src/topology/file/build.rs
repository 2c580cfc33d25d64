//! From a cluster file to the graph, with everything that makes no sense told at its place.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Bytes, DeviceClass, Match, NodeId, Vertex};

use super::shape::{ClassFile, ClusterFile, DeviceFile, FabricFile, GroupFile, LinkFile};
use crate::catalogue::{self, Certainty, Figure, Sheet};
use crate::file::{Problem, Tree};
use crate::quantity;
use crate::topology::fabric::{self, FABRICS, Fabric, PodShape};
use crate::topology::graph::{Card, Graph, Network, Wire};
use crate::topology::node::{Changes, HostChanges};
use crate::topology::template::{self, TEMPLATES};
use crate::topology::word::{self, NODES_MAX, Place};
use crate::topology::{Cluster, rates};
use crate::words;

/// Pod of nodes where nothing is said.
const POD: &str = "pod0";
/// Memory of a node that is spelled out without any: a small machine's.
const MEMORY: Bytes = Bytes::gib(64);
/// Cores of a socket that is spelled out without any.
const CORES: u32 = 1;
/// Speed of a card that is spelled out and has no link with a rate.
const CARD: Bytes = rates::gbit(100);

pub(super) fn build(file: &ClusterFile, tree: &Tree) -> Result<Cluster, Vec<Problem>> {
    let mut reader = Reader { tree, problems: Vec::new(), graph: Graph::default() };
    reader.graph = Graph::new(reader.classes(&file.classes));
    if file.nodes.is_empty() {
        reader.wrong(
            "/nodes",
            "the cluster has no nodes",
            "for example `nodes: [{ template: cpu }]`",
        );
    }
    for (row, group) in file.nodes.iter().enumerate() {
        reader.group(group, &format!("/nodes/{row}"));
    }
    let fabric = match &file.fabric {
        Some(shape) => reader.fabric(shape),
        // Who spells out links between nodes has no other fabric.
        None => Fabric::named(word::FLAT).filter(|_| file.links.is_empty()),
    };
    if let Some(fabric) = fabric {
        fabric::join(&mut reader.graph, &fabric);
    }
    reader.links(&file.switches, &file.links);
    match reader.problems.is_empty() {
        true => Ok(reader.graph.finish(&file.metadata.name)),
        false => Err(reader.problems),
    }
}

struct Reader<'a> {
    tree: &'a Tree,
    problems: Vec<Problem>,
    graph: Graph,
}

impl Reader<'_> {
    fn wrong(&mut self, pointer: &str, message: impl Into<String>, hint: impl Into<String>) {
        self.problems.push(self.tree.at(pointer).problem(message, hint.into()));
    }

    /// The sheets that the file changes or adds.
    fn classes(&mut self, classes: &BTreeMap<String, ClassFile>) -> BTreeMap<String, Sheet> {
        let mut own = BTreeMap::new();
        for (id, class) in classes {
            let pointer = format!("/classes/{}", id.replace('~', "~0").replace('/', "~1"));
            let base = class.like.as_deref().unwrap_or(id);
            let Some(base) = catalogue::sheet(base) else {
                let hint = match class.like {
                    Some(_) => word::hint(base, ids()),
                    None => "add `like:` with the class that is nearest to it".to_owned(),
                };
                self.wrong(&pointer, format!("`{base}` is no class of the catalogue"), hint);
                continue;
            };
            for (name, figure) in figures(class) {
                if !(0.0..=FIGURE_MAX).contains(&figure) {
                    let pointer = format!("{pointer}/{name}");
                    let hint = "write what the maker states; 0 says that it has none";
                    self.wrong(&pointer, format!("no device has {figure} there"), hint);
                }
            }
            let memory = class.memory.as_deref().map(|text| self.size(text, &pointer, "memory"));
            own.insert(id.clone(), changed(base, id, class, memory.flatten()));
        }
        own
    }

    fn size(&mut self, text: &str, pointer: &str, field: &str) -> Option<Bytes> {
        let size = quantity::size(text).filter(|size| *size > Bytes::ZERO);
        if size.is_none() {
            let message = format!("`{text}` is not a size");
            self.wrong(&format!("{pointer}/{field}"), message, "write a size such as `64GiB`");
        }
        size
    }

    fn rate(&mut self, text: &str, pointer: &str) -> Option<Bytes> {
        let rate = quantity::rate(text).filter(|rate| *rate > Bytes::ZERO);
        if rate.is_none() {
            let message = format!("`{text}` is not a bandwidth");
            self.wrong(pointer, message, "write `25GB/s`, or `400G` for a port of the network");
        }
        rate
    }

    /// The sheet that a word stands for.
    fn class(&mut self, word: &str, pointer: &str) -> Option<Sheet> {
        if let Some(sheet) = self.graph.sheet(word) {
            return Some(sheet.clone());
        }
        let own: Vec<DeviceClass> = self.graph.own.values().map(Sheet::class).collect();
        let hint = match words::alternatives(word, &own).as_deref() {
            Ok([(selector, 1)]) => match &selector.matches {
                Match::Classes(found) => match found.as_slice() {
                    [only] => return self.graph.sheet(only.as_str()).cloned(),
                    several => {
                        let ids = several.iter().map(|id| format!("`{id}`"));
                        format!("say which: {}", ids.collect::<Vec<_>>().join(", "))
                    }
                },
                _ => "name a model such as `h100-sxm5-80`".to_owned(),
            },
            Err((_, error)) => error.hint(),
            Ok(_) => "name one class".to_owned(),
        };
        self.wrong(pointer, format!("`{word}` is no device class"), hint);
        None
    }

    fn group(&mut self, group: &GroupFile, pointer: &str) {
        if group.count == 0 {
            let hint = "write `count: 1`, or leave the group out";
            return self.wrong(&format!("{pointer}/count"), "a group of 0 nodes", hint);
        }
        let nodes = self.graph.topology.nodes.len() as u64;
        let each = group.template.as_deref().and_then(template::by_name).map_or(1, |it| it.nodes);
        if nodes + u64::from(group.count) * u64::from(each) > u64::from(NODES_MAX) {
            let message = format!("the cluster has more than {NODES_MAX} nodes");
            return self.wrong(&format!("{pointer}/count"), message, "take fewer");
        }
        let mut size = |text: &Option<String>, field: &str| {
            text.as_deref().and_then(|text| self.size(text, pointer, field))
        };
        let host = HostChanges {
            memory: size(&group.memory, "memory"),
            scratch: size(&group.scratch, "scratch"),
            read: None,
        };
        let rate = group.read.as_deref();
        let read = rate.and_then(|text| self.rate(text, &format!("{pointer}/read")));
        let host = HostChanges { read, ..host };
        match &group.template {
            Some(name) => self.templated(name, group, pointer, host),
            None => self.spelled(group, pointer, host),
        }
    }

    fn templated(&mut self, name: &str, group: &GroupFile, pointer: &str, host: HostChanges) {
        let Some(template) = template::by_name(name) else {
            let hint = word::hint(name, TEMPLATES.iter().map(|template| template.name));
            let message = format!("`{name}` is no node template");
            return self.wrong(&format!("{pointer}/template"), message, hint);
        };
        if !(group.devices.is_empty() && group.switches.is_empty() && group.links.is_empty()) {
            let hint = "take the group's `template` out and spell the whole node out, or the other \
                        way round";
            self.wrong(pointer, format!("`{name}` already says what stands in the node"), hint);
        }
        let accelerator = group.accelerator.as_deref();
        let accelerator =
            accelerator.map(|word| self.class(word, &format!("{pointer}/accelerator")));
        let speed = group.card_speed.as_deref();
        let speed = speed.map(|text| self.rate(text, &format!("{pointer}/card_speed")));
        let changes =
            Changes { accelerator: accelerator.flatten(), host, card_speed: speed.flatten() };
        let place = Place {
            names: group.name.as_deref().unwrap_or("node"),
            pod: group.pod.as_deref().unwrap_or(POD),
            rack: group.rack.as_deref(),
        };
        word::several(&mut self.graph, &template, group.count, place, &changes);
    }

    /// Nodes whose devices and links the file names one by one.
    fn spelled(&mut self, group: &GroupFile, pointer: &str, host: HostChanges) {
        if group.devices.is_empty() {
            let hint = "name a `template`, or `devices`";
            return self.wrong(pointer, "a group of nodes without devices", hint);
        }
        for (field, given) in
            [("accelerator", &group.accelerator), ("card_speed", &group.card_speed)]
        {
            if given.is_some() {
                let message = format!("`{field}` belongs to a template");
                self.wrong(
                    &format!("{pointer}/{field}"),
                    message,
                    "say it of the devices or links",
                );
            }
        }
        let before = self.problems.len();
        let sheets = self.devices(&group.devices, pointer);
        let known = |word: &str| {
            word == "node"
                || group.devices.iter().any(|device| device.name == word)
                || group.switches.iter().any(|switch| switch == word)
        };
        let names: BTreeSet<&str> = group
            .devices
            .iter()
            .map(|device| device.name.as_str())
            .chain(group.switches.iter().map(String::as_str))
            .chain(["node"])
            .collect();
        let mut wires = Vec::new();
        for (row, link) in group.links.iter().enumerate() {
            let at = format!("{pointer}/links/{row}");
            let wire = self.wire(link, &at);
            for (field, end) in [("from", &link.from), ("to", &link.to)] {
                if !known(end) {
                    self.dangling(&format!("{at}/{field}"), end, names.iter().copied());
                }
            }
            wires.push(wire);
        }
        if self.problems.len() > before {
            return;
        }
        let names = group.name.as_deref().unwrap_or("node");
        let prefix = format!("{names}-");
        let nodes = self.graph.topology.nodes.iter();
        let first = nodes.filter(|node| node.name.as_str().starts_with(&prefix)).count() as u32;
        for number in 0..group.count {
            let name = format!("{prefix}{}", first + number);
            let pod = group.pod.as_deref().unwrap_or(POD);
            let rack = group.rack.as_deref().unwrap_or(pod);
            let node = self.graph.node(&name, host.or_memory(MEMORY), rack, pod);
            self.one(group, &sheets, &wires, (node, &name));
        }
    }

    /// The sheet and own memory of each device.
    fn devices(&mut self, devices: &[DeviceFile], pointer: &str) -> Vec<Option<Sheet>> {
        let mut seen = BTreeSet::new();
        let mut sheets = Vec::new();
        for (row, device) in devices.iter().enumerate() {
            let at = format!("{pointer}/devices/{row}");
            if !seen.insert(&device.name) {
                let message = format!("two devices of the node are named `{}`", device.name);
                self.wrong(&format!("{at}/name"), message, "number them: `gpu0`, `gpu1`");
            }
            let memory = device.memory.as_deref().map(|text| self.size(text, &at, "memory"));
            let mut sheet = self.class(&device.class, &format!("{at}/class"));
            if let (Some(sheet), Some(memory)) = (&mut sheet, memory.flatten()) {
                sheet.memory_gib = Figure::Known(memory.0 as f64 / (1_u64 << 30) as f64);
            }
            sheets.push(sheet);
        }
        sheets
    }

    /// One node of a group that was found sound.
    fn one(
        &mut self,
        group: &GroupFile,
        sheets: &[Option<Sheet>],
        wires: &[Wire<'_>],
        (node, name): (NodeId, &str),
    ) {
        let mut ends: BTreeMap<&str, Vertex> = BTreeMap::from([("node", Vertex::Node(node))]);
        for (device, sheet) in group.devices.iter().zip(sheets) {
            let Some(sheet) = sheet else { continue };
            let cores = device.cores.unwrap_or(CORES);
            let id = self.graph.device(node, &device.name, sheet, cores);
            ends.insert(&device.name, Vertex::Device(id));
        }
        for switch in &group.switches {
            ends.insert(switch, Vertex::Switch(format!("{name}/{switch}").into()));
        }
        for (link, wire) in group.links.iter().zip(wires) {
            self.graph.link(
                ends[link.from.as_str()].clone(),
                ends[link.to.as_str()].clone(),
                *wire,
            );
        }
        for switch in &group.switches {
            let Some(rail) = switch.strip_prefix("nic").and_then(|rail| rail.parse().ok()) else {
                continue;
            };
            let vertex = ends[switch.as_str()].clone();
            let of_nic = group.links.iter().zip(wires);
            let speed = of_nic.filter(|(link, wire)| {
                wire.kind == "nic" && (link.from == *switch || link.to == *switch)
            });
            let speed = speed.filter_map(|(_, wire)| wire.bandwidth).max().unwrap_or(CARD);
            self.graph.cards.push(Card { vertex, node, rail, speed, network: Network::Compute });
        }
    }

    fn wire<'text>(&mut self, link: &'text LinkFile, pointer: &str) -> Wire<'text> {
        if link.count == 0 {
            let hint = "write `count: 1`, or leave the link out";
            self.wrong(&format!("{pointer}/count"), "a link of 0 cables", hint);
        }
        let bandwidth = link.bandwidth.as_deref();
        let bandwidth = bandwidth.map(|text| self.rate(text, &format!("{pointer}/bandwidth")));
        Wire {
            kind: &link.kind,
            bandwidth: bandwidth.flatten(),
            count: link.count,
            latency_ns: link.latency_ns,
        }
    }

    fn dangling<'text>(
        &mut self,
        pointer: &str,
        end: &str,
        names: impl Iterator<Item = &'text str> + Clone,
    ) {
        let hint = match words::closest(end, names.clone()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "add it to `devices` or `switches`".to_owned(),
        };
        self.wrong(pointer, format!("the link ends at `{end}`, which does not exist"), hint);
    }

    fn fabric(&mut self, file: &FabricFile) -> Option<Fabric> {
        let Some(mut fabric) = Fabric::named(&file.template) else {
            let hint = word::hint(&file.template, FABRICS.into_iter());
            let message = format!("`{}` is no fabric", file.template);
            self.wrong("/fabric/template", message, hint);
            return None;
        };
        let speed = file.speed.as_deref().map(|text| self.rate(text, "/fabric/speed"));
        let of = self.at_least_one(file.oversubscription, "/fabric/oversubscription");
        fabric.default_pod = PodShape { speed: speed.flatten(), oversubscription: of };
        fabric.between_pods = self.at_least_one(file.between_pods, "/fabric/between_pods");
        for (field, number) in [("nodes_per_leaf", file.nodes_per_leaf), ("spines", file.spines)] {
            if number == Some(0) {
                let message = format!("`{field}` is 0");
                self.wrong(&format!("/fabric/{field}"), message, "write at least 1");
                return None;
            }
        }
        fabric.nodes_per_leaf = file.nodes_per_leaf;
        fabric.spines = file.spines;
        let pods: BTreeSet<String> =
            self.graph.topology.nodes.iter().map(|node| node.pod.to_string()).collect();
        for (name, pod) in &file.pods {
            let at = format!("/fabric/pods/{}", name.replace('~', "~0").replace('/', "~1"));
            // Where a group was refused its pod is missing for that reason.
            if !pods.contains(name) && self.problems.is_empty() {
                let hint = word::hint(name, pods.iter().map(String::as_str));
                self.wrong(&at, format!("no node stands in the pod `{name}`"), hint);
            }
            let speed = pod.speed.as_deref().map(|text| self.rate(text, &format!("{at}/speed")));
            let speed = speed.flatten().or(fabric.default_pod.speed);
            let of = pod.oversubscription.or(file.oversubscription);
            let of = self.at_least_one(of, &format!("{at}/oversubscription"));
            fabric.pods.insert(name.clone(), PodShape { speed, oversubscription: of });
        }
        Some(fabric)
    }

    fn at_least_one(&mut self, ratio: Option<f64>, pointer: &str) -> f64 {
        let ratio = ratio.unwrap_or(1.0);
        if ratio >= 1.0 {
            return ratio;
        }
        let hint = "1 is a fabric that never blocks; 2 has half as much above as below";
        self.wrong(pointer, format!("an oversubscription of {ratio} is below 1"), hint);
        1.0
    }

    /// Links between nodes, to switches that the file names or the fabric has.
    fn links(&mut self, switches: &[String], links: &[LinkFile]) {
        if links.is_empty() {
            return;
        }
        let refused = !self.problems.is_empty();
        let topology = &self.graph.topology;
        let mut ends: BTreeMap<String, Vertex> = BTreeMap::new();
        for switch in switches {
            ends.insert(switch.clone(), Vertex::Switch(switch.as_str().into()));
        }
        for id in topology.device_ids() {
            let device = topology.device(id);
            let node = &topology.node(device.node).name;
            ends.insert(format!("{node}/{}", device.name), Vertex::Device(id));
        }
        for vertex in topology.links.iter().flat_map(|link| [&link.from, &link.to]) {
            if let Vertex::Switch(name) = vertex {
                ends.insert(name.to_string(), vertex.clone());
            }
        }
        for (row, link) in links.iter().enumerate() {
            let at = format!("/links/{row}");
            let wire = self.wire(link, &at);
            match (ends.get(&link.from), ends.get(&link.to)) {
                (Some(from), Some(to)) => self.graph.link(from.clone(), to.clone(), wire),
                // Where a group was refused its ends are missing for that reason.
                _ if refused => {}
                (from, to) => {
                    for (field, end, found) in [("from", &link.from, from), ("to", &link.to, to)] {
                        if found.is_none() {
                            let names = ends.keys().map(String::as_str);
                            self.dangling(&format!("{at}/{field}"), end, names);
                        }
                    }
                }
            }
        }
    }
}

fn ids() -> impl Iterator<Item = &'static str> + Clone {
    catalogue::sheets().iter().map(|sheet| sheet.id.as_str())
}

/// More than any device will have of anything, in TFLOP/s, GB/s or W.
const FIGURE_MAX: f64 = 1e9;

/// What a file says of a class in numbers, by the names there.
fn figures(class: &ClassFile) -> impl Iterator<Item = (&'static str, f64)> {
    let all = [
        ("fp32_tflops", class.fp32_tflops),
        ("tf32_tflops", class.tf32_tflops),
        ("bf16_tflops", class.bf16_tflops),
        ("int8_tops", class.int8_tops),
        ("fp8_tflops", class.fp8_tflops),
        ("memory_gbps", class.memory_gbps),
        ("power_w", class.power_w),
        ("peer_gbps", class.peer_gbps),
    ];
    all.into_iter().filter_map(|(name, figure)| Some((name, figure?)))
}

/// The sheet with what its owner says instead.
fn changed(base: &Sheet, id: &str, class: &ClassFile, memory: Option<Bytes>) -> Sheet {
    let figure = |own: Option<f64>, known: Figure| match own {
        Some(0.0) => Figure::Absent,
        Some(value) => Figure::Known(value),
        None => known,
    };
    let text = |own: &Option<String>, known: &str| own.clone().unwrap_or_else(|| known.to_owned());
    let gib = memory.map(|memory| memory.0 as f64 / (1_u64 << 30) as f64);
    Sheet {
        id: id.to_owned(),
        title: text(&class.title, if id == base.id { &base.title } else { id }),
        vendor: text(&class.vendor, &base.vendor),
        kind: text(&class.kind, &base.kind),
        fp32_tflops: figure(class.fp32_tflops, base.fp32_tflops),
        tf32_tflops: figure(class.tf32_tflops, base.tf32_tflops),
        half_tflops: figure(class.bf16_tflops, base.half_tflops),
        int8_tops: figure(class.int8_tops, base.int8_tops),
        fp8_tflops: figure(class.fp8_tflops, base.fp8_tflops),
        memory_gib: figure(gib, base.memory_gib),
        memory_gbps: figure(class.memory_gbps, base.memory_gbps),
        power_w: figure(class.power_w, base.power_w),
        peer_link: text(&class.peer_link, &base.peer_link),
        peer_gbps: figure(class.peer_gbps, base.peer_gbps),
        host_link: text(&class.host_link, &base.host_link),
        certainty: Certainty::Own,
        source: text(&class.source, "the cluster file"),
    }
}
