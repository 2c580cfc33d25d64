//! The machine as it is now, in the rows that its store knows. An id keeps its meaning for as long
//! as the store lives: a new device is appended, one that is gone keeps its row.

use std::collections::BTreeSet;

use het_core::{Device, DeviceClass, DeviceId, Event, Link, Name, Node, State, Topology, Vertex};

/// Of the memory that was there before, less than this part is told of. A kernel's update takes or
/// gives some.
const ABOUT_ALL: f64 = 0.98;

/// What was found, in known rows.
#[derive(Debug)]
pub struct Inventory {
    pub topology: Topology,
    /// The row of every device that was found, in the order of discovery.
    pub rows: Vec<DeviceId>,
    /// Known devices that were not found.
    pub gone: BTreeSet<DeviceId>,
    /// A sentence for each change.
    pub news: Vec<String>,
}

impl Inventory {
    /// `known` and `found` are each of one node.
    pub fn of(known: &Topology, found: &Topology) -> Self {
        let mut topology = known.clone();
        let classes: Vec<usize> =
            found.classes.iter().map(|class| class_row(&mut topology.classes, class)).collect();
        let mut news: Vec<String> = found
            .nodes
            .iter()
            .zip(&mut topology.nodes)
            .filter_map(|(node, known)| renew(known, node))
            .collect();
        let mut rows: Vec<DeviceId> = Vec::new();
        for device in &found.devices {
            let device = Device { class: classes[device.class], ..device.clone() };
            let is_it =
                |id: &DeviceId| !rows.contains(id) && is_same(topology.device(*id), &device);
            let row = known.device_ids().find(is_it);
            rows.push(row.unwrap_or(DeviceId(topology.devices.len() as u32)));
            match row {
                Some(id) => {
                    let known = &mut topology.devices[id.index()];
                    *known = Device { name: known.name.clone(), ..device };
                }
                None => {
                    let name = free_name(&topology, &device);
                    news.push(format!("`{name}` is new"));
                    topology.devices.push(Device { name, ..device });
                }
            }
        }
        let gone: BTreeSet<DeviceId> = known.device_ids().filter(|id| !rows.contains(id)).collect();
        news.extend(gone.iter().map(|id| {
            let name = &known.device(*id).name;
            format!("`{name}` is not there any more: nothing starts on it until it is back")
        }));
        topology.links = found.links.iter().map(|link| in_rows(link, &rows)).collect();
        Self { topology, rows, gone, news }
    }
}

/// Devices that are gone go out of service; those that were out of service for that and are back
/// return to it.
pub fn availability_changes(
    state: &State,
    gone_before: &BTreeSet<DeviceId>,
    gone: &BTreeSet<DeviceId>,
) -> Vec<Event> {
    let fails = gone.iter().filter(|id| !state.has_failed(**id));
    let fails = fails.map(|&device| Event::DeviceFailed { device });
    let returns = gone_before.difference(gone).filter(|id| state.has_failed(**id));
    fails.chain(returns.map(|&device| Event::DeviceRepaired { device })).collect()
}

/// The row of a class, brought up to date.
fn class_row(known: &mut Vec<DeviceClass>, class: &DeviceClass) -> usize {
    match known.iter().position(|row| row.id == class.id) {
        Some(row) => {
            known[row] = class.clone();
            row
        }
        None => {
            known.push(class.clone());
            known.len() - 1
        }
    }
}

/// The node as it is now. It never has less memory than it had: what was promised of it must hold
/// when the log is read again.
fn renew(known: &mut Node, found: &Node) -> Option<String> {
    let before = known.memory;
    *known = Node { memory: before.max(found.memory), ..found.clone() };
    let shrunk = (found.memory.0 as f64) < ABOUT_ALL * before.0 as f64;
    shrunk.then(|| {
        let now = found.memory;
        format!("memory is {now} and was {before}: jobs may be promised what is not there")
    })
}

/// Whether it is the same thing, whatever it is called today: a device that falls off the bus
/// moves the numbers of those behind it.
fn is_same(known: &Device, found: &Device) -> bool {
    (known.class, known.capacity, &known.visible_id)
        == (found.class, found.capacity, &found.visible_id)
}

/// Its own name, or the next of its kind that is free.
fn free_name(topology: &Topology, device: &Device) -> Name {
    let taken = |name: &str| topology.devices.iter().any(|known| known.name == name);
    if !taken(device.name.as_str()) {
        return device.name.clone();
    }
    let kind = device.name.as_str().trim_end_matches(|c: char| c.is_ascii_digit());
    let mut names = (0..).map(|number: u32| format!("{kind}{number}"));
    names.find(|name| !taken(name)).map_or_else(|| device.name.clone(), Name::from)
}

