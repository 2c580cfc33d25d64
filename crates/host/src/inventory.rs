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
    let memory =
        memory.filter_map(|(id, now)| shrunk(known.nodes.get(id.index())?, now.host.memory));
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
    let before = known.host.memory;
    let shrunk = (now.0 as f64) < ABOUT_ALL * before.0 as f64;
    shrunk.then(|| {
        format!("memory is {now} and was {before}: jobs may be promised what is not there")
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use het_testkit::build::{NODE_MEMORY, topology};

    use super::*;

    fn machine(gpus: u32) -> Topology {
        topology(&[(&[("h100", gpus)], 2)])
    }

    fn told(known: &Topology, found: &Topology) -> Vec<String> {
        news(&State::new(Arc::new(known.clone())), found)
    }

    #[test]
    fn an_unchanged_machine_is_no_news_and_neither_is_a_new_store() {
        assert!(told(&machine(2), &machine(2)).is_empty());
        assert!(told(&Topology::default(), &machine(2)).is_empty());
    }

    #[test]
    fn devices_that_come_and_go_are_told() {
        assert_eq!(told(&machine(1), &machine(2)), ["`h1001` is new"]);
        let news = told(&machine(2), &machine(1));
        assert_eq!(news.len(), 1);
        assert!(news[0].starts_with("`h1001` is not there any more"), "{news:?}");
    }

    #[test]
    fn memory_that_is_missing_is_told() {
        let with = |memory| {
            let mut found = machine(1);
            found.nodes[0].host.memory = memory;
            told(&machine(1), &found).len()
        };
        assert_eq!(with(Bytes(NODE_MEMORY.0 / 2)), 1);
        assert_eq!(with(Bytes(NODE_MEMORY.0 - 4096)), 0);
    }

    #[test]
    fn a_renamed_host_is_the_same_machine() {
        let mut found = machine(1);
        found.nodes[0].name = "laptop".into();
        assert_eq!(under_known_name(&machine(1), &found), machine(1));
        assert_eq!(under_known_name(&Topology::default(), &found), found);
    }
}
