//! What changed about this machine since its store was used last.

use std::collections::BTreeSet;

use het_core::{Bytes, DeviceId, Node, State, Topology};

/// Of the memory that was there before, less than this part is told of. A kernel's update takes or
/// gives some.
const ABOUT_ALL: f64 = 0.98;

/// The machine under the name that the store knows it by: a host may be renamed.
pub fn under_known_name(known: &Topology, found: &Topology) -> Topology {
    let mut found = found.clone();
    if let ([known], [found]) = (&known.nodes[..], &mut found.nodes[..]) {
        found.name = known.name.clone();
    }
    found
}

/// A sentence for each change; none where the store is new.
pub fn news(state: &State, found: &Topology) -> Vec<String> {
    let known = state.topology();
    if known.nodes.is_empty() {
        return Vec::new();
    }
    let joined = state.joined_by(found);
    let memory = joined.nodes.iter().zip(&found.nodes);
    let memory = memory.filter_map(|(id, now)| shrunk(known.nodes.get(id.index())?, now.memory));
    let present: BTreeSet<DeviceId> = joined.devices.iter().copied().collect();
    let name = |id: DeviceId| &joined.topology.device(id).name;
    let new = present.iter().filter(|id| id.index() >= known.devices.len());
    let new = new.map(|&id| format!("`{}` is new", name(id)));
    let gone = known.device_ids().filter(|id| !present.contains(id)).map(|id| {
        format!("`{}` is not there any more: nothing starts on it until it is back", name(id))
    });
    memory.chain(new).chain(gone).collect()
}

fn shrunk(known: &Node, now: Bytes) -> Option<String> {
    let before = known.memory;
    let shrunk = (now.0 as f64) < ABOUT_ALL * before.0 as f64;
    shrunk.then(|| {
        format!("memory is {now} and was {before}: jobs may be promised what is not there")
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use het_core::{Device, DeviceClass, NodeId, Share};

    use super::*;

    fn machine(name: &str, gib: u64, devices: &[&str]) -> Topology {
        let class = DeviceClass {
            id: "h100".into(),
            kind: "gpu".into(),
            vendor: "NVIDIA".into(),
            title: "h100".into(),
            peak_gflops: None,
            software: false,
        };
        let device = |name: &&str| Device {
            node: NodeId(0),
            name: (*name).into(),
            class: 0,
            drivers: vec!["cuda".into()],
            capacity: Share::WHOLE,
            memory: Bytes::gib(80),
            visible_id: (*name).into(),
        };
        let (rack, pod) = ("rack".into(), "pod".into());
        Topology {
            classes: vec![class],
            nodes: vec![Node { name: name.into(), memory: Bytes::gib(gib), rack, pod }],
            devices: devices.iter().map(device).collect(),
            links: Vec::new(),
        }
    }

    fn told(known: &Topology, found: &Topology) -> Vec<String> {
        news(&State::new(Arc::new(known.clone())), found)
    }

    #[test]
    fn an_unchanged_machine_is_no_news_and_neither_is_a_new_store() {
        let box_ = machine("box", 64, &["cuda0", "cuda1"]);
        assert!(told(&box_, &box_).is_empty());
        assert!(told(&Topology::default(), &box_).is_empty());
    }

    #[test]
    fn devices_that_come_and_go_are_told() {
        let news = told(&machine("box", 64, &["cuda0"]), &machine("box", 64, &["cuda1"]));
        assert_eq!(news.len(), 2);
        assert_eq!(news[0], "`cuda1` is new");
        assert!(news[1].starts_with("`cuda0` is not there any more"), "{news:?}");
    }

    #[test]
    fn memory_that_is_missing_is_told() {
        let known = machine("box", 64, &[]);
        assert_eq!(told(&known, &machine("box", 32, &[])).len(), 1);
        let mut about = known.clone();
        about.nodes[0].memory = Bytes(Bytes::gib(64).0 - 4096);
        assert!(told(&known, &about).is_empty());
    }

    #[test]
    fn a_renamed_host_is_the_same_machine() {
        let (known, found) = (machine("box", 64, &["cuda0"]), machine("laptop", 64, &["cuda0"]));
        assert_eq!(under_known_name(&known, &found), known);
        assert_eq!(under_known_name(&Topology::default(), &found), found);
    }
}