fn in_rows(link: &Link, rows: &[DeviceId]) -> Link {
    let end = |vertex: &Vertex| match vertex {
        Vertex::Device(id) => Vertex::Device(rows[id.index()]),
        other => other.clone(),
    };
    Link { from: end(&link.from), to: end(&link.to), ..link.clone() }
}

#[cfg(test)]
mod tests {
    use het_core::{Bytes, NodeId, Share};

    use super::*;

    fn device(name: &str, class: usize, visible_id: &str) -> Device {
        Device {
            node: NodeId(0),
            name: name.into(),
            class,
            drivers: vec!["cuda".into()],
            capacity: Share::WHOLE,
            memory: Bytes::gib(80),
            visible_id: visible_id.into(),
        }
    }

    fn class(id: &str) -> DeviceClass {
        DeviceClass {
            id: id.into(),
            kind: "gpu".into(),
            vendor: "NVIDIA".into(),
            title: id.into(),
            peak_gflops: None,
            software: false,
        }
    }

    fn machine(devices: &[(&str, usize, &str)], classes: &[&str]) -> Topology {
        let of = |&(name, class, id): &(&str, usize, &str)| device(name, class, id);
        let node = Node {
            name: "box".into(),
            memory: Bytes::gib(64),
            rack: "rack".into(),
            pod: "pod".into(),
        };
        Topology {
            classes: classes.iter().map(|id| class(id)).collect(),
            nodes: vec![node],
            devices: devices.iter().map(of).collect(),
            links: Vec::new(),
        }
    }

    fn names(topology: &Topology) -> Vec<&str> {
        topology.devices.iter().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn an_unchanged_machine_is_no_news() {
        let known = machine(&[("cuda0", 0, "a"), ("cuda1", 0, "b")], &["h100"]);
        let same = Inventory::of(&known, &known);
        assert_eq!((&same.topology, same.news.len(), same.gone.len()), (&known, 0, 0));
        assert_eq!(same.rows, [DeviceId(0), DeviceId(1)]);
    }

    #[test]
    fn what_falls_off_the_bus_keeps_its_row_and_the_others_their_names() {
        let known = machine(&[("cuda0", 0, "a"), ("cuda1", 0, "b"), ("cuda2", 0, "c")], &["h100"]);
        let found = machine(&[("cuda0", 0, "a"), ("cuda1", 0, "c")], &["h100"]);
        let now = Inventory::of(&known, &found);
        assert_eq!(now.topology, known);
        assert_eq!(now.rows, [DeviceId(0), DeviceId(2)]);
        assert_eq!(now.gone, BTreeSet::from([DeviceId(1)]));
        assert!(now.news[0].starts_with("`cuda1` is not there any more"), "{:?}", now.news);
    }

    #[test]
    fn what_is_new_comes_behind_under_a_free_name() {
        let known = machine(&[("cuda0", 0, "a"), ("cuda1", 0, "b")], &["v100"]);
        let found = machine(&[("cuda0", 0, "x"), ("cuda1", 1, "b")], &["h100", "v100"]);
        let now = Inventory::of(&known, &found);
        assert_eq!(names(&now.topology), ["cuda0", "cuda1", "cuda2"]);
        assert_eq!(now.rows, [DeviceId(2), DeviceId(1)]);
        let class_of = |id| now.topology.class_of(DeviceId(id)).id.as_str();
        assert_eq!([0, 1, 2].map(class_of), ["v100", "v100", "h100"]);
        assert_eq!(now.topology.validate(), Ok(()));
        assert_eq!(Inventory::of(&now.topology, &found).topology, now.topology);
    }

    #[test]
    fn links_lead_to_the_same_devices() {
        let known = machine(&[("cuda0", 0, "a"), ("cuda1", 0, "b")], &["h100"]);
        let mut found = machine(&[("cuda0", 0, "b")], &["h100"]);
        let (from, to) = (Vertex::Device(DeviceId(0)), Vertex::Switch("socket0".into()));
        let kind = "pcie".into();
        found.links = vec![Link { from, to, kind, bandwidth: None, count: 1, latency_ns: None }];
        let now = Inventory::of(&known, &found);
        assert_eq!(now.topology.links[0].from, Vertex::Device(DeviceId(1)));
    }

    #[test]
    fn memory_that_is_missing_is_told_and_still_counted() {
        let known = machine(&[], &[]);
        let mut found = known.clone();
        found.nodes[0].memory = Bytes::gib(32);
        let now = Inventory::of(&known, &found);
        assert_eq!((now.topology.nodes[0].memory, now.news.len()), (Bytes::gib(64), 1));
        found.nodes[0].memory = Bytes(Bytes::gib(64).0 - 4096);
        assert_eq!(Inventory::of(&known, &found).news.len(), 0);
    }
}
