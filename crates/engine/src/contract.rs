//! One suite for every engine: fake, simulator and node.
//!
//! An engine's test calls [`check_all`] with a [`Subject`]: how the engine is built, how the loop
//! over it dies, and programs ([`Launch`]) that behave as each [`Script`] says.

mod adoption;
mod membership;
mod plans;
mod world;

use std::sync::Arc;

use het_core::{
    Bytes, Device, DeviceClass, Event, HostResources, Launch, Millis, Node, NodeId, Share,
    StageKey, Topology,
};

use crate::{Engine, Script};
use world::World;

/// Grace that the suite gives to stops.
pub const GRACE: Millis = Millis(300);

/// Units of each device that the suite uses.
pub const UNITS: u32 = 8;

/// An engine as the suite needs it.
pub trait Subject {
    type Engine: Engine;

    /// An engine over [`topology`], of which it runs at least [`this_node`], and one launch a
    /// script. Each call has nothing to do with those
    /// before.
    fn build(&self, scripts: &[(StageKey, Script)]) -> (Self::Engine, Vec<Launch>);

    /// The loop over the engine dies without a word, and what runs goes on: the engine that the
    /// next loop uses. What was told and not committed may have been heard by nobody.
    fn crash(&self, engine: Self::Engine) -> Self::Engine;

    /// Has the engine report a fact that somebody else found.
    fn report(&self, engine: &mut Self::Engine, event: Event);
}

/// Two nodes, each with one CPU socket of [`UNITS`] cores.
pub fn topology() -> Topology {
    let mut both = this_node();
    both.nodes.push(Node { name: "n1".into(), ..both.nodes[0].clone() });
    both.devices.push(Device { node: NodeId(1), ..both.devices[0].clone() });
    both
}

/// The first node of [`topology`].
pub fn this_node() -> Topology {
    let class = DeviceClass {
        id: "cpu".into(),
        kind: "cpu".into(),
        vendor: "test".into(),
        title: "cpu".into(),
        peak_gflops: None,
        software: false,
    };
    let host = HostResources::with_memory(Bytes::gib(16));
    let node = Node { name: "n0".into(), host, rack: "r".into(), pod: "p".into() };
    let device = Device {
        node: NodeId(0),
        name: "cpu0".into(),
        class: 0,
        drivers: vec!["cpu".into()],
        capacity: Share::units(UNITS),
        memory: Bytes::ZERO,
        visible_id: "0".into(),
    };
    Topology { classes: vec![class], nodes: vec![node], devices: vec![device], links: Vec::new() }
}

type Case<S> = (&'static str, fn(World<'_, S>));

fn cases<S: Subject>() -> Vec<Case<S>> {
    [plans::cases(), adoption::cases(), membership::cases()].into_iter().flatten().collect()
}

/// Runs every case of the contract, each on an engine of its own.
///
/// # Panics
/// On the first case that the engine fails, naming it.
pub fn check_all<S: Subject>(subject: &S) {
    let topology = Arc::new(topology());
    for (name, case) in cases() {
        case(World::new(subject, Arc::clone(&topology), name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fake;

    struct FakeSubject;

    impl Subject for FakeSubject {
        type Engine = Fake;

        fn build(&self, scripts: &[(StageKey, Script)]) -> (Fake, Vec<Launch>) {
            (Fake::new(scripts.iter().copied()), vec![Launch::default(); scripts.len()])
        }

        fn crash(&self, engine: Fake) -> Fake {
            engine
        }

        fn report(&self, engine: &mut Fake, event: Event) {
            engine.report(event);
        }
    }

    #[test]
    fn the_fake_keeps_the_contract() {
        check_all(&FakeSubject);
    }

    #[test]
    fn the_suite_has_names_of_its_own_for_its_cases() {
        let mut names: Vec<&str> =
            cases::<FakeSubject>().into_iter().map(|(name, _)| name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == count && count >= 20, "{count} cases");
    }
}
